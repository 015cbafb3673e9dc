//! Checks sysctls that Services depend on.

use std::{fs, path::Path};

use super::Finding;
use crate::config::BackendName;

/// The network sysctls of this network namespace.
const ROOT: &str = "/proc/sys/net";
/// The conntrack table is reported as nearly full from this percentage on.
const NEARLY_FULL_PERCENT: u64 = 80;

/// Checks the network namespace of this process.
pub(super) fn check(backend: BackendName) -> Vec<Finding> {
    check_in(Path::new(ROOT), backend)
}

/// Checks the sysctls below a directory.
fn check_in(root: &Path, backend: BackendName) -> Vec<Finding> {
    let read = |name: &str| fs::read_to_string(root.join(name)).ok().map(|value| value.trim().to_owned());
    let mut findings = vec![
        forwarding("ipv4/ip_forward", read("ipv4/ip_forward")),
        forwarding("ipv6/conf/all/forwarding", read("ipv6/conf/all/forwarding")),
        rp_filter(read("ipv4/conf/all/rp_filter")),
    ];
    let number = |name| read(name).and_then(|value| value.parse().ok());
    findings.push(conntrack(number("netfilter/nf_conntrack_count"), number("netfilter/nf_conntrack_max")));
    findings.push(bridge_netfilter(backend, read("bridge/bridge-nf-call-iptables")));
    let routed = read("ipv4/conf/all/route_localnet").as_deref() == Some("1");
    findings.push(match (routed, backend) {
        (true, BackendName::Nftables | BackendName::Ipvs) => Finding::warn(
            "sysctl",
            "net.ipv4.conf.all.route_localnet = 1",
            "hosts on the same network can reach ports on 127.0.0.1, and this backend does not need it",
            "sysctl -w net.ipv4.conf.all.route_localnet=0, unless another program needs it",
        ),
        (true, BackendName::Iptables) => {
            Finding::ok("sysctl", "net.ipv4.conf.all.route_localnet = 1, for node ports on 127.0.0.0/8")
        }
        (false, _) => Finding::ok("sysctl", "net.ipv4.conf.all.route_localnet = 0"),
    });
    findings
}

fn forwarding(name: &str, value: Option<String>) -> Finding {
    let shown = format!("net.{}", name.replace('/', "."));
    match value.as_deref() {
        None => Finding::ok("sysctl", format!("{shown} does not exist: this IP family is disabled")),
        Some("0") if name.starts_with("ipv6") => Finding::warn(
            "sysctl",
            format!("{shown} = 0"),
            "the kernel does not forward IPv6 packets of pods and external clients",
            format!("sysctl -w {shown}=1, if the cluster uses IPv6"),
        ),
        Some("0") => Finding::fail(
            "sysctl",
            format!("{shown} = 0"),
            "the kernel does not forward packets of pods and external clients to endpoints",
            format!("sysctl -w {shown}=1, and set it in /etc/sysctl.d"),
        ),
        Some(value) => Finding::ok("sysctl", format!("{shown} = {value}")),
    }
}

fn rp_filter(value: Option<String>) -> Finding {
    let name = "net.ipv4.conf.all.rp_filter";
    match value.as_deref() {
        Some("1") => Finding::warn(
            "sysctl",
            format!("{name} = 1 (strict)"),
            "the kernel silently drops packets if requests and replies use different interfaces",
            format!("sysctl -w {name}=2 (loose) if the node has several interfaces or routes for pods"),
        ),
        value => Finding::ok("sysctl", format!("{name} = {}", value.unwrap_or("unknown"))),
    }
}

fn conntrack(count: Option<u64>, max: Option<u64>) -> Finding {
    let Some(max) = max else {
        return Finding::ok("conntrack", "not active yet: the kernel starts to track connections with the first rule");
    };
    let count = count.unwrap_or(0);
    let what = format!("{count} of at most {max} entries are used");
    if count * 100 >= max * NEARLY_FULL_PERCENT {
        Finding::fail(
            "conntrack",
            what,
            "when the table is full, the kernel drops packets of new connections",
            "raise net.netfilter.nf_conntrack_max (--conntrack-max-per-core), or find the source with `conntrack -L`",
        )
    } else {
        Finding::ok("conntrack", what)
    }
}

fn bridge_netfilter(backend: BackendName, value: Option<String>) -> Finding {
    let name = "net.bridge.bridge-nf-call-iptables";
    match value.as_deref() {
        Some("0") => Finding::warn(
            "sysctl",
            format!("{name} = 0"),
            "if pods of a node share a bridge, replies between them bypass the rules and keep the endpoint as source",
            format!("sysctl -w {name}=1 (and bridge-nf-call-ip6tables), if pods are on a bridge"),
        ),
        Some(value) => Finding::ok("sysctl", format!("{name} = {value}")),
        None if backend == BackendName::Nftables => {
            Finding::ok("sysctl", "br_netfilter is not loaded; it is needed only if pods are on a bridge")
        }
        None => Finding::ok("sysctl", "br_netfilter is not loaded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::check::Level;

    fn tree(values: &[(&str, &str)]) -> Vec<(Level, String)> {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in values {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        let findings = check_in(root.path(), BackendName::Nftables);
        findings.into_iter().filter(|f| f.level != Level::Ok).map(|f| (f.level, f.what)).collect()
    }

    #[test]
    fn correct_sysctls_have_no_findings() {
        let good = [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "2"),
            ("netfilter/nf_conntrack_count", "79"),
            ("netfilter/nf_conntrack_max", "100"),
            ("bridge/bridge-nf-call-iptables", "1"),
        ];
        assert_eq!(tree(&good), []);
        assert_eq!(tree(&[]), []);
    }

    #[test]
    fn wrong_sysctls_are_reported() {
        let found = tree(&[
            ("ipv4/ip_forward", "0"),
            ("ipv4/conf/all/rp_filter", "1"),
            ("netfilter/nf_conntrack_count", "80"),
            ("netfilter/nf_conntrack_max", "100"),
            ("bridge/bridge-nf-call-iptables", "0"),
            ("ipv4/conf/all/route_localnet", "1"),
        ]);
        let expected = [
            (Level::Fail, "net.ipv4.ip_forward = 0"),
            (Level::Warn, "net.ipv4.conf.all.rp_filter = 1 (strict)"),
            (Level::Fail, "80 of at most 100 entries are used"),
            (Level::Warn, "net.bridge.bridge-nf-call-iptables = 0"),
            (Level::Warn, "net.ipv4.conf.all.route_localnet = 1"),
        ];
        assert_eq!(found, expected.map(|(level, what)| (level, what.to_owned())));
    }
}
