//! The names of the chains that current and older versions of kube-proxy create, in iptables and IPVS mode.

/// Accepts forwarded packets of connections to Services.
pub(super) const FORWARD: &str = "KUBE-FORWARD";

const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// Chains that rules in built-in chains jump to, and that Fairlead's iptables backend creates too.
const HOOKED: [&str; 6] =
    ["KUBE-EXTERNAL-SERVICES", FORWARD, "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-PROXY-FIREWALL", "KUBE-SERVICES"];
/// Those of the IPVS mode.
const HOOKED_IPVS: [&str; 3] = ["KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-NODE-PORT"];
/// Chains that only its own rules jump to, and the one by which it detects that a table was flushed. Not those of
/// kubelet: KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT.
const INNER: [&str; 4] = ["KUBE-LOAD-BALANCER", MARK_MASQ, "KUBE-PROXY-CANARY", "KUBE-SOURCE-RANGES-FIREWALL"];

/// Prefixes, followed by a hash, of the chains of one service port or endpoint. KUBE-EXT- was KUBE-XLB- until 1.23.
const PER_SERVICE: [&str; 6] = ["KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-XLB-"];

/// The prefix of Fairlead's own chains.
const FAIRLEAD: &str = "FAIRLEAD-";
/// The prefix of its IPVS backend, which does not touch kube-proxy's chains.
const IPVS: &str = "FAIRLEAD-IPVS";

/// The length of a hash, in base32 characters.
const HASH_LEN: usize = 16;

pub(super) fn is_kube_proxys(chain: &str) -> bool {
    is_hooked(chain) || INNER.contains(&chain) || kind(chain).is_some()
}

pub(super) fn is_hooked(chain: &str) -> bool {
    HOOKED.contains(&chain) || HOOKED_IPVS.contains(&chain)
}

/// Whether only Fairlead's iptables backend creates this chain.
pub(crate) fn is_fairleads(chain: &str) -> bool {
    chain.starts_with(FAIRLEAD) && !chain.starts_with(IPVS)
}

/// Whether Fairlead's iptables backend creates chains with this name too.
pub(super) fn is_shared(chain: &str) -> bool {
    HOOKED.contains(&chain) || chain == MARK_MASQ || kind(chain).is_some_and(|kind| kind != "KUBE-XLB-")
}

/// The kind of a chain of one service port or endpoint: its prefix.
pub(crate) fn kind(chain: &str) -> Option<&'static str> {
    let is_hash =
        |text: &str| text.len() == HASH_LEN && text.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'));
    PER_SERVICE.into_iter().find(|prefix| chain.strip_prefix(prefix).is_some_and(is_hash))
}
