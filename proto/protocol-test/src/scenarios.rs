//! The scenarios: name, rule, section of the protocol, and the function that runs it.

mod commit;
mod digest;
mod drains;
mod reconnect;
mod resume;
mod start;
mod unknown;

use futures::future::BoxFuture;

use crate::frontend::{Outcome, ScriptedFrontend};

/// A scripted stream, or several, that checks one rule.
#[derive(Debug)]
pub struct Scenario {
    /// The name.
    pub name: &'static str,
    /// What the protocol requires.
    pub rule: &'static str,
    /// The anchor of the rule in `docs/protocol.md`.
    anchor: &'static str,
    pub(crate) run: for<'a> fn(&'a mut ScriptedFrontend<'_>) -> BoxFuture<'a, Outcome>,
}

impl Scenario {
    /// The section of the protocol with the rule.
    #[must_use]
    pub fn link(&self) -> String {
        format!("docs/protocol.md#{}", self.anchor)
    }
}

/// Defines [`SCENARIOS`]. Each has a name, the anchor of its rule in `docs/protocol.md`, a function, and the rule.
macro_rules! scenarios {
    ($($name:literal, $anchor:literal, $run:path: $rule:literal)+) => {
        /// All scenarios, simple ones first.
        pub static SCENARIOS: &[Scenario] = &[
            $(Scenario { name: $name, rule: $rule, anchor: $anchor, run: |frontend| Box::pin($run(frontend)) },)+
        ];
    };
}

scenarios! {
    "hello", "rule-1", start::hello:
        "Hello is the first message, sent once, with the protocol version and the node name. Nothing else is sent \
         before the Welcome."
    "snapshot", "rule-4", start::snapshot:
        "A commit is acked with its revision when it is programmed, and with the correct digest if the client computes \
         digests."
    "empty-snapshot", "how-a-stream-starts", start::empty_snapshot:
        "A snapshot without service ports removes all service ports."
    "waiting", "how-a-stream-starts", start::waiting:
        "A client that waits for a snapshot or repair receives batches without operations and without commit. Their \
         target revisions have no meaning."
    "several-batches", "rule-4", commit::several_batches:
        "Nothing is applied or acked before the batch with commit. Then all operations since the last commit are \
         applied as one change."
    "uncommitted", "rule-4", commit::uncommitted:
        "Operations that are not committed when the stream ends are discarded."
    "deltas", "operations", commit::deltas:
        "Each operation has the effect in the table: a replaced service port keeps its pools, and a pool of an unknown \
         one is ignored."
    "order", "rule-4", commit::order:
        "The operations of a commit take effect in their order: the last one that concerns a service port or an \
         endpoint counts."
    "established-pools", "the-state-of-a-node", commit::established_pools:
        "Established and gone pools get no new connections."
    "reset-bucket", "operations", commit::reset_bucket:
        "After reset_bucket the bucket has only the service ports that are sent again."
    "snapshot-again", "the-stream", commit::snapshot_again:
        "A snapshot may be sent again on an open stream."
    "ack-after-kernel", "drains", commit::acks_what_is_programmed:
        "What an Ack says is programmed is in the kernel: pods that end rely on it. Needs --state-command."
    "drain-levels", "drains", drains::levels:
        "A client that follows Drains does so for its own node, with one stream at a time, takes a state that it does \
         not know for one in use, and opens the stream again within the limit of rule 12. Optional: for clients on whose \
         node something waits for a pod."
    "bookmark", "rule-7", digest::bookmark:
        "A bookmark is acked like a commit, and the next difference starts from its revision."
    "numbers", "rule-6", digest::numbers:
        "An Ack has the number of the commit or bookmark that it answers: they are counted from 1 on each stream, also if \
         their revisions are equal."
    "wrong-base", "rule-5", digest::wrong_base:
        "The client ends the stream at a difference from a revision that is not its committed revision."
    "digest-request", "digests", digest::digest_request:
        "A DigestRequest is answered with the 129 digest entries of the committed state. Optional: for clients that \
         compute digests."
    "repair", "digests", digest::repair:
        "Digest buckets that differ are sent on the open stream. Optional: for clients that compute digests."
    "unknown-fields", "rule-2", unknown::fields:
        "Unknown fields are ignored in every message."
    "unknown-operation", "rule-2", unknown::operation:
        "At an unknown operation the client ends the stream and keeps its committed state programmed."
    "large-message", "rule-8", unknown::large_message:
        "A message of 1 MiB is accepted."
    "resume", "rule-10", resume::resume:
        "Hello has the committed epoch and revision, and the stream resumes there. Optional: a client may leave them \
         empty."
    "another-frontend", "how-a-stream-starts", resume::another_frontend:
        "The client accepts the state of a frontend with another epoch."
    "source-version", "rule-11", resume::source_version:
        "Hello has the source version of the last commit. Optional: 0 means unknown."
    "restart", "rule-10", resume::restart:
        "After a restart, Hello has the committed state, or none. Needs a COMMAND."
    "drain", "rule-10", reconnect::drain:
        "After a Drain the client reconnects within the given time, even if the stream ends earlier."
    "reconnect", "rule-10", reconnect::after_errors:
        "After an error the client waits for a random time of at least 200 ms before it reconnects."
    "silence", "rule-7", reconnect::after_silence:
        "A client without an outstanding Ack that has received nothing for 30 s ends the stream and reconnects."
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn names_are_unique_and_links_resolve() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
        let page = fs::read_to_string(page).unwrap();
        let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
        let headings: BTreeSet<_> =
            headings.map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-")).collect();
        let mut names = BTreeSet::new();
        for scenario in SCENARIOS {
            assert!(names.insert(scenario.name), "{}", scenario.name);
            let has_anchor = page.contains(&format!("<a id=\"{}\"></a>", scenario.anchor));
            assert!(has_anchor || headings.contains(scenario.anchor), "{}", scenario.link());
        }
    }
}
