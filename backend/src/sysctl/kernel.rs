//! The files behind the settings, below a root directory that tests replace.

use std::{collections::BTreeMap, fs, io, path::Path};

use anyhow::{Context as _, Result, anyhow};
use netlink::AddressFamily;
use netlink::conntrack::ConntrackHandle;
use tracing::{debug, info, warn};

use super::{ConntrackSettings, Setting, Write, plan};

/// The CPUs that are online, as ranges: `0-3,6`.
const CORES: &str = "sys/devices/system/cpu/online";

impl ConntrackSettings {
    /// Makes the kernel's files below `root` (`/`, but in tests) say what is wanted.
    ///
    /// # Errors
    /// When a file cannot be read or written: what it is, what it says, what it should say, and what to do. The size of
    /// the hash table is an exception: often it is read-only in a container, and too small a table is only slower.
    pub fn apply(&self, root: &Path) -> Result<()> {
        let cores = online(root)?;
        let wanted = self.wanted(cores);
        if !wanted.is_empty() && !root.join(Setting::TcpEstablished.path()).exists() {
            load();
        }
        let mut present = BTreeMap::new();
        for (setting, wanted) in wanted {
            match number(&root.join(setting.path())) {
                Ok(value) => drop(present.insert(setting, value)),
                Err(error) if setting == Setting::HashSize => {
                    debug!(file = setting.path(), error = %error, "cannot read a setting of conntrack");
                }
                Err(error) => return Err(error).with_context(|| unreadable(setting, wanted)),
            }
        }
        for write in plan(self, &present, cores) {
            write.execute(root)?;
        }
        Ok(())
    }
}

impl Write {
    fn execute(self, root: &Path) -> Result<()> {
        let Self { setting, present, wanted } = self;
        // Never `create`: what is not there is no setting.
        let opened = fs::OpenOptions::new().write(true).truncate(true).open(root.join(setting.path()));
        match opened.and_then(|mut file| io::Write::write_all(&mut file, wanted.to_string().as_bytes())) {
            Ok(()) => {
                info!(file = setting.path(), was = present, now = wanted, "changed a setting of conntrack");
                Ok(())
            }
            Err(error) if setting == Setting::HashSize => {
                warn!(file = setting.path(), is = present, wanted, %error, "the hash table of conntrack stays small");
                Ok(())
            }
            Err(error) => Err(error).with_context(|| self.failed()),
        }
    }

    fn failed(self) -> String {
        let Self { setting, present, wanted } = self;
        format!(
            "cannot set /{} to {wanted} (it is {present}): run with write access to it (a privileged container), set it on the \
             host beforehand, or leave it as it is with {}",
            setting.path(),
            setting.opt_out()
        )
    }
}

/// How many CPUs there are, whatever share of them this process may use: the limit is the machine's.
fn online(root: &Path) -> Result<u32> {
    let path = root.join(CORES);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    count(text.trim()).ok_or_else(|| anyhow!("{} holds no list of CPUs: {text:?}", path.display()))
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
    text.trim().parse().with_context(|| format!("{text:?} is no number"))
}

fn unreadable(setting: Setting, wanted: u64) -> String {
    format!(
        "cannot read /{}, which should be {wanted}: is the kernel module nf_conntrack there? Or leave it as it is with {}",
        setting.path(),
        setting.opt_out()
    )
}

/// Asks for flows, upon which the kernel loads its connection tracking. There are none yet, or it would be loaded.
fn load() {
    let asked = ConntrackHandle::open().and_then(|mut handle| handle.udp_flows(AddressFamily::V4, |_| Ok(())));
    if let Err(error) = asked {
        // Without it, the files are missing, and that is the error to show.
        debug!(%error, "cannot ask for conntrack");
    }
}
