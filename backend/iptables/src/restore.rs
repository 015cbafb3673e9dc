//! Errors of `iptables-restore`: which lines it rejects, and why.

/// Why a script was not, or not completely, executed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Some lines were rejected; without them the rest may be accepted.
    #[error("{program}: {reason}")]
    Rejected {
        /// The program, for example `iptables-nft-restore`.
        program: String,
        /// The numbers of the lines that the program names, from 1; empty when it names none.
        lines: Vec<usize>,
        /// The message of the program, on one line.
        reason: String,
    },
    /// The program could not run, or other processes kept it from committing.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// The line numbers in `line 16: ...`, `Error occurred at line: 5` and `line 17 failed`.
pub(crate) fn lines(stderr: &str) -> Vec<usize> {
    stderr.split("line").skip(1).filter_map(leading_number).collect()
}

fn leading_number(text: &str) -> Option<usize> {
    let text = text.trim_start_matches([':', ' ']);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The message on one line, without the parts that every message has.
pub(crate) fn reason(stderr: &str) -> String {
    let is_useful = |line: &&str| !line.is_empty() && !line.starts_with("Try `") && !line.ends_with("(nf_tables):");
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(is_useful).collect();
    lines.join("; ")
}

/// The part of a reason that says that the kernel lacks nf_tables, or a table of ip_tables; `None` for another reason.
pub(crate) fn unsupported(reason: &str) -> Option<&str> {
    if reason.contains("Permission denied") || reason.contains("Operation not permitted") {
        return None;
    }

    let texts = ["TABLE_ADD failed", "rule set generation id", "unable to initialize table", "Table does not exist"];
    reason.split("; ").find(|part| texts.iter().any(|text| part.contains(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kernel_support_is_recognized() {
        let table_add = "line 2: TABLE_ADD failed (Operation not supported): table nat";
        let more = format!("{table_add}; line 2: CHAIN_USER_ADD failed (No such file or directory): chain X");
        let generation = "iptables-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument";
        let legacy = "ip6tables-restore v1.8.9 (legacy): ip6tables-restore: unable to initialize table 'nat'";
        for (reason, expected) in [
            (more.as_str(), Some(table_add)),
            (generation, Some(generation)),
            ("Could not fetch rule set generation id: Permission denied (you must be root)", None),
            (legacy, Some(legacy)),
            ("Another app is currently holding the xtables lock", None),
            ("line 16: RULE_APPEND failed (Operation not supported): rule in chain PREROUTING", None),
        ] {
            assert_eq!(unsupported(reason), expected, "{reason}");
        }
    }

    #[test]
    fn line_numbers_are_read_from_the_messages_of_all_variants() {
        for (stderr, expected) in [
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \n\
                 line 16: RULE_APPEND failed (Invalid argument): rule in chain PREROUTING\n",
                &[16][..],
            ),
            (
                "line 3: CHAIN_DEL failed (Device or resource busy): chain A\n\
                 line 7: RULE_DELETE failed (No such file or directory)\n",
                &[3, 7],
            ),
            (
                "iptables-legacy-restore v1.8.9 (legacy): unknown option \"--foo\"\n\
                 Error occurred at line: 5\nTry `iptables-legacy-restore -h'\n",
                &[5],
            ),
            ("iptables-restore: line 17 failed\n", &[17]),
            ("nothing is online\n", &[]),
        ] {
            assert_eq!(lines(stderr), expected);
        }
    }

    #[test]
    fn the_reason_is_one_line() {
        let stderr = "iptables-nft-restore v1.8.9 (nf_tables): \nline 16: RULE_APPEND failed\n\nTry `x -h'\n";
        assert_eq!(reason(stderr), "line 16: RULE_APPEND failed");
    }
}
