//! Every file of a crate belongs to a module: the tests in one that does not never run.

use std::{fs, path::Path};

use anyhow::Result;

use super::{all_files, assert_about, assert_none, top, tree};

#[test]
fn files_belong_to_a_module() -> Result<()> {
    assert_none(&orphans(&top()?)?);
    Ok(())
}

/// Files below `src/` that no line `mod NAME;` or path in an attribute or `include!` names.
fn orphans(dir: &Path) -> Result<Vec<String>> {
    let mut files = all_files(dir)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));

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

// === The rule can fail ===

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
