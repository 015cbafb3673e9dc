//! Counts the generations of the ruleset, so that lost notifications can be told from missed changes.

#[cfg(test)]
mod tests;

use netlink::nft::NftEvent;

use crate::Drift;

/// Which object of ours notifications are about. Later variants take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Touched {
    /// A rule that may have been ours, which is so if one of ours is missing.
    Perhaps,
    /// Notifications are missing.
    Unknown,
    /// An object of ours, of this kind.
    Ours(&'static str),
}

/// Which generations are accounted for, and whether a notification means that our objects changed.
#[derive(Debug)]
pub(super) struct GenerationTracker {
    own_port: Option<u32>,
    touched_by: fn(&NftEvent) -> Option<Touched>,
    /// Notifications up to this generation are ignored.
    start: u32,
    /// `start`, plus 1 for each transaction since then that left our objects as they should be.
    accounted: u32,
    /// Whether there may be transactions without a notification.
    pub(super) unsure: bool,
    /// Which object of ours the transaction changes whose notifications are being received.
    touched: Option<Touched>,
    pub(super) drift: Option<Drift>,
    /// The last change that may have deleted an object of ours, until that is checked.
    pub(super) suspect: Option<Drift>,
}

impl GenerationTracker {
    pub(super) fn new(own_port: Option<u32>, touched_by: fn(&NftEvent) -> Option<Touched>, generation: u32) -> Self {
        Self {
            own_port,
            touched_by,
            start: generation,
            accounted: generation,
            unsure: false,
            touched: None,
            drift: None,
            suspect: None,
        }
    }

    /// Ignores everything up to this generation.
    pub(super) fn restart(&mut self, generation: u32) {
        *self = Self::new(self.own_port, self.touched_by, generation);
    }

    /// Accounts for generations of our own.
    pub(super) fn committed(&mut self, transactions: usize) {
        self.accounted = (0..transactions).fold(self.accounted, |generation, _| next(generation));
    }

    /// Whether no other process can have changed our objects up to this generation, which was read after the
    /// notifications.
    pub(super) fn accounts_for(&mut self, generation: u32) -> bool {
        self.unsure = generation != self.accounted;
        if !self.unsure {
            self.touched = None;
        }
        !self.unsure
    }

    /// Notifications may be missing. Perhaps only the one about the generation is left of a transaction.
    pub(super) fn lost(&mut self) {
        self.unsure = true;
        self.touched = self.touched.max(Some(Touched::Unknown));
    }

    pub(super) fn notified(&mut self, event: NftEvent) {
        match event {
            NftEvent::Lost => self.lost(),
            NftEvent::Changed { port, .. } | NftEvent::Generation { port, .. } if self.own_port == Some(port) => {}
            NftEvent::Changed { .. } => {
                // The first object of ours is reported.
                if !matches!(self.touched, Some(Touched::Ours(_))) {
                    self.touched = self.touched.max((self.touched_by)(&event));
                }
            }
            NftEvent::Generation { id, pid, process, port: _ } => {
                let touched = self.touched.take();
                // The numbers wrap around.
                if id.wrapping_sub(self.start) as i32 <= 0 {
                    return;
                }
                match touched {
                    None => self.committed(1),
                    Some(Touched::Perhaps) => {
                        self.committed(1);
                        self.suspect = Some(Drift::Changed { object: "rule".to_owned(), process, pid });
                    }
                    Some(Touched::Unknown) => drop(self.drift.get_or_insert(Drift::Possible)),
                    Some(Touched::Ours(object)) if !matches!(self.drift, Some(Drift::Changed { .. })) => {
                        self.drift = Some(Drift::Changed { object: object.to_owned(), process, pid });
                    }
                    Some(Touched::Ours(_)) => {}
                }
            }
        }
    }
}

/// The kernel skips 0.
fn next(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}
