//! Words that make a reader ask who or what is meant. Prose and code avoid the first list; log messages, errors and
//! help texts, which operators read at night, avoid the second too.

use std::{fs, path::Path};

use anyhow::Result;

use super::{all_files, assert_about, assert_none, is_test, top, tree};

/// The actor has a name: the kernel, the API server, the client, another process, the operator.
const VAGUE: &[&str] = &["nobody", "somebody", "whoever", "makeshift", "in vain", "way in", "ways in", "in force"];

/// Not in a text that a running program prints, which names the event, the object and the cause.
const VAGUE_IN_MESSAGES: &[&str] = &[
    "what is there",
    "what is known",
    "of ours",
    "trouble",
    "goes wrong",
    "went wrong",
    "something",
    "anew",
    "mended",
];

/// Files that name the words in order to ban them.
const EXEMPT: &[&str] = &["tests/e2e/tests/workspace/language.rs", "LICENSE", "Cargo.lock"];

/// Names and comments of kernel objects, which must stay: another text would rewrite the rules of running nodes at an
/// upgrade.
const KERNEL_TEXTS: &[&str] = &[
    "FAIRLEAD-IPVS-NOBODY",
    "node ports that nobody",
    "nobody serves this",
    "on the way in",
    "{NOBODY}",
    "NOBODY,",
    "const NOBODY",
];

#[test]
fn vague_words_are_avoided() -> Result<()> {
    assert_none(&vague(&top()?)?);
    Ok(())
}

fn vague(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in all_files(dir)? {
        let below = path.strip_prefix(dir)?;
        if EXEMPT.iter().any(|exempt| below == Path::new(exempt)) {
            continue;
        }
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let bytes = fs::read(&path)?;
        let mut report = |number: usize, word: &str| {
            problems.push(format!("{}:{}: \"{word}\": name the actor or the thing", path.display(), number + 1));
        };
        for (number, line) in std::str::from_utf8(&bytes).unwrap_or_default().lines().enumerate() {
            if KERNEL_TEXTS.iter().any(|text| line.contains(text)) {
                continue;
            }
            let lower = line.to_lowercase();
            if let Some(word) = VAGUE.iter().find(|word| has_word(&lower, word)) {
                report(number, word);
            } else if is_rust && !is_test(below) && !lower.trim_start().starts_with("//") {
                let messages = lower.split('"').skip(1).step_by(2);
                let mut words = messages.flat_map(|text| VAGUE_IN_MESSAGES.iter().filter(|word| has_word(text, word)));
                if let Some(word) = words.next() {
                    report(number, word);
                }
            }
        }
    }
    Ok(problems)
}

/// Whether the text has the word, not as a part of another one. The user `nobody` of Unix may be named in quotes.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '`');
        !joins(before) && !joins(after)
    })
}

#[test]
fn vague_words_are_found() -> Result<()> {
    let code =
        "// What is there counts.\nwarn!(\"cannot read what is there\");\n// Nobody asks.\nlet somebody_else = 1;\n";
    let dir = tree(&[("src/a.rs", code), ("b.md", "The user `nobody`.\nWhoever asks\n"), ("src/tests.rs", code)])?;
    assert_about(&vague(dir.path())?, &["b.md:2", "src/a.rs:2", "src/a.rs:3", "src/tests.rs:3"]);
    Ok(())
}
