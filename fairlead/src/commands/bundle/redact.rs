//! Removes keys, tokens and passwords from texts, and optionally replaces IP addresses by pseudonyms.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddrV4},
};

/// Redacts texts. The same address gets the same pseudonym in all of them.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    pub(super) replaces_addresses: bool,
    pseudonyms: HashMap<IpAddr, String>,
}

const REDACTED: &str = "REDACTED";
/// The start of every JSON Web Token: `{"` in base64.
const JWT_START: &str = "eyJ";
/// Keys whose value is a secret, in lower case.
const SECRET_KEYS: [&str; 8] =
    ["password", "passwd", "secret", "token", "authorization", "bearer", "client-key-data", "apikey"];

// === impl Redactor ===

impl Redactor {
    pub(super) fn new(replaces_addresses: bool) -> Self {
        Self { replaces_addresses, pseudonyms: HashMap::new() }
    }

    /// The redacted text.
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
        let line = redact_tokens(&redact_values(line));
        if self.replaces_addresses { self.addresses(&line) } else { line }
    }

    /// Replaces addresses: runs of the characters of an address that parse as one.
    fn addresses(&mut self, line: &str) -> String {
        let mut replaced = String::new();
        let is_address_char = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
        let mut rest = line;
        while let Some(start) = rest.find(is_address_char) {
            replaced += &rest[..start];
            let run = &rest[start..];
            let end = run.find(|c| !is_address_char(c)).unwrap_or(run.len());
            // Within a word, letters may be hexadecimal digits by chance.
            let inside_word = replaced.ends_with(|c: char| c.is_alphanumeric());
            let pseudonym = if inside_word { None } else { self.replace(&run[..end]) };
            replaced += pseudonym.as_deref().unwrap_or(&run[..end]);
            rest = &run[end..];
        }
        replaced + rest
    }

    fn replace(&mut self, run: &str) -> Option<String> {
        let trimmed = run.trim_end_matches(['.', ':']);
        let tail = &run[trimmed.len()..];
        if let Ok(socket) = trimmed.parse::<SocketAddrV4>() {
            return Some(format!("{}:{}{tail}", self.pseudonym(IpAddr::V4(*socket.ip())), socket.port()));
        }
        // The colons of `fd00::` belong to the address, that of `10.0.0.1:` is punctuation.
        match (run.parse::<IpAddr>(), trimmed.parse::<IpAddr>()) {
            (Ok(address), _) => Some(self.pseudonym(address)),
            (_, Ok(address)) => Some(format!("{}{tail}", self.pseudonym(address))),
            _ => None,
        }
    }

    fn pseudonym(&mut self, address: IpAddr) -> String {
        if address.is_loopback() || address.is_unspecified() {
            return address.to_string();
        }
        let number = self.pseudonyms.len() + 1;
        let family = if address.is_ipv4() { "v4" } else { "v6" };
        self.pseudonyms.entry(address).or_insert_with(|| format!("{family}-{number}")).clone()
    }
}

/// Redacts the rest of a line after a key of a secret: `token: abc`, `"password": "abc"`, `--secret=abc`, `Bearer abc`.
/// Paths of files stay.
fn redact_values(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let ends = SECRET_KEYS.iter().flat_map(|key| lower.match_indices(key).map(|(at, _)| at + key.len()));
    match ends.filter_map(|end| secret_start(line, &lower, end)).min() {
        Some(kept) => format!("{}{REDACTED}", &line[..kept]),
        None => line.to_owned(),
    }
}

/// The offset of the value of the key that ends at `end`. `None`: it is not a key, or its value is empty or a path.
fn secret_start(line: &str, lower: &str, end: usize) -> Option<usize> {
    let rest = line[end..].trim_start_matches(|c: char| c == '"' || c == '\'' || c.is_whitespace());
    let is_bearer = lower[..end].ends_with("bearer") && rest.len() < line[end..].len();
    if !is_bearer && !rest.starts_with([':', '=']) {
        return None;
    }
    let value = rest.trim_start_matches([':', '=', ' ', '"', '\'']);
    (!value.is_empty() && !value.starts_with('/')).then_some(line.len() - value.len())
}

/// Redacts JSON Web Tokens.
fn redact_tokens(line: &str) -> String {
    let mut replaced = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(JWT_START) {
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
    fn secrets_are_removed_and_the_rest_stays() {
        let text = "before\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n\
            after eyJhbGci.eyJzdWIi.c2ln!\n\
            Authorization: Bearer abc123\n\
            {\"password\": \"hunter2\"}\n--token-file=/var/run/token\nfairlead_tokens_total 3\n";
        let expected = "before\nREDACTED\nafter REDACTED!\nAuthorization: REDACTED\n{\"password\": \"REDACTED\n\
            --token-file=/var/run/token\nfairlead_tokens_total 3\n";
        assert_eq!(Redactor::default().text(text), expected);
    }

    #[test]
    fn words_that_only_contain_a_key_do_not_hide_a_secret_after_them() {
        let text = "tokens_total 3 password=hunter2\n--token-file=/t --secret=abc\nBearer abc\ntoken of honour\n";
        let expected =
            "tokens_total 3 password=REDACTED\n--token-file=/t --secret=REDACTED\nBearer REDACTED\ntoken of honour\n";
        assert_eq!(Redactor::default().text(text), expected);
    }

    #[test]
    fn addresses_get_stable_pseudonyms() {
        let mut redactor = Redactor::new(true);
        let text = "10.96.0.1:80 -> 10.244.1.1:8080, [fd00::a]:53 fd00:: 10.96.0.1/32 via 127.0.0.1. \
            1.2.3 12:30:45 abc:def cafe\n";
        let expected = "v4-1:80 -> v4-2:8080, [v6-3]:53 v6-4 v4-1/32 via 127.0.0.1. 1.2.3 12:30:45 abc:def cafe\n";
        assert_eq!(redactor.text(text), expected);
        assert_eq!(redactor.text("at 10.244.1.1.\n"), "at v4-2.\n");
        assert_eq!(Redactor::default().text("10.96.0.1\n"), "10.96.0.1\n");
    }
}
