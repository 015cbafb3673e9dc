//! Fairlead beside kube-proxies in nftables mode, on one deployment: a real API server, and each proxy on a node of its
//! own, in turn.
//!
//! ```text
//!   etcd ── kube-apiserver ──▶ frontend ──TLS──▶ backend │ kube-proxy │ another kube-proxy ──▶ nf_tables ◀── a client
//!   └──────────── control plane ────────────┘    └──── each with a network namespace of its own ────┘
//! ```
//!
//! | module | does |
//! |---|---|
//! | `control_plane`, `api_connection` | start etcd and the API server, and write objects there |
//! | `proxy` | start the programs that are compared |
//! | `changes` | replace endpoints |
//! | `node` | measure one of them |
//! | `watches` | measure what a watch costs the API server |

mod api_connection;
mod changes;
mod control_plane;
mod node;
mod proxy;
mod watches;

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};

use self::{
    control_plane::ControlPlane,
    node::NodeUnderTest,
    proxy::{Proxy, version},
};
use crate::{
    lab::{self, Lab},
    report::{Report, Table},
    scale::cluster::{Cluster, Size},
};

/// The nodes of the cluster; only one of them runs.
const NODES: u32 = 1_000;

/// What is compared, and at which size.
pub(crate) struct PeerOptions {
    /// A directory with `kube-apiserver` and `kube-proxy`, of one release.
    programs: PathBuf,
    etcd: PathBuf,
    services: usize,
    /// Endpoints of each Service.
    endpoints: usize,
    /// Further kube-proxies, with the label of each.
    others: Vec<(String, PathBuf)>,
}

impl PeerOptions {
    /// Parses `PROGRAMS ETCD [--services N] [--endpoints N] [LABEL=KUBE_PROXY]...`.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self> {
        let [programs, etcd, rest @ ..] = arguments else {
            bail!("peer needs a directory with kube-apiserver and kube-proxy, and an etcd");
        };
        let mut options =
            Self { programs: programs.into(), etcd: etcd.into(), services: 10_000, endpoints: 10, others: Vec::new() };
        let mut rest = rest.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--services" => options.services = number(argument, rest.next())?,
                "--endpoints" => options.endpoints = number(argument, rest.next())?,
                other => {
                    let (label, path) = other.split_once('=').with_context(|| format!("{other}: not LABEL=PATH"))?;
                    options.others.push((label.to_owned(), path.into()));
                }
            }
        }
        let Self { services, endpoints, .. } = options;
        ensure!(services >= 10 && services % 10 == 0, "--services {services}: not a multiple of 10");
        ensure!((1..=100).contains(&endpoints), "--endpoints {endpoints}: more than one slice or none");
        Ok(options)
    }
}

fn number(option: &str, value: Option<&&str>) -> Result<usize> {
    let value = value.with_context(|| format!("{option} needs a number"))?;
    value.parse().with_context(|| format!("{option} {value}"))
}

pub(crate) fn measure(report: &mut Report, options: &PeerOptions) -> Result<()> {
    let PeerOptions { programs, etcd, services, endpoints, others } = options;
    let mut proxies = vec![Proxy::Fairlead, Proxy::Local, Proxy::kube_proxy(&programs.join("kube-proxy"), None)?];
    for (label, path) in others {
        proxies.push(Proxy::kube_proxy(path, Some(label))?);
    }
    let mut labs = Lab::connected(u8::try_from(1 + proxies.len())?)?.into_iter();
    let control_plane = ControlPlane::start(labs.next().context("a control plane")?, programs, etcd)?;

    let size = Size { nodes: NODES, services: *services, endpoints: services * endpoints, largest: *endpoints };
    let mut cluster = Cluster::new(size);
    control_plane.load(&cluster)?;

    let columns: Vec<_> = proxies.iter().map(Proxy::name).collect();
    let mut table = Table::new(&deployment(options)?, &columns);
    for ((column, proxy), lab) in proxies.iter().enumerate().zip(&mut labs) {
        Report::progress(proxy.name());
        let mut figure = |what: &str, value: f64, unit| table.set(column, what, value, unit);
        let measured = NodeUnderTest::new(lab, &control_plane, &mut cluster, proxy)?.measure(&mut figure);
        if measured.is_err() {
            control_plane.check()?;
        }
        measured.with_context(|| format!("measure {}", proxy.name()))?;
    }
    report.table(table);
    watches::measure(report, &control_plane, &mut cluster)
}

/// What the table holds for.
fn deployment(options: &PeerOptions) -> Result<String> {
    let PeerOptions { programs, services, endpoints, .. } = options;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("read the version of the kernel")?;
    let fairlead = version(Path::new(lab::program()?.get_program()))?;
    let nft = version(Path::new("nft"))?;
    let api_server = version(&programs.join("kube-apiserver"))?;
    let etcd = version(&options.etcd)?;
    let cpus = thread::available_parallelism().context("count CPUs")?;
    let memory = lab::memory_of_machine()?;
    Ok(format!(
        "{services} Services x {endpoints} endpoints, {NODES} Nodes, nftables. Fairlead {fairlead}: a frontend and a \
         backend, over TLS, and `local`; kube-proxy with its defaults. All on one machine with {cpus} CPUs and {:.0} GB: Linux {}, \
         nft {nft}, kube-apiserver {api_server}, etcd {etcd}.",
        memory as f64 / 1e6,
        kernel.trim(),
    ))
}
