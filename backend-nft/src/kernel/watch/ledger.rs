//! Which of the ruleset's generations are accounted for, and which announcement means that our tables are not as we left them.

#[cfg(test)]
mod tests;

use backend::Drift;
use netlink::nft::{NftEvent, TableFamily};
use proto::model::IpFamily as Ours;

use crate::desired::{nft_family, table};

/// What was heard, and what was done.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Under which number our own changes are announced.
    port: u32,
    /// Counting starts at this generation; `None` before there is anything to watch.
    start: Option<u32>,
    /// `start`, and one for each transaction since then that left our tables as they should be.
    known: u32,
    /// Whether there may have been transactions that nobody counted.
    unsure: bool,
    /// What of ours the transaction changes that is being announced.
    touched: Option<&'static str>,
}

/// Whether all that happened is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) enum Proof {
    /// Nobody did anything to our tables but us.
    Known,
    /// Somebody did something: to whichever table.
    Unknown,
}

impl Ledger {
    pub(super) fn new(port: u32) -> Self {
        Self { port, start: None, known: 0, unsure: false, touched: None }
    }

    /// Whatever happened until this generation has no meaning.
    pub(super) fn begin(&mut self, generation: u32) {
        *self = Self { start: Some(generation), known: generation, ..Self::new(self.port) };
    }

    /// We have made one more generation.
    pub(super) fn committed(&mut self) {
        self.known = next(self.known);
    }

    /// Announcements were or will be lost.
    pub(super) fn lost(&mut self) {
        self.unsure = true;
    }

    pub(super) fn is_unsure(&self) -> bool {
        self.unsure && self.start.is_some()
    }

    /// All that was announced before this generation was read has been heard.
    pub(super) fn check(&mut self, generation: u32) -> Proof {
        if generation != self.known {
            return Proof::Unknown;
        }
        self.unsure = false;
        Proof::Known
    }

    /// Takes in an announcement.
    pub(super) fn hear(&mut self, notice: NftEvent) -> Option<Drift> {
        let start = self.start?;
        match notice {
            NftEvent::Lost => {
                self.lost();
                None
            }
            NftEvent::Changed { port, .. } | NftEvent::Generation { port, .. } if port == self.port => None,
            NftEvent::Changed { family, table, object, .. } => {
                if is_ours(family, &table) {
                    self.touched.get_or_insert(object);
                }
                None
            }
            NftEvent::Generation { id, pid, process, port: _ } => {
                let touched = self.touched.take();
                // Numbers start over some day.
                if id.wrapping_sub(start) as i32 <= 0 {
                    return None;
                }
                let Some(what) = touched else {
                    self.known = next(self.known);
                    return None;
                };
                Some(Drift::Changed { object: what.into(), process, pid })
            }
        }
    }
}

/// The kernel leaves out 0.
fn next(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}

fn is_ours(family: Option<TableFamily>, name: &str) -> bool {
    Ours::ALL.into_iter().any(|ours| family == Some(nft_family(ours)) && name == table(ours).name)
}
