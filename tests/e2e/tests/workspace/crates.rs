//! Which crate may use which, and that a crate uses every dependency that it declares.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::Result;
use serde_json::Value;

use super::{assert_about, assert_none, list, metadata, rust_files, text, top, tree};

/// The crates of the workspace that a crate may use. `backend-*` stands for all backends, `*` for all crates.
/// docs/architecture.md has the same table.
const ARROWS: &[(&str, &[&str])] = &[
    ("fairlead-proto", &[]),
    ("fairlead-runtime", &[]),
    ("fairlead-netlink", &["fairlead-proto"]),
    ("fairlead-iptables", &["fairlead-proto"]),
    ("fairlead-frontend", &["fairlead-fake-api-server", "fairlead-proto", "fairlead-runtime"]),
    ("fairlead-backend", &["fairlead-proto", "fairlead-runtime", "fairlead-netlink", "fairlead-iptables"]),
    ("fairlead-trace", &["fairlead-iptables", "fairlead-proto", "fairlead-netlink"]),
    ("fairlead-protocol-test", &["fairlead-proto"]),
    ("fairlead-fake-api-server", &[]),
    ("fairlead-backend-*", &["fairlead-backend", "fairlead-iptables", "fairlead-proto", "fairlead-netlink"]),
    ("fairlead-example-*", &["fairlead-backend", "fairlead-proto", "fairlead-runtime"]),
    ("fairlead", &["*"]),
    ("fairlead-e2e", &["*"]),
    (
        "fairlead-simulation",
        &[
            "fairlead-backend",
            "fairlead-backend-*",
            "fairlead-fake-api-server",
            "fairlead-frontend",
            "fairlead-proto",
            "fairlead-runtime",
        ],
    ),
    (
        "fairlead-differential",
        &["fairlead-e2e", "fairlead-fake-api-server", "fairlead-iptables", "fairlead-proto", "fairlead-trace"],
    ),
    (
        "fairlead-fuzz",
        &[
            "fairlead",
            "fairlead-backend",
            "fairlead-frontend",
            "fairlead-iptables",
            "fairlead-netlink",
            "fairlead-proto",
            "fairlead-runtime",
        ],
    ),
    ("fairlead-bench", &["*"]),
];

/// Large dependencies, and the crates that may use them.
const CONFINED: &[(&str, &[&str])] = &[
    ("kube", &["fairlead-frontend"]),
    ("k8s-openapi", &["fairlead-frontend", "fairlead"]),
    ("prost", &["fairlead-proto", "fairlead-protocol-test"]),
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

/// Dependencies that are used without being named in the code, and why.
const USED_BY_NAME_ONLY: &[(&str, &str)] =
    &[("tonic-prost", "the generated code names it"), ("prost", "the generated code names it")];

/// The package whose optional dependencies only bring features: `.ci/quick` selects it.
const UNIFIES_FEATURES: &str = "fairlead-bench";

#[test]
fn crates_use_only_what_they_may() -> Result<()> {
    assert_none(&wrong_arrows(&metadata()?));
    Ok(())
}

#[test]
fn every_dependency_is_used() -> Result<()> {
    assert_none(&unused(&metadata()?)?);
    assert_none(&unused_in_table(&metadata()?, &fs::read_to_string(top()?.join("Cargo.toml"))?));
    Ok(())
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
            problems.push(format!("{manifest}: {name} has no line in ARROWS; add it here and to docs/architecture.md"));
            continue;
        };
        for used in list(package, "dependencies").iter().map(|dependency| text(dependency, "name")) {
            if ours.contains(used) && !may_use.iter().any(|pattern| matches(pattern, used)) {
                problems.push(format!("{manifest}: {name} may not use {used}; move the code to a crate that may"));
            }
            if let Some((_, users)) = CONFINED.iter().find(|(confined, _)| *confined == used)
                && !users.contains(&name)
            {
                problems.push(format!("{manifest}: only {} may use {used}; convert at their edge", users.join(", ")));
            }
        }
    }
    problems
}

/// Dependencies whose library no file of the crate names.
fn unused(metadata: &Value) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for package in list(metadata, "packages") {
        let manifest = text(package, "manifest_path");
        let targets = package["targets"].as_array().into_iter().flatten().map(|target| text(target, "src_path"));
        let folders: BTreeSet<_> = targets.chain([manifest]).filter_map(|file| Path::new(file).parent()).collect();
        let mut code = String::new();
        for folder in folders {
            for path in rust_files(folder)? {
                code.push_str(&fs::read_to_string(path)?);
            }
        }
        for dependency in list(package, "dependencies") {
            let name = text(dependency, "name");
            let library = dependency["rename"].as_str().unwrap_or(name).replace('-', "_");
            let is_never_compiled = text(package, "name") == UNIFIES_FEATURES && dependency["optional"] == true;
            if is_never_compiled {
                continue;
            }
            if !names(&code, &library) && !USED_BY_NAME_ONLY.iter().any(|(used, _)| *used == name) {
                problems.push(format!("{manifest}: no file of the crate names {library}; remove the dependency"));
            }
        }
    }
    Ok(problems)
}

/// Entries of `[workspace.dependencies]` that no crate inherits.
fn unused_in_table(metadata: &Value, manifest: &str) -> Vec<String> {
    let packages = list(metadata, "packages").iter();
    let used: BTreeSet<_> = packages
        .flat_map(|package| list(package, "dependencies"))
        .map(|dependency| dependency["rename"].as_str().unwrap_or_else(|| text(dependency, "name")))
        .collect();
    let lines = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let entries = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
    let names = entries.filter_map(|line| Some(line.split_once(" = ")?.0));
    names
        .filter(|name| !used.contains(name))
        .map(|name| format!("Cargo.toml: no crate inherits {name}; remove it from [workspace.dependencies]"))
        .collect()
}

/// Whether the code has a path that starts with this library, or imports it.
fn names(code: &str, library: &str) -> bool {
    code.match_indices(library).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let after = &code[at + library.len()..];
        starts && (after.starts_with("::") || (after.starts_with([';', ' ']) && code[..at].ends_with("use ")))
    })
}

// === Each rule can fail ===

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
        "may use kube",
        "fairlead-backend may not use fairlead-frontend",
        "may use prost",
        "fairlead-backend-nft may not use fairlead-backend-ipvs",
        "may use tonic",
        "fairlead-helpers/Cargo.toml",
    ];
    assert_about(&wrong_arrows(&serde_json::json!({ "packages": packages })), &expected);
}

#[test]
fn unused_dependencies_are_found() -> Result<()> {
    let dir = tree(&[(
        "src/lib.rs",
        "use used::Thing;\n// not-used is only mentioned: not_used_either::x\nmod not_used;\n",
    )])?;
    let mut package = package("example", &["used", "not-used", "x-used"]);
    package["manifest_path"] = dir.path().join("Cargo.toml").display().to_string().into();
    let metadata = serde_json::json!({ "packages": [package] });
    assert_about(&unused(&metadata)?, &["names not_used;", "names x_used;"]);
    let manifest =
        "[workspace.dependencies]\n# Comment.\nused = \"1\"\nlost = { version = \"1\" }\n[profile.dev]\nx = 1\n";
    assert_about(&unused_in_table(&metadata, manifest), &["inherits lost;"]);
    Ok(())
}
