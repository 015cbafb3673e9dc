//! The rules of kube-proxy 1.36 for a Service with two endpoints, and rules of other programs, loaded into a node.

use std::{
    net::SocketAddr,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use super::{PORT, vip};
use crate::{
    cluster::Pod,
    deployment::Backend,
    netns::Netns,
    plan::{self, IpFamily},
    tools,
};

/// The mode of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    IptablesNft,
    IptablesLegacy,
    Nftables,
}

/// kube-proxy's is 30 s.
const SYNC_PERIOD: Duration = Duration::from_millis(500);

/// iptables rules of an administrator, a CNI plugin and kubelet.
const OTHERS: &str = "\
*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -m comment --comment \"of an administrator\" -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 8443 -j RETURN
COMMIT
";

// === impl Mode ===

impl Mode {
    fn tools(self) -> &'static [(IpFamily, &'static str)] {
        match self {
            Self::IptablesNft => &[(IpFamily::V4, "iptables-nft"), (IpFamily::V6, "ip6tables-nft")],
            Self::IptablesLegacy => &[(IpFamily::V4, "iptables-legacy"), (IpFamily::V6, "ip6tables-legacy")],
            Self::Nftables => &[],
        }
    }

    /// The mode that is most like a backend.
    pub(super) fn like(backend: Backend) -> Self {
        match backend {
            Backend::Nft => Self::Nftables,
            Backend::IptablesNft => Self::IptablesNft,
            Backend::IptablesLegacy | Backend::Ipvs => Self::IptablesLegacy,
        }
    }

    /// Loads the rules again whenever the canary is gone, as kube-proxy does in its iptables mode, until the sender of
    /// `is_ended` is dropped.
    pub(super) fn keep_kube_proxys(self, node: &Netns, pods: &[&Pod; 2], is_ended: Receiver<()>) {
        while is_ended.recv_timeout(SYNC_PERIOD) == Err(RecvTimeoutError::Timeout) {
            let is_flushed =
                |tool: &str| !node.output(&format!("{tool}-save"), &["-t", "mangle"]).contains("KUBE-PROXY-CANARY");
            if self.tools().iter().any(|(_, tool)| is_flushed(tool)) {
                self.load_kube_proxys(node, pods);
            }
        }
    }

    /// Whether a backend has its rules in the same tables, under the same names.
    pub(super) fn is_kept_by(self, backend: Backend) -> bool {
        match self {
            Self::IptablesNft => backend == Backend::IptablesNft,
            Self::IptablesLegacy => backend == Backend::IptablesLegacy,
            Self::Nftables => false,
        }
    }

    #[track_caller]
    pub(super) fn load_others(self, node: &Netns) {
        for (_, tool) in self.tools() {
            node.run_with_input(&format!("{tool}-restore"), &[], OTHERS);
        }
        if self == Self::Nftables {
            tools::nft(node, "table inet others {\nset kept {\ntype ipv4_addr\nelements = { 192.0.2.77 }\n}\n}\n");
        }
    }

    #[track_caller]
    pub(super) fn load_kube_proxys(self, node: &Netns, pods: &[&Pod; 2]) {
        for family in IpFamily::ALL {
            let endpoints = pods.map(|pod| SocketAddr::new(pod.address.ip(family), 8080));
            if self == Self::Nftables {
                tools::nft(node, &nftables(family, endpoints));
            }
            for (_, tool) in self.tools().iter().filter(|(of, _)| *of == family) {
                node.run_with_input(&format!("{tool}-restore"), &["--noflush"], &iptables(family, endpoints));
            }
        }
    }

    /// All rules but Fairlead's, without counters.
    #[track_caller]
    pub(super) fn list(self, node: &Netns) -> Vec<String> {
        let listed = match self {
            Self::Nftables => {
                let tables = node.output("nft", &["list", "tables"]);
                // `filter` and `nat` contain the rules of iptables.
                let ours = [" fairlead1", " filter", " nat"];
                let others = tables.lines().filter(|line| !ours.iter().any(|name| line.ends_with(name)));
                others.map(|line| node.output("nft", &["list", "table", &line["table ".len()..]])).collect()
            }
            _ => self.tools().iter().map(|(_, tool)| node.output(&format!("{tool}-save"), &[])).collect::<String>(),
        };
        // Without the chains of the IPVS backend.
        let lines = listed.lines().filter(|line| !line.starts_with('#') && !line.contains("FAIRLEAD-IPVS"));
        lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect()
    }
}

/// The name of a chain with a fixed hash.
fn chain(kind: &str, number: usize) -> String {
    format!("KUBE-{kind}-{}", ["XPGD46QRK7WJZT7O", "SXIVWICOYRO3J4NJ", "OJWW7NSBVZTDHXNW", "I77PXRDZVX7PMWMN"][number])
}

fn iptables(family: IpFamily, endpoints: [SocketAddr; 2]) -> String {
    let vip = vip(family).ip();
    let pods = plan::CLUSTER_CIDRS[family as usize];
    let mut chains = String::new();
    let mut rules = String::new();
    for (index, protocol) in ["tcp", "udp"].into_iter().enumerate() {
        let service = chain("SVC", index);
        let name = format!("-m comment --comment \"default/web:{protocol} cluster IP\"");
        let matched = format!("-d {vip} -p {protocol} {name} -m {protocol} --dport {PORT}");
        chains += &format!(":{service} - [0:0]\n");
        rules +=
            &format!("-A KUBE-SERVICES {matched} -j {service}\n-A {service} ! -s {pods} {matched} -j KUBE-MARK-MASQ\n");
        let chance = ["-m statistic --mode random --probability 0.50000000000 ", ""];
        for ((number, endpoint), chance) in endpoints.iter().enumerate().zip(chance) {
            let name = format!("-m comment --comment \"default/web:{protocol} -> {endpoint}\"");
            let target = chain("SEP", 2 * index + number);
            chains += &format!(":{target} - [0:0]\n");
            rules += &format!(
                "-A {service} {name} {chance}-j {target}\n\
                 -A {target} -s {} -m comment --comment default/web:{protocol} -j KUBE-MARK-MASQ\n\
                 -A {target} -p {protocol} -m comment --comment default/web:{protocol} -m {protocol} -j DNAT --to-destination {endpoint}\n",
                endpoint.ip(),
            );
        }
    }
    format!(
        "\
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-I FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
{chains}-I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
{rules}COMMIT
"
    )
}

fn nftables(family: IpFamily, [first, second]: [SocketAddr; 2]) -> String {
    let (ip, vip) = (["ip", "ip6"][family as usize], vip(family).ip());
    let pods = plan::CLUSTER_CIDRS[family as usize];
    let service = |protocol: &str| {
        let choose = |number: usize| format!("{number} : goto endpoint-{number}-default/web/{protocol}__");
        let endpoint = |number: usize, to: SocketAddr| {
            format!(
                "  chain endpoint-{number}-default/web/{protocol}__ {{\n    {ip} saddr {} jump mark-for-masquerade\n    \
                 meta l4proto {protocol} dnat to {to}\n  }}\n",
                to.ip()
            )
        };
        format!(
            "{}{}  chain service-ULMVA6XW-default/web/{protocol}__ {{\n    {ip} daddr {vip} {protocol} dport {PORT} {ip} saddr != {pods} \
             jump mark-for-masquerade\n    numgen random mod 2 vmap {{ {}, {} }}\n  }}\n",
            endpoint(0, first),
            endpoint(1, second),
            choose(0),
            choose(1)
        )
    };
    let element =
        |protocol: &str| format!("{vip} . {protocol} . {PORT} : goto service-ULMVA6XW-default/web/{protocol}__");
    format!(
        "\
table {ip} kube-proxy {{
  comment \"rules for kube-proxy\"
  chain mark-for-masquerade {{
    meta mark set mark or 0x4000
  }}
{}{}  map service-ips {{
    type {ip_type} . inet_proto . inet_service : verdict
    comment \"ClusterIP, ExternalIP and LoadBalancer IP traffic\"
    elements = {{ {}, {} }}
  }}
  chain services {{
    {ip} daddr . meta l4proto . th dport vmap @service-ips
  }}
  chain masquerading {{
    mark and 0x4000 == 0 return
    meta mark set mark xor 0x4000
    masquerade fully-random
  }}
  chain nat-prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
    jump services
  }}
  chain nat-output {{
    type nat hook output priority -100; policy accept;
    jump services
  }}
  chain nat-postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    jump masquerading
  }}
}}
",
        service("tcp"),
        service("udp"),
        element("tcp"),
        element("udp"),
        ip_type = ["ipv4_addr", "ipv6_addr"][family as usize],
    )
}
