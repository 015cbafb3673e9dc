//! docs/security.md: each row of a threat table names at least one test, and every test that it names exists.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::Result;

use super::{all_files, assert_about, assert_none, top, tree};

#[test]
fn tests_in_the_threat_model_exist() -> Result<()> {
    let page = fs::read_to_string(top()?.join("docs/security.md"))?;
    assert_none(&unknown_tests(&page, &declared(&top()?)?));
    Ok(())
}

/// The names of all functions and modules, in Rust and Python.
fn declared(dir: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for path in all_files(dir)? {
        if path.extension().is_none_or(|extension| extension != "rs" && extension != "py") {
            continue;
        }
        let code = fs::read_to_string(&path)?;
        let mut words = code.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if let ("fn" | "mod" | "def", Some(name)) = (word, words.peek()) {
                names.extend(name.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned));
            }
        }
    }
    Ok(names)
}

/// Tests on the page, in code of the form `BINARY path::of::the_test`, that do not exist, and rows of threat tables
/// without a test. A threat table has a last column `test`. The test may be a module, with `::` at its end.
fn unknown_tests(page: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut in_threats = false;
    for (number, line) in page.lines().enumerate() {
        let is_row = line.starts_with('|');
        in_threats = is_row && (in_threats || line.ends_with("| test |"));
        let is_header = line.ends_with("| test |") || line.starts_with("|---");
        if !in_threats || is_header {
            continue;
        }
        let cell = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let named: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            problems.push(format!("docs/security.md:{}: name the test that shows the bound", number + 1));
        }
        for name in named {
            let path = name.split_once(' ').map_or("", |(_binary, path)| path).trim_end_matches("::");
            if !path.split("::").all(|part| known.contains(part)) {
                problems.push(format!("docs/security.md:{}: there is no test `{name}`", number + 1));
            }
        }
    }
    problems
}

// === The rule can fail ===

#[test]
fn unknown_tests_are_found() -> Result<()> {
    let dir = tree(&[
        ("src/lib.rs", "mod a;\nmod deep {\n    #[test]\n    fn one() {}\n}\n"),
        ("tests/x.py", "class X:\n    def test_two(self):\n"),
        ("notes.md", "fn three"),
    ])?;
    let page = "| x | test |\n|---|---|\n| 1 | `fairlead deep::one`, `fairlead a::`, `charts test_two` |\n| 2 | none |\n\
                | 3 | `fairlead deep::three` |\n| 4 | `fairlead b::one`, `one` |\n\n| x | y |\n|---|---|\n| 5 | `z` |\n";
    let expected = [":4: name the test", ":5: there is", ":6: there is", ":6: there is"];
    assert_about(&unknown_tests(page, &declared(dir.path())?), &expected);
    Ok(())
}
