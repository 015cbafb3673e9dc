//! `fairlead bundle`: collects diagnostics of a node in one archive, without secrets.
//!
//! ```text
//!   kernel, files, backend, frontend ── collect ──▶ Archive: redacted texts ── write ──▶ a file each, manifest.json
//! ```

mod redact;

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use backend::{NodeState, StoredState};
use flate2::{Compression, write::GzEncoder};
use netlink::nft::{Element, NftBatch, NftHandle, Table};
use nix::unistd::{AccessFlags, access};
use serde_json::json;

use self::redact::Redactor;
use super::{check, services, view};
use crate::{
    cli::{BundleArgs, HttpAddress},
    http_get::{HttpResponse, RESPONSE_TIMEOUT, http_get},
    print,
    running_backend::RunningBackend,
};

/// Files of the kernel with settings and statistics, in `/proc`.
const KERNEL_FILES: &str = "\
    version loadavg meminfo modules net/dev net/ip_vs_stats net/ipv6_route net/netstat net/route net/snmp net/sockstat \
    net/stat/nf_conntrack";
/// Sysctls, in `/proc/sys/net`.
const SYSCTLS: &str = "\
    ipv4/ip_forward ipv4/ip_local_port_range ipv4/conf/all/rp_filter ipv4/conf/all/route_localnet \
    ipv4/conf/all/arp_ignore ipv4/conf/all/arp_announce ipv6/conf/all/forwarding bridge/bridge-nf-call-iptables \
    bridge/bridge-nf-call-ip6tables ipv4/vs/conntrack ipv4/vs/conn_reuse_mode ipv4/vs/expire_nodest_conn \
    netfilter/nf_conntrack_count netfilter/nf_conntrack_max netfilter/nf_conntrack_buckets \
    netfilter/nf_conntrack_tcp_be_liberal";
/// HTTP paths of the backend, and the files in the archive with the responses.
const BACKEND_FILES: [(&str, &str); 4] = [
    ("/metrics", "backend/metrics.txt"),
    ("/statusz", "backend/statusz.json"),
    ("/configz", "backend/configz.json"),
    ("/healthz", "backend/healthz.txt"),
];

/// Writes the archive, and prints which files were left out.
pub(crate) async fn run(args: BundleArgs, running: Option<RunningBackend>) -> Result<()> {
    let node = args.inspected.node()?;
    let path = args.output.clone().unwrap_or_else(|| default_path(&args, &node));
    if path.exists() {
        bail!("{} already exists: set another file with --output", path.display());
    }

    let mut archive = collect(&args, &node, running.as_ref()).await;
    archive.add_manifest(&node);
    archive.write(&path, &node)?;

    print::line(format_args!("{}: {} files", path.display(), archive.files.len()))?;
    for (name, why) in archive.left_out {
        print::line(format_args!("left out: {name}: {why}"))?;
    }
    Ok(())
}

/// In the current directory, or if that is read-only, as in a container, in the state directory.
fn default_path(args: &BundleArgs, node: &str) -> PathBuf {
    let name = format!("fairlead-bundle-{node}.tar.gz");
    match access(".", AccessFlags::W_OK) {
        Ok(()) => PathBuf::from(name),
        Err(_) => args.state_dir.join(name),
    }
}

async fn collect(args: &BundleArgs, node: &str, running: Option<&RunningBackend>) -> Archive {
    let redactor = Redactor::new(args.redact_ips);
    let mut archive = Archive { redactor, files: Vec::new(), left_out: Vec::new() };

    archive.add("version.txt", Ok(format!("fairlead {}\nnode {node}\n", env!("CARGO_PKG_VERSION"))));
    archive.add("processes.txt", processes());
    let checked = check::inspect(&args.inspected, true, running).await;
    archive.add("check.txt", checked.map(|report| report.text()));

    archive.add("sysctls.txt", Ok(sysctls()));
    for name in KERNEL_FILES.split_whitespace() {
        let path = format!("/proc/{name}");
        let text = if args.redact_ips && name.ends_with("route") {
            Err(anyhow!("--redact-ips cannot replace its addresses, which are hexadecimal numbers"))
        } else {
            read(&path)
        };
        archive.add(&format!("kernel{path}"), text);
    }

    if let Err(error) = add_nft_tables(&mut archive) {
        archive.leave_out("nft", &error);
    }
    match iptables::save_all().await {
        Ok(all_saved) => {
            for saved in all_saved {
                archive.add(&format!("iptables/{}.txt", saved.program.name), Ok(saved.text));
            }
        }
        Err(error) => archive.leave_out("iptables", &error),
    }
    archive.add("ipvs.txt", virtual_servers().await);

    archive.add("state.json", stored_state(&args.state_dir, node));
    let of_frontend = view::committed(&args.inspected.frontend, node).await;
    archive.add("frontend.json", of_frontend.and_then(|state| to_json(&state)));
    let HttpAddress(backend) = args.inspected.running.backend_address;
    for (path, name) in BACKEND_FILES {
        archive.add(name, backend_response(backend, path).await);
    }
    archive
}

fn read(path: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

fn sysctls() -> String {
    let mut text = String::new();
    for name in SYSCTLS.split_whitespace() {
        let value = read(&format!("/proc/sys/net/{name}")).unwrap_or_else(|error| format!("({error:#})"));
        text += &format!("net.{} = {}\n", name.replace('/', "."), value.trim());
    }
    text
}

/// The command lines of running processes of Fairlead.
fn processes() -> Result<String> {
    let mut text = String::new();
    for process in fs::read_dir("/proc")?.flatten().map(|entry| entry.path()) {
        let is_fairlead = fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "fairlead");
        if is_fairlead && let Ok(line) = fs::read(process.join("cmdline")) {
            let arguments: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
            text += &format!("{}: {}\n", process.display(), arguments.join("\n    "));
        }
    }
    Ok(text)
}

/// All tables of nf_tables. A table that cannot be read does not affect the others.
fn add_nft_tables(archive: &mut Archive) -> Result<()> {
    let mut handle = NftHandle::open().context("cannot open a netlink socket for nf_tables")?;
    for table in check::nft::tables(&mut handle)? {
        let name = format!("nft/{}-{}.txt", table.family, table.name);
        archive.add(&name, nft_table(&mut handle, &table));
    }
    Ok(())
}

/// A table, in the syntax of nft.
fn nft_table(handle: &mut NftHandle, table: &Table) -> Result<String> {
    let mut batch = NftBatch::new();
    batch.add_table(table);
    let sets = handle.sets(table)?;
    for set in &sets {
        batch.add_set(table, set);
    }
    for chain in handle.chains(table)? {
        batch.add_chain(table, &chain);
    }
    for listed in handle.rules(table)? {
        batch.add_rule(table, &listed.chain, &listed.rule);
    }

    let mut text = batch.to_string();
    for set in &sets {
        // The dump restarts when another process changes the set.
        let add = |batch: &mut NftBatch, element: Element<'_>| batch.add_elements(table, set, [element]);
        text += &handle.elements(table, &set.name, NftBatch::new, add)?.to_string();
    }
    Ok(text)
}

/// Fairlead's virtual servers of IPVS.
async fn virtual_servers() -> Result<String> {
    let servers = backend_ipvs::virtual_servers().await?;
    ensure!(!servers.is_empty(), "no virtual servers");
    Ok(servers.iter().map(|server| format!("{server:#?}\n")).collect())
}

/// The last committed state, from the state file.
fn stored_state(directory: &Path, node: &str) -> Result<String> {
    let path = directory.join("state");
    ensure!(path.is_file(), "{} does not exist", path.display());
    let stored = StoredState::read(&path, node).context("the state file is unreadable, or of another node")?;
    to_json(&stored.state)
}

fn to_json(state: &NodeState) -> Result<String> {
    let value = json!({ "node": state.node(), "cluster": state.cluster(), "services": services::to_json(state) });
    Ok(serde_json::to_string_pretty(&value)?)
}

/// The body of a successful response of the backend.
async fn backend_response(backend: Option<SocketAddr>, path: &str) -> Result<String> {
    let backend = backend.context("--backend-address is none")?;
    let HttpResponse { status, line, body } = http_get(backend, path, RESPONSE_TIMEOUT).await?;
    ensure!(status == 200, "{line}");
    Ok(body)
}

/// An archive in memory.
#[derive(Debug)]
struct Archive {
    redactor: Redactor,
    /// Each with its redacted text.
    files: Vec<(String, String)>,
    /// Each with the reason.
    left_out: Vec<(String, String)>,
}

impl Archive {
    /// Adds a file with this text, or lists it as left out with the error.
    fn add(&mut self, name: &str, text: Result<String>) {
        match text {
            Ok(text) => self.files.push((name.to_owned(), self.redactor.text(&text))),
            Err(error) => self.leave_out(name, &error),
        }
    }

    fn leave_out(&mut self, name: &str, error: &Error) {
        self.left_out.push((name.to_owned(), self.redactor.text(&format!("{error:#}"))));
    }

    fn add_manifest(&mut self, node: &str) {
        let files: Vec<_> =
            self.files.iter().map(|(name, text)| json!({ "name": name, "bytes": text.len() })).collect();
        let left_out: Vec<_> = self.left_out.iter().map(|(name, why)| json!({ "name": name, "why": why })).collect();
        let manifest = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "node": node,
            "unix_seconds": unix_seconds(),
            "addresses": if self.redactor.replaces_addresses { "replaced by pseudonyms" } else { "unchanged" },
            "files": files,
            "left_out": left_out,
        });
        self.files.push(("manifest.json".to_owned(), format!("{manifest:#}")));
    }

    /// Creates the file. All entries are in one directory, which is named after the node.
    fn write(&self, path: &Path, node: &str) -> Result<()> {
        let file = File::create_new(path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        for (name, text) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(unix_seconds());
            archive.append_data(&mut header, format!("fairlead-{node}/{name}"), text.as_bytes())?;
        }
        archive.into_inner().and_then(GzEncoder::finish).context("cannot write the archive")?;
        Ok(())
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
