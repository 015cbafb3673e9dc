//! docs/reference/errors.md: errors and warnings that operators see, from the types and messages in the source.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use super::{code, header, repository, row, source};

const INTRO: &str = "# Errors

Generated from the source by `make generate`. `...` stands for a value.

";

/// The heading of the refusals, whose messages are on another page.
const REFUSED: &str = "## Refused objects and fields

`fairlead status --problems` lists each with its object and field, and so do the log and an Event.
[semantics.md](../semantics.md#what-is-refused) has the messages, and what is used instead.

";

/// An error type: each variant has a message.
struct ErrorType {
    file: &'static str,
    name: &'static str,
    heading: &'static str,
    fix: &'static str,
}

/// Messages that are formatted in place, in one file or all files of a directory.
struct MessageSource {
    path: &'static str,
    /// Texts of which each message contains one.
    marks: &'static [&'static str],
    heading: &'static str,
    fix: &'static str,
}

const TYPES: &[ErrorType] = &[
    ErrorType {
        file: "frontend/src/identity/authenticator.rs",
        name: "AuthnError",
        heading: "Client authentication failed",
        fix: "The call fails with `UNAUTHENTICATED`, or `UNAVAILABLE` for temporary errors. A backend logs it and \
              retries. Compare the flags of both sides with [credentials.md](../credentials.md). A certificate has to \
              name a node or an `--admin-identity`.",
    },
    ErrorType {
        file: "frontend/src/identity.rs",
        name: "AccessDenied",
        heading: "Access denied",
        fix: "The call fails with `PERMISSION_DENIED`. A node may read only its own view; `--admin-identity` \
              allows to read all of them.",
    },
    ErrorType {
        file: "frontend/src/session.rs",
        name: "SessionError",
        heading: "A frontend closes a stream",
        fix: "The client violates the protocol, or there are too many clients. The frontend logs the node, and \
              the client reconnects. Correct your own backend ([protocol.md](../protocol.md)); for one of \
              Fairlead, compare versions and report it.",
    },
    ErrorType {
        file: "backend/src/replica.rs",
        name: "Violation",
        heading: "A backend closes a stream",
        fix: "The frontend violates the protocol. The kernel is unchanged, and the backend reconnects. Compare \
              the versions of both, and report it.",
    },
    ErrorType {
        file: "proto/src/state/apply.rs",
        name: "RejectedOperation",
        heading: "A backend rejects an operation",
        fix: "An invalid operation of the frontend. The backend skips it; the digests then differ, and the \
              frontend repairs the node. Report it.",
    },
    ErrorType {
        file: "proto/src/model/scheduler.rs",
        name: "ParseSchedulerError",
        heading: "Invalid IPVS scheduler",
        fix: "Correct `--ipvs-scheduler`.",
    },
];

/// Which part of an object the frontend refuses. `docs/semantics.md` has a row for each message.
const REFUSALS: &[MessageSource] = &[
    MessageSource {
        path: "frontend/src/source/parse/address.rs",
        marks: &["...: "],
        heading: "Invalid address in an object",
        fix: "Correct the object. The rest of it is used.",
    },
    MessageSource {
        path: "frontend/src/source/parse",
        marks: &[
            "; ignored",
            "is ignored",
            "is used",
            "are used",
            " for it",
            "cluster IP",
            "second of its",
            "contains all",
            "RFC",
        ],
        heading: "Invalid part of an object",
        fix: "Correct the object.",
    },
    MessageSource {
        path: "frontend/src/source/parse.rs",
        marks: &["not a port number", "whole object"],
        heading: "Invalid object or port",
        fix: "Correct the object.",
    },
    MessageSource {
        path: "proto/src/model/service_port.rs",
        marks: &["unknown protocol"],
        heading: "Unknown protocol",
        fix: "Correct the object.",
    },
    MessageSource {
        path: "frontend/src/index/vip_conflicts.rs",
        marks: &["not served"],
        heading: "VIP conflict between Services",
        fix: "Two objects claim the same VIP, and the older one gets it. Remove it from one of them.",
    },
    MessageSource {
        path: "frontend/src/index/policy.rs",
        marks: &["not served, because", " are served (", ", more than "],
        heading: "Service beyond a limit of the operator",
        fix: "Make the Service smaller, or raise the limit that the message names.",
    },
    MessageSource {
        path: "frontend/src/view/limit.rs",
        marks: &["are used"],
        heading: "Endpoints beyond a limit of the operator",
        fix: "As above. If nodes have no Node object, correct `nodeName` of the endpoints.",
    },
];

const REJECTIONS: &[MessageSource] = &[
    MessageSource {
        path: "backend/src/dataplane/vip_ownership.rs",
        marks: &[" belongs to "],
        heading: "Rejected service port: VIP conflict on a node",
        fix: "`fairlead status --node NODE` lists it. It is resolved when the other service port is removed.",
    },
    MessageSource {
        path: "backend-ipvs/src/applied.rs",
        marks: &["is excluded by"],
        heading: "Rejected service port: excluded address",
        fix: "Remove the address from `--ipvs-exclude-cidrs`, or give the Service another one. All other reasons \
              that a node reports come from the kernel or `iptables-restore`, and are retried.",
    },
];

/// The page.
pub(super) fn page() -> String {
    let mut page = INTRO.to_owned();
    for ErrorType { file, name, heading, fix } in TYPES {
        let messages = variants(&source(file), name);
        assert!(!messages.is_empty(), "{file} has no type {name}");
        list(heading, fix, &messages, &mut page);
    }

    page.push_str(REFUSED);
    page.push_str(&header(&["message", "fix"]));
    for MessageSource { path, marks, heading, fix } in REFUSALS {
        assert!(!messages(path, marks).is_empty(), "{path} has no such message");
        page.push_str(&row(&[heading, fix]));
    }
    page.push('\n');

    for MessageSource { path, marks, heading, fix } in REJECTIONS {
        let messages: Vec<_> = messages(path, marks).into_iter().collect();
        assert!(!messages.is_empty(), "{path} has no such message");
        list(heading, fix, &messages, &mut page);
    }
    page
}

/// A section with messages that have one fix.
fn list(heading: &str, fix: &str, messages: &[String], page: &mut String) {
    let _ = write!(page, "## {heading}\n\n{fix}\n\n");
    messages.iter().for_each(|message| page.push_str(&format!("- {}\n", code(message))));
    page.push('\n');
}

/// The message of each variant, except transparent ones.
fn variants(source: &str, name: &str) -> Vec<String> {
    let start = format!("enum {name} {{");
    // A long message stands on a line of its own.
    let source = source.replace("#[error(\n        ", "#[error(");
    let body = source.lines().skip_while(|line| !line.ends_with(&start)).skip(1).take_while(|line| *line != "}");
    body.filter_map(|line| literal(line.strip_prefix("    #[error(")?)).collect()
}

/// The messages of a file or directory.
fn messages(path: &str, marks: &[&str]) -> BTreeSet<String> {
    let mut messages = Vec::new();
    collect_messages(&repository().join(path), marks, &mut messages);
    messages.into_iter().collect()
}

/// Collects messages in production code.
fn collect_messages(path: &Path, marks: &[&str], messages: &mut Vec<String>) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| !path.ends_with("tests.rs")).for_each(|path| collect_messages(&path, marks, messages));
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<_> = production.lines().map(str::trim_start).filter(|line| !line.starts_with("//")).collect();
    // A literal may continue on the next line.
    let code = code.join("\n").replace("\\\n", "");
    let literals = code.lines().flat_map(|line| line.match_indices('"').filter_map(|(at, _)| literal(&line[at..])));
    // Messages of another type are excluded.
    let is_message = |text: &String| !text.starts_with("...; ignored") && marks.iter().any(|mark| text.contains(mark));
    messages.extend(literals.filter(is_message));
}

/// The text of the literal at the start of `source`, with `...` for its arguments.
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

/// docs/semantics.md says for each refusal what is used instead.
#[test]
fn semantics_page_has_a_row_for_each_refusal() {
    let page = source("docs/semantics.md");
    let (_, section) = page.split_once("## What is refused").unwrap();
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let rows: BTreeSet<String> = cells.flat_map(|cell| cell.split('`').step_by(2)).map(str::to_owned).collect();
    let refusals: BTreeSet<String> = REFUSALS.iter().flat_map(|source| messages(source.path, source.marks)).collect();
    let missing: Vec<_> = refusals.difference(&rows).collect();
    let unknown: Vec<_> = rows.difference(&refusals).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:#?}; no message: {unknown:#?}");
}
