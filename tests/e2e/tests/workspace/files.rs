//! Form of the files: an opening comment, a bounded length and width, no paths of one machine.

use std::{fs, path::Path};

use anyhow::Result;

use super::{all_files, assert_about, assert_none, is_test, rust_files, top, tree};

const MAX_LINES: usize = 500;
const MAX_COLUMNS: usize = 120;

/// Paths of a developer's own machine. In halves, so that this file does not contain them.
const LOCAL_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/tmp/", "brief")];

#[test]
fn files_open_with_a_comment() -> Result<()> {
    assert_none(&without_opening(&top()?)?);
    Ok(())
}

#[test]
fn files_are_short() -> Result<()> {
    assert_none(&too_long(&top()?)?);
    Ok(())
}

#[test]
fn lines_are_short() -> Result<()> {
    assert_none(&too_wide(&top()?)?);
    Ok(())
}

#[test]
fn no_local_paths() -> Result<()> {
    assert_none(&local_paths(&top()?)?);
    Ok(())
}

fn without_opening(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in rust_files(dir)? {
        if !fs::read_to_string(&path)?.starts_with("//!") {
            problems.push(format!("{}: open it with `//!` and what it contains", path.display()));
        }
    }
    Ok(problems)
}

fn too_long(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in rust_files(dir)? {
        let lines = fs::read_to_string(&path)?.lines().count();
        if lines > MAX_LINES {
            problems.push(format!("{}: {lines} lines; split it, the limit is {MAX_LINES}", path.display()));
        }
    }
    Ok(problems)
}

/// Lines of code and prose beyond [`MAX_COLUMNS`]. Tables, code blocks and links of Markdown may be wider, generated
/// pages and the text that a test compares with too.
fn too_wide(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in all_files(dir)? {
        let below = path.strip_prefix(dir)?;
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let is_checked = match extension {
            "rs" | "proto" | "py" => true,
            "md" => !below.starts_with("docs/reference"),
            _ => false,
        };
        if !is_checked {
            continue;
        }
        let mut in_code_block = false;
        for (number, line) in fs::read_to_string(&path)?.lines().enumerate() {
            let line_start = line.trim_start();
            in_code_block ^= extension == "md" && line_start.starts_with("```");
            let may_be_wide = match extension {
                "md" => in_code_block || line_start.starts_with(['|', '!', '[']) || line.contains("https://"),
                "rs" => line_start.starts_with("//! |") || (is_test(below) && !line_start.starts_with("//")),
                _ => false,
            };
            let columns = line.chars().count();
            if columns > MAX_COLUMNS && !may_be_wide {
                problems.push(format!(
                    "{}:{}: {columns} columns, the limit is {MAX_COLUMNS}",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    Ok(problems)
}

fn local_paths(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in all_files(dir)? {
        let bytes = fs::read(&path)?;
        // Files that are not text hold captured bytes.
        for (number, line) in std::str::from_utf8(&bytes).unwrap_or_default().lines().enumerate() {
            if let Some(word) = LOCAL_PATHS.iter().find(|word| line.contains(**word)) {
                problems.push(format!("{}:{}: {word} is a path of one machine; remove it", path.display(), number + 1));
            }
        }
    }
    Ok(problems)
}

// === Each rule can fail ===

#[test]
fn files_without_opening_are_found() -> Result<()> {
    let dir = tree(&[("a.rs", "//! Holds a.\n"), ("b/c.rs", "// Holds c.\n"), ("d.rs", ""), ("e.toml", "")])?;
    assert_about(&without_opening(dir.path())?, &["b/c.rs", "d.rs"]);
    Ok(())
}

#[test]
fn long_files_are_found() -> Result<()> {
    let dir = tree(&[("a.rs", &"\n".repeat(MAX_LINES)), ("b.rs", &"\n".repeat(MAX_LINES + 1))])?;
    assert_about(&too_long(dir.path())?, &["b.rs"]);
    Ok(())
}

#[test]
fn wide_lines_are_found() -> Result<()> {
    let wide = "x".repeat(MAX_COLUMNS + 1);
    let page = format!("| {wide} |\n```text\n{wide}\n```\n{wide}\n");
    let code = format!("//! {wide}\n//! | {wide} |\n");
    let test = format!("let x = \"{wide}\";\n// {wide}\n");
    let dir = tree(&[("a.md", &page), ("docs/reference/b.md", &wide), ("src/c.rs", &code), ("tests/d.rs", &test)])?;
    assert_about(&too_wide(dir.path())?, &["a.md:5", "src/c.rs:1", "tests/d.rs:2"]);
    Ok(())
}

#[test]
fn local_paths_are_found() -> Result<()> {
    let bad = format!("fine\nsee {}notes\n", LOCAL_PATHS[0]);
    let dir = tree(&[("a.md", "/etc/hosts\n"), ("docs/b.md", &bad), ("target/c.md", &bad), (".ci/run", &bad)])?;
    assert_about(&local_paths(dir.path())?, &[".ci/run:2", "docs/b.md:2"]);
    Ok(())
}
