//! The names of chains: kube-proxy's, so that people and tools know them and taking over is smooth, and a few of our own.

use std::net::SocketAddr;

use proto::model::{Protocol, ServicePortKey};
use ring::digest::{SHA256, digest};

// kube-proxy's, with one chain for all service ports.
pub(crate) const SERVICES: &str = "KUBE-SERVICES";
pub(crate) const NODEPORTS: &str = "KUBE-NODEPORTS";
pub(crate) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(crate) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(crate) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(crate) const FORWARD: &str = "KUBE-FORWARD";
pub(crate) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";

// Ours. The prefix tells whose the others are: kube-proxy has none that begin so.
/// Refuses, by a TCP reset where that is possible.
pub(crate) const REJECT: &str = "FAIRLEAD-REJECT";
/// Marks what is no pod's, where pods have several ranges.
pub(crate) const MASQ_OTHERS: &str = "FAIRLEAD-MASQ-OTHERS";
/// Node ports that nobody serves.
pub(crate) const UNSERVED_NODEPORTS: &str = "FAIRLEAD-NODEPORTS";
/// Cluster IPs, for what no service port has there.
pub(crate) const CLUSTER_IPS: &str = "FAIRLEAD-CLUSTER-IPS";

/// All with one chain for all service ports.
const COMMON: [&str; 11] = [
    SERVICES,
    NODEPORTS,
    POSTROUTING,
    MARK_MASQ,
    EXTERNAL_SERVICES,
    FORWARD,
    PROXY_FIREWALL,
    REJECT,
    MASQ_OTHERS,
    UNSERVED_NODEPORTS,
    CLUSTER_IPS,
];

/// Before a hash.
const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];
/// What ours begin with.
const OURS: &str = "FAIRLEAD-";
/// A hash: so many characters of base32.
const HASH: usize = 16;

/// What a chain of one service port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Chooses an endpoint of the cluster pool.
    Svc,
    /// Chooses an endpoint of the local pool.
    Svl,
    /// External traffic, by policy and by where it comes from.
    Ext,
    /// Source ranges.
    Fw,
}

/// The names of one service port's chains.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// `namespace/name:port-name`, as comments have it.
    pub(crate) service: String,
    seed: String,
    hash: String,
}

// === impl Names ===

impl Names {
    pub(crate) fn new(key: &ServicePortKey) -> Self {
        let ServicePortKey { namespace, name, port_name, protocol } = key;
        let colon = if port_name.is_empty() { "" } else { ":" };
        let service = format!("{namespace}/{name}{colon}{port_name}");
        let seed = format!("{service}{}", Protocol::lower(*protocol));
        Self { hash: hash(&seed), service, seed }
    }

    /// `KUBE-SVC-XPGD46QRK7WJZT7O`
    pub(crate) fn chain(&self, kind: Kind) -> String {
        let prefix = match kind {
            Kind::Svc => PREFIXES[0],
            Kind::Svl => PREFIXES[1],
            Kind::Ext => PREFIXES[2],
            Kind::Fw => PREFIXES[3],
        };
        format!("{prefix}{}", self.hash)
    }

    /// `KUBE-SEP-SXIVWICOYRO3J4NJ`
    pub(crate) fn endpoint(&self, endpoint: SocketAddr) -> String {
        format!("{}{}", PREFIXES[4], hash(&format!("{}{endpoint}", self.seed)))
    }
}

/// The first characters of the base32 (RFC 4648) of the SHA-256.
fn hash(text: &str) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = digest(&SHA256, text.as_bytes());
    let bits = digest.as_ref().iter().take(HASH * 5 / 8);
    // 80 bits.
    let bits = bits.fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let character = |place: usize| ALPHABET[(bits >> (5 * (HASH - 1 - place)) & 31) as usize];
    (0..HASH).map(|place| char::from(character(place))).collect()
}

/// Whether a chain bears a name that we give.
pub(crate) fn is_ours(chain: &str) -> bool {
    let is_hash = |text: &str| text.len() == HASH && text.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'));
    COMMON.contains(&chain) || PREFIXES.into_iter().any(|prefix| chain.strip_prefix(prefix).is_some_and(is_hash))
}

/// How many chains of ours a packet may meet behind this one: a chain leads only to those with fewer. 0 for those without a hash.
pub(crate) fn depth(chain: &str) -> usize {
    let prefix = PREFIXES.into_iter().find(|prefix| chain.starts_with(prefix));
    match prefix {
        Some("KUBE-SEP-") => 1,
        Some("KUBE-SVC-" | "KUBE-SVL-") => 2,
        Some("KUBE-EXT-") => 3,
        Some(_) => 4,
        None => 0,
    }
}

/// Whether a chain bears a name that only we give.
pub(crate) fn is_only_ours(chain: &str) -> bool {
    COMMON.contains(&chain) && chain.starts_with(OURS)
}

#[cfg(test)]
mod tests {
    use backend::testing::mk_key;

    use super::*;

    #[test]
    fn names_are_kube_proxys() {
        for (key, expected) in [
            ("ns1/svc1:p80", "XPGD46QRK7WJZT7O"),
            ("ns2/svc2:p80", "GNZBNJ2PO5MGZ6GT"),
            ("ns1/svc1", "AQI2S6QIMU7PVVRP"),
            ("ns1/svc1:p80/udp", "OJWW7NSBVZTDHXNW"),
        ] {
            let names = Names::new(&mk_key(key));
            for (kind, prefix) in [(Kind::Svc, "SVC"), (Kind::Svl, "SVL"), (Kind::Ext, "EXT"), (Kind::Fw, "FW")] {
                let chain = names.chain(kind);
                assert_eq!(chain, format!("KUBE-{prefix}-{expected}"));
                assert!(is_ours(&chain));
            }
        }
        for (key, endpoint, expected) in [
            ("ns1/svc1:p80", "10.180.0.1:80", "SXIVWICOYRO3J4NJ"),
            ("ns5/svc5:p80", "10.180.0.3:80", "I77PXRDZVX7PMWMN"),
            ("ns1/svc1:p80", "[fd00:10:180::1]:80", "OGYCNMB4EMRUSJ6N"),
        ] {
            let chain = Names::new(&mk_key(key)).endpoint(endpoint.parse().unwrap());
            assert_eq!(chain, format!("KUBE-SEP-{expected}"));
            assert!(is_ours(&chain));
        }
    }

    #[test]
    fn names_of_others_are_theirs() {
        for chain in [
            "KUBE-FIREWALL",
            "KUBE-KUBELET-CANARY",
            "KUBE-IPTABLES-HINT",
            "KUBE-MARK-DROP",
            "KUBE-SVC-",
            "KUBE-SVC-XPGD46QRK7WJZT71",
            "KUBE-SVC-XPGD46QRK7WJZT7OX",
            "KUBE-ROUTER-INPUT",
        ] {
            assert!(!is_ours(chain) && !is_only_ours(chain), "{chain}");
        }
        assert!(COMMON.into_iter().filter(|chain| is_only_ours(chain)).count() == 4);
        assert!(COMMON.into_iter().all(is_ours));
    }
}
