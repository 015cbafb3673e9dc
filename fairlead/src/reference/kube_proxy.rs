//! docs/reference/kube-proxy.md: what becomes of each field and flag of kube-proxy, from the table by which they are translated.

use super::{code, header, row};
use crate::config::{Effect, FIELDS, mode_of};

const INTRO: &str = "# kube-proxy's configuration

Made from the program by `make reference`. What becomes of each field of `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`), and of the flag of kube-proxy that says the same,
with `--config` and `fairlead config convert` ([configuration.md](../configuration.md)). Where a field has no effect and is set, a warning says so. What is only read in some
modes is passed over in others, with a warning.

";

/// What becomes of those that take more than a flag of the same value.
const JOINT: &[(&str, &str)] = &[
    ("featureGates", "`AllowServiceExternalIPs: true` is so anyway; `false`, and other gates, have no effect"),
    ("clientConnection.kubeconfig", "`--kubeconfig` of `local`; `--discovery-kubeconfig` of a backend"),
    ("logging.format", "`--log-format`"),
    ("logging.verbosity", "`--log info`, from 4 on `debug`"),
    (
        "bindAddress",
        "an IPv6 address: metrics at `::1`; one that is not unspecified: a warning, since the node's addresses are those of its Node object",
    ),
    ("healthzBindAddress", "`--healthz`"),
    ("metricsBindAddress", "`--metrics`"),
    ("mode", "the backend, `--backend`; none is `iptables`"),
    (
        "iptables.localhostNodePorts",
        "`--iptables-localhost-nodeports`, where `nodePortAddresses` has loopback in it; unset is `true`",
    ),
    ("detectLocalMode", "`--detect-local-mode`, where the field is there that it needs"),
    ("detectLocal.bridgeInterface", "`--pod-bridge-interface`, in its mode"),
    ("detectLocal.interfaceNamePrefix", "`--pod-interface-name-prefix`, in its mode"),
    ("clusterCIDR", "`--cluster-cidr`, where `detectLocalMode` is `ClusterCIDR` or unset"),
    (
        "nodePortAddresses",
        "`--nodeport-addresses`; a family without a range is all its addresses; unset is everywhere, and `primary` in mode nftables",
    ),
];

/// The page.
pub(super) fn page() -> String {
    let mut page = INTRO.to_owned();
    page.push_str(&header(&["field", "flag of kube-proxy", "modes", "here"]));
    for field in FIELDS {
        let modes: Vec<_> = field.modes.iter().map(|mode| mode_of(*mode)).collect();
        let flag = match field.flag {
            "" => String::new(),
            letter if letter.len() == 1 => format!("-{letter}"),
            flag => format!("--{flag}"),
        };
        let here = match field.effect {
            Effect::Becomes(flag) => format!("`--{flag}`"),
            Effect::Joint => {
                let known = JOINT.iter().find(|(path, _)| *path == field.path);
                known.unwrap_or_else(|| panic!("{}: say here what becomes of it", field.path)).1.to_owned()
            }
            Effect::Nothing(why) => format!("no effect: {why}"),
        };
        page.push_str(&row(&[&code(field.path), &code(&flag), &modes.join(", "), &here]));
    }
    page
}
