//! Checks sysctls that Services depend on.

use std::{fs, path::Path};

use super::{Finding, Level};

/// The network sysctls of this network namespace.
const ROOT: &str = "/proc/sys/net";
/// The conntrack table is reported as nearly full from this percentage on.
const NEARLY_FULL_PERCENT: u64 = 80;

/// A sysctl that must not have one value.
struct Sysctl {
    path: &'static str,
    wrong: &'static str,
    /// That of the finding if the sysctl has this value.
    level: Level,
    why: &'static str,
    fix: &'static str,
}

const SYSCTLS: [Sysctl; 4] = [
    Sysctl {
        path: "ipv4/ip_forward",
        wrong: "0",
        level: Level::Fail,
        why: "the kernel does not forward packets of pods and external clients to endpoints",
        fix: "sysctl -w net.ipv4.ip_forward=1, and set it in /etc/sysctl.d",
    },
    Sysctl {
        path: "ipv6/conf/all/forwarding",
        wrong: "0",
        level: Level::Warn,
        why: "the kernel does not forward IPv6 packets of pods and external clients",
        fix: "sysctl -w net.ipv6.conf.all.forwarding=1, if the cluster uses IPv6",
    },
    Sysctl {
        path: "ipv4/conf/all/rp_filter",
        wrong: "1",
        level: Level::Warn,
        why: "strict: the kernel silently drops packets if requests and replies use different interfaces",
        fix: "sysctl -w net.ipv4.conf.all.rp_filter=2 (loose) if the node has several interfaces or routes for pods",
    },
    Sysctl {
        path: "bridge/bridge-nf-call-iptables",
        wrong: "0",
        level: Level::Warn,
        why: "if pods of a node share a bridge, replies between them bypass the rules and keep the endpoint as source",
        fix: "sysctl -w net.bridge.bridge-nf-call-iptables=1 (and bridge-nf-call-ip6tables), if pods are on a bridge",
    },
];

/// Checks the network namespace of this process.
pub(super) fn check() -> Vec<Finding> {
    check_in(Path::new(ROOT))
}

/// Checks the sysctls below a directory.
fn check_in(root: &Path) -> Vec<Finding> {
    let mut findings: Vec<_> = SYSCTLS.iter().map(|sysctl| sysctl.finding(root)).collect();
    findings.push(conntrack(root));
    findings
}

fn read(root: &Path, path: &str) -> Option<String> {
    Some(fs::read_to_string(root.join(path)).ok()?.trim().to_owned())
}

impl Sysctl {
    fn finding(&self, root: &Path) -> Finding {
        let name = format!("net.{}", self.path.replace('/', "."));
        let Some(value) = read(root, self.path) else {
            return Finding::ok("sysctl", format!("{name} does not exist: the kernel has not loaded this feature"));
        };
        let found = Finding::ok("sysctl", format!("{name} = {value}"));
        if value == self.wrong { found.at_level(self.level, self.why, self.fix) } else { found }
    }
}

fn conntrack(root: &Path) -> Finding {
    let number = |path| read(root, path).and_then(|value| value.parse::<u64>().ok());
    let Some(max) = number("netfilter/nf_conntrack_max") else {
        return Finding::ok("conntrack", "not active yet: the kernel starts to track connections with the first rule");
    };
    let count = number("netfilter/nf_conntrack_count").unwrap_or(0);

    let found = Finding::ok("conntrack", format!("{count} of at most {max} entries are used"));
    if count * 100 < max * NEARLY_FULL_PERCENT {
        return found;
    }
    found.fail(
        "when the table is full, the kernel drops packets of new connections",
        "raise net.netfilter.nf_conntrack_max (--conntrack-max-per-core), or find the source with `conntrack -L`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(values: &[(&str, &str)]) -> Vec<(Level, String)> {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in values {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        let findings = check_in(root.path());
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
        ]);
        let expected = [
            (Level::Fail, "net.ipv4.ip_forward = 0"),
            (Level::Warn, "net.ipv4.conf.all.rp_filter = 1"),
            (Level::Warn, "net.bridge.bridge-nf-call-iptables = 0"),
            (Level::Fail, "80 of at most 100 entries are used"),
        ];
        assert_eq!(found, expected.map(|(level, what)| (level, what.to_owned())));
    }
}
