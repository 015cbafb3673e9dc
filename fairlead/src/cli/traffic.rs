//! The flags for masquerading, pod detection and node ports.

use anyhow::{Result, bail};
use backend::dataplane::{DataplaneOptions, InterfaceName, LocalDetector, NodePortAddresses};
use clap::{Args, ValueEnum, value_parser};
use ipnet::IpNet;
use tracing::warn;

use crate::config::cidr;

#[derive(Debug, Args)]
pub(crate) struct TrafficArgs {
    /// Identify traffic of pods in this way. Other traffic to cluster IPs is masqueraded; under external policy Local,
    /// pods reach every endpoint. Default: ClusterCIDR with --cluster-cidr, else none.
    #[arg(long, env = "FAIRLEAD_DETECT_LOCAL_MODE", value_enum, value_name = "MODE")]
    pub(crate) detect_local_mode: Option<DetectLocalMode>,

    /// For ClusterCIDR: treat sources in this CIDR as pods, or one of each IP family, comma-separated.
    #[arg(long, env = "FAIRLEAD_CLUSTER_CIDR", value_delimiter = ',', value_name = "CIDR", value_parser = cidr)]
    pub(crate) cluster_cidr: Vec<IpNet>,

    /// For BridgeInterface: treat traffic from this bridge as that of pods.
    #[arg(long, env = "FAIRLEAD_POD_BRIDGE_INTERFACE", value_name = "NAME")]
    pub(crate) pod_bridge_interface: Option<InterfaceName>,

    /// For InterfaceNamePrefix: treat traffic from interfaces with this name prefix as that of pods.
    #[arg(long, env = "FAIRLEAD_POD_INTERFACE_NAME_PREFIX", value_name = "PREFIX")]
    pub(crate) pod_interface_name_prefix: Option<InterfaceName>,

    /// Masquerade all traffic to cluster IPs.
    #[arg(long, env = "FAIRLEAD_MASQUERADE_ALL")]
    pub(crate) masquerade_all: bool,

    /// Use this bit of the packet mark for packets to be masqueraded: 0 to 31.
    #[arg(
        long,
        env = "FAIRLEAD_MASQUERADE_BIT",
        default_value_t = 14,
        value_name = "BIT",
        value_parser = value_parser!(u8).range(0..=31)
    )]
    pub(crate) masquerade_bit: u8,

    /// Serve node ports and health-check node ports at these addresses: `primary` (the node's first address of each IP
    /// family), or local addresses in these CIDRs, comma-separated. An IP family without a CIDR serves none. Loopback
    /// addresses are excluded.
    #[arg(
        long,
        env = "FAIRLEAD_NODEPORT_ADDRESSES",
        default_value = "primary",
        value_name = "primary|CIDR,...",
        value_parser = nodeport_addresses
    )]
    pub(crate) nodeport_addresses: NodePortAddresses,
}

/// `--detect-local-mode`, with kube-proxy's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum DetectLocalMode {
    /// By a source address in --cluster-cidr.
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By a source address in the current pod CIDRs of this Node.
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// By the input interface --pod-bridge-interface.
    BridgeInterface,
    /// By an input interface with --pod-interface-name-prefix.
    InterfaceNamePrefix,
}

impl TrafficArgs {
    /// Checks settings that depend on each other.
    pub(super) fn validate(&self) -> Result<()> {
        self.local_detector().map(drop)
    }

    /// The options of the data plane.
    pub(crate) fn options(&self) -> Result<DataplaneOptions> {
        let local_detector = self.local_detector()?;
        if !self.cluster_cidr.is_empty() && !matches!(local_detector, LocalDetector::ClusterCidr(_)) {
            warn!("--cluster-cidr does not identify pods, because --detect-local-mode is not ClusterCIDR");
        }

        Ok(DataplaneOptions {
            local_detector,
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            nodeport_addresses: self.nodeport_addresses.clone(),
            ..DataplaneOptions::default()
        })
    }

    fn local_detector(&self) -> Result<LocalDetector> {
        use DetectLocalMode::{BridgeInterface, ClusterCidr, InterfaceNamePrefix, NodeCidr};
        let has_cidrs = !self.cluster_cidr.is_empty();
        let mode = match self.detect_local_mode {
            None if has_cidrs => Some(ClusterCidr),
            given => given,
        };

        for (flag, is_given, of) in [
            ("--cluster-cidr", has_cidrs, ClusterCidr),
            ("--pod-bridge-interface", self.pod_bridge_interface.is_some(), BridgeInterface),
            ("--pod-interface-name-prefix", self.pod_interface_name_prefix.is_some(), InterfaceNamePrefix),
        ] {
            let is_needed = mode == Some(of);
            if is_needed && !is_given {
                bail!("--detect-local-mode {} needs {flag}", of.name());
            }
            // Cluster CIDRs have no effect in other modes, as in kube-proxy.
            if is_given && !is_needed && of != ClusterCidr {
                bail!("{flag} needs --detect-local-mode {}", of.name());
            }
        }

        Ok(match (mode, &self.pod_bridge_interface, &self.pod_interface_name_prefix) {
            (Some(ClusterCidr), ..) => LocalDetector::ClusterCidr(self.cluster_cidr.clone()),
            (Some(NodeCidr), ..) => LocalDetector::NodeCidr,
            (_, Some(bridge), _) => LocalDetector::BridgeInterface(bridge.clone()),
            (_, _, Some(prefix)) => LocalDetector::InterfaceNamePrefix(prefix.clone()),
            _ => LocalDetector::None,
        })
    }
}

impl DetectLocalMode {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Parses `--nodeport-addresses`.
fn nodeport_addresses(value: &str) -> std::result::Result<NodePortAddresses, String> {
    if value == "primary" {
        return Ok(NodePortAddresses::Primary);
    }
    let cidrs = value.split(',').map(cidr).collect::<Result<_, _>>();
    cidrs.map(NodePortAddresses::Cidrs).map_err(|error| format!("{error}, or `primary` alone"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Command,
            testing::{local, parse},
        },
        *,
    };

    fn traffic(args: &[&str]) -> TrafficArgs {
        local("nftables", args).any.common.traffic
    }

    #[test]
    fn cluster_cidrs_of_both_families_are_parsed() {
        let pair = ["10.244.0.0/16", "fd00:10:244::/56"];
        let expected = pair.map(|cidr| cidr.parse().unwrap());
        assert_eq!(traffic(&["--cluster-cidr", &pair.join(",")]).cluster_cidr, expected);
    }

    #[test]
    fn every_cidr_flag_says_that_the_prefix_length_is_missing() {
        for flag in ["--cluster-cidr", "--nodeport-addresses", "--service-cidr", "--ipvs-exclude-cidrs"] {
            let error = parse(&["local", "--backend", "ipvs", flag, "10.244.0.0"]).unwrap_err();
            assert!(error.contains("the prefix length is missing, as in 10.244.0.0/16"), "{flag}: {error}");
        }
    }

    #[test]
    fn mode_and_its_flags_must_match() {
        let pods = |args: &[&str]| {
            let args = [&["local", "--backend=nftables"], args].concat();
            let Command::Local(local) = parse(&args)?.command else { panic!() };
            Ok(local.any.common.traffic.options().unwrap().local_detector)
        };
        let (cidr, mode) = ("10.244.0.0/16", "--detect-local-mode");
        let cluster_cidr = LocalDetector::ClusterCidr(vec![cidr.parse().unwrap()]);
        let cbr0 = || "cbr0".parse().unwrap();
        for (args, expected) in [
            (&[][..], LocalDetector::None),
            (&["--cluster-cidr", cidr], cluster_cidr.clone()),
            (&[mode, "ClusterCIDR", "--cluster-cidr", cidr], cluster_cidr),
            (&[mode, "NodeCIDR"], LocalDetector::NodeCidr),
            (&[mode, "NodeCIDR", "--cluster-cidr", cidr], LocalDetector::NodeCidr),
            (&[mode, "BridgeInterface", "--pod-bridge-interface", "cbr0"], LocalDetector::BridgeInterface(cbr0())),
            (
                &[mode, "InterfaceNamePrefix", "--pod-interface-name-prefix", "cbr0"],
                LocalDetector::InterfaceNamePrefix(cbr0()),
            ),
        ] {
            assert_eq!(pods(args), Ok::<_, String>(expected), "{args:?}");
        }
        for (args, part) in [
            (&[mode, "ClusterCIDR"][..], "ClusterCIDR needs --cluster-cidr"),
            (&[mode, "BridgeInterface"], "BridgeInterface needs --pod-bridge-interface"),
            (&[mode, "InterfaceNamePrefix"], "InterfaceNamePrefix needs --pod-interface-name-prefix"),
            (&["--pod-bridge-interface", "cbr0"], "needs --detect-local-mode BridgeInterface"),
            (&["--cluster-cidr", cidr, "--pod-interface-name-prefix", "v"], "--pod-interface-name-prefix needs"),
        ] {
            let error = pods(args).unwrap_err();
            assert!(error.contains(part), "{args:?}: {error}");
        }
        let error = parse(&["local", "--backend", "nftables", "--pod-interface-name-prefix", "veth+"]).unwrap_err();
        assert!(error.contains("without `*` or `+`"), "{error}");
    }

    #[test]
    fn nodeport_addresses_are_primary_or_cidrs() {
        assert_eq!(traffic(&[]).nodeport_addresses, NodePortAddresses::Primary);
        let cidrs = traffic(&["--nodeport-addresses", "192.168.1.7/16, fd00::/8"]).nodeport_addresses;
        let expected = ["192.168.0.0/16", "fd00::/8"].map(|cidr| cidr.parse().unwrap()).to_vec();
        assert_eq!(cidrs, NodePortAddresses::Cidrs(expected));
        let error =
            parse(&["local", "--backend", "nftables", "--nodeport-addresses", "primary,10.0.0.0/8"]).unwrap_err();
        assert!(error.contains("`primary` alone"), "{error}");
    }
}
