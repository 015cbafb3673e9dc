//! What must not leave the node: keys, tokens, passwords; and, if that is wanted, IP addresses, which get names of their own.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddrV4},
};

/// Replaces them, the same address by the same name everywhere.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    addresses: Addresses,
    names: HashMap<IpAddr, String>,
}

/// Whether addresses are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Addresses {
    #[default]
    Shown,
    Replaced,
}

const REDACTED: &str = "REDACTED";
/// How every JSON Web Token begins: `{"` in base64.
const TOKEN: &str = "eyJ";
/// Words after which a secret may follow, in lower case.
const KEYS: [&str; 8] =
    ["password", "passwd", "secret", "token", "authorization", "bearer", "client-key-data", "apikey"];

// === impl Redactor ===

impl Redactor {
    pub(super) fn new(addresses: Addresses) -> Self {
        Self { addresses, names: HashMap::new() }
    }

    /// The text without what must not leave.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut lines = Vec::new();
        let mut in_block = false;
        for line in text.lines() {
            if line.contains("-----BEGIN") {
                in_block = !line.contains("-----END");
                lines.push(REDACTED.to_owned());
            } else if in_block {
                in_block = !line.contains("-----END");
            } else {
                lines.push(self.line(line));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }

    fn line(&mut self, line: &str) -> String {
        let line = tokens(&values(line));
        match self.addresses {
            Addresses::Shown => line,
            Addresses::Replaced => self.addresses(&line),
        }
    }

    /// Runs of characters that addresses are made of, where they are some.
    fn addresses(&mut self, line: &str) -> String {
        let mut replaced = String::new();
        let of_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
        let mut rest = line;
        while let Some(start) = rest.find(of_address) {
            replaced += &rest[..start];
            let run = &rest[start..];
            let end = run.find(|c| !of_address(c)).unwrap_or(run.len());
            // A word may begin with letters that are digits too.
            let inside = replaced.ends_with(|c: char| c.is_alphanumeric());
            let shown = if inside { None } else { self.replace(&run[..end]) };
            replaced += shown.as_deref().unwrap_or(&run[..end]);
            rest = &run[end..];
        }
        replaced + rest
    }

    fn replace(&mut self, run: &str) -> Option<String> {
        let word = run.trim_end_matches(['.', ':']);
        let tail = &run[word.len()..];
        if let Ok(socket) = word.parse::<SocketAddrV4>() {
            return Some(format!("{}:{}{tail}", self.name(IpAddr::V4(*socket.ip())), socket.port()));
        }
        // `fd00::` ends with what else ends a sentence.
        match (run.parse::<IpAddr>(), word.parse::<IpAddr>()) {
            (Ok(address), _) => Some(self.name(address)),
            (_, Ok(address)) => Some(format!("{}{tail}", self.name(address))),
            _ => None,
        }
    }

    fn name(&mut self, address: IpAddr) -> String {
        if address.is_loopback() || address.is_unspecified() {
            return address.to_string();
        }
        let number = self.names.len() + 1;
        let family = if address.is_ipv4() { "v4" } else { "v6" };
        self.names.entry(address).or_insert_with(|| format!("{family}-{number}")).clone()
    }
}

/// What is behind a key that is called like a secret: `token: abc`, `"password": "abc"`, `--secret=abc`, `Bearer abc`. Names of files stay.
fn values(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let ends = KEYS.iter().flat_map(|key| lower.match_indices(key).map(|(at, _)| at + key.len()));
    match ends.filter_map(|end| secret_at(line, &lower, end)).min() {
        Some(kept) => format!("{}{REDACTED}", &line[..kept]),
        None => line.to_owned(),
    }
}

/// Where the secret begins that a key is for, which ends there. `None`: it is no key, or has no value, or one that is a path.
fn secret_at(line: &str, lower: &str, end: usize) -> Option<usize> {
    let rest = line[end..].trim_start_matches(|c: char| c == '"' || c == '\'' || c.is_whitespace());
    let follows = lower[..end].ends_with("bearer") && rest.len() < line[end..].len();
    if !follows && !rest.starts_with([':', '=']) {
        return None;
    }
    let value = rest.trim_start_matches([':', '=', ' ', '"', '\'']);
    (!value.is_empty() && !value.starts_with('/')).then_some(line.len() - value.len())
}

/// JSON Web Tokens, wherever they are.
fn tokens(line: &str) -> String {
    let mut replaced = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(TOKEN) {
        replaced += &rest[..start];
        let run = &rest[start..];
        let end = run.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(run.len());
        replaced += if run[..end].contains('.') { REDACTED } else { &run[..end] };
        rest = &run[end..];
    }
    replaced + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_gone_and_the_rest_is_there() {
        let text = "before\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\nafter eyJhbGci.eyJzdWIi.c2ln!\n\
            Authorization: Bearer abc123\n{\"password\": \"hunter2\"}\n--token-file=/var/run/token\nfairlead_tokens_total 3\n";
        let expected = "before\nREDACTED\nafter REDACTED!\nAuthorization: REDACTED\n{\"password\": \"REDACTED\n\
            --token-file=/var/run/token\nfairlead_tokens_total 3\n";
        assert_eq!(Redactor::default().text(text), expected);
    }

    #[test]
    fn a_word_that_is_no_key_hides_none() {
        let text = "tokens_total 3 password=hunter2\n--token-file=/t --secret=abc\nBearer abc\ntoken of honour\n";
        let expected =
            "tokens_total 3 password=REDACTED\n--token-file=/t --secret=REDACTED\nBearer REDACTED\ntoken of honour\n";
        assert_eq!(Redactor::default().text(text), expected);
    }

    #[test]
    fn addresses_get_names_of_their_own() {
        let mut redactor = Redactor::new(Addresses::Replaced);
        let text = "10.96.0.1:80 -> 10.244.1.1:8080, [fd00::a]:53 fd00:: 10.96.0.1/32 via 127.0.0.1. 1.2.3 12:30:45 abc:def cafe\n";
        let expected = "v4-1:80 -> v4-2:8080, [v6-3]:53 v6-4 v4-1/32 via 127.0.0.1. 1.2.3 12:30:45 abc:def cafe\n";
        assert_eq!(redactor.text(text), expected);
        assert_eq!(redactor.text("at 10.244.1.1.\n"), "at v4-2.\n");
        assert_eq!(Redactor::default().text("10.96.0.1\n"), "10.96.0.1\n");
    }
}
