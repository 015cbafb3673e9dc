//! Links between pages of the documentation, and from them to code, lead to a file, and to a heading if they name one.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{all_files, assert_about, assert_none, top, tree};

#[test]
fn links_of_the_documentation_lead_somewhere() -> Result<()> {
    assert_none(&broken_links(&top()?)?);
    Ok(())
}

/// Relative links in Markdown files whose file or heading does not exist.
fn broken_links(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in all_files(dir)?.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let folder = path.parent().context("a file is in a folder")?;
        for link in links(&fs::read_to_string(&path)?) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            if !target.exists() {
                problems.push(format!("{}: {link}: there is no such file", path.display()));
            } else if target.is_file()
                && !heading.is_empty()
                && !anchors(&fs::read_to_string(&target)?).any(|anchor| anchor == heading)
            {
                problems.push(format!("{}: {link}: there is no such heading", path.display()));
            }
        }
    }
    Ok(problems)
}

/// The targets of links, except for those to other sites.
fn links(page: &str) -> Vec<String> {
    let text = without_code(page);
    let inline = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    let by_reference = text.lines().filter_map(|line| Some(line.strip_prefix('[')?.split_once("]: ")?.1.to_owned()));
    inline.chain(by_reference).filter(|link| !link.contains(':')).collect()
}

/// The text without blocks of code.
fn without_code(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// The anchors that GitHub gives the headings of a page, and those that it has as `<a id="ANCHOR">`.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    let text = without_code(page);
    let headings: Vec<_> =
        text.lines().filter_map(|line| Some(anchor(line.strip_prefix('#')?.trim_start_matches('#')))).collect();
    let explicit: Vec<_> =
        text.split("<a id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect();
    headings.into_iter().chain(explicit)
}

fn anchor(heading: &str) -> String {
    let lower = heading.trim().to_lowercase();
    let kept = lower.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

// === The rule can fail ===

#[test]
fn broken_links_are_found() -> Result<()> {
    let page = "# A `b`, c\n[1](../x.rs) [2](gone.md)\n[3](#a-b-c) [4](#a-b) [5](https://x/y) [6](b.md#in-b)\n\
                [7][ref]\n\n[ref]: nowhere.md\n```\n[8](no.md)\n```\n";
    let dir = tree(&[("docs/a.md", page), ("docs/b.md", "## In B\n<a id=\"c\"></a>\n"), ("x.rs", "")])?;
    assert_about(&broken_links(dir.path())?, &["gone.md", "#a-b:", "nowhere.md"]);
    Ok(())
}
