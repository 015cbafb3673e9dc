//! The names of chains: the names of kube-proxy, which operators and tools know and whose chains can be taken over, and
//! a few names of Fairlead.

use std::net::SocketAddr;

use proto::model::{Protocol, ServicePortKey};
use ring::digest::{SHA256, digest};

// Chains of kube-proxy.
pub(crate) const SERVICES: &str = "KUBE-SERVICES";
pub(crate) const NODEPORTS: &str = "KUBE-NODEPORTS";
pub(crate) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(crate) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(crate) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(crate) const FORWARD: &str = "KUBE-FORWARD";
pub(crate) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";

// Chains of Fairlead. Where they exist, the other chains are Fairlead's too: kube-proxy uses no such prefix.
/// Rejects packets: TCP with a reset.
pub(crate) const REJECT: &str = "FAIRLEAD-REJECT";
/// Marks packets that are not from pods, where pods have several CIDRs.
pub(crate) const MASQ_OTHERS: &str = "FAIRLEAD-MASQ-OTHERS";
/// Node ports without endpoints.
pub(crate) const UNSERVED_NODEPORTS: &str = "FAIRLEAD-NODEPORTS";
/// Rejects packets to cluster IPs at ports that no service port has.
pub(crate) const CLUSTER_IPS: &str = "FAIRLEAD-CLUSTER-IPS";
/// Drops resets from the port of `/drained`.
pub(crate) const SILENT: &str = "FAIRLEAD-SILENT";

/// The chains that all service ports share.
const KUBE_PROXY_CHAINS: [&str; 7] =
    [SERVICES, NODEPORTS, POSTROUTING, MARK_MASQ, EXTERNAL_SERVICES, FORWARD, PROXY_FIREWALL];
const FAIRLEAD_CHAINS: [&str; 5] = [REJECT, MASQ_OTHERS, UNSERVED_NODEPORTS, CLUSTER_IPS, SILENT];

/// The length of a hash, in base32 characters.
const HASH_LEN: usize = 16;

/// The purpose of a chain of one service port. It jumps only to chains of kinds before its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChainKind {
    /// Translates to an endpoint.
    Sep,
    /// A part of the endpoints of a pool.
    PoolPart,
    /// Selects an endpoint of the cluster pool.
    Svc,
    /// Selects an endpoint of the local pool.
    Svl,
    /// External traffic, by policy and source class.
    Ext,
    /// A part of the load-balancer source ranges.
    SourcePart,
    /// Load-balancer source ranges.
    Fw,
}

/// The names of the chains of one service port.
#[derive(Clone, Debug)]
pub(crate) struct ChainNames {
    /// `namespace/name:port-name`, as in comments.
    pub(crate) service: String,
    seed: String,
    hash: String,
}

// === impl ChainKind ===

impl ChainKind {
    const ALL: [Self; 7] = [Self::Sep, Self::PoolPart, Self::Svc, Self::Svl, Self::Ext, Self::SourcePart, Self::Fw];

    /// The kind of a chain with a hash in its name.
    pub(crate) fn of(chain: &str) -> Option<Self> {
        let is_hash =
            |text: &str| text.len() == HASH_LEN && text.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'));
        Self::ALL.into_iter().find(|kind| chain.strip_prefix(kind.prefix()).is_some_and(is_hash))
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Sep => "KUBE-SEP-",
            // kube-proxy has no chains of these two kinds.
            Self::PoolPart => "FAIRLEAD-P-",
            Self::SourcePart => "FAIRLEAD-S-",
            Self::Svc => "KUBE-SVC-",
            Self::Svl => "KUBE-SVL-",
            Self::Ext => "KUBE-EXT-",
            Self::Fw => "KUBE-FW-",
        }
    }
}

// === impl ChainNames ===

impl ChainNames {
    pub(crate) fn new(key: &ServicePortKey) -> Self {
        let ServicePortKey { namespace, name, port_name, protocol } = key;
        let colon = if port_name.is_empty() { "" } else { ":" };
        let service = format!("{namespace}/{name}{colon}{port_name}");
        let seed = format!("{service}{}", Protocol::lower(*protocol));
        Self { hash: hash(&seed), service, seed }
    }

    /// The part with these rules: another list of rules is another chain.
    pub(crate) fn part(&self, kind: ChainKind, rules: &[String]) -> String {
        format!("{}{}", kind.prefix(), hash(&format!("{}{}", self.seed, rules.join("\n"))))
    }

    /// The chain of a kind other than SEP and the parts: `KUBE-SVC-XPGD46QRK7WJZT7O`.
    pub(crate) fn chain(&self, kind: ChainKind) -> String {
        format!("{}{}", kind.prefix(), self.hash)
    }

    /// `KUBE-SEP-SXIVWICOYRO3J4NJ`
    pub(crate) fn endpoint(&self, endpoint: SocketAddr) -> String {
        format!("{}{}", ChainKind::Sep.prefix(), hash(&format!("{}{endpoint}", self.seed)))
    }
}

/// One of `count` groups for a text, always the same.
pub(crate) fn group(text: &str, count: usize) -> usize {
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().iter().take(4).fold(0, |bits, byte| bits << 8 | usize::from(*byte)) % count
}

/// The first characters of the base32 (RFC 4648) of the SHA-256.
fn hash(text: &str) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let hash = digest(&SHA256, text.as_bytes());
    // 80 bits.
    let bytes = hash.as_ref().iter().take(HASH_LEN * 5 / 8);
    let bits = bytes.fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));

    let character = |index: usize| ALPHABET[(bits >> (5 * (HASH_LEN - 1 - index)) & 31) as usize];
    (0..HASH_LEN).map(|index| char::from(character(index))).collect()
}

/// Whether the backend creates chains with this name.
pub(crate) fn is_ours(chain: &str) -> bool {
    KUBE_PROXY_CHAINS.contains(&chain) || is_only_ours(chain) || ChainKind::of(chain).is_some()
}

/// Whether only Fairlead creates chains with this name.
pub(crate) fn is_only_ours(chain: &str) -> bool {
    FAIRLEAD_CHAINS.contains(&chain)
}

#[cfg(test)]
mod tests {
    use backend::testing::mk_key;

    use super::*;

    #[test]
    fn names_are_those_of_kube_proxy() {
        for (key, expected) in [
            ("ns1/svc1:p80", "XPGD46QRK7WJZT7O"),
            ("ns2/svc2:p80", "GNZBNJ2PO5MGZ6GT"),
            ("ns1/svc1", "AQI2S6QIMU7PVVRP"),
            ("ns1/svc1:p80/udp", "OJWW7NSBVZTDHXNW"),
        ] {
            let names = ChainNames::new(&mk_key(key));
            for (kind, prefix) in
                [(ChainKind::Svc, "SVC"), (ChainKind::Svl, "SVL"), (ChainKind::Ext, "EXT"), (ChainKind::Fw, "FW")]
            {
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
            let chain = ChainNames::new(&mk_key(key)).endpoint(endpoint.parse().unwrap());
            assert_eq!(chain, format!("KUBE-SEP-{expected}"));
            assert!(is_ours(&chain));
        }
    }

    #[test]
    fn names_of_other_programs_are_not_ours() {
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
        assert!(KUBE_PROXY_CHAINS.into_iter().all(|chain| is_ours(chain) && !is_only_ours(chain)));
        assert!(FAIRLEAD_CHAINS.into_iter().all(|chain| is_ours(chain) && chain.starts_with("FAIRLEAD-")));
    }
}
