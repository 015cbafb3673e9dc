//! Rules of the repository that the compiler does not check. Each rule is a function from a tree, or from `cargo
//! metadata`, to a list of problems: on this repository the list must be empty, and on a small example that breaks the
//! rule it must not.
//!
//! | module | rules |
//! |---|---|
//! | `crates` | which crate may use which |
//! | `files` | every file is compiled |
//! | `links` | links of the documentation lead to files and headings |
//! | `supply_chain` | actions and images are pinned; no check is skipped, no test retried |
//! | `threats` | docs/security.md links tests for each table of threats |

mod crates;
mod files;
mod links;
mod supply_chain;
mod threats;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The root of the repository.
fn top() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().context("find the root of the repository")
}

fn metadata() -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(top()?)
        .output()
        .context("start cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// All files below `dir` that belong to the repository, sorted.
fn all_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" && name != ".git" {
            found.extend(all_files(&path)?);
        } else if path.is_file() && name != ".git" && name != "Cargo.lock" {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[track_caller]
fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// An example tree of files.
fn tree(files: &[(&str, &str)]) -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    for (path, content) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.with_file_name(""))?;
        fs::write(path, content)?;
    }
    Ok(dir)
}

/// The problems must be about these files, in this order.
#[track_caller]
fn assert_about(problems: &[String], files: &[&str]) {
    let about =
        problems.len() == files.len() && problems.iter().zip(files).all(|(problem, file)| problem.contains(file));
    assert!(about, "expected problems with {files:?}, found {problems:#?}");
}
