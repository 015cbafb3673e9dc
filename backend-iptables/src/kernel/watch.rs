//! Notices when somebody else changes our chains in nf_tables, by what the kernel announces.
//!
//! ```text
//!   announcement ── of chains of others: known ── of ours: drift
//!   some were lost, or a rule went from a built-in chain: perhaps drift
//!   while a tool runs for us nobody listens: as many generations later as it has made? : perhaps drift
//! ```

#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use anyhow::{Context, Result};
use backend::Drift;
use netlink::nft::{NftChange, NftEvent, NftHandle, NftMonitor, TableFamily};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{names, table::TABLES};

/// Listens to the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Watch {
    monitor: NftMonitor,
    handle: NftHandle,
    ledger: Ledger,
    /// Made when it is first waited for: only then there must be a runtime with IO.
    readable: Option<AsyncFd<OwnedFd>>,
}

/// What was heard.
#[derive(Debug, Default)]
struct Ledger {
    /// What the transaction that is being announced does to us.
    touched: Option<Touched>,
    drift: Option<Drift>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touched {
    /// Something of ours.
    Ours(&'static str),
    /// Something that may have been ours.
    Perhaps,
}

// === impl Watch ===

impl Watch {
    pub(super) fn open() -> Result<Self> {
        let monitor = NftMonitor::open().context("listen to the kernel's announcements")?;
        let handle = NftHandle::open().context("open a netlink socket")?;
        Ok(Self { monitor, handle, ledger: Ledger::default(), readable: None })
    }

    /// What was announced until now counts no more.
    pub(super) fn forget(&mut self) -> Result<()> {
        self.listen()?;
        self.ledger = Ledger::default();
        Ok(())
    }

    /// A tool is about to run for us. It may have more to announce than anybody can listen to. Returns the generation before.
    pub(super) fn begin(&mut self) -> Result<u32> {
        let before = self.generation()?;
        self.monitor.leave().context("stop listening")?;
        Ok(before)
    }

    /// It has ended, and has made so many generations since `before`.
    pub(super) fn end(&mut self, before: u32, generations: usize) -> Result<()> {
        self.monitor.join().context("listen again")?;
        let after = self.generation()?;
        let known = (0..generations).fold(before, |generation, _| next(generation));
        if after != known {
            self.ledger.drift.get_or_insert(Drift::Possible);
        }
        Ok(())
    }

    fn generation(&mut self) -> Result<u32> {
        self.handle.generation().context("read the generation")
    }

    /// Returns when there is drift. May be dropped while it waits.
    pub(super) async fn drift(&mut self) -> Result<Drift> {
        loop {
            self.listen()?;
            if let Some(drift) = self.ledger.drift.take() {
                return Ok(drift);
            }
            let readable = match self.readable.take() {
                Some(readable) => readable,
                None => readable(&self.monitor).context("wait for announcements")?,
            };
            let readable = self.readable.insert(readable);
            // What is there now is heard next; what comes later makes it ready again.
            readable.readable().await.context("wait for announcements")?.clear_ready();
        }
    }

    fn listen(&mut self) -> Result<()> {
        loop {
            let notices = self.monitor.wait(Duration::ZERO).context("listen to the kernel's announcements")?;
            if notices.is_empty() {
                return Ok(());
            }
            notices.into_iter().for_each(|notice| self.ledger.hear(notice));
        }
    }
}

#[expect(deprecated, reason = "what is to replace it is unsafe code, and asks for what an `OwnedFd` ensures")]
fn readable(monitor: &NftMonitor) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(monitor.as_fd().try_clone_to_owned()?, Interest::READABLE)
}

/// The kernel leaves out 0.
fn next(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}

// === impl Ledger ===

impl Ledger {
    fn hear(&mut self, notice: NftEvent) {
        match notice {
            NftEvent::Lost => drop(self.drift.get_or_insert(Drift::Possible)),
            NftEvent::Changed { family, table, object, chain, verb, port: _ } => {
                let is_watched = matches!(family, Some(TableFamily::Ip | TableFamily::Ip6))
                    && TABLES.iter().any(|ours| ours.name() == table);
                let touched = match chain {
                    _ if !is_watched => None,
                    Some(chain) if names::is_ours(&chain) => Some(Touched::Ours(object)),
                    // Of a rule that has gone nobody can say whether it was a jump of ours.
                    _ => (verb == NftChange::Delete).then_some(Touched::Perhaps),
                };
                // What is ours for sure says more.
                if !matches!(self.touched, Some(Touched::Ours(_))) {
                    self.touched = touched.or(self.touched);
                }
            }
            NftEvent::Generation { pid, process, .. } => {
                let Some(touched) = self.touched.take() else { return };
                let drift = match touched {
                    Touched::Ours(what) => Drift::Changed { object: what.to_owned(), process, pid },
                    Touched::Perhaps => Drift::Possible,
                };
                if !matches!(self.drift, Some(Drift::Changed { .. })) {
                    self.drift = Some(drift);
                }
            }
        }
    }
}
