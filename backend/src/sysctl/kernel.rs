//! The files of the settings, below a root directory that tests replace.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result, anyhow};
use netlink::conntrack::ConntrackHandle;
use proto::model::{IpFamily, Protocol};
use tracing::{debug, info, warn};

use super::{ConntrackSetting, ConntrackSettings};

/// The CPUs that are online, as ranges: `0-3,6`.
const CORES: &str = "sys/devices/system/cpu/online";

impl ConntrackSettings {
    /// Writes the settings to the kernel's files below `root` (`/` except in tests).
    ///
    /// # Errors
    /// When a file cannot be read or written; the text names the file, both values and what to do. The limit and the
    /// hash table may keep their sizes: they belong to the machine, and are read-only in containers and in all network
    /// namespaces but the first.
    pub fn apply(&self, root: &Path) -> Result<()> {
        let desired = self.desired(online(root)?);
        if !desired.is_empty() && !root.join(ConntrackSetting::TcpEstablished.path()).exists() {
            load_module();
        }
        let mut writes = Vec::new();
        for (setting, desired) in desired {
            match number(&root.join(setting.path())) {
                Ok(current) if setting.differs(current, desired) => writes.push((setting, current, desired)),
                Ok(_) => {}
                Err(error) if setting == ConntrackSetting::HashSize => {
                    debug!(file = setting.path(), error = format!("{error:#}"), "cannot read a conntrack setting");
                }
                Err(error) => return Err(error).with_context(|| unreadable(setting, desired)),
            }
        }
        writes.into_iter().try_for_each(|(setting, current, desired)| setting.write(root, current, desired))
    }
}

/// Whether conntrack accepts TCP packets outside of the window, by the setting below `root`.
pub fn tcp_is_liberal(root: &Path) -> bool {
    // Without the file nf_conntrack is not loaded yet, and begins with zero.
    number(&root.join(ConntrackSetting::TcpBeLiberal.path())).is_ok_and(|value| value != 0)
}

impl ConntrackSetting {
    fn write(self, root: &Path, current: u64, desired: u64) -> Result<()> {
        // Without `create`: a missing file is a setting that the kernel does not have.
        let opened = fs::OpenOptions::new().write(true).truncate(true).open(root.join(self.path()));
        match opened.and_then(|mut file| io::Write::write_all(&mut file, desired.to_string().as_bytes())) {
            Ok(()) => {
                info!(file = self.path(), previous = current, value = desired, "changed a conntrack setting");
                Ok(())
            }
            Err(error) if self.only_grows() => {
                let file = self.path();
                warn!(file, value = current, desired, %error, "cannot enlarge the conntrack table, set it on the host");
                Ok(())
            }
            Err(error) => Err(error).with_context(|| {
                format!(
                    "cannot set /{} to {desired} (it is {current}): run with write access (a privileged container), \
                     set it on the host beforehand, or leave it unchanged with {}",
                    self.path(),
                    self.opt_out()
                )
            }),
        }
    }
}

/// The CPUs of the machine, not those of this process: the limit is the machine's.
fn online(root: &Path) -> Result<u32> {
    let path = root.join(CORES);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    count(text.trim()).ok_or_else(|| anyhow!("{} contains no list of CPUs: {text:?}", path.display()))
}

/// Counts `0-3,6`.
fn count(ranges: &str) -> Option<u32> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    ranges.split(',').map(range).sum()
}

fn number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().with_context(|| format!("{text:?} is not a number"))
}

fn unreadable(setting: ConntrackSetting, desired: u64) -> String {
    format!(
        "cannot read /{} to set it to {desired}: load the kernel module nf_conntrack, or leave it unchanged with {}",
        setting.path(),
        setting.opt_out()
    )
}

/// Lists flows, which makes the kernel load nf_conntrack. There are none, or it would be loaded.
fn load_module() {
    let listed = ConntrackHandle::open().and_then(|mut handle| handle.flows(IpFamily::V4, Protocol::Udp, |_| Ok(())));
    if let Err(error) = listed {
        // The missing files are the error to show.
        debug!(%error, "cannot list conntrack flows to load nf_conntrack");
    }
}
