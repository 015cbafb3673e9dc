//! The scenarios: what each is called, what the protocol says, and where.

mod changing;
mod checking;
mod leaving;
mod reading;
mod returning;
mod starting;

use std::fmt;

use futures::future::BoxFuture;

use crate::script::{Played, Script};

/// Something that a client must do, and how to find out whether it does.
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What the protocol says, shortly.
    pub says: &'static str,
    /// The place in `docs/protocol.md`.
    anchor: &'static str,
    pub(crate) play: for<'a> fn(&'a mut Script<'_>) -> BoxFuture<'a, Played>,
}

impl Scenario {
    /// Where the protocol says so.
    #[must_use]
    pub fn link(&self) -> String {
        format!("docs/protocol.md#{}", self.anchor)
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scenario").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A line of [`SCENARIOS`].
macro_rules! scenario {
    ($name:literal, $anchor:literal, $play:path, $says:literal) => {
        Scenario { name: $name, says: $says, anchor: $anchor, play: |script| Box::pin($play(script)) }
    };
}

/// All of them, simple ones first.
pub static SCENARIOS: &[Scenario] = &[
    scenario!(
        "hello",
        "rule-1",
        starting::hello,
        "Hello is the first message, once, with the protocol's version and the node's name; nothing else is said before the Welcome."
    ),
    scenario!(
        "snapshot",
        "rule-4",
        starting::snapshot,
        "A commit is acked with its revision once it is in force; with the right digest, if the client computes any."
    ),
    scenario!(
        "empty-snapshot",
        "how-a-stream-starts",
        starting::empty_snapshot,
        "A snapshot without service ports is one like any other: what was held is gone after it."
    ),
    scenario!(
        "several-batches",
        "rule-4",
        changing::several_batches,
        "Nothing is applied or acked before the batch with commit; then all operations since the last commit are, as one change."
    ),
    scenario!(
        "uncommitted",
        "rule-4",
        changing::uncommitted,
        "What was not committed when the stream ends is thrown away."
    ),
    scenario!(
        "deltas",
        "operations",
        changing::deltas,
        "Each operation has the effect that the table says; a service port that is put keeps its pools, and a pool of an unknown one is ignored."
    ),
    scenario!(
        "reset-bucket",
        "operations",
        changing::reset_bucket,
        "After reset_bucket only what comes again is there."
    ),
    scenario!(
        "snapshot-again",
        "the-stream",
        changing::snapshot_again,
        "Everything may be sent anew on a stream that is under way."
    ),
    scenario!(
        "bookmark",
        "rule-7",
        checking::bookmark,
        "A bookmark is acked like a commit, and its revision is what the next difference starts from."
    ),
    scenario!(
        "wrong-base",
        "rule-5",
        checking::wrong_base,
        "A difference that starts from another revision than the one held ends the stream."
    ),
    scenario!(
        "digest-request",
        "digests",
        checking::digest_request,
        "A DigestRequest is answered with the 129 entries of what is held. Optional: for clients that send digests."
    ),
    scenario!(
        "repair",
        "digests",
        checking::repair,
        "The buckets that differ are sent on the stream that is under way. Optional: for clients that send digests."
    ),
    scenario!(
        "unknown-fields",
        "rule-2",
        reading::unknown_fields,
        "Fields that are unknown are ignored, in whatever message they are."
    ),
    scenario!(
        "unknown-operation",
        "rule-2",
        reading::unknown_operation,
        "An operation that is unknown is not skipped: the client ends the stream and keeps what it has in force."
    ),
    scenario!("large-message", "rule-8", reading::large_message, "A message of 1 MiB is accepted."),
    scenario!(
        "resume",
        "rule-10",
        returning::resume,
        "Hello says the epoch and revision that are held, and the stream goes on from there. Optional: a client may say that it holds nothing."
    ),
    scenario!(
        "another-frontend",
        "how-a-stream-starts",
        returning::another_frontend,
        "A frontend with another epoch is followed, and what it says counts."
    ),
    scenario!(
        "source-version",
        "rule-11",
        returning::source_version,
        "Hello says the source version of the last commit. Optional: 0 is unknown."
    ),
    scenario!(
        "restart",
        "rule-10",
        returning::restart,
        "A client that is started anew says what it holds, or nothing. Needs a COMMAND."
    ),
    scenario!(
        "drain",
        "rule-10",
        leaving::drain,
        "After a Drain the client connects again within the time that it names, also when the stream ends before."
    ),
    scenario!(
        "reconnect",
        "rule-10",
        leaving::reconnect,
        "After an error the client waits for a random time of 200 ms at least before it connects again."
    ),
    scenario!(
        "silence",
        "rule-7",
        leaving::silence,
        "A client that owes no Ack and has heard nothing for 30 s ends the stream and connects again."
    ),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn names_differ_and_links_lead_somewhere() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
        let page = fs::read_to_string(page).unwrap();
        let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
        let headings: BTreeSet<_> =
            headings.map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-")).collect();
        let mut names = BTreeSet::new();
        for scenario in SCENARIOS {
            assert!(names.insert(scenario.name), "{}", scenario.name);
            let is_there = page.contains(&format!("<a id=\"{}\"></a>", scenario.anchor));
            assert!(is_there || headings.contains(scenario.anchor), "{}", scenario.link());
        }
    }
}
