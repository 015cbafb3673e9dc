//! The programs that are compared.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use e2e::Process;

use super::control_plane::ControlPlane;
use crate::{
    lab::{DEADLINE, Lab},
    manifests::CLUSTER_CIDR,
    scale::cluster::node_name,
};

/// Where the frontend listens, at the address of the control plane.
const FRONTEND_PORT: u16 = 7600;

/// A proxy of a node.
pub(super) enum Proxy {
    /// A frontend beside the API server, and a backend.
    Fairlead,
    /// `fairlead local`: both in one process, which reads the API itself.
    Local,
    /// A kube-proxy.
    Upstream { name: String, program: PathBuf },
}

impl Proxy {
    /// Without a label it is named by its version.
    pub(super) fn kube_proxy(program: &Path, label: Option<&str>) -> Result<Self> {
        let version = version(program)?;
        let label = label.unwrap_or(&version);
        Ok(Self::Upstream { name: format!("kube-proxy {label}"), program: program.to_owned() })
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Fairlead => "Fairlead",
            Self::Local => "Fairlead, one process",
            Self::Upstream { name, .. } => name,
        }
    }

    /// Starts the frontend, if the proxy has one, and returns the time until it serves.
    pub(super) fn start_frontend(&self, control_plane: &ControlPlane) -> Result<Option<(Process, Duration)>> {
        if !matches!(self, Self::Fairlead) {
            return Ok(None);
        }
        let lab = control_plane.lab();
        let mut arguments: Vec<OsString> = vec!["frontend".into(), "--kubeconfig".into()];
        arguments.extend([control_plane.kubeconfig().into(), "--listen".into()]);
        arguments.push(format!("{}:{FRONTEND_PORT}", lab.address()).into());
        arguments.extend(control_plane.credentials().frontend_flags());

        let started = Instant::now();
        let frontend = lab.spawn_program(&arguments, "frontend.log");
        frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
        Ok(Some((frontend, started.elapsed())))
    }

    /// Starts the process of the node. Its state is kept between two starts.
    pub(super) fn start(&self, lab: &Lab, control_plane: &ControlPlane) -> Result<Process> {
        let node = node_name(0);
        match self {
            Self::Fairlead => {
                let frontend = format!("https://{}:{FRONTEND_PORT}", control_plane.lab().address());
                let credentials = control_plane.credentials().backend_flags(&node)?;
                Ok(lab.spawn_backend_of(&frontend, &node, &credentials))
            }
            Self::Local => Ok(lab.spawn_local_on_api(&control_plane.kubeconfig(), &node)),
            Self::Upstream { program, .. } => {
                let arguments = [
                    "--proxy-mode=nftables",
                    &format!("--kubeconfig={}", control_plane.kubeconfig().display()),
                    &format!("--hostname-override={node}"),
                    &format!("--cluster-cidr={CLUSTER_CIDR}"),
                    // The limits of conntrack can be set in the first network namespace only.
                    "--conntrack-max-per-core=0",
                    "--conntrack-min=0",
                ];
                Ok(lab.spawn_other(program, &arguments, "kube-proxy.log"))
            }
        }
    }
}

/// The first number in what a program prints about its version, such as `nftables v1.0.6 (Lester Gooch #5)`.
pub(super) fn version(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("run {} --version", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace().map(|word| word.trim_start_matches('v'));
    let number = words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    Ok(number.with_context(|| format!("no version of {} in {text:?}", program.display()))?.to_owned())
}
