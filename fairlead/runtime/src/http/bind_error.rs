//! Why the address of a flag cannot be bound, and what to do about it.

use std::{
    collections::HashSet,
    fmt::Display,
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
};

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// The flag, its address, the kernel's reason, and what to do. Names the process that has the port.
pub fn describe_bind_error(flag: &str, address: impl Display, error: &io::Error) -> String {
    let address = address.to_string();
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            let process = port.and_then(listening_process).unwrap_or_else(|| "another process".to_owned());
            format!(": {process} listens there; end it, or set another address with {flag}")
        }
        ErrorKind::PermissionDenied => format!(": run as root, or set another address with {flag}"),
        ErrorKind::AddrNotAvailable => {
            format!(": no interface of this machine has it; set another address with {flag}")
        }
        _ => String::new(),
    };
    format!("{flag}: cannot listen at {address}: {error}{advice}")
}

/// The process that listens at a TCP port of this network namespace, as `kube-proxy (pid 812)`. `None` if this process
/// cannot see it: it is in another PID namespace, or of another user.
fn listening_process(port: u16) -> Option<String> {
    let mut sockets = HashSet::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        sockets.extend(text.lines().filter_map(|line| listening_socket(line, port)));
    }

    for process in fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        if targets.any(|target| sockets.contains(&target)) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (pid {pid})", command.trim()));
        }
    }
    None
}

/// The socket of a line of `/proc/net/tcp` that listens at this port, as `/proc/PID/fd` names it.
fn listening_socket(line: &str, port: u16) -> Option<PathBuf> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    let (_, local_port) = local.rsplit_once(':')?;
    let listens_here = state == LISTENING && u16::from_str_radix(local_port, 16) == Ok(port);
    if listens_here { Some(format!("socket:[{inode}]").into()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_found_by_port() {
        let listening =
            "   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1";
        assert_eq!(listening_socket(listening, 10249), Some("socket:[777]".into()));
        assert_eq!(listening_socket(listening, 10250), None);
        let connected = listening.replace(" 0A ", " 01 ");
        assert_eq!(listening_socket(&connected, 10249), None);
        assert_eq!(listening_socket("  sl  local_address rem_address   st tx_queue", 10249), None);
    }

    #[test]
    fn errors_say_what_to_do() {
        for (kind, part) in [
            (ErrorKind::PermissionDenied, "run as root, or set another address with --listen"),
            (ErrorKind::AddrNotAvailable, "no interface of this machine has it"),
        ] {
            let error = describe_bind_error("--listen", "192.0.2.1:80", &kind.into());
            assert!(error.starts_with("--listen: cannot listen at 192.0.2.1:80: ") && error.contains(part), "{error}");
        }
    }
}
