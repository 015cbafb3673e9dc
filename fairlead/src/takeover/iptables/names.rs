//! The names of the chains that current and older versions of kube-proxy create, in iptables and IPVS mode.

/// Accepts forwarded packets of connections to Services.
pub(super) const FORWARD: &str = "KUBE-FORWARD";

/// Chains that rules in built-in chains jump to.
const HOOKED: [&str; 9] = [
    "KUBE-EXTERNAL-SERVICES",
    FORWARD,
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    "KUBE-NODE-PORT",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SERVICES",
];
/// Chains that only its own rules jump to, and the canary, by which it detects that a table was flushed. Chains of the
/// kubelet are not among them: KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT.
const INNER: [&str; 4] = ["KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY", "KUBE-SOURCE-RANGES-FIREWALL"];

/// Prefixes, followed by a hash, of the chains of one service port or endpoint. KUBE-EXT- was KUBE-XLB- until 1.23.
const PER_SERVICE: [&str; 6] = ["KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-XLB-"];

/// The length of a hash, in base32 characters.
const HASH_LEN: usize = 16;

pub(crate) fn is_kube_proxys(chain: &str) -> bool {
    is_hooked(chain) || INNER.contains(&chain) || kind(chain).is_some()
}

pub(super) fn is_hooked(chain: &str) -> bool {
    HOOKED.contains(&chain)
}

/// The kind of a chain of one service port or endpoint: its prefix.
pub(crate) fn kind(chain: &str) -> Option<&'static str> {
    let is_hash =
        |text: &str| text.len() == HASH_LEN && text.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'));
    PER_SERVICE.into_iter().find(|prefix| chain.strip_prefix(prefix).is_some_and(is_hash))
}
