//! Notices when somebody else changes our tables, by what the kernel announces.
//!
//! ```text
//!   announcement ── by us: known ── of other tables: known ── of ours, by another: drift
//!   some were lost, or not listened to ─▶ generation = the known ones? nobody else did anything : perhaps drift
//! ```

mod ledger;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use anyhow::{Context, Result};
use backend::Drift;
use netlink::nft::NftMonitor;
use tokio::io::{Interest, unix::AsyncFd};

use ledger::Ledger;
pub(super) use ledger::Proof;

/// Listens to the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Watch {
    monitor: NftMonitor,
    ledger: Ledger,
    /// Made when it is first waited for: only then there must be a runtime with IO.
    readable: Option<AsyncFd<OwnedFd>>,
}

impl Watch {
    /// `port`: under which number our own changes are announced.
    pub(super) fn open(port: u32) -> Result<Self> {
        let monitor = NftMonitor::open().context("listen to the kernel's announcements")?;
        Ok(Self { monitor, ledger: Ledger::new(port), readable: None })
    }

    /// What was announced until now counts no more: everything is about to be listed. [`Self::begin`] comes next.
    pub(super) fn forget(&mut self) -> Result<()> {
        while !self.hear()?.is_empty() {}
        Ok(())
    }

    /// What the kernel holds at this generation, and later, is being looked at.
    pub(super) fn begin(&mut self, generation: u32) {
        self.ledger.begin(generation);
    }

    /// A transaction of our own is in force.
    pub(super) fn committed(&mut self) {
        self.ledger.committed();
    }

    /// Hears nothing until [`Self::unstop`]: the kernel holds a page for each element that it has to tell somebody of.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.ledger.lost();
        self.monitor.leave().context("stop listening")
    }

    pub(super) fn unstop(&self) -> Result<()> {
        self.monitor.join().context("listen again")
    }

    /// What follows from what is there to be heard.
    pub(super) fn look(&mut self) -> Result<Option<Drift>> {
        loop {
            let notices = self.hear()?;
            if notices.is_empty() {
                return Ok(None);
            }
            let drift = notices.into_iter().filter_map(|notice| self.ledger.hear(notice)).next();
            if drift.is_some() {
                return Ok(drift);
            }
        }
    }

    /// Whether something may have happened that was not heard; [`Self::check`] tells.
    pub(super) fn is_unsure(&self) -> bool {
        self.ledger.is_unsure()
    }

    /// The kernel is at this generation, read after [`Self::look`] found nothing.
    pub(super) fn check(&mut self, generation: u32) -> Proof {
        self.ledger.check(generation)
    }

    /// Waits until there is something to be heard.
    pub(super) async fn wait(&mut self) -> Result<()> {
        let readable = match self.readable.take() {
            Some(readable) => readable,
            None => readable(&self.monitor).context("wait for announcements")?,
        };
        let readable = self.readable.insert(readable);
        // What is there now is heard next; what comes later makes it ready again.
        readable.readable().await.context("wait for announcements")?.clear_ready();
        Ok(())
    }

    fn hear(&mut self) -> Result<Vec<netlink::nft::NftEvent>> {
        self.monitor.wait(Duration::ZERO).context("listen to the kernel's announcements")
    }
}

#[expect(deprecated, reason = "what is to replace it is unsafe code, and asks for what an `OwnedFd` ensures")]
fn readable(monitor: &NftMonitor) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(monitor.as_fd().try_clone_to_owned()?, Interest::READABLE)
}
