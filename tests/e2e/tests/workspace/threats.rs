//! docs/security.md: each section with a table of threats links files with tests that show the bounds.

use std::{fs, path::Path};

use anyhow::Result;

use super::{assert_about, assert_none, top, tree};

/// The header of a table of threats.
const THREATS: &str = "| capability | bound |";
/// What a file with tests contains.
const MARKS: &[&str] = &["test]", "::test(", "def test_"];
/// The folder of functions from which a macro makes tests.
const CASES: &str = "tests/e2e/src/cases/";

#[test]
fn threats_link_tests() -> Result<()> {
    assert_none(&without_tests(&top()?)?);
    Ok(())
}

/// Sections of the page with a table of threats and without a link to a file with tests, and links in their line
/// `Tests:` to other files.
fn without_tests(dir: &Path) -> Result<Vec<String>> {
    let page = fs::read_to_string(dir.join("docs/security.md"))?;
    let mut problems = Vec::new();
    for section in page.split("\n#").filter(|section| section.contains(THREATS)) {
        let title = section.lines().next().unwrap_or_default().trim_start_matches(['#', ' ']);
        let tests =
            section.split_once("\nTests: ").map_or("", |(_, tests)| tests.split("\n\n").next().unwrap_or_default());
        let files: Vec<_> = tests.split("](../").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)).collect();
        if files.is_empty() {
            problems.push(format!("docs/security.md: {title}: link the tests that show the bounds, after `Tests: `"));
        }
        for file in files {
            let code = fs::read_to_string(dir.join(file)).unwrap_or_default();
            if !file.starts_with(CASES) && !MARKS.iter().any(|mark| code.contains(mark)) {
                problems.push(format!("docs/security.md: {title}: {file} has no test"));
            }
        }
    }
    Ok(problems)
}

// === The rule can fail ===

#[test]
fn sections_without_tests_are_found() -> Result<()> {
    let table = format!("{THREATS}\n|---|---|\n| x | y |\n");
    let page = format!(
        "# T\n\n## A\n\nTests: [a](../a.rs), [b](../b.py),\n[c](../c.rs)\n\n{table}\n### B\n\n{table}\n## C\n\n| x | y |\n"
    );
    let dir = tree(&[
        ("docs/security.md", &page),
        ("a.rs", "#[tokio::test]\nfn one() {}\n"),
        ("b.py", "class X:\n    def test_two(self):\n"),
        ("c.rs", "fn three() {}\n"),
    ])?;
    assert_about(&without_tests(dir.path())?, &["A: c.rs has no test", "B: link"]);
    Ok(())
}
