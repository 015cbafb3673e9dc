//! The kernel's settings that packets to Services depend on.

use std::{fs, path::Path};

use super::Finding;
use crate::cli::BackendName;

/// Where a network namespace's settings are.
const ROOT: &str = "/proc/sys/net";
/// From this share of the table on, in percent, connections may soon be refused.
const NEARLY_FULL: u64 = 80;

/// Of the namespace that this runs in.
pub(super) fn check(backend: BackendName) -> Vec<Finding> {
    check_in(Path::new(ROOT), backend)
}

/// Of a tree of such files.
fn check_in(root: &Path, backend: BackendName) -> Vec<Finding> {
    let read = |name: &str| fs::read_to_string(root.join(name)).ok().map(|value| value.trim().to_owned());
    let mut findings = vec![
        forwarding("ipv4/ip_forward", read("ipv4/ip_forward")),
        forwarding("ipv6/conf/all/forwarding", read("ipv6/conf/all/forwarding")),
        reverse_path(read("ipv4/conf/all/rp_filter")),
    ];
    let number = |name| read(name).and_then(|value| value.parse().ok());
    findings.extend(connections(number("netfilter/nf_conntrack_count"), number("netfilter/nf_conntrack_max")));
    findings.push(bridges(backend, read("bridge/bridge-nf-call-iptables")));
    let routed = read("ipv4/conf/all/route_localnet").as_deref() == Some("1");
    findings.push(match (routed, backend) {
        (true, BackendName::Nftables | BackendName::Ipvs) => Finding::warn(
            "sysctl",
            "net.ipv4.conf.all.route_localnet = 1",
            "neighbours can reach what listens on 127.0.0.1, and this backend needs it for nothing",
            "sysctl -w net.ipv4.conf.all.route_localnet=0, unless something else wants it",
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
        None => Finding::ok("sysctl", format!("{shown} is not there: the family is switched off")),
        Some("0") if name.starts_with("ipv6") => Finding::warn(
            "sysctl",
            format!("{shown} = 0"),
            "IPv6 packets from pods and from outside are not passed on",
            format!("sysctl -w {shown}=1, if the cluster has IPv6"),
        ),
        Some("0") => Finding::fail(
            "sysctl",
            format!("{shown} = 0"),
            "packets from pods and from outside are not passed on, so they reach no endpoint elsewhere",
            format!("sysctl -w {shown}=1, and in /etc/sysctl.d so that it stays"),
        ),
        Some(value) => Finding::ok("sysctl", format!("{shown} = {value}")),
    }
}

fn reverse_path(value: Option<String>) -> Finding {
    let name = "net.ipv4.conf.all.rp_filter";
    match value.as_deref() {
        Some("1") => Finding::warn(
            "sysctl",
            format!("{name} = 1 (strict)"),
            "where requests and replies go through different interfaces, packets vanish without a word",
            format!("sysctl -w {name}=2 (loose) if the node has several interfaces or routes for pods"),
        ),
        value => Finding::ok("sysctl", format!("{name} = {}", value.unwrap_or("unknown"))),
    }
}

fn connections(count: Option<u64>, max: Option<u64>) -> Option<Finding> {
    let Some(max) = max else {
        return Some(Finding::ok(
            "conntrack",
            "nothing is tracked yet: the first rule switches connection tracking on",
        ));
    };
    let count = count.unwrap_or(0);
    let what = format!("{count} of at most {max} connections are tracked");
    Some(if count * 100 >= max * NEARLY_FULL {
        Finding::fail(
            "conntrack",
            what,
            "when the table is full, new connections are dropped",
            "raise net.netfilter.nf_conntrack_max (--conntrack-max-per-core), or find out who opens so many",
        )
    } else {
        Finding::ok("conntrack", what)
    })
}

fn bridges(backend: BackendName, value: Option<String>) -> Finding {
    let name = "net.bridge.bridge-nf-call-iptables";
    match value.as_deref() {
        Some("0") => Finding::warn(
            "sysctl",
            format!("{name} = 0"),
            "where pods of a node are on one bridge, replies between them bypass the rules and come from the wrong address",
            format!("sysctl -w {name}=1 (and bridge-nf-call-ip6tables), if pods are on a bridge"),
        ),
        Some(value) => Finding::ok("sysctl", format!("{name} = {value}")),
        None if backend == BackendName::Nftables => {
            Finding::ok("sysctl", "br_netfilter is not loaded: it is needed only if pods are on a bridge")
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
    fn good_settings_are_no_trouble() {
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
    fn bad_settings_are_named() {
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
            (Level::Fail, "80 of at most 100 connections are tracked"),
            (Level::Warn, "net.bridge.bridge-nf-call-iptables = 0"),
            (Level::Warn, "net.ipv4.conf.all.route_localnet = 1"),
        ];
        assert_eq!(found, expected.map(|(level, what)| (level, what.to_owned())));
    }
}
