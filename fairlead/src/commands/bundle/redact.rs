//! Removes keys, tokens and passwords from texts, and optionally replaces IP addresses by pseudonyms.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddrV4},
    sync::LazyLock,
};

use regex::{Captures, Regex};

/// Redacts texts. The same address gets the same pseudonym in all of them.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    pub(super) replaces_addresses: bool,
    pseudonyms: HashMap<IpAddr, String>,
}

const REDACTED: &str = "REDACTED";

/// A line with a secret, and what is before it: `token: abc`, `"password": "abc"`, `--secret=abc`, `Bearer abc`. Paths
/// of files are no secrets.
static SECRET: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r#"(?i)^(.*?(?:bearer["'\s]|(?:password|passwd|secret|token|authorization|bearer|client-key-data|apikey)"#,
        r#"["'\s]*[:=])[ "':=]*)[^/ "':=].*$"#,
    ))
});

/// A JSON Web Token, which starts with `{"` in base64.
static JSON_WEB_TOKEN: LazyLock<Regex> = LazyLock::new(|| pattern(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9._-]*"));

/// What may be an address.
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| pattern("[0-9A-Fa-f:.]+"));

/// In rules of nf_tables: what is before the data of an expression that has no text, such as those of iptables-nft, or
/// before a part of a header, such as the network of an address. The data may be an address.
static RAW_DATA: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(\[\w+|@\w+,\d+,\d+(?: & 0x[0-9a-f]+)?(?: [!=<>]+)?) 0x[0-9a-f]+"));

#[allow(clippy::expect_used, reason = "the patterns are constants")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a valid pattern")
}

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
        let line = SECRET.replace(line, format!("${{1}}{REDACTED}"));
        let line = JSON_WEB_TOKEN.replace_all(&line, REDACTED);
        if !self.replaces_addresses {
            return line.into_owned();
        }
        let line = RAW_DATA.replace_all(&line, "${1} 0x...");
        let replaced = ADDRESS.replace_all(&line, |found: &Captures<'_>| {
            let run = &found[0];
            // Within a word, letters may be hexadecimal digits by chance.
            let start = found.get(0).map_or(0, |run| run.start());
            let is_within_word = line[..start].ends_with(char::is_alphanumeric);
            let whole = if is_within_word { None } else { self.replace(run) };
            // The end of a word and a colon may be before the address, as in `node:10.0.0.1`.
            let after_colon = || {
                run.match_indices(':').find_map(|(index, _)| {
                    let (word, address) = run.split_at(index + 1);
                    Some(word.to_owned() + &self.replace(address)?)
                })
            };
            whole.or_else(after_colon).unwrap_or_else(|| run.to_owned())
        });
        replaced.into_owned()
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
        let text = "tokens_total 3 password=hunter2\n--token-file=/t --secret=abc\nBearer abc\ntoken of honour\n\
            password:\t/Qx\n";
        let expected = "tokens_total 3 password=REDACTED\n--token-file=/t --secret=REDACTED\nBearer REDACTED\n\
            token of honour\npassword:REDACTED\n";
        assert_eq!(Redactor::default().text(text), expected);
    }

    #[test]
    fn addresses_are_found_after_words_and_in_raw_data() {
        let mut redactor = Redactor::new(true);
        let text = "x:10.0.0.1 node:10.0.0.1:80 node:fd00::1 de:10.0.0.1: std::fmt 1a:2b:3c:4d:5e:6f\n\
            add rule ip nat X @nh,96,24 != 0x0a4d05 th dport 80 counter [target 0x0900444e4154] [counter 0x]\n\
            meta mark & 0x00004000 0x00004000\n";
        let expected = "x:v4-1 node:v4-1:80 node:v6-2 de:v4-1: std::fmt 1a:2b:3c:4d:5e:6f\n\
            add rule ip nat X @nh,96,24 != 0x... th dport 80 counter [target 0x...] [counter 0x]\n\
            meta mark & 0x00004000 0x00004000\n";
        assert_eq!(redactor.text(text), expected);
        assert_eq!(Redactor::default().text(text), text);
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
