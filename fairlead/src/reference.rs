//! The pages of docs/reference, which are made from the code: from the definitions of flags, kube-proxy's fields, the chart's values and the
//! errors. `make reference` writes them; the test says when one is not what the code says.

mod errors;
mod flags;
mod kube_proxy;
mod values;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The variable that `make reference` sets.
const WRITE: &str = "FAIRLEAD_WRITE_REFERENCE";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn source(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A row of a table in Markdown.
fn row(cells: &[&str]) -> String {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// The first two lines of a table.
fn header(names: &[&str]) -> String {
    format!("{}|{}\n", row(names), "---|".repeat(names.len()))
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

#[test]
fn the_pages_are_what_the_code_says() {
    let pages = [
        ("flags.md", flags::page()),
        ("kube-proxy.md", kube_proxy::page()),
        ("values.md", values::page()),
        ("errors.md", errors::page()),
    ];
    let directory = top().join("docs/reference");
    for (name, page) in pages {
        let page = format!("{}\n", page.trim_end());
        if std::env::var_os(WRITE).is_some() {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(name), page).unwrap();
            continue;
        }
        let there = fs::read_to_string(directory.join(name)).unwrap_or_default();
        let differs = page.lines().zip(there.lines()).find(|(new, old)| new != old);
        assert!(
            page == there,
            "docs/reference/{name} is not what the code says: run `make reference`; first: {differs:#?}"
        );
    }
}
