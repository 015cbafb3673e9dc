//! The kernel objects of a backend, as the kernel's tools list them, and notifications of their changes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fairlead_e2e::{Backend, Netns};
use netlink::nft::{NftEvent, NftMonitor};

use crate::{scene::DEADLINE, show::Show};

/// Notifications of a node's kernel, which nf_tables sends, but not iptables-legacy and IPVS.
pub(crate) struct Notifications(Option<NftMonitor>);

/// Adds the kernel objects to the details, with the commands that an operator would use.
pub(crate) fn describe(show: &mut Show, backend: Backend, netns: &Netns) -> Result<()> {
    let commands: &[&[&str]] = match backend {
        // `ip6 fairlead1` has the same structure.
        Backend::Nft => &[&["nft", "list", "table", "ip", "fairlead1"]],
        Backend::IptablesNft => &[&["iptables-nft-save", "-t", "nat"], &["iptables-nft-save", "-t", "filter"]],
        Backend::IptablesLegacy => &[&["iptables-legacy-save"]],
        Backend::Ipvs => &[
            &["ipvsadm", "-L", "-n"],
            &["ipset", "list", "FAIRLEAD-VIPS"],
            &["ip", "-brief", "address", "show", "dev", "kube-ipvs0"],
        ],
    };
    for command in commands {
        show.detail("node-a", &command.join(" "), &netns.output(command[0], &command[1..]))?;
    }
    Ok(())
}

/// The lines of Fairlead, without packet counters.
pub(crate) fn ours(backend: Backend, netns: &Netns) -> Vec<String> {
    let names = ["fairlead", "FAIRLEAD", "KUBE-"];
    let lines = backend.rules(netns).into_iter();
    let is_ours = |line: &String| names.iter().any(|name| line.contains(name));
    lines.filter(|line| is_ours(line) && !line.contains("counter packets")).collect()
}

// === impl Notifications ===

impl Notifications {
    pub(crate) fn listen(backend: Backend, netns: &Netns) -> Result<Self> {
        let monitor = match backend {
            Backend::Nft | Backend::IptablesNft => {
                Some(netns.run(NftMonitor::open).context("listen for kernel notifications")?)
            }
            Backend::IptablesLegacy | Backend::Ipvs => None,
        };
        Ok(Self(monitor))
    }

    /// Waits for the end of a transaction, if the kernel notifies of it.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let Some(monitor) = &mut self.0 else { return Ok(()) };
        let deadline = Instant::now() + DEADLINE;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let events = monitor.wait(left).context("listen for kernel notifications")?;
            if events.iter().any(|event| matches!(event, NftEvent::Generation { .. })) {
                return Ok(());
            }
        }
        bail!("no commit within {DEADLINE:?}")
    }

    /// The notifications so far.
    pub(crate) fn so_far(&mut self) -> Result<Vec<NftEvent>> {
        let Some(monitor) = &mut self.0 else { return Ok(Vec::new()) };
        monitor.wait(Duration::ZERO).context("listen for kernel notifications")
    }
}
