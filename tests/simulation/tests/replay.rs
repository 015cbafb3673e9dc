//! Some seeds, and that a seed gives the same trace each time. `make simulate` runs more of them.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// Seeds that have failed.
const FAILED: [u64; 11] = [12, 26, 36, 1009, 1022, 40_764, 200_810, 200_886, 201_056, 50_000_160, 66_500_369];

/// Seeds that are not special. `make simulate` runs fresh ones.
const FIRST: &str = "1";
const SEEDS: &str = "7";

fn simulate(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

/// They were found with earlier versions of the simulation; since then its steps have changed, so each is as likely to
/// find a bug as any other seed.
#[test]
#[ignore = "most bugs that they found have tests of their own: `make nightly PART=seeds` runs them"]
fn seeds_that_once_failed_pass() {
    for seed in FAILED {
        let (success, text) = simulate(&["--quiet", "--seed", &seed.to_string()]);
        assert!(success, "{text}");
    }
}

#[test]
fn first_seeds_pass() {
    let (success, text) = simulate(&["--short", "--from", FIRST, "--seeds", SEEDS]);
    println!("{text}");
    assert!(success && text.contains("6 seeds, "), "{text}");
}

#[test]
fn seed_gives_the_same_trace_each_time() {
    let trace = || simulate(&["--seed", "7"]).1;
    let first = trace();
    assert!(first.lines().count() > 100, "{first}");
    assert_eq!(first, trace());
}

#[test]
fn steps_of_a_failing_seed_are_cut_to_the_one_that_is_needed() {
    let text = simulate(&["--seed", "15", "--shrink", "--forbidden", "loses power"]).1;
    assert!(text.contains("seed 15 fails with 1 of "), "{text}");
}

#[test]
fn all_mutants_apply_to_the_sources() {
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["tests/simulation/mutants", "tests/e2e/mutants"].map(|folder| fs::read_dir(root.join(folder)));
    let mut count = 0;
    for file in folders.into_iter().flat_map(|folder| folder.expect("the mutants")) {
        let path = file.expect("a mutant").path();
        if path.extension().is_none_or(|extension| extension != "patch" && extension != "diff") {
            continue;
        }
        let patch = fs::File::open(&path).expect("a mutant");
        let mut command = Command::new("patch");
        command.args(["--dry-run", "--strip=1", "--force", "--silent", "--directory"]).arg(root);
        let output = command.stdin(Stdio::from(patch)).output().expect("patch is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {text}", path.display());
        count += 1;
    }
    assert!(count > 20, "{count}");
}
