//! docs/elsewhere.md: each row of its tables links a test, and each test that it links exists.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{assert_about, assert_none, top, tree};

#[test]
fn tests_on_the_page_of_failures_elsewhere_exist() -> Result<()> {
    assert_none(&broken_rows(&top()?)?);
    Ok(())
}

/// Rows whose last column, `test`, links nothing, a file that does not exist, or a test that the file lacks. The text
/// of a link to a file of Rust is the name of the test, with spaces.
fn broken_rows(dir: &Path) -> Result<Vec<String>> {
    let docs = dir.join("docs");
    let page = fs::read_to_string(docs.join("elsewhere.md"))?;
    let mut problems = Vec::new();

    for (number, line) in page.lines().enumerate() {
        let is_header = line.ends_with("| test |") || line.starts_with("|---");
        if !line.starts_with('|') || is_header {
            continue;
        }
        let at = format!("docs/elsewhere.md:{}", number + 1);
        let (_, cell) = line.trim_end_matches('|').rsplit_once('|').context("a row has columns")?;

        if links(cell).next().is_none() {
            problems.push(format!("{at}: link the test"));
        }
        for (words, target) in links(cell) {
            let Ok(code) = fs::read_to_string(docs.join(target)) else {
                problems.push(format!("{at}: there is no file {target}"));
                continue;
            };
            let name = words.replace(' ', "_");
            if target.ends_with(".rs") && !code.contains(&format!("fn {name}(")) {
                problems.push(format!("{at}: there is no test {name} in {target}"));
            }
        }
    }
    Ok(problems)
}

/// The links of a Markdown text: words and target.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('[').skip(1).filter_map(|link| link.split_once(')')?.0.split_once("]("))
}

// === The rule can fail ===

#[test]
fn broken_rows_are_found() -> Result<()> {
    let page = "| issue | test |\n|---|---|\n| [#1](https://example.org/1) | [one works](../src/a.rs) |\n| 2 | none |\n\
                | 3 | [two works](../src/a.rs) |\n| 4 | [one works](../src/b.rs), [`make x`](../x) |\n\n[5](6)\n";
    let dir = tree(&[("docs/elsewhere.md", page), ("src/a.rs", "#[test]\nfn one_works() {}\n"), ("x", "")])?;
    let expected = [":4: link the test", ":5: there is no test two_works", ":6: there is no file ../src/b.rs"];
    assert_about(&broken_rows(dir.path())?, &expected);
    Ok(())
}
