//! Which lines of a script `iptables-restore` complains of.

/// The numbers in `line 16: ...`, `Error occurred at line: 5` and `line 17 failed`.
pub(super) fn lines(complaint: &str) -> Vec<usize> {
    let behind = complaint.split("line").skip(1);
    let number = |text: &str| {
        let text = text.trim_start_matches([':', ' ']);
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    behind.filter_map(number).collect()
}

/// The complaint on one line, without what every complaint has.
pub(super) fn reason(complaint: &str) -> String {
    let useful = |line: &&str| !line.is_empty() && !line.starts_with("Try `") && !line.ends_with("(nf_tables):");
    let lines: Vec<&str> = complaint.lines().map(str::trim).filter(useful).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_names_lines_in_its_way() {
        for (complaint, expected) in [
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 16: RULE_APPEND failed (Invalid argument): rule in chain PREROUTING\n",
                &[16][..],
            ),
            (
                "line 3: CHAIN_DEL failed (Device or resource busy): chain A\nline 7: RULE_DELETE failed (No such file or directory)\n",
                &[3, 7],
            ),
            (
                "iptables-legacy-restore v1.8.9 (legacy): unknown option \"--foo\"\nError occurred at line: 5\nTry `iptables-legacy-restore -h'\n",
                &[5],
            ),
            ("iptables-restore: line 17 failed\n", &[17]),
            ("something online\n", &[]),
        ] {
            assert_eq!(lines(complaint), expected);
        }
    }

    #[test]
    fn a_reason_is_one_line() {
        let complaint = "iptables-nft-restore v1.8.9 (nf_tables): \nline 16: RULE_APPEND failed\n\nTry `x -h'\n";
        assert_eq!(reason(complaint), "line 16: RULE_APPEND failed");
    }
}
