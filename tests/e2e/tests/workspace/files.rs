//! Every file of a crate belongs to a module and says what it contains; comments fit the line width; no file names a
//! path of one machine.

use std::{fs, path::Path};

use anyhow::Result;

use super::{all_files, assert_about, assert_none, rust_files, top, tree};

/// That of `.rustfmt.toml`.
const LINE_WIDTH: usize = 120;

/// Paths of a developer's own machine. In halves, so that this file does not contain them.
const LOCAL_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

#[test]
fn files_open_with_a_comment() -> Result<()> {
    assert_none(&without_opening(&top()?)?);
    Ok(())
}

#[test]
fn files_belong_to_a_module() -> Result<()> {
    assert_none(&orphans(&top()?)?);
    Ok(())
}

#[test]
fn no_local_paths() -> Result<()> {
    assert_none(&local_paths(&top()?)?);
    Ok(())
}

#[test]
fn comments_fit_the_line_width() -> Result<()> {
    assert_none(&wide_comments(&top()?)?);
    Ok(())
}

fn without_opening(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in rust_files(dir)? {
        if !fs::read_to_string(&path)?.starts_with("//!") && !is_generated(&path) {
            problems.push(format!("{}: open it with `//!` and what it contains", path.display()));
        }
    }
    Ok(problems)
}

/// Files below `src/` that no line `mod NAME;` or path in an attribute or `include!` names.
fn orphans(dir: &Path) -> Result<Vec<String>> {
    let files = rust_files(dir)?;
    let mut named = String::new();
    for path in &files {
        let code = fs::read_to_string(path)?;
        let lines = code.lines().filter(|line| line.contains("mod ") || line.contains(".rs\""));
        lines.for_each(|line| named.extend([line, "\n"]));
    }

    let is_named = |path: &Path| {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        ["lib", "main"].contains(&name)
            || named.contains(&format!("mod {name};"))
            || named.contains(&format!("/{name}.rs\""))
    };

    Ok(files
        .iter()
        .filter(|path| path.iter().any(|part| part == "src") && !path.iter().any(|part| part == "bin"))
        .filter(|path| !is_named(path))
        .map(|path| format!("{}: no `mod` leads here; declare it or delete it", path.display()))
        .collect())
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

/// rustfmt leaves comments as they are. Rows of tables cannot be wrapped.
fn wide_comments(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in rust_files(dir)?.into_iter().filter(|path| !is_generated(path)) {
        for (number, line) in fs::read_to_string(&path)?.lines().enumerate() {
            let comment = line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!', ' ']));
            if comment.is_some_and(|text| !text.starts_with('|')) && line.chars().count() > LINE_WIDTH {
                problems.push(format!("{}:{}: more than {LINE_WIDTH} columns", path.display(), number + 1));
            }
        }
    }
    Ok(problems)
}

fn is_generated(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with("src/v1"))
}

// === Each rule can fail ===

#[test]
fn files_without_opening_are_found() -> Result<()> {
    let dir = tree(&[("a.rs", "//! Holds a.\n"), ("b/c.rs", "// Holds c.\n"), ("d.rs", ""), ("e.toml", "")])?;
    assert_about(&without_opening(dir.path())?, &["b/c.rs", "d.rs"]);
    Ok(())
}

#[test]
fn orphans_are_found() -> Result<()> {
    let dir = tree(&[
        ("a/src/lib.rs", "mod one;\n#[path = \"../x/two.rs\"]\nmod other;\n"),
        ("a/src/one.rs", ""),
        ("a/src/two.rs", ""),
        ("a/src/three.rs", ""),
        ("a/src/bin/four.rs", ""),
        ("a/tests/five.rs", ""),
    ])?;
    assert_about(&orphans(dir.path())?, &["three.rs"]);
    Ok(())
}

#[test]
fn wide_comments_are_found() -> Result<()> {
    let wide = "x".repeat(LINE_WIDTH);
    let table = format!("//! | {wide} |\n    // {}\n", "─".repeat(LINE_WIDTH - 7));
    let code = format!("const A: &str = \"{wide}\";\n");
    let dir = tree(&[
        ("a.rs", &format!("/// {wide}\n")),
        ("b.rs", &(table + &code)),
        ("src/v1/c.rs", &format!("// {wide}")),
    ])?;
    assert_about(&wide_comments(dir.path())?, &["a.rs:1"]);
    Ok(())
}

#[test]
fn local_paths_are_found() -> Result<()> {
    let bad = format!("fine\nsee {}notes\n", LOCAL_PATHS[0]);
    let dir = tree(&[("a.md", "/etc/hosts\n"), ("docs/b.md", &bad), ("target/c.md", &bad), (".ci/run", &bad)])?;
    assert_about(&local_paths(dir.path())?, &[".ci/run:2", "docs/b.md:2"]);
    Ok(())
}
