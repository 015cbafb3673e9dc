//! All backends do with random clusters what the reference says: with those that found something before, and with new
//! ones.

use differential::{Comparison, Method};

/// Clusters in which backends or kube-proxy differed from the reference or from each other once.
const FOUND: [u64; 8] = [1, 2, 3, 12, 105, 109, 114, 116];
/// New clusters in each run.
const NEW: u64 = 12;

#[test]
fn backends_do_what_the_reference_says() {
    let first = fastrand::u64(..1 << 40);
    println!("new seeds from {first}");
    let mut comparison = Comparison::start(Method::Trace, None).expect("proxies");
    for seed in FOUND.into_iter().chain(first..first + NEW) {
        let difference = comparison.compare(seed).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        assert_eq!(difference, None, "make differential SEED={seed}");
    }
    println!("{}", comparison.summary());
}
