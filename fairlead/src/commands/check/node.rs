//! The machine besides its packets: ports that are needed, the state directory, limits.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process,
};

use super::{Finding, Stage};

/// kube-proxy's health port, and that of its metrics: a backend has them too.
const PORTS: [(u16, Ipv4Addr); 2] = [(10_256, Ipv4Addr::UNSPECIFIED), (10_249, Ipv4Addr::LOCALHOST)];
/// A frontend has a socket per node, a backend a few.
const FEW_FILES: u64 = 1_024;

/// All of it.
pub(super) fn check(state_dir: &Path, stage: Stage) -> Vec<Finding> {
    let mut findings: Vec<_> = PORTS.into_iter().map(|(port, address)| listens(port, address, stage)).collect();
    findings.push(writable(state_dir, stage));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    findings.push(files(&limits));
    findings
}

/// Whether a port is free, or whose it is.
fn listens(port: u16, address: Ipv4Addr, stage: Stage) -> Finding {
    match TcpListener::bind(SocketAddr::from((address, port))) {
        Ok(_) => Finding::ok("ports", format!("{address}:{port} is free")),
        Err(error) if error.kind() != ErrorKind::AddrInUse => Finding::warn(
            "ports",
            format!("{address}:{port} cannot be tried: {error}"),
            "health checks of load balancers, and Prometheus, ask there",
            "run this as root",
        ),
        Err(_) => match (holder(port).as_deref(), stage) {
            (Some(name @ "fairlead"), _) => Finding::ok("ports", format!("{name} listens on {address}:{port}")),
            (Some(name @ "kube-proxy"), Stage::BeforeInstallation) => {
                Finding::ok("ports", format!("{name} listens on {address}:{port}, until it goes"))
            }
            (name, _) => Finding::warn(
                "ports",
                format!("{} listens on {address}:{port}", name.unwrap_or("another process")),
                "health checks of load balancers and Prometheus would reach that process instead of the backend",
                format!("end it, or give it another port; `ss -ltnp 'sport = :{port}'` shows it"),
            ),
        },
    }
}

/// The name of the process that listens on a TCP port of this namespace.
fn holder(port: u16) -> Option<String> {
    let inode = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .into_iter()
        .find_map(|file| inode(&fs::read_to_string(file).ok()?, port).map(str::to_owned))?;
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let holds = |process: &PathBuf| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.flat_map(|file| fs::read_link(file.path())).any(|target| target == wanted)
    };
    let process = processes.filter(|path| path.join("fd").is_dir()).find(holds)?;
    Some(fs::read_to_string(process.join("comm")).ok()?.trim().to_owned())
}

/// The socket that listens on a port, in a listing of the kernel.
fn inode(listing: &str, port: u16) -> Option<&str> {
    let local = format!(":{port:04X}");
    listing.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // 0A: it listens.
        let listens = words.get(1)?.ends_with(&local) && words.get(3) == Some(&"0A");
        listens.then(|| words.get(9).copied()).flatten()
    })
}

fn writable(dir: &Path, stage: Stage) -> Finding {
    let shown = dir.display();
    let nearest = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(dir);
    if nearest != dir && stage == Stage::Installed {
        return Finding::warn(
            "state",
            format!("{shown} is not there"),
            "no backend has run here, or it keeps its state elsewhere; without it a node that reboots alone has no Services",
            "start the backend, or give this command its --state-dir",
        );
    }
    let probe = nearest.join(format!(".fairlead-check-{}", process::id()));
    let tried = fs::write(&probe, "").and_then(|()| fs::remove_file(&probe));
    match tried {
        Ok(()) => Finding::ok("state", format!("{shown} can be written to")),
        Err(error) => unwritable(dir, &error),
    }
}

fn unwritable(dir: &Path, error: &io::Error) -> Finding {
    Finding::fail(
        "state",
        format!("{} cannot be written to: {error}", dir.display()),
        "the last state is not kept: a node that reboots while no frontend is there has no Services",
        "mount it writable, or give another --state-dir",
    )
}

/// The limit of open files, in what `/proc/self/limits` says.
fn files(limits: &str) -> Finding {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        Some((soft, Ok(number))) if number < FEW_FILES => Finding::warn(
            "limits",
            format!("a process may have {soft} files open"),
            "health-check node ports and connections each take one",
            "ulimit -n 65536, LimitNOFILE= of the unit, or the runtime's setting",
        ),
        Some((soft, _)) => Finding::ok("limits", format!("a process may have {soft} files open")),
        None => Finding::ok("limits", "the limit of open files is unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Level;

    #[test]
    fn who_listens_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(holder(port).as_deref(), Some(own.trim()));
        let taken = listens(port, Ipv4Addr::LOCALHOST, Stage::Installed);
        assert_eq!(taken.level, Level::Warn);
        assert!(taken.what.starts_with(own.trim()), "{}", taken.what);
        drop(listener);
        assert_eq!(listens(port, Ipv4Addr::LOCALHOST, Stage::Installed).level, Level::Ok);
    }

    #[test]
    fn only_sockets_that_listen_count() {
        let listing = "  sl  local_address rem_address   st tx rx tr tm retr uid timeout inode\n   \
            0: 0100007F:280F 0100007F:1234 01 0:0 0:0 0 0 0 11 1\n   1: 0100007F:280F 00000000:0000 0A 0:0 0:0 0 0 0 22 1\n";
        assert_eq!(inode(listing, 0x280f), Some("22"));
        assert_eq!(inode(listing, 80), None);
    }

    #[test]
    fn the_state_directory_may_be_missing_before_installation_only() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("state");
        assert_eq!(writable(&dir, Stage::BeforeInstallation).level, Level::Ok);
        assert_eq!(writable(&dir, Stage::Installed).level, Level::Warn);
        fs::create_dir(&dir).unwrap();
        assert_eq!(writable(&dir, Stage::Installed).level, Level::Ok);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the probe is gone");
        assert_eq!(writable(Path::new("/proc/sys"), Stage::Installed).level, Level::Fail);
    }

    #[test]
    fn few_files_are_too_few() {
        let limits = |soft| format!("Max processes 1 2\nMax open files            {soft}    524288   files\n");
        assert_eq!(files(&limits("256")).level, Level::Warn);
        assert_eq!(files(&limits("1048576")).level, Level::Ok);
        assert_eq!(files(&limits("unlimited")).level, Level::Ok);
    }
}
