//! docs/reference/errors.md: what people are told when something is refused, from the types and messages in the source.

use std::{fmt::Write as _, fs, path::Path};

use super::{code, header, row, source, top};

const INTRO: &str = "# Errors

Made from the source by `make reference`. `...` stands for a value.

";

/// A type of errors: each of its variants is a row.
struct Type {
    file: &'static str,
    name: &'static str,
    heading: &'static str,
    todo: &'static str,
}

/// Messages that are put together where they are needed, in one file or in all files below a directory.
struct Messages {
    path: &'static str,
    /// What tells such a message from other text in the source.
    marks: &'static [&'static str],
    heading: &'static str,
    todo: &'static str,
}

const TYPES: &[Type] = &[
    Type {
        file: "frontend/src/identity/authenticator.rs",
        name: "AuthnError",
        heading: "A frontend does not know who a client is",
        todo: "The call ends with `UNAUTHENTICATED`, or with `UNAVAILABLE` where it is only for the moment; an agent logs it and tries again. Compare the flags of both sides with \
               [security.md](../security.md).",
    },
    Type {
        file: "frontend/src/identity.rs",
        name: "AccessDenied",
        heading: "A client may not have what it asks for",
        todo: "The call ends with `PERMISSION_DENIED`. Nodes are given their own view; who may see all of them is named by `--admin-identity`.",
    },
    Type {
        file: "frontend/src/session.rs",
        name: "SessionError",
        heading: "A frontend ends a stream",
        todo: "A defect of the client, or too many of them; the frontend's log has the node. For a backend of your own see [protocol.md](../protocol.md); of Fairlead's, compare \
               versions, and report it. It connects again by itself.",
    },
    Type {
        file: "backend/src/replica.rs",
        name: "Violation",
        heading: "An agent gives a stream up",
        todo: "A defect of the frontend. The kernel stays as it is, and the agent connects again. Compare versions, and report it.",
    },
    Type {
        file: "backend/src/stage.rs",
        name: "RejectedOperation",
        heading: "An agent leaves an operation out",
        todo: "A defect of the frontend. The digests then differ, and the node is repaired. Report it.",
    },
    Type {
        file: "frontend/src/source/parse/address.rs",
        name: "BadAddress",
        heading: "An address in an object is not used",
        todo: "Correct the object. `fairlead status --problems` lists such objects with the field; everything else in them is in force.",
    },
    Type {
        file: "proto/src/model/scheduler.rs",
        name: "BadScheduler",
        heading: "A scheduler of IPVS is not one",
        todo: "Correct `--ipvs-scheduler`, or the annotation `fairlead.io/ipvs-scheduler` of the Service, without which the flag counts.",
    },
];

const MESSAGES: &[Messages] = &[
    Messages {
        path: "frontend/src/source/parse",
        marks: &["; ignored", "is ignored", "is used", "are used"],
        heading: "A part of an object is not used",
        todo: "Correct the object. `fairlead status --problems` has the object and the field before the message.",
    },
    Messages {
        path: "frontend/src/index/vip_conflicts.rs",
        marks: &["not served"],
        heading: "A Service is not given what it claims",
        todo: "Two objects want the same, and who comes first has it; take it from one of them. `fairlead status --problems` lists them.",
    },
    Messages {
        path: "backend/src/dataplane/vip_ownership.rs",
        marks: &[" belongs to "],
        heading: "A node does not program a service port: another one has its address or node port",
        todo: "As above; `fairlead status --node NODE` lists it. It ends when the other one goes away.",
    },
    Messages {
        path: "backend-ipvs/src/driver.rs",
        marks: &["is in a range that was said"],
        heading: "A node does not program a service port: its address is excluded",
        todo: "Take the address out of `--ipvs-exclude-cidrs`, or give the Service another one. All other reasons that a node reports are the words of the kernel or of \
               `iptables-restore`; those are tried again.",
    },
];

/// The page.
pub(super) fn page() -> String {
    let mut page = INTRO.to_owned();
    for Type { file, name, heading, todo } in TYPES {
        let rows = variants(&source(file), name);
        assert!(!rows.is_empty(), "{file} has no type {name}");
        let _ = write!(page, "## {heading}\n\n{todo}\n\n{}", header(&["message", "because"]));
        rows.iter().for_each(|(message, about)| page.push_str(&row(&[&code(message), about])));
        page.push('\n');
    }
    for Messages { path, marks, heading, todo } in MESSAGES {
        let mut found = Vec::new();
        gather(&top().join(path), marks, &mut found);
        found.sort();
        found.dedup();
        assert!(!found.is_empty(), "{path} has no such message");
        let _ = write!(page, "## {heading}\n\n{todo}\n\n");
        found.iter().for_each(|message| page.push_str(&format!("- {}\n", code(message))));
        page.push('\n');
    }
    page
}

/// The message and the doc comment of each variant. Those that only pass another error on are left out.
fn variants(source: &str, name: &str) -> Vec<(String, String)> {
    let start = format!("enum {name} {{");
    let body = source.lines().skip_while(|line| !line.ends_with(&start)).skip(1).take_while(|line| *line != "}");
    let (mut about, mut rows) = (Vec::new(), Vec::new());
    for line in body.filter(|line| line.starts_with("    ") && !line.starts_with("     ")) {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("/// ") {
            about.push(text);
        } else if let Some(message) = line.strip_prefix("#[error(").and_then(literal) {
            rows.push((message, about.join(" ")));
            about.clear();
        } else if !line.starts_with('#') {
            about.clear();
        }
    }
    rows
}

/// Messages in code that is shipped.
fn gather(path: &Path, marks: &[&str], found: &mut Vec<String>) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| !path.ends_with("tests.rs")).for_each(|path| gather(&path, marks, found));
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
    let literals = code.flat_map(|line| line.match_indices('"').filter_map(|(at, _)| literal(&line[at..])));
    // What another type says is not one of these.
    let is_meant = |text: &String| !text.starts_with("...; ") && marks.iter().any(|mark| text.contains(mark));
    found.extend(literals.filter(is_meant));
}

/// The text that a literal at the beginning of `source` holds, with `...` where values are put in.
fn literal(source: &str) -> Option<String> {
    let rest = source.strip_prefix('"')?;
    let end = rest.find('"')?;
    let (mut text, mut depth) = (String::new(), 0_u32);
    for letter in rest[..end].chars() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                text.push_str("...");
            }
            letter if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    Some(text)
}
