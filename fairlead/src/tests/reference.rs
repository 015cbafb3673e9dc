//! The pages of docs/reference, generated from the definitions of flags, kube-proxy's fields and the errors. `make
//! generate` writes them; the test fails if a page is out of date.

mod errors;
mod flags;
mod kube_proxy;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The variable that `make generate` sets.
const WRITE: &str = "FAIRLEAD_GENERATE";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn source(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A row of a Markdown table.
fn row(cells: &[&str]) -> String {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// The header of a Markdown table.
fn header(names: &[&str]) -> String {
    format!("{}|{}\n", row(names), "---|".repeat(names.len()))
}

fn code(text: &str) -> String {
    match text {
        "" => String::new(),
        text if text.contains('`') => format!("`` {text} ``"),
        text => format!("`{text}`"),
    }
}

#[test]
fn pages_are_up_to_date() {
    let pages = [("flags.md", flags::page()), ("kube-proxy.md", kube_proxy::page()), ("errors.md", errors::page())];
    let directory = repository().join("docs/reference");
    for (name, page) in pages {
        let page = format!("{}\n", page.trim_end());
        if std::env::var_os(WRITE).is_some() {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(name), page).unwrap();
            continue;
        }
        let current = fs::read_to_string(directory.join(name)).unwrap_or_default();
        let differs = page.lines().zip(current.lines()).find(|(new, old)| new != old);
        assert!(
            page == current,
            "docs/reference/{name} is out of date: run `make generate`; first difference: {differs:#?}"
        );
    }
}
