//! The rules of the workspace that no compiler checks: who may use whom, no orphan files, short files that say what they hold.
//!
//! Each rule is a function from a tree (or from `cargo metadata`) to a list of problems. It is run on this repository, where the
//! list must be empty, and on a small made-up tree that breaks it, where it must not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Which of our crates a crate may use. `backend-*` stands for all backends, `*` for all crates.
const ARROWS: &[(&str, &[&str])] = &[
    ("fairlead-proto", &[]),
    ("fairlead-runtime", &[]),
    ("fairlead-netlink", &[]),
    ("fairlead-frontend", &["fairlead-proto", "fairlead-runtime"]),
    ("fairlead-backend", &["fairlead-proto", "fairlead-runtime", "fairlead-netlink"]),
    ("fairlead-takeover", &["fairlead-netlink"]),
    ("fairlead-trace", &["fairlead-netlink"]),
    ("fairlead-protocol-test", &["fairlead-proto"]),
    ("fairlead-backend-*", &["fairlead-backend", "fairlead-proto", "fairlead-netlink"]),
    ("fairlead-example-*", &["fairlead-backend", "fairlead-proto", "fairlead-runtime"]),
    ("fairlead", &["*"]),
    ("fairlead-e2e", &["*"]),
];

/// Which of our crates may use a crate that brings another world with it.
const CONFINED: &[(&str, &[&str])] = &[
    ("kube", &["fairlead-frontend", "fairlead-e2e"]),
    ("k8s-openapi", &["fairlead-frontend", "fairlead-e2e"]),
    ("prost", &["fairlead-proto"]),
    (
        "tonic",
        &[
            "fairlead-proto",
            "fairlead-frontend",
            "fairlead-backend",
            "fairlead-protocol-test",
            "fairlead",
            "fairlead-e2e",
        ],
    ),
];

/// Directories whose crates may start a process outside tests: for what has no other interface, and to try backends of others.
const MAY_SPAWN: &[&str] = &["backend-iptables", "backend-ipvs", "takeover", "protocol-test", "e2e"];

const MAX_LINES: usize = 500;

/// Paths of somebody's own machine. In halves, so that this file does not contain them.
const LOCAL_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/tmp/", "brief")];

// === This repository ===

fn top() -> Result<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("e2e is in no directory")?;
    Ok(top.to_owned())
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

#[track_caller]
fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn crates_use_only_what_they_may() -> Result<()> {
    assert_none(&wrong_arrows(&metadata()?));
    Ok(())
}

#[test]
fn processes_are_spawned_in_one_place() -> Result<()> {
    assert_none(&spawned_processes(&top()?, &roots(&metadata()?))?);
    Ok(())
}

#[test]
fn no_orphan_files() -> Result<()> {
    assert_none(&orphans(&top()?, &roots(&metadata()?))?);
    Ok(())
}

#[test]
fn files_say_what_they_hold() -> Result<()> {
    assert_none(&without_opening(&top()?)?);
    Ok(())
}

#[test]
fn files_are_short() -> Result<()> {
    assert_none(&too_long(&top()?)?);
    Ok(())
}

#[test]
fn no_local_paths() -> Result<()> {
    assert_none(&local_paths(&top()?)?);
    Ok(())
}

#[test]
fn the_page_about_semantics_names_all_cases() -> Result<()> {
    assert_none(&unpinned(&top()?)?);
    Ok(())
}

// === Crates ===

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

/// Dependencies of all kinds that lie outside [`ARROWS`] and [`CONFINED`].
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let ours: BTreeSet<_> = list(metadata, "packages").iter().map(|package| text(package, "name")).collect();
    let mut problems = Vec::new();
    for package in list(metadata, "packages") {
        let (name, manifest) = (text(package, "name"), text(package, "manifest_path"));
        let Some((_, may_use)) = ARROWS.iter().find(|(pattern, _)| matches(pattern, name)) else {
            problems.push(format!("{manifest}: nothing says what {name} may use; give it a line in ARROWS"));
            continue;
        };
        for used in list(package, "dependencies").iter().map(|dependency| text(dependency, "name")) {
            if ours.contains(used) && !may_use.iter().any(|pattern| matches(pattern, used)) {
                problems.push(format!("{manifest}: {name} may not use {used}; move the code to where it may"));
            }
            if let Some((_, by)) = CONFINED.iter().find(|(confined, _)| *confined == used)
                && !by.contains(&name)
            {
                problems.push(format!("{manifest}: {used} belongs to {} only; convert at its edge", by.join(", ")));
            }
        }
    }
    problems
}

// === Files ===

/// Whether code is part of what is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Shipped,
    TestOnly,
}

/// All files below `dir` that belong to the repository, in order.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" && name != ".git" {
            found.extend(files(&path)?);
        } else if path.is_file() && name != ".git" && name != "Cargo.lock" {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files(dir)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    Ok(files)
}

/// The files at which compiling starts: libraries, programs, tests, benches, examples and build scripts.
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

/// Every file reached from `roots` by `mod x;`, with the attributes `#[path = ".."]` and `#[cfg(test)]` that rustfmt puts on lines
/// of their own. Modules within inline modules are not followed.
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

/// Files in some `src/` that no crate contains, so that nobody compiles them.
fn orphans(top: &Path, roots: &BTreeMap<PathBuf, Use>) -> Result<Vec<String>> {
    let reached = reachable(roots)?;
    let in_src = |path: &PathBuf| path.strip_prefix(top).is_ok_and(|path| path.iter().any(|part| part == "src"));
    Ok(sources(top)?
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
        } else if krate != "e2e"
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

fn without_opening(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in sources(dir)? {
        if !fs::read_to_string(&path)?.starts_with("//!") {
            problems.push(format!("{}: open it with `//!` and what it holds", path.display()));
        }
    }
    Ok(problems)
}

fn too_long(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in sources(dir)? {
        let lines = fs::read_to_string(&path)?.lines().count();
        if lines > MAX_LINES {
            problems.push(format!("{}: {lines} lines; split it, {MAX_LINES} is the most", path.display()));
        }
    }
    Ok(problems)
}

fn local_paths(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in files(dir)? {
        let bytes = fs::read(&path)?;
        // What is not text is captured bytes.
        for (number, line) in std::str::from_utf8(&bytes).unwrap_or_default().lines().enumerate() {
            if let Some(word) = LOCAL_PATHS.iter().find(|word| line.contains(**word)) {
                problems.push(format!("{}:{}: {word} is a path of one machine; remove it", path.display(), number + 1));
            }
        }
    }
    Ok(problems)
}

/// Cases that `docs/semantics.md` does not name, and what it names that is no case.
fn unpinned(dir: &Path) -> Result<Vec<String>> {
    let cases = cases(&fs::read_to_string(dir.join("e2e/src/cases.rs"))?)?;
    let page = fs::read_to_string(dir.join("docs/semantics.md"))?;
    let named = page.split('`').skip(1).step_by(2).filter(|code| code.contains("::") && *code != "module::case");
    let named: BTreeSet<_> = named.map(str::to_owned).collect();
    let missing = cases.difference(&named).map(|case| format!("docs/semantics.md: name {case}, and what it pins"));
    let unknown = named.difference(&cases).map(|case| format!("docs/semantics.md: {case} is no case"));
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

// === Each rule can fail ===

/// A made-up tree of files.
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

fn package(name: &str, uses: &[&str]) -> Value {
    let dependencies: Vec<_> = uses.iter().map(|name| serde_json::json!({ "name": name })).collect();
    serde_json::json!({ "name": name, "manifest_path": format!("{name}/Cargo.toml"), "dependencies": dependencies })
}

#[test]
fn wrong_arrows_are_found() {
    let packages = [
        package("fairlead-proto", &["prost", "tonic"]),
        package("fairlead-backend", &["fairlead-proto", "kube", "fairlead-frontend"]),
        package("fairlead-frontend", &["fairlead-proto", "kube", "prost"]),
        package("fairlead-backend-nft", &["fairlead-backend", "fairlead-backend-ipvs", "tonic"]),
        package("fairlead-backend-ipvs", &["fairlead-netlink"]),
        package("fairlead", &["fairlead-backend-nft", "fairlead-frontend"]),
        package("fairlead-helpers", &[]),
    ];
    let expected = [
        "fairlead-backend/Cargo.toml: kube",
        "fairlead-backend may not use fairlead-frontend",
        "fairlead-frontend/Cargo.toml: prost",
        "fairlead-backend-nft may not use fairlead-backend-ipvs",
        "fairlead-backend-nft/Cargo.toml: tonic",
        "fairlead-helpers/Cargo.toml",
    ];
    assert_about(&wrong_arrows(&serde_json::json!({ "packages": packages })), &expected);
}

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
        ("backend-iptables/src/lib.rs", "mod exec;\nuse std::process::Command;\n"),
        ("backend-iptables/src/exec.rs", spawn),
        ("takeover/src/lib.rs", spawn),
    ])?;
    let roots = BTreeMap::from([
        (dir.path().join("backend/src/lib.rs"), Use::Shipped),
        (dir.path().join("backend/tests/f.rs"), Use::TestOnly),
        (dir.path().join("backend-iptables/src/lib.rs"), Use::Shipped),
        (dir.path().join("takeover/src/lib.rs"), Use::Shipped),
    ]);
    let found = spawned_processes(dir.path(), &roots)?;
    assert_about(&found, &["backend/src/a.rs", "backend/src/b.rs", "backend-iptables/src/lib.rs"]);
    Ok(())
}

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
fn local_paths_are_found() -> Result<()> {
    let bad = format!("fine\nsee {}notes\n", LOCAL_PATHS[0]);
    let dir = tree(&[("a.md", "/etc/hosts\n"), ("docs/b.md", &bad), ("target/c.md", &bad), (".ci/run", &bad)])?;
    assert_about(&local_paths(dir.path())?, &[".ci/run:2", "docs/b.md:2"]);
    Ok(())
}

#[test]
fn cases_that_are_not_explained_are_found() -> Result<()> {
    let list = "macro { { conformance! { @modules $backend;\n a {\n b,\n c,\n }\n d {\n e,\n }\n } };\n f { g, } }";
    let page = "`module::case`\n| b | – | `a::b`, `d::e` |\n| c | `x` | `a::gone` |\n";
    let dir = tree(&[("e2e/src/cases.rs", list), ("docs/semantics.md", page)])?;
    assert_about(&unpinned(dir.path())?, &["name a::c", "a::gone is no case"]);
    Ok(())
}
