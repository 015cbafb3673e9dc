//! Replays the corpus of each target, with a few random changes. Everything that fuzzing found is in a corpus.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::{Duration, Instant};

use fuzz::{FuzzTarget, Mutator};

/// How long the inputs of a target are changed.
const MUTATE: Duration = Duration::from_millis(500);

fn replay(name: &str) {
    let target = FuzzTarget::named(name).unwrap();
    let corpus = target.corpus().unwrap();
    assert!(corpus.len() > 2, "{name} has no corpus");
    // What the target initialises once.
    target.run(&[]);
    corpus.iter().for_each(|input| target.run(input));
    let (started, mut mutator) = (Instant::now(), Mutator::new(1));
    let mut pairs = corpus.iter().zip(corpus.iter().cycle().skip(1)).cycle();
    while started.elapsed() < MUTATE {
        let (input, other) = pairs.next().unwrap();
        let changed = mutator.mutate(input, other);
        let result = std::panic::catch_unwind(|| target.run(&changed));
        assert!(result.is_ok(), "{name} fails for {}", changed.escape_ascii());
    }
}

macro_rules! replays {
    ($($test:ident = $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            replay($name);
        })*

        #[test]
        fn each_target_is_replayed() {
            let replayed = [$($name),*];
            assert_eq!(fuzz::TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), replayed);
        }
    };
}

replays! {
    messages_to_backends = "stream-server",
    messages_to_frontends = "stream-client",
    state_files = "state-file",
    nf_tables_answers = "nf-tables",
    ipset_answers = "ipset",
    ipvs_answers = "ipvs",
    conntrack_answers = "conntrack",
    rtnetlink_answers = "rtnetlink",
    saved_rules = "rules",
    manifests = "manifests",
    configurations = "configuration",
    certificates = "certificates",
    tokens = "tokens",
    http_requests = "http",
}
