//! Removes keys, tokens and passwords from texts, and optionally replaces IP addresses by pseudonyms.

use std::{
    collections::HashMap,
    iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
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

/// The longest text of an IPv6 address: six groups and an IPv4 address.
const MAX_IPV6_BYTES: usize = 45;

/// A key in PEM, up to the end of the text if its last line is missing.
static PEM: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?s)-----BEGIN.*?(?:-----END[^\n]*|\z)"));

/// A line with a secret; the first group is before it: `token: abc`, `"password": "abc"`, `--secret=abc`, `Bearer abc`.
/// Paths of files are no secrets.
static SECRET: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r#"(?im)^(.*?(?:bearer["'\t ]|(?:password|passwd|secret|token|authorization|bearer|client-key-data|apikey)"#,
        r#"["'\t ]*[:=])[ "':=]*)[^/ "':=\n].*$"#,
    ))
});

/// A JSON Web Token, which starts with `{"` in base64.
static JSON_WEB_TOKEN: LazyLock<Regex> = LazyLock::new(|| pattern(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9._-]*"));

/// Data of nf_tables rules that may be an address: in an expression without a text, as iptables-nft writes them, or in
/// a comparison with a part of a header, such as the network of an address. The first group is before the data.
static RAW_DATA: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(\[\w+|@\w+,\d+,\d+(?: & 0x[0-9a-f]+)?(?: [!=<>]+)?) 0x[0-9a-f]+"));

/// A word that may contain an address.
static WORD: LazyLock<Regex> = LazyLock::new(|| pattern("[0-9A-Za-z]*[.:][0-9A-Za-z.:]*"));

static IPV4_ADDRESS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}"));

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
        let without_keys = PEM.replace_all(text, REDACTED);
        let without_secrets = SECRET.replace_all(&without_keys, format!("${{1}}{REDACTED}"));
        let without_tokens = JSON_WEB_TOKEN.replace_all(&without_secrets, REDACTED);
        if !self.replaces_addresses {
            return without_tokens.into_owned();
        }

        let without_data = RAW_DATA.replace_all(&without_tokens, "${1} 0x...");
        WORD.replace_all(&without_data, |word: &Captures<'_>| self.word(&word[0])).into_owned()
    }

    fn word(&mut self, word: &str) -> String {
        if let Some(replaced) = self.with_ipv6_replaced(word) {
            return replaced;
        }
        let replaced = IPV4_ADDRESS.replace_all(word, |found: &Captures<'_>| match found[0].parse::<Ipv4Addr>() {
            Ok(address) => self.pseudonym(address.into()),
            Err(_) => found[0].to_owned(),
        });
        replaced.into_owned()
    }

    /// Replaces an IPv6 address in a word, such as `node:fd00::1:http`. `None` if there is none.
    fn with_ipv6_replaced(&mut self, word: &str) -> Option<String> {
        let after_colons = word.match_indices(':').map(|(index, _)| index + 1);
        for start in iter::once(0).chain(after_colons) {
            let (before, rest) = word.split_at(start);
            // The longest first, because the colons of `fd00::` belong to the address.
            let separators = rest.match_indices([':', '.']).map(|(index, _)| index);
            let ends: Vec<_> = separators.chain([rest.len()]).filter(|end| *end <= MAX_IPV6_BYTES).collect();
            for end in ends.into_iter().rev() {
                let (text, after) = rest.split_at(end);
                if let Ok(address) = text.parse::<Ipv6Addr>() {
                    return Some(format!("{before}{}{after}", self.pseudonym(address.into())));
                }
            }
        }
        None
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
        let text = "x:10.0.0.1 node:10.0.0.1:80 node:fd00::1 de:10.0.0.1: std::fmt \
            fd00::1:http fd00::1.local 1a:2b:3c:4d:5e:6f\n\
            add rule ip nat X @nh,96,24 != 0x0a4d05 th dport 80 counter [target 0x0900444e4154] [counter 0x]\n\
            meta mark & 0x00004000 0x00004000\n";
        let expected = "x:v4-1 node:v4-1:80 node:v6-2 de:v4-1: std::fmt v6-2:http v6-2.local 1a:2b:3c:4d:5e:6f\n\
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
