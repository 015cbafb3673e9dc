//! The iptables rules. They look packets up in sets and do not depend on Services.
//!
//! ```text
//!   mangle INPUT, OUTPUT ─▶ FAIRLEAD-IPVS : drops sources outside the source ranges; sets the mark from ADDRESSES,
//!                            │              then from VIPS, or from NODE-PORTS at addresses of the node;
//!                            │              for packets of pods and this node from ..-INSIDE
//!                            └▶ FAIRLEAD-IPVS-MASQ : stores in the connmark whether to masquerade
//!   filter INPUT, OUTPUT ─▶ FAIRLEAD-IPVS : accepts probes of health-check node ports; rejects
//!          FORWARD, OUTPUT ─▶ FAIRLEAD-IPVS-NOBODY : drops packets to unused addresses of the service CIDRs
//!          FORWARD ─▶ FAIRLEAD-IPVS-FORWARD : accepts replies
//!          OUTPUT ─▶ FAIRLEAD-IPVS-SILENT : drops resets while no backend listens at the port of /drained
//!   (IPVS: after filter INPUT, before filter OUTPUT)
//!   mangle POSTROUTING ─▶ FAIRLEAD-IPVS-END : stores in the connmark that a connection is a hairpin; clears marks
//!                                             before packets leave the node or are encapsulated
//!   nat    POSTROUTING ─▶ FAIRLEAD-IPVS : masquerades by connmark, and VIPs as sources
//!          OUTPUT ─▶ FAIRLEAD-IPVS-DRAINED : leads the kubelet from a pod that ends to the backend
//! ```

use backend::dataplane::{DataplaneOptions, DrainedRedirect, Masquerade, PodMatch, loopback, service_cidrs};
use ipnet::IpNet;
use iptables::{ChainSpec, HookRule, Table};
use proto::model::{ClusterInfo, IpFamily, NodeInfo, PerFamily};

use crate::{
    mark::{Mark, MarkKind},
    set::{SetContent, SetId},
};

/// The tables with chains of ours.
pub(crate) const TABLES: [Table; 3] = [Table::Mangle, Table::Filter, Table::Nat];

const MAIN: &str = "FAIRLEAD-IPVS";
const PORTS: &str = "FAIRLEAD-IPVS-PORTS";
const MASQ: &str = "FAIRLEAD-IPVS-MASQ";
const END: &str = "FAIRLEAD-IPVS-END";
const REJECT: &str = "FAIRLEAD-IPVS-REJECT";
const UNUSED: &str = "FAIRLEAD-IPVS-NOBODY";
const FORWARD: &str = "FAIRLEAD-IPVS-FORWARD";
const DRAINED: &str = "FAIRLEAD-IPVS-DRAINED";
const SILENT: &str = "FAIRLEAD-IPVS-SILENT";

/// Whether a chain is one of this backend.
pub(crate) fn is_ours(chain: &str) -> bool {
    [MAIN, PORTS, MASQ, END, REJECT, UNUSED, FORWARD, DRAINED, SILENT].contains(&chain)
}

/// Our chains of a family on a node.
pub(crate) fn rules(
    family: IpFamily,
    options: &DataplaneOptions,
    node: &NodeInfo,
    cluster: &ClusterInfo,
) -> Vec<ChainSpec> {
    let writer = Writer { family, options, node };
    let chain = |table, name: &str, rules| ChainSpec { table, name: name.to_owned(), rules };
    vec![
        chain(Table::Mangle, MAIN, writer.marks()),
        chain(Table::Mangle, PORTS, writer.node_ports()),
        chain(Table::Mangle, MASQ, writer.masquerade_decisions()),
        chain(Table::Mangle, END, writer.end()),
        chain(Table::Nat, MAIN, writer.masquerade()),
        chain(Table::Nat, DRAINED, writer.drained()),
        chain(
            Table::Filter,
            MAIN,
            vec![
                format!("{} -j ACCEPT", Mark::HEALTH_CHECK.exactly()),
                format!("{} -j {REJECT}", Mark::REJECT.exactly()),
            ],
        ),
        chain(Table::Filter, REJECT, writer.reject()),
        chain(Table::Filter, UNUSED, writer.unused_service_ips(cluster)),
        chain(Table::Filter, SILENT, writer.silent()),
        chain(Table::Filter, FORWARD, vec!["-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned()]),
    ]
}

/// The rules that jump to our chains. Each is inserted at the beginning of its chain, in this order.
pub(crate) fn hooks() -> Vec<HookRule> {
    let new = "-m conntrack --ctstate NEW -j";
    let hook = |table, chain, rule: String| HookRule { table, chain, rule };
    vec![
        hook(Table::Nat, "POSTROUTING", format!("-j {MAIN}")),
        hook(Table::Nat, "OUTPUT", format!("-j {DRAINED}")),
        hook(Table::Filter, "FORWARD", format!("-j {FORWARD}")),
        hook(Table::Filter, "OUTPUT", format!("-j {SILENT}")),
        hook(Table::Filter, "FORWARD", format!("{new} {UNUSED}")),
        hook(Table::Filter, "OUTPUT", format!("{new} {UNUSED}")),
        hook(Table::Filter, "OUTPUT", format!("{new} {MAIN}")),
        hook(Table::Filter, "INPUT", format!("{new} {MAIN}")),
        hook(Table::Mangle, "POSTROUTING", format!("-j {END}")),
        hook(Table::Mangle, "OUTPUT", format!("{new} {MAIN}")),
        hook(Table::Mangle, "INPUT", format!("{new} {MAIN}")),
    ]
}

/// Writes the rules of a family on a node.
struct Writer<'a> {
    family: IpFamily,
    options: &'a DataplaneOptions,
    node: &'a NodeInfo,
}

// === impl Writer ===

impl Writer<'_> {
    fn marks(&self) -> Vec<String> {
        let mut rules = vec![
            // The packet comes from IPVS, which has another hook after OUTPUT.
            format!("-m mark --mark {} -j RETURN", Mark::any()),
            format!(
                "-m set --match-set {} dst,dst -m set ! --match-set {} dst,dst,src -j DROP",
                self.set(SetContent::Restricted),
                self.set(SetContent::Sources)
            ),
            format!("-j SET --map-set {} dst --map-mark", self.set(SetContent::Addresses)),
            self.map("", SetContent::Vips),
        ];
        rules.extend(self.inside(SetContent::VipsInside));
        for range in self.node_port_ranges() {
            rules.push(format!(
                "{range}-m addrtype --dst-type LOCAL -m set ! --match-set {} dst -j {PORTS}",
                self.set(SetContent::Addresses)
            ));
        }
        // For packets of this node, IPVS is called before filter OUTPUT.
        rules.push(format!("{} -j DROP", Mark::DROP.exactly()));
        rules.push(format!("-m mark --mark {} -j {MASQ}", Mark::any()));
        rules
    }

    fn node_ports(&self) -> Vec<String> {
        let loopback = format!("-d {} -j RETURN", loopback(self.family));
        let mut rules = vec![loopback, self.map("", SetContent::NodePorts)];
        rules.extend(self.inside(SetContent::NodePortsInside));
        rules
    }

    /// Looks up packets from pods and from this node.
    fn inside(&self, content: SetContent) -> Vec<String> {
        let mut rules: Vec<_> = self.pods().iter().map(|pod| self.map(pod, content)).collect();
        rules.push(self.map("-m addrtype --src-type LOCAL ", content));
        rules
    }

    fn map(&self, source_match: &str, content: SetContent) -> String {
        format!("{source_match}-j SET --map-set {} dst,dst --map-mark", self.set(content))
    }

    /// Stores with the connection whether it is masqueraded.
    fn masquerade_decisions(&self) -> Vec<String> {
        let bit = self.masquerade_bit();
        let remember = format!("-j CONNMARK --set-xmark {bit}");
        let cluster_ip = Mark::CLUSTER_IP.exactly();
        let effective = self.options.effective(self.node);
        let mut rules = Vec::new();
        match (effective.masquerade[self.family], &effective.pods[self.family]) {
            (Masquerade::Never, _) | (Masquerade::UnlessPod, PodMatch::Unknown) => {}
            (Masquerade::Always, _) => rules.push(format!("{cluster_ip} {remember}")),
            (Masquerade::UnlessPod, _) => {
                rules.extend(self.pods().iter().map(|pod| format!("{pod}{cluster_ip} -j RETURN")));
                rules.push(format!("{cluster_ip} {remember}"));
            }
        }
        rules.push(format!("{} {remember}", Mark::of_kind(MarkKind::External)));
        rules.push(format!("{} -m addrtype --src-type LOCAL {remember}", Mark::of_kind(MarkKind::Inside)));
        rules
    }

    /// Only packets to a VIP have a mark: direct connections of a host-network endpoint to itself are no hairpin.
    fn end(&self) -> Vec<String> {
        let any = Mark::any();
        let bit = self.masquerade_bit();
        let returning = self.set(SetContent::Returning);
        let masquerade =
            |set| format!("-m mark --mark {any} -m set --match-set {set} dst,dst,src -j CONNMARK --set-xmark {bit}");
        vec![
            masquerade(self.set(SetContent::Hairpin)),
            // An endpoint without node name is not known to be on this node. The set has the entry of this packet, and
            // none for a destination that differs from its source.
            format!("-m mark --mark {any} -m connmark ! --mark {bit} -j SET --add-set {returning} src,dst,src --exist"),
            masquerade(returning),
            format!("-m mark --mark {any} -j MARK --set-xmark 0x0/0xffffffff"),
        ]
    }

    fn masquerade(&self) -> Vec<String> {
        // For a connection of this node to a local address the kernel selects that address as the source.
        let own = match self.node.primary_address(self.family) {
            Some(address) => format!("SNAT --to-source {address}"),
            None => "MASQUERADE --random-fully".to_owned(),
        };
        vec![
            format!("-m connmark --mark {} -j MASQUERADE --random-fully", self.masquerade_bit()),
            format!("-m set --match-set {} src -j {own}", self.set(SetContent::Addresses)),
        ]
    }

    fn drained(&self) -> Vec<String> {
        let Some(redirect) = self.options.drained_redirect(self.family, self.node) else { return Vec::new() };

        let DrainedRedirect { ports, pods, backend } = redirect;
        let to_pods = of_pods(&pods, "-d", "-o");
        let mut rules = Vec::new();
        for port in ports {
            for to_pod in &to_pods {
                rules.push(format!("{to_pod}-p tcp -m tcp --dport {port} -j DNAT --to-destination {backend}"));
            }
        }
        rules
    }

    /// Drops the resets of the kernel while no backend listens at the port of `/drained`: the kubelet connects again.
    fn silent(&self) -> Vec<String> {
        let port = self.options.drained_ports.own;
        port.iter().map(|port| format!("-p tcp -m tcp --sport {port} --tcp-flags RST RST -j DROP")).collect()
    }

    fn reject(&self) -> Vec<String> {
        let unreachable = PerFamily { v4: "icmp-port-unreachable", v6: "icmp6-port-unreachable" }[self.family];
        vec!["-p tcp -j REJECT --reject-with tcp-reset".to_owned(), format!("-j REJECT --reject-with {unreachable}")]
    }

    fn unused_service_ips(&self, cluster: &ClusterInfo) -> Vec<String> {
        service_cidrs(cluster, self.family).iter().map(|range| format!("-d {range} -j DROP")).collect()
    }

    /// Matches for packets of pods; none if the detection of pods is not configured.
    fn pods(&self) -> Vec<String> {
        of_pods(&self.options.effective(self.node).pods[self.family], "-s", "-i")
    }

    /// Matches for packets to addresses at which node ports are served.
    fn node_port_ranges(&self) -> Vec<String> {
        let ranges = self.options.node_port_ranges(self.family, self.node);
        ranges.iter().map(|range| within("-d", range)).collect()
    }

    fn masquerade_bit(&self) -> String {
        let mark = self.options.effective(self.node).masquerade_mark;
        format!("{mark:#x}/{mark:#x}")
    }

    fn set(&self, content: SetContent) -> &'static str {
        SetId { content, family: self.family }.name()
    }
}

/// Matches for packets of pods, by these options for an address and for an interface; none if pods are not recognized.
fn of_pods(pods: &PodMatch, address: &str, interface: &str) -> Vec<String> {
    match pods {
        PodMatch::Unknown => Vec::new(),
        PodMatch::Source(ranges) => ranges.iter().map(|range| within(address, range)).collect(),
        PodMatch::Interface(name) => vec![format!("{interface} {name} ")],
        PodMatch::InterfacePrefix(prefix) => vec![format!("{interface} {prefix}+ ")],
    }
}

/// `-s RANGE ` or `-d RANGE `; empty for all addresses, as `iptables-save` prints it.
fn within(which: &str, range: &IpNet) -> String {
    if range.prefix_len() == 0 { String::new() } else { format!("{which} {range} ") }
}
