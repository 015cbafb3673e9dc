//! `fairlead drained`: waits in a pod's `preStop` until no node sends new connections to the pod, and with
//! `--connections` until those to its ports are closed.

mod connections;

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use backend::drained::{MAX_RETRY_DELAY, MAX_TIMEOUT, MIN_RETRY_DELAY, RESPONSE_SLACK, request_path};
use runtime::Backoff;
use tokio::time::{Instant, sleep};

use crate::{
    cli::DrainedArgs,
    exit_code::ExitCode,
    http_get::{HttpResponse, http_get},
    print,
};

/// Asks the node until it answers, then waits for the connections, all within the timeout. Or installs the program.
pub(crate) async fn run(args: DrainedArgs) -> Result<ExitCode> {
    let DrainedArgs { node_address, port, address, timeout, connections: ports, install } = args;
    if let Some(file) = install {
        install_program(&file).with_context(|| format!("cannot install {}", file.display()))?;
        return Ok(ExitCode::Success);
    }
    let Some(node) = node_address else { bail!("--node-address: the address of the pod's node is required") };
    if timeout > MAX_TIMEOUT && ports.is_empty() {
        bail!("--timeout: {timeout:?} is longer than {MAX_TIMEOUT:?}");
    }

    if !ports.is_empty() && is_own_address(node) {
        bail!("--connections: a pod on the host network has the connections of the whole node ({node}): omit the flag");
    }

    let deadline = Instant::now() + timeout;
    let HttpResponse { status, line, body } = ask(SocketAddr::new(node, port), &address, deadline).await?;
    match status {
        // 404: the pod is in no Service, so that no node sends it new connections, either.
        200 | 404 => print::text(body)?,
        504 => return print::text(body).map(|()| ExitCode::FoundProblems),
        _ => bail!("{line}: {}", body.trim()),
    }
    if ports.is_empty() {
        return Ok(ExitCode::Success);
    }

    let open = connections::wait_until_closed(&ports, deadline).await?;
    print::line(&open)?;
    Ok(ExitCode::of_check(open.is_empty()))
}

/// Repeats the request while the backend cannot be reached, knows no answer, or ends (302).
async fn ask(node: SocketAddr, addresses: &[IpAddr], deadline: Instant) -> Result<HttpResponse> {
    let mut backoff = Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).min(MAX_TIMEOUT);
        let response = http_get(node, &request_path(left, addresses), left + RESPONSE_SLACK).await;
        if response.as_ref().is_ok_and(|HttpResponse { status, .. }| !matches!(status, 302 | 502 | 503)) {
            return response;
        }

        let delay = backoff.next_delay();
        if Instant::now() + delay >= deadline {
            return response;
        }
        sleep(delay).await;
    }
}

/// Whether this network namespace has the address. A pod has that of its node on the host network only.
fn is_own_address(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

/// Copies this program. The file is complete as soon as it has its name.
fn install_program(file: &Path) -> Result<()> {
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    fs::copy("/proc/self/exe", &partial).context("cannot copy this program")?;
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o755))?;
    Ok(fs::rename(&partial, file)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_name_whole_seconds_and_all_addresses() {
        assert_eq!(request_path(Duration::from_millis(19_001), &[]), "/drained?timeout=20s");
        let addresses = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(request_path(Duration::ZERO, &addresses), "/drained?timeout=0s&address=10.0.0.1,fd00::1");
    }
}
