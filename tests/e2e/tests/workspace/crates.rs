//! Which crate uses which, as docs/architecture.md says.

use std::{collections::BTreeSet, fs};

use anyhow::Result;
use serde_json::Value;

use super::{assert_about, assert_none, list, metadata, text, top};

/// The page whose first table says which crates of the workspace each crate uses.
const ARCHITECTURE: &str = "docs/architecture.md";

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

#[test]
fn crates_use_what_the_documentation_says() -> Result<()> {
    let page = fs::read_to_string(top()?.join(ARCHITECTURE))?;
    assert_none(&wrong_uses(&metadata()?, &page));
    assert_none(&wrong_users(&metadata()?));
    Ok(())
}

/// A row of the table of crates.
struct CrateRow<'a> {
    /// The folder; the last part may end with `*`.
    folder: &'a str,
    /// The names of crates without `fairlead-`, also `backend-*`, or `all`.
    uses: Vec<&'a str>,
}

/// The first table of the page.
fn crate_rows(page: &str) -> Vec<CrateRow<'_>> {
    let lines = page.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    lines.take_while(|line| line.starts_with('|')).filter_map(crate_row).collect()
}

fn crate_row(line: &str) -> Option<CrateRow<'_>> {
    let mut cells = line.trim_matches('|').split('|').map(str::trim);
    let folder = cells.next()?.trim_matches(['`', '/']);
    let uses = cells.nth(1)?.split(", ").filter(|name| *name != "–").collect();
    Some(CrateRow { folder, uses })
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

/// Crates that have no row in the table, rows without a crate, and dependencies of all kinds in which a crate and its
/// row differ.
fn wrong_uses(metadata: &Value, page: &str) -> Vec<String> {
    let packages = list(metadata, "packages");
    let ours: BTreeSet<_> = packages.iter().map(|package| text(package, "name")).collect();
    let rows = crate_rows(page);
    let mut problems = Vec::new();

    let folders: Vec<_> = packages.iter().map(|package| folder_of(metadata, package)).collect();
    for row in &rows {
        if !folders.iter().any(|folder| matches(row.folder, folder)) {
            problems.push(format!("{ARCHITECTURE}: no crate is in {}; remove the row", row.folder));
        }
    }

    for (package, folder) in packages.iter().zip(&folders) {
        let Some(row) = rows.iter().find(|row| matches(row.folder, folder)) else {
            problems.push(format!("{folder}: has no row in the first table of {ARCHITECTURE}; add it"));
            continue;
        };
        if row.uses == ["all"] {
            continue;
        }
        let own_name = text(package, "name");
        let dependencies = list(package, "dependencies").iter().map(|dependency| text(dependency, "name"));
        let used_packages: BTreeSet<_> = dependencies.filter(|name| ours.contains(name) && *name != own_name).collect();
        let used: Vec<_> = used_packages.iter().map(|name| name.trim_start_matches("fairlead-")).collect();
        for name in &used {
            if !row.uses.iter().any(|pattern| matches(pattern, name)) {
                problems.push(format!(
                    "{folder}: uses {name}, which {ARCHITECTURE} does not say; move the code or add it there"
                ));
            }
        }
        for pattern in &row.uses {
            if !used.iter().any(|name| matches(pattern, name)) {
                problems.push(format!("{folder}: does not use {pattern}; remove it from the table of {ARCHITECTURE}"));
            }
        }
    }
    problems
}

/// The folder of a package in the repository.
fn folder_of<'a>(metadata: &Value, package: &'a Value) -> &'a str {
    let manifest = text(package, "manifest_path");
    let relative = manifest.strip_prefix(text(metadata, "workspace_root")).unwrap_or(manifest);
    relative.trim_start_matches('/').trim_end_matches("/Cargo.toml")
}

/// Dependencies of crates that [`CONFINED`] does not list.
fn wrong_users(metadata: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for package in list(metadata, "packages") {
        let manifest = text(package, "manifest_path");
        for used in list(package, "dependencies").iter().map(|dependency| text(dependency, "name")) {
            if let Some((_, users)) = CONFINED.iter().find(|(confined, _)| *confined == used)
                && !users.contains(&text(package, "name"))
            {
                problems.push(format!("{manifest}: only {} may use {used}; convert at their edge", users.join(", ")));
            }
        }
    }
    problems
}

// === Each rule can fail ===

fn package(name: &str, uses: &[&str]) -> Value {
    let dependencies: Vec<_> = uses.iter().map(|name| serde_json::json!({ "name": name })).collect();
    serde_json::json!({ "name": name, "manifest_path": format!("{name}/Cargo.toml"), "dependencies": dependencies })
}

/// An example of the table, before another one that is not read.
const PAGE: &str = "\
# Title

| crate | contains | uses of ours |
|---|---|---|
| `proto/` | the protocol | – |
| `backend/` | 11,444 | proto, netlink |
| `backend-nft/` | the backend | backend, proto |
| `fairlead/` | the commands | all |
| `tests/old/` | nothing | proto |
| `docs/examples/backend-*` | examples | backend-*, proto |

| `helpers/` | another table | – |
";

#[test]
fn differences_from_the_table_are_found() {
    let mut metadata = serde_json::json!({ "workspace_root": "/x", "packages": [
        package("fairlead-proto", &["prost"]),
        package("fairlead-backend", &["fairlead-proto", "fairlead-frontend"]),
        package("fairlead-backend-nft", &["fairlead-backend", "fairlead-backend-nft", "fairlead-proto", "tonic"]),
        package("fairlead", &["fairlead-backend-nft"]),
        package("fairlead-frontend", &["fairlead-proto"]),
        package("fairlead-example", &["fairlead-backend-nft", "fairlead-proto"]),
    ]});
    let folders = ["proto", "backend", "backend-nft", "fairlead", "helpers", "docs/examples/backend-rust"];
    for (index, folder) in folders.iter().enumerate() {
        metadata["packages"][index]["manifest_path"] = format!("/x/{folder}/Cargo.toml").into();
    }

    let expected =
        ["no crate is in tests/old", "backend: uses frontend", "backend: does not use netlink", "helpers: has no row"];
    assert_about(&wrong_uses(&metadata, PAGE), &expected);
}

#[test]
fn users_of_confined_dependencies_are_found() {
    let packages = [
        package("fairlead-proto", &["prost", "tonic"]),
        package("fairlead-backend", &["kube"]),
        package("fairlead-frontend", &["kube", "prost"]),
        package("fairlead-backend-nft", &["tonic"]),
    ];
    let expected = ["may use kube", "may use prost", "may use tonic"];
    assert_about(&wrong_users(&serde_json::json!({ "packages": packages })), &expected);
}
