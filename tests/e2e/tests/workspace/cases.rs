//! docs/semantics.md names every Service conformance case, and no other.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};

use super::{assert_about, assert_none, top, tree};

#[test]
fn semantics_page_names_every_case() -> Result<()> {
    assert_none(&unexplained(&top()?)?);
    Ok(())
}

/// Cases that `docs/semantics.md` does not name, and names there that are no case.
fn unexplained(dir: &Path) -> Result<Vec<String>> {
    let cases = cases(&fs::read_to_string(dir.join("tests/e2e/src/cases.rs"))?)?;
    let page = fs::read_to_string(dir.join("docs/semantics.md"))?;
    let named = page.split('`').skip(1).step_by(2).filter(|code| code.contains("::") && *code != "module::case");
    let named: BTreeSet<_> = named.map(str::to_owned).collect();
    let missing = cases.difference(&named).map(|case| format!("docs/semantics.md: name {case}, and what it checks"));
    let unknown = named.difference(&cases).map(|case| format!("docs/semantics.md: {case} is not a case"));
    Ok(missing.chain(unknown).collect())
}

/// The list in the macro `conformance!`, as `module::case`.
fn cases(source: &str) -> Result<BTreeSet<String>> {
    let (_, list) = source.split_once("@modules $backend;").context("cases.rs has no list of cases")?;
    let (list, _) = list.split_once("};").context("the list of cases has no end")?;
    let (mut cases, mut module) = (BTreeSet::new(), "");
    for word in list.split_whitespace().collect::<Vec<_>>().windows(2) {
        match word {
            [name, "{"] => module = name,
            [case, _] if case.ends_with(',') => {
                cases.insert(format!("{module}::{}", case.trim_end_matches(',')));
            }
            _ => {}
        }
    }
    Ok(cases)
}

#[test]
fn undocumented_cases_are_found() -> Result<()> {
    let list = "macro { { conformance! { @modules $backend;\n a {\n b,\n c,\n }\n d {\n e,\n }\n } };\n f { g, } }";
    let page = "`module::case`\n| b | – | `a::b`, `d::e` |\n| c | `x` | `a::gone` |\n";
    let dir = tree(&[("tests/e2e/src/cases.rs", list), ("docs/semantics.md", page)])?;
    assert_about(&unexplained(dir.path())?, &["name a::c", "a::gone is not a case"]);
    Ok(())
}
