//! Checks whether this node can follow a frontend: certificates in files, and a stream.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};
use runtime::certificate::validities;

use super::Finding;
use crate::{
    cli::{FrontendAddressArgs, InspectedNodeArgs},
    commands::view,
    running_backend::RunningBackend,
};

/// A certificate that expires sooner should be renewed.
const RENEWAL_DAYS: u64 = 14;
const DAY_SECONDS: u64 = 86_400;

/// Checks the certificates, and opens a stream, which reads all files.
pub(super) async fn check(inspected: &InspectedNodeArgs, running: Option<&RunningBackend>) -> Result<Vec<Finding>> {
    let FrontendAddressArgs { tls_ca, tls_cert, .. } = &inspected.frontend;
    let mut findings = Vec::new();
    for (flag, path) in [("--tls-ca", tls_ca), ("--tls-cert", tls_cert)] {
        if let Some(path) = path {
            findings.push(certificate(flag, path, SystemTime::now()));
        }
    }
    findings.push(stream(inspected, running).await?);
    Ok(findings)
}

/// Opens a stream as this node.
async fn stream(inspected: &InspectedNodeArgs, running: Option<&RunningBackend>) -> Result<Finding> {
    let node = inspected.node()?;
    Ok(match view::committed(&inspected.frontend, &node).await {
        Ok(state) if view::is_unknown(&state, running) => Finding::ok("frontend", format!("it knows no Node {node}"))
            .fail(
                "it streams what any node would be sent, without node ports and local endpoints",
                "set --node-name to the name of this machine's Node, see `kubectl get nodes`",
            ),
        Ok(state) => {
            let count = state.service_ports().len();
            Finding::ok("frontend", format!("it streams the view of {node}: {count} service ports"))
        }
        Err(error) => Finding::ok("frontend", format!("no stream for {node}: {error:#}")).fail(
            "this node keeps its last state, and receives no changes",
            "check that a frontend runs, that --frontend is its address, and that the credentials are those of this \
             node; `fairlead status` asks all frontends",
        ),
    })
}

/// Checks the certificate of a file that expires first.
fn certificate(flag: &str, path: &Path, now: SystemTime) -> Finding {
    let file = format!("{flag} {}", path.display());
    let days = match remaining_days(path, now) {
        Ok(days) => days,
        Err(error) => {
            return Finding::ok("certificate", format!("{file}: {error:#}")).fail(
                "without it no https connection is possible",
                "write a valid PEM certificate that this user can read to that file, or correct the clock",
            );
        }
    };

    let found = Finding::ok("certificate", format!("{file}: valid for {days} days"));
    if days >= RENEWAL_DAYS {
        return found;
    }
    found.warn(
        "when it has expired, frontend and backend reject each other, and this node receives no changes",
        "renew it; the file is read for each connection, so no restart is needed",
    )
}

/// The days until the certificate that expires first is not valid any more. Fails if it is not valid now.
fn remaining_days(path: &Path, now: SystemTime) -> Result<u64> {
    let all = validities(&fs::read(path).context("cannot read the file")?)?;
    let first = all.into_iter().min_by_key(|validity| validity.not_after).context("no certificate in the file")?;
    if let Some(reason) = first.invalid_at(now) {
        bail!("{reason}");
    }

    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(first.not_after).unwrap_or_default());
    Ok(end.duration_since(now).unwrap_or_default().as_secs() / DAY_SECONDS)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::commands::check::Level;

    fn check(path: &Path) -> Finding {
        certificate("--tls-ca", path, SystemTime::now())
    }

    #[test]
    fn certificate_that_expires_first_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("certificates.pem");
        let pem = |year| {
            let mut params = CertificateParams::new(vec!["frontend.example".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(year, 1, 1);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        fs::write(&path, pem(2900)).unwrap();
        assert_eq!(check(&path).level, Level::Ok);
        fs::write(&path, pem(2900) + &pem(2021)).unwrap();
        let expired = check(&path);
        assert_eq!(expired.level, Level::Fail);
        assert!(expired.what.contains("2021"), "{}", expired.what);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_609_459_200); // 2021-01-01
        let expires = certificate("--tls-ca", &path, end - Duration::from_secs(3 * DAY_SECONDS));
        assert_eq!(expires.level, Level::Warn);
        assert!(expires.what.ends_with("valid for 3 days"), "{}", expires.what);
    }

    #[test]
    fn unreadable_files_fail() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(check(&path).level, Level::Fail);
        fs::write(&path, "content").unwrap();
        assert_eq!(check(&path).level, Level::Fail);
    }
}
