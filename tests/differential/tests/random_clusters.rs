//! All backends do with random clusters what the reference says: with those that found something before, and with
//! others. `make differential` has new ones in each run.

use std::ops::Range;

use differential::{Comparison, Method};

/// Clusters in which backends or kube-proxy differed from the reference or from each other once.
const FOUND: [u64; 8] = [1, 2, 3, 12, 105, 109, 114, 116];
/// Clusters that are not special.
const OTHERS: Range<u64> = 1_000..1_002;

#[test]
fn backends_do_what_the_reference_says() {
    let mut comparison = Comparison::start(Method::Trace, None).expect("proxies");
    for seed in FOUND.into_iter().chain(OTHERS) {
        let difference = comparison.compare(seed).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        assert_eq!(difference, None, "make differential SEED={seed}");
    }
    println!("{}", comparison.summary());
}
