//! Detects changes of our nf_tables objects by other processes, from the notifications of the kernel.
//!
//! ```text
//!   notification ── of our own transaction, or of foreign tables: counted ── of our objects: drift
//!                └─ of an object that may have been ours: are all of ours there? if not: drift
//!   notifications lost, or not subscribed ─▶ is the generation the one that was counted? if not: perhaps drift
//! ```

mod generation;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use anyhow::{Context, Result};
use netlink::nft::{NftEvent, NftHandle, NftMonitor};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep_until},
};
use tracing::warn;

use crate::Drift;
use generation::GenerationTracker;
pub use generation::Touched;

/// The nf_tables notifications of the network namespace in which it was opened.
#[derive(Debug)]
pub struct NfTablesWatch {
    monitor: NftMonitor,
    handle: NftHandle,
    tracker: GenerationTracker,
    is_intact: IsIntact,
    /// When to call `is_intact` next, at the earliest.
    next_check: Instant,
    /// Registered on first use, because only then a tokio runtime with IO is needed.
    readable: Option<AsyncFd<OwnedFd>>,
}

/// The shortest interval between two checks of objects that may have been touched.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The interval between two checks as a multiple of their duration: checks take at most 1/20 of the time.
const CHECK_INTERVAL_FACTOR: u32 = 20;

/// Whether all objects are there that [`Touched::Perhaps`] is about.
type IsIntact = fn(&mut NftHandle) -> netlink::Result<bool>;

impl NfTablesWatch {
    /// Subscribes. `own_port` is the netlink port of our own transactions, if this process makes them. `touched` says
    /// which object of ours a notification is about, and `is_intact` whether all objects are there that may have been
    /// touched.
    ///
    /// # Errors
    /// When a netlink socket could not be opened.
    pub fn open(own_port: Option<u32>, touched: fn(&NftEvent) -> Option<Touched>, is_intact: IsIntact) -> Result<Self> {
        let monitor = NftMonitor::open().context("subscribe to nf_tables notifications")?;
        let mut handle = NftHandle::open().context("open a netlink socket")?;
        let tracker = GenerationTracker::new(own_port, touched, generation(&mut handle)?);
        Ok(Self { monitor, handle, tracker, is_intact, next_check: Instant::now(), readable: None })
    }

    /// Forgets all notifications so far. To be called before the tables are listed.
    ///
    /// # Errors
    /// When the notifications or the generation could not be read.
    pub fn restart(&mut self) -> Result<()> {
        self.receive()?;
        self.tracker.restart(generation(&mut self.handle)?);
        Ok(())
    }

    /// Accounts for transactions that were made for us.
    pub fn committed(&mut self, transactions: usize) {
        self.tracker.committed(transactions);
    }

    /// Whether no other process has changed our objects since the restart. Errors and lost notifications leave it open.
    pub fn is_untouched(&mut self) -> bool {
        let is_accounted = self.receive().is_ok()
            && generation(&mut self.handle).is_ok_and(|generation| self.tracker.accounts_for(generation));
        is_accounted && self.tracker.drift.is_none()
    }

    /// Unsubscribes until [`Self::resume`]: the kernel allocates a page for each element that it notifies about.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pause(&mut self) -> Result<()> {
        self.tracker.unsure = true;
        self.monitor.leave().context("unsubscribe from nf_tables notifications")
    }

    /// Subscribes again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resume(&mut self) -> Result<()> {
        self.monitor.join().context("subscribe to nf_tables notifications")
    }

    /// Returns when there is or may be drift. Cancel safe.
    pub async fn drifted(&mut self) -> Drift {
        self.wait_for_drift().await.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "cannot read nf_tables notifications");
            Drift::Possible
        })
    }

    async fn wait_for_drift(&mut self) -> Result<Drift> {
        loop {
            self.receive()?;
            if let Some(drift) = self.tracker.drift.take() {
                return Ok(drift);
            }
            if self.tracker.suspect.is_some() {
                sleep_until(self.next_check).await;
                self.check()?;
                continue;
            }
            if self.tracker.unsure && !self.tracker.accounts_for(generation(&mut self.handle)?) {
                return Ok(Drift::Possible);
            }

            let readable = match self.readable.take() {
                Some(readable) => readable,
                None => readable(&self.monitor).context("wait for nf_tables notifications")?,
            };
            let readable = self.readable.insert(readable);
            // The queued notifications are received next; later ones make the socket readable again.
            readable.readable().await.context("wait for nf_tables notifications")?.clear_ready();
        }
    }

    /// Checks the objects that may have been touched, unless other processes change too much meanwhile.
    fn check(&mut self) -> Result<()> {
        let begun = Instant::now();
        match (self.is_intact)(&mut self.handle) {
            Err(error) if error.is_interrupted() => {}
            is_intact => {
                let is_intact = is_intact.context("look for our objects")?;
                let suspect = self.tracker.suspect.take();
                if !is_intact && self.tracker.drift.is_none() {
                    self.tracker.drift = suspect;
                }
            }
        }
        self.next_check = Instant::now() + CHECK_INTERVAL.max(begun.elapsed() * CHECK_INTERVAL_FACTOR);
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        loop {
            let received = self.monitor.wait(Duration::ZERO).context("read nf_tables notifications");
            let events = received.inspect_err(|_| self.tracker.lost())?;
            if events.is_empty() {
                return Ok(());
            }
            events.into_iter().for_each(|event| self.tracker.notified(event));
        }
    }
}

fn generation(handle: &mut NftHandle) -> Result<u32> {
    handle.generation().context("read the nf_tables generation")
}

#[expect(deprecated, reason = "its replacement is unsafe and requires what an `OwnedFd` already guarantees")]
fn readable(monitor: &NftMonitor) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(monitor.as_fd().try_clone_to_owned()?, Interest::READABLE)
}
