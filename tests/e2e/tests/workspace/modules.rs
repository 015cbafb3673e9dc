//! Every file in `src/` is compiled, and few crates spawn processes, each in one file.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{assert_about, assert_none, list, metadata, rust_files, text, top, tree};

/// Directories whose crates may spawn processes outside tests: to run iptables, and to try backends written by others.
const MAY_SPAWN: &[&str] = &["iptables", "protocol-test", "e2e", "bench", "demo", "simulation", "differential"];

#[test]
fn processes_are_spawned_in_one_file_per_crate() -> Result<()> {
    assert_none(&spawned_processes(&top()?, &roots(&metadata()?))?);
    Ok(())
}

#[test]
fn no_orphan_files() -> Result<()> {
    assert_none(&orphans(&top()?, &roots(&metadata()?))?);
    Ok(())
}

/// Whether code is part of what is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Shipped,
    TestOnly,
}

/// The crate roots: libraries, programs, tests, benches, examples and build scripts.
fn roots(metadata: &Value) -> BTreeMap<PathBuf, Use> {
    let targets = list(metadata, "packages").iter().flat_map(|package| list(package, "targets"));
    targets
        .map(|target| {
            let shipped = |kind: &Value| kind != "test" && kind != "bench" && kind != "example";
            let used = if list(target, "kind").iter().all(shipped) { Use::Shipped } else { Use::TestOnly };
            (PathBuf::from(text(target, "src_path")), used)
        })
        .collect()
}

/// Every file reached from `roots` by `mod x;`, with the attributes `#[path = ".."]` and `#[cfg(test)]` on lines of
/// their own. Modules within inline modules are not followed.
fn reachable(roots: &BTreeMap<PathBuf, Use>) -> Result<BTreeMap<PathBuf, Use>> {
    let mut reached = BTreeMap::new();
    let mut open: Vec<_> = roots.iter().map(|(path, used)| (path.clone(), *used, path.with_file_name(""))).collect();
    while let Some((path, used, children)) = open.pop() {
        // A file that both a test and the product reach is shipped.
        if reached.get(&path).is_some_and(|known| *known <= used) {
            continue;
        }
        let code = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        reached.insert(path.clone(), used);
        let (mut moved, mut module_use) = (None, used);
        for line in code.lines() {
            if let Some(to) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
                moved = Some(path.with_file_name(to));
            } else if line == "#[cfg(test)]" {
                module_use = Use::TestOnly;
            } else if let Some(name) = module(line) {
                let beside = children.join(format!("{name}.rs"));
                let below = children.join(name).join("mod.rs");
                let file = moved.take().unwrap_or(if below.is_file() { below } else { beside });
                open.push((file, module_use, children.join(name)));
                module_use = used;
            } else if !line.starts_with("#[") && !line.starts_with("//") {
                (moved, module_use) = (None, used);
            }
        }
    }
    Ok(reached)
}

/// The `x` of `mod x;`, whatever its visibility.
fn module(line: &str) -> Option<&str> {
    let (before, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
    let visibility = before.trim_end();
    (visibility.is_empty() || visibility == "pub" || (visibility.starts_with("pub(") && visibility.ends_with(')')))
        .then_some(name)
}

/// Files in a `src/` directory that no crate contains.
fn orphans(top: &Path, roots: &BTreeMap<PathBuf, Use>) -> Result<Vec<String>> {
    let reached = reachable(roots)?;
    let in_src = |path: &PathBuf| path.strip_prefix(top).is_ok_and(|path| path.iter().any(|part| part == "src"));
    Ok(rust_files(top)?
        .iter()
        .filter(|path| in_src(path) && !reached.contains_key(*path))
        .map(|path| format!("{}: no `mod` leads here; declare it or delete it", path.display()))
        .collect())
}

/// Shipped code that starts processes outside [`MAY_SPAWN`], or in a second file of such a crate.
fn spawned_processes(top: &Path, roots: &BTreeMap<PathBuf, Use>) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut spawning = BTreeMap::new();
    for (path, used) in reachable(roots)? {
        let code = fs::read_to_string(&path)?;
        let shipped = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        if used == Use::TestOnly || !spawns(shipped) {
            continue;
        }
        let krate = path.strip_prefix(top).ok().and_then(|path| path.iter().next()).unwrap_or_default();
        if !MAY_SPAWN.iter().any(|name| krate == *name) {
            problems.push(format!("{}: starts a process; only {MAY_SPAWN:?} may", path.display()));
        } else if !["e2e", "bench", "demo"].iter().any(|name| krate == *name)
            && let Some(first) = spawning.insert(krate.to_owned(), path.clone())
        {
            problems.push(format!(
                "{}: starts a process, as does {}; one file is enough",
                path.display(),
                first.display()
            ));
        }
    }
    Ok(problems)
}

fn spawns(code: &str) -> bool {
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut groups = code.split("process::{").skip(1).map(|rest| rest.split('}').next().unwrap_or_default());
    code.contains("tokio::process")
        || code.contains("process::Command")
        || groups.any(|names| names.contains("Command"))
}

// === Each rule can fail ===

#[test]
fn orphans_are_found() -> Result<()> {
    let dir = tree(&[
        ("backend/src/lib.rs", "mod a;\npub(crate) mod b;\n#[path = \"odd.rs\"]\nmod c;\n// mod lost;\n"),
        ("backend/src/a.rs", "pub mod deep;\n"),
        ("backend/src/a/deep.rs", ""),
        ("backend/src/b/mod.rs", ""),
        ("backend/src/odd.rs", ""),
        ("backend/src/lost.rs", "mod child;\n"),
        ("backend/src/lost/child.rs", ""),
        ("backend/src/deep.rs", ""),
    ])?;
    let roots = BTreeMap::from([(dir.path().join("backend/src/lib.rs"), Use::Shipped)]);
    assert_about(&orphans(dir.path(), &roots)?, &["src/deep.rs", "src/lost/child.rs", "src/lost.rs"]);
    Ok(())
}

#[test]
fn spawned_processes_are_found() -> Result<()> {
    let spawn = "use std::process::Command;\n";
    let dir = tree(&[
        ("backend/src/lib.rs", "mod a;\nmod b;\nmod c;\n#[cfg(test)]\nmod d;\nmod e;\n"),
        ("backend/src/a.rs", "use std::process::{\n    Command,\n    Stdio,\n};\n"),
        ("backend/src/b.rs", "fn f() {\n    tokio::process::Command::new(\"true\");\n}\n"),
        ("backend/src/c.rs", "// std::process::Command\nuse std::process::{ExitCode};\n"),
        ("backend/src/d.rs", spawn),
        ("backend/src/e.rs", "#[cfg(test)]\nmod tests {\n    use std::process::Command;\n}\n"),
        ("backend/tests/f.rs", spawn),
        ("backend/iptables/src/lib.rs", "mod exec;\nuse std::process::Command;\n"),
        ("backend/iptables/src/exec.rs", spawn),
        ("fairlead/takeover/src/lib.rs", spawn),
    ])?;
    let roots = BTreeMap::from([
        (dir.path().join("backend/src/lib.rs"), Use::Shipped),
        (dir.path().join("backend/tests/f.rs"), Use::TestOnly),
        (dir.path().join("backend/iptables/src/lib.rs"), Use::Shipped),
        (dir.path().join("fairlead/takeover/src/lib.rs"), Use::Shipped),
    ]);
    let found = spawned_processes(dir.path(), &roots)?;
    assert_about(
        &found,
        &["backend/src/a.rs", "backend/src/b.rs", "backend/iptables/src/lib.rs", "fairlead/takeover/src/lib.rs"],
    );
    Ok(())
}
