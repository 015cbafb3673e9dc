//! The chains that kube-proxy makes, in its iptables and its IPVS mode, now and in versions that are still around.

/// Lets packets pass that belong to connections to Services.
pub(super) const FORWARD: &str = "KUBE-FORWARD";

/// Chains that built-in chains lead to.
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

/// Chains that only its own rules lead to, and the one by which it notices that somebody has flushed a table. Not among them are
/// those that kubelet makes: KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT.
const INNER: [&str; 4] = ["KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY", "KUBE-SOURCE-RANGES-FIREWALL"];

/// Before a hash: the chains of one service port, or of one endpoint. KUBE-XLB- is what KUBE-EXT- was called until 1.23.
const PER_SERVICE: [&str; 6] = ["KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-XLB-"];

/// What Fairlead's own chains begin with.
const FAIRLEAD: &str = "FAIRLEAD-";
/// Those of its IPVS backend, which leaves kube-proxy's chains alone.
const IPVS: &str = "FAIRLEAD-IPVS";
/// Chains for all service ports that Fairlead's iptables backend has too, under kube-proxy's names.
const SHARED: [&str; 7] = [
    "KUBE-EXTERNAL-SERVICES",
    FORWARD,
    "KUBE-MARK-MASQ",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SERVICES",
];

/// A hash: so many characters of base32.
const HASH: usize = 16;

pub(super) fn is_kube_proxys(chain: &str) -> bool {
    is_hooked(chain) || INNER.contains(&chain) || kind(chain).is_some()
}

pub(super) fn is_hooked(chain: &str) -> bool {
    HOOKED.contains(&chain)
}

/// Whether it says that Fairlead's iptables backend has programmed this iptables.
pub(crate) fn is_fairleads(chain: &str) -> bool {
    chain.starts_with(FAIRLEAD) && !chain.starts_with(IPVS)
}

/// Whether a chain of this name may be Fairlead's too.
pub(super) fn is_shared(chain: &str) -> bool {
    SHARED.contains(&chain) || kind(chain).is_some_and(|kind| kind != "KUBE-XLB-")
}

/// Of which kind the chain of one service port or endpoint is: its name without the hash.
pub(crate) fn kind(chain: &str) -> Option<&'static str> {
    let is_hash = |text: &str| text.len() == HASH && text.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'));
    PER_SERVICE.into_iter().find(|prefix| chain.strip_prefix(prefix).is_some_and(is_hash))
}
