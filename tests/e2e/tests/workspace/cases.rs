//! docs/semantics.md links every file of Service conformance cases.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{assert_about, assert_none, top, tree};

#[test]
fn semantics_page_links_every_file_of_cases() -> Result<()> {
    assert_none(&unlinked(&top()?)?);
    Ok(())
}

/// Files with cases that `docs/semantics.md` does not link.
fn unlinked(dir: &Path) -> Result<Vec<String>> {
    let source = fs::read_to_string(dir.join("tests/e2e/src/cases.rs"))?;
    let page = fs::read_to_string(dir.join("docs/semantics.md"))?;

    let links = modules(&source)?.into_iter().map(|module| format!("../tests/e2e/src/cases/{module}.rs"));
    let missing = links.filter(|link| !page.contains(&format!("({link})")));
    Ok(missing.map(|link| format!("docs/semantics.md: link {link} in the section that it checks")).collect())
}

/// The modules in the list of the macro `conformance!`.
fn modules(source: &str) -> Result<Vec<&str>> {
    let (_, list) = source.split_once("@modules $backend;").context("cases.rs has no list of cases")?;
    let (list, _) = list.split_once("};").context("the list of cases has no end")?;
    Ok(list.lines().filter_map(|line| line.trim().strip_suffix(" {")).collect())
}

#[test]
fn unlinked_files_of_cases_are_found() -> Result<()> {
    let list = "macro { { conformance! { @modules $backend;\n a {\n b,\n }\n d {\n e,\n }\n } };\n f {\n g, } }";
    let page = "Tests: [a](../tests/e2e/src/cases/a.rs), `d`\n";
    let dir = tree(&[("tests/e2e/src/cases.rs", list), ("docs/semantics.md", page)])?;
    assert_about(&unlinked(dir.path())?, &["cases/d.rs"]);
    Ok(())
}
