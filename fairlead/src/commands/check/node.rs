//! Checks the ports that a backend listens on, the state directory and the limit of open files.

use std::{
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process,
};

use super::{CheckStage, Finding};

/// The default ports of `--healthz` and `--metrics`, which are those of kube-proxy.
const PORTS: [(u16, Ipv4Addr); 2] = [(10_256, Ipv4Addr::UNSPECIFIED), (10_249, Ipv4Addr::LOCALHOST)];
/// A frontend needs a file descriptor per node, a backend one per health-check node port.
const MIN_OPEN_FILES: u64 = 1_024;

/// Checks all of them.
pub(super) fn check(state_dir: &Path, stage: CheckStage) -> Vec<Finding> {
    let mut findings: Vec<_> = PORTS.into_iter().map(|(port, address)| port_finding(port, address, stage)).collect();
    findings.push(writable(state_dir, stage));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    findings.push(open_files(&limits));
    findings
}

/// Whether a port is free, or which process listens on it.
fn port_finding(port: u16, address: Ipv4Addr, stage: CheckStage) -> Finding {
    let socket = SocketAddr::from((address, port));
    let Err(error) = TcpListener::bind(socket) else {
        return Finding::ok("ports", format!("{socket} is free"));
    };
    if error.kind() != ErrorKind::AddrInUse {
        return Finding::ok("ports", format!("cannot bind {socket}: {error}")).warn(
            "the backend serves health checks and metrics at this port",
            "run this command as root, or set --healthz and --metrics to addresses of this machine",
        );
    }
    let name = listener_name(port).unwrap_or_else(|| "another process".to_owned());
    let what = format!("{name} listens on {socket}");
    match (name.as_str(), stage) {
        ("fairlead", _) => Finding::ok("ports", what),
        ("kube-proxy", CheckStage::BeforeInstallation) => Finding::ok("ports", format!("{what} until it is removed")),
        _ => Finding::ok("ports", what).warn(
            "health checks of load balancers and Prometheus reach that process instead of the backend",
            format!("stop it, or change its port; `ss -ltnp 'sport = :{port}'` shows it"),
        ),
    }
}

/// The name of the process that listens on a TCP port of this namespace.
fn listener_name(port: u16) -> Option<String> {
    let inode = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .into_iter()
        .find_map(|file| listening_inode(&fs::read_to_string(file).ok()?, port).map(str::to_owned))?;
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let holds = |process: &PathBuf| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.flat_map(|file| fs::read_link(file.path())).any(|target| target == wanted)
    };
    let process = processes.filter(|path| path.join("fd").is_dir()).find(holds)?;
    Some(fs::read_to_string(process.join("comm")).ok()?.trim().to_owned())
}

/// The inode of the socket that listens on a port, from the content of `/proc/net/tcp`.
fn listening_inode(listing: &str, port: u16) -> Option<&str> {
    let local = format!(":{port:04X}");
    listing.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // 0A is TCP_LISTEN.
        let listens = fields.get(1)?.ends_with(&local) && fields.get(3) == Some(&"0A");
        listens.then(|| fields.get(9).copied()).flatten()
    })
}

fn writable(dir: &Path, stage: CheckStage) -> Finding {
    let shown = dir.display();
    let nearest = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(dir);
    if nearest != dir && stage == CheckStage::Installed {
        return Finding::ok("state", format!("{shown} does not exist")).warn(
            "no backend has stored its state there; without it, Services stop at a reboot until a frontend responds",
            "start the backend, or pass its --state-dir to this command",
        );
    }
    let probe = nearest.join(format!(".fairlead-check-{}", process::id()));
    match fs::write(&probe, "").and_then(|()| fs::remove_file(&probe)) {
        Ok(()) => Finding::ok("state", format!("{shown} is writable")),
        Err(error) => Finding::ok("state", format!("{shown} is not writable: {error}")).fail(
            "the backend cannot store its state: Services stop at a reboot until a frontend responds",
            "mount it writable, or set another --state-dir",
        ),
    }
}

/// The limit of open files, from the content of `/proc/self/limits`.
fn open_files(limits: &str) -> Finding {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown");
    let found = Finding::ok("limits", format!("limit of open files: {soft}"));
    if soft.parse::<u64>().is_ok_and(|number| number < MIN_OPEN_FILES) {
        let fix = "raise it with `ulimit -n 65536`, LimitNOFILE= of the systemd unit, or in the container runtime";
        return found.warn("each health-check node port and each connection uses one", fix);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Level;

    #[test]
    fn name_of_the_listening_process_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(listener_name(port).as_deref(), Some(own.trim()));
        let taken = port_finding(port, Ipv4Addr::LOCALHOST, CheckStage::Installed);
        assert_eq!(taken.level, Level::Warn);
        assert!(taken.what.starts_with(own.trim()), "{}", taken.what);
        drop(listener);
        assert_eq!(port_finding(port, Ipv4Addr::LOCALHOST, CheckStage::Installed).level, Level::Ok);
    }

    #[test]
    fn only_listening_sockets_count() {
        let listing = "  sl  local_address rem_address   st tx rx tr tm retr uid timeout inode\n   \
            0: 0100007F:280F 0100007F:1234 01 0:0 0:0 0 0 0 11 1\n   \
            1: 0100007F:280F 00000000:0000 0A 0:0 0:0 0 0 0 22 1\n";
        assert_eq!(listening_inode(listing, 0x280f), Some("22"));
        assert_eq!(listening_inode(listing, 80), None);
    }

    #[test]
    fn the_state_directory_may_be_missing_before_installation_only() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("state");
        assert_eq!(writable(&dir, CheckStage::BeforeInstallation).level, Level::Ok);
        assert_eq!(writable(&dir, CheckStage::Installed).level, Level::Warn);
        fs::create_dir(&dir).unwrap();
        assert_eq!(writable(&dir, CheckStage::Installed).level, Level::Ok);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the probe is gone");
        assert_eq!(writable(Path::new("/proc/sys"), CheckStage::Installed).level, Level::Fail);
    }

    #[test]
    fn low_limit_of_open_files_warns() {
        let limits = |soft| format!("Max processes 1 2\nMax open files            {soft}    524288   files\n");
        assert_eq!(open_files(&limits("256")).level, Level::Warn);
        assert_eq!(open_files(&limits("1048576")).level, Level::Ok);
        assert_eq!(open_files(&limits("unlimited")).level, Level::Ok);
    }
}
