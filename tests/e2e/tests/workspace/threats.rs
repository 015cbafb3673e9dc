//! docs/security.md: each row of a threat table names at least one test, and every test that it names exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{assert_about, assert_none, cases, list, metadata, text, top, tree};

/// The tests of a binary, by its id: `fairlead-e2e::tls`.
type Tests = BTreeMap<String, BTreeSet<String>>;

#[test]
fn tests_in_the_threat_model_exist() -> Result<()> {
    let mut tests = tests(&roots(&metadata()?))?;
    // A macro makes these.
    let cases = cases::cases(&fs::read_to_string(top()?.join("tests/e2e/src/cases.rs"))?)?;
    tests.insert("fairlead-e2e::nft".into(), cases);
    tests.insert("charts".into(), chart_tests(&top()?.join("charts/fairlead/tests"))?);
    assert_none(&unknown_tests(&fs::read_to_string(top()?.join("docs/security.md"))?, &tests));
    Ok(())
}

/// Tests on the page, in code of the form `BINARY TEST`, that do not exist, and rows of threat tables without a test. A
/// threat table has a last column `test`. A test may be a module, with `::` at its end, or start with `charts`.
fn unknown_tests(page: &str, tests: &Tests) -> Vec<String> {
    let mut problems = Vec::new();
    let mut in_threats = false;
    for (number, line) in page.lines().enumerate() {
        let is_row = line.starts_with('|');
        in_threats = is_row && (in_threats || line.ends_with("| test |"));
        let is_header = line.ends_with("| test |") || line.starts_with("|---");
        if !in_threats || is_header {
            continue;
        }
        let cell = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let named: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            problems.push(format!("docs/security.md:{}: name the test that shows the bound", number + 1));
        }
        for name in named {
            let exists = name.split_once(' ').is_some_and(|(binary, test)| {
                tests.get(binary).is_some_and(|tests| {
                    tests.contains(test) || (test.ends_with("::") && tests.iter().any(|known| known.starts_with(test)))
                })
            });
            if !exists {
                problems.push(format!("docs/security.md:{}: there is no test `{name}`", number + 1));
            }
        }
    }
    problems
}

/// The crate roots, by the id that nextest gives their binary.
fn roots(metadata: &Value) -> BTreeMap<String, PathBuf> {
    let mut roots = BTreeMap::new();
    for package in list(metadata, "packages") {
        let name = text(package, "name");
        for target in list(package, "targets") {
            let kind = list(target, "kind").first().and_then(Value::as_str).unwrap_or_default();
            let id = match kind {
                "lib" | "proc-macro" => name.to_owned(),
                "test" => format!("{name}::{}", text(target, "name")),
                "bin" => format!("{name}::bin/{}", text(target, "name")),
                _ => continue,
            };
            roots.insert(id, PathBuf::from(text(target, "src_path")));
        }
    }
    roots
}

fn tests(roots: &BTreeMap<String, PathBuf>) -> Result<Tests> {
    let mut tests = Tests::new();
    for (id, root) in roots {
        let found = tests.entry(id.clone()).or_default();
        let children = root.with_file_name("");
        let mut open = vec![(root.clone(), children, String::new())];
        while let Some((file, children, path)) = open.pop() {
            let code = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            ModuleFile { file, code, children, path }.read(found, &mut open);
        }
    }
    Ok(tests)
}

/// A file of a crate, the directory of its child modules, and its module path, which ends with `::` unless empty.
struct ModuleFile {
    file: PathBuf,
    code: String,
    children: PathBuf,
    path: String,
}

impl ModuleFile {
    /// Collects the tests of the file, and the files of its child modules. Relies on rustfmt: an inline module ends
    /// with a brace in the column of its `mod`.
    fn read(&self, tests: &mut BTreeSet<String>, open: &mut Vec<(PathBuf, PathBuf, String)>) {
        let mut inline: Vec<(usize, String)> = Vec::new();
        let (mut is_test, mut moved) = (false, None);
        for line in self.code.lines() {
            let code = line.trim_start();
            let indent = line.len() - code.len();
            if code == "}" {
                inline.retain(|(column, _)| *column < indent);
            }
            let path = || inline.iter().fold(self.path.clone(), |path, (_, name)| format!("{path}{name}::"));
            if code.starts_with('#') || code.starts_with("//") {
                is_test |= ["#[test]", "#[tokio::test"].iter().any(|attribute| code.starts_with(attribute));
                let other = code.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"));
                moved = other.map(|other| self.file.with_file_name(other)).or(moved);
                continue;
            }
            let code = code.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            let code = code.trim_start_matches("pub(super) ").trim_start_matches("async ");
            if let Some(name) = code.strip_prefix("fn ").and_then(|rest| rest.split('(').next())
                && is_test
            {
                tests.insert(format!("{}{name}", path()));
            } else if let Some(name) = code.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
                inline.push((indent, name.to_owned()));
            } else if let Some(name) = code.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) {
                let directory = inline.iter().fold(self.children.clone(), |directory, (_, name)| directory.join(name));
                let beside = directory.join(format!("{name}.rs"));
                let below = directory.join(name).join("mod.rs");
                let file = moved.take().unwrap_or(if below.is_file() { below } else { beside });
                open.push((file, directory.join(name), format!("{}{name}::", path())));
            }
            (is_test, moved) = (false, None);
        }
    }
}

/// The methods of the chart's tests, which are written in Python.
fn chart_tests(dir: &Path) -> Result<BTreeSet<String>> {
    let mut tests = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let code = fs::read_to_string(path)?;
            let methods = code.lines().filter_map(|line| line.trim_start().strip_prefix("def test_"));
            tests.extend(methods.filter_map(|rest| Some(format!("test_{}", rest.split('(').next()?))));
        }
    }
    Ok(tests)
}

// === The rule can fail ===

#[test]
fn unknown_tests_are_found() {
    let tests = Tests::from([("fairlead-e2e::tls".into(), BTreeSet::from(["a::b".into(), "c".into()]))]);
    let page = "| x | test |\n|---|---|\n| 1 | `fairlead-e2e::tls a::b`, `fairlead-e2e::tls a::` |\n| 2 | none |\n\
                | 3 | `fairlead-e2e::tls a` |\n| 4 | `fairlead-e2e c`, `c` |\n\n| x | y |\n|---|---|\n| 5 | `z` |\n";
    let expected = [":4: name the test", ":5: there is", ":6: there is", ":6: there is"];
    assert_about(&unknown_tests(page, &tests), &expected);
}

#[test]
fn tests_of_a_crate_are_found() -> Result<()> {
    let dir = tree(&[
        (
            "src/lib.rs",
            "mod a;\n#[test]\nfn one() {}\nfn no() {}\n#[cfg(test)]\nmod tests {\n    mod deep;\n    #[test]\n    \
             #[ignore]\n    fn two() {\n        {\n        }\n    }\n}\n#[test]\nfn three() {}\n",
        ),
        ("src/a.rs", "pub(crate) mod b;\n#[cfg(test)]\n#[path = \"other.rs\"]\nmod tests;\n"),
        ("src/a/b.rs", "#[tokio::test(start_paused = true)]\nasync fn four() {}\n"),
        ("src/other.rs", "/// Text.\n#[test]\nfn five() {}\n"),
        ("src/tests/deep.rs", "proptest! {\n    #[test]\n    fn six(x in 0..3) {}\n}\n"),
    ])?;
    let roots = BTreeMap::from([("x".to_owned(), dir.path().join("src/lib.rs"))]);
    let names = ["a::b::four", "a::tests::five", "one", "tests::deep::six", "tests::two", "three"];
    assert_eq!(tests(&roots)?["x"], BTreeSet::from(names.map(str::to_owned)));
    Ok(())
}
