//! kube-proxy's IPVS mode leaves more than iptables rules: seen here by its network device, and left for people to remove.

use std::fs;

use anyhow::{Context as _, Result};

/// Holds the addresses of Services, so that packets for them come to IPVS.
const DEVICE: &str = "kube-ipvs0";
/// The devices of the thread's network namespace, a line each: `  eth0: 1234 ...`.
const DEVICES: &str = "/proc/thread-self/net/dev";

/// What to say when there is something of that mode.
pub(crate) fn note() -> Result<Option<String>> {
    let devices = fs::read_to_string(DEVICES).with_context(|| format!("read {DEVICES}"))?;
    let is_there =
        devices.lines().any(|line| line.split(':').next().is_some_and(|name| name.trim() == DEVICE));
    let note = "kube-proxy's IPVS mode has left the device kube-ipvs0, virtual servers and ipsets; they stay. When their \
                connections have ended: `ipvsadm -D` those on addresses of kube-ipvs0 and \
                on node ports, `ip link delete kube-ipvs0`, `ipset destroy` those whose names begin with KUBE-";
    Ok(is_there.then(|| note.to_owned()))
}

#[cfg(test)]
mod tests {
    use netlink::testing::in_netns;

    use super::*;
    use crate::testing::run;

    #[test]
    fn its_device_is_seen_in_the_threads_namespace() {
        in_netns(|| {
            assert_eq!(note().unwrap(), None);
            run("ip", &["link", "add", "not-kube-ipvs0", "type", "veth", "peer", "name", "other"], "");
            assert_eq!(note().unwrap(), None);
            run("ip", &["link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "another"], "");
            assert!(note().unwrap().is_some());
        });
    }
}
