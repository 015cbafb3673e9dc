//! Reads one rule from the options that `iptables-save` prints.

use std::{
    iter, mem,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use ipnet::IpNet;
use proto::model::Protocol;

use super::{Condition, MaskedMark, Match, Rule, Side, Target};

/// Targets that do not affect where a packet goes.
const NO_EFFECT: [&str; 11] =
    ["LOG", "NFLOG", "TRACE", "CT", "TCPMSS", "CHECKSUM", "CLASSIFY", "NFACCT", "SET", "DSCP", "TOS"];
/// Options without a value that hold for the first packet of every connection, or only modify another option.
const IGNORED: [&str; 5] = ["--reap", "--rsource", "--fragment", "--syn", "--rttl"];

/// Splits at spaces outside of quotes. Quotes and escapes stay in the words.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    iter::from_fn(move || {
        let (word, tail) = split_word(rest.trim_start_matches(' '));
        rest = tail;
        if word.is_empty() { None } else { Some(word) }
    })
}

/// Splits at the first space outside of quotes.
fn split_word(text: &str) -> (&str, &str) {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b' ' if !is_quoted => return text.split_at(at),
            _ => {}
        }
    }
    (text, "")
}

/// Whether a line, which may begin within quotes, ends within quotes: they continue on the next line. Names of chains
/// and interfaces are printed without quotes and may begin with one, so only values of long options are quoted.
pub(crate) fn ends_in_quotes(line: &str, begins_in_quotes: bool) -> bool {
    let mut is_quoted = begins_in_quotes;
    let mut is_escaped = false;
    let mut word_start = 0;
    let mut is_value = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' if is_quoted || is_value && at == word_start => is_quoted = !is_quoted,
            b' ' if !is_quoted => {
                is_value = line[word_start..at].starts_with("--");
                word_start = at + 1;
            }
            _ => {}
        }
    }
    is_quoted
}

/// A word without its quotes and escapes.
fn unquote(word: &str) -> String {
    let Some(inner) = word.strip_prefix('"').and_then(|word| word.strip_suffix('"')) else { return word.to_owned() };
    let mut escaped = false;
    let is_kept = |c: &char| {
        escaped = *c == '\\' && !escaped;
        !escaped
    };
    inner.chars().filter(is_kept).collect()
}

// === impl Rule ===

impl Rule {
    /// Reads a rule. `is_chain` says whether a chain of this name exists, which distinguishes jumps from other targets.
    pub fn parse(text: &str, is_chain: impl Fn(&str) -> bool) -> Self {
        let mut rule =
            Self { text: text.to_owned(), comment: String::new(), matches: Vec::new(), target: Target::None };
        let words: Vec<_> = words(text).collect();
        let mut rest = &words[..];
        // The `-m` that the options belong to.
        let mut module = "";
        let mut negated = false;

        while let [option, tail @ ..] = rest {
            let count = tail.iter().take_while(|word| !word.starts_with('-') && **word != "!").count();
            let (values, after) = tail.split_at(count);
            let value = values.first().copied().unwrap_or_default();
            rest = after;

            match *option {
                "!" => negated = true,
                "-m" => module = value,
                "--comment" => {
                    rule.comment = tail.first().map(|word| unquote(word)).unwrap_or_default();
                    rest = tail.get(1..).unwrap_or_default();
                }
                "-j" if is_chain(value) => rule.target = Target::Jump(value.to_owned()),
                "-g" if is_chain(value) => rule.target = Target::Goto(value.to_owned()),
                "-j" | "-g" => {
                    rule.target = target(value, tail.get(1..).unwrap_or_default());
                    rest = &[];
                }
                option if IGNORED.contains(&option) && !negated => {}
                // How long an address stays in the list, and which part of it counts, is not evaluated.
                "--seconds" | "--mask" if module == "recent" => {}
                "--mode" if value == "random" => {}
                "--name" if module == "recent" => {
                    let last = rule.matches.last_mut().map(|last| &mut last.condition);
                    if let Some(Condition::Recent(list) | Condition::SetRecent(list)) = last {
                        value.clone_into(list);
                    }
                }
                option => {
                    let condition = condition(module, option, values);
                    rule.matches.push(Match { negated: mem::take(&mut negated), condition });
                }
            }
        }
        rule
    }
}

/// The condition of an option with its values.
fn condition(module: &str, option: &str, values: &[&str]) -> Condition {
    let unknown = || Condition::Unknown(format!("-m {module} {option} {}", values.join(" ")).trim_end().to_owned());
    known_condition(module, option, values).unwrap_or_else(unknown)
}

fn known_condition(module: &str, option: &str, values: &[&str]) -> Option<Condition> {
    let source = Side::Source;
    let destination = Side::Destination;
    let value = values.first().copied().unwrap_or_default();
    Some(match option {
        "-s" => Condition::Address(source, net(value)?),
        "-d" => Condition::Address(destination, net(value)?),
        "-p" => Condition::Protocol(protocol_number(value)?),
        "-i" => Condition::Interface(source, value.to_owned()),
        "-o" => Condition::Interface(destination, value.to_owned()),
        "--sport" | "--sports" => Condition::Ports(source, ports(value)?),
        "--dport" | "--dports" => Condition::Ports(destination, ports(value)?),
        "--mark" if module == "connmark" => Condition::ConnMark(masked(value)?),
        "--mark" => Condition::Mark(masked(value)?),
        "--ctstate" | "--state" => Condition::State(value.split(',').map(str::to_owned).collect()),
        "--src-type" if value == "LOCAL" => Condition::Local(source),
        "--dst-type" if value == "LOCAL" => Condition::Local(destination),
        "--probability" => Condition::Random(value.parse().ok()?),
        "--match-set" => Condition::InSet { name: value.to_owned(), sides: sides_of(values.get(1)?)? },
        // The name of the list follows.
        "--rcheck" | "--update" => Condition::Recent(String::new()),
        "--set" if module == "recent" => Condition::SetRecent(String::new()),
        _ => return None,
    })
}

fn target(name: &str, options: &[&str]) -> Target {
    known_target(name, options).unwrap_or_else(|| Target::Unknown(format!("{name} {}", options.join(" "))))
}

fn known_target(name: &str, options: &[&str]) -> Option<Target> {
    let value = |option: &str| {
        let at = options.iter().position(|word| *word == option)?;
        options.get(at + 1).copied()
    };
    // Without a mask, all bits are copied.
    let mask = |option| value(option).map_or(Some(u32::MAX), |mask| Some(masked(mask)?.value));
    Some(match (name, options) {
        ("ACCEPT", _) => Target::Accept,
        ("DROP", _) => Target::Drop,
        ("RETURN", _) => Target::Return,
        ("REJECT", _) => Target::Reject(value("--reject-with").unwrap_or("icmp-port-unreachable").to_owned()),
        ("MASQUERADE", _) => Target::Masquerade,
        ("MARK", _) => Target::Mark(masked(value("--set-xmark")?)?),
        ("SET", ["--map-set", name, sides, "--map-mark"]) => {
            Target::MapMark { name: (*name).to_owned(), sides: sides_of(sides)? }
        }
        ("SET", ["--add-set", name, sides, ..]) => {
            Target::AddToSet { name: (*name).to_owned(), sides: sides_of(sides)? }
        }
        ("SET", _) if options.contains(&"--map-set") => return None,
        ("CONNMARK", ["--save-mark", ..]) => {
            Target::SaveMark { packet: mask("--nfmask")?, connection: mask("--ctmask")? }
        }
        ("CONNMARK", ["--restore-mark", ..]) => {
            Target::RestoreMark { packet: mask("--nfmask")?, connection: mask("--ctmask")? }
        }
        ("CONNMARK", _) => Target::ConnMark(masked(value("--set-xmark")?)?),
        ("DNAT", _) => {
            let (address, port) = socket(value("--to-destination")?)?;
            Target::Dnat { address, port }
        }
        ("SNAT", _) => Target::Snat(socket(value("--to-source")?)?.0),
        ("NOTRACK", _) | ("CT", ["--notrack", ..]) => Target::NoTrack,
        _ if NO_EFFECT.contains(&name) => Target::NoEffect,
        _ => return None,
    })
}

/// `dst,dst,src`.
fn sides_of(text: &str) -> Option<Vec<Side>> {
    let side = |word| match word {
        "src" => Some(Side::Source),
        "dst" => Some(Side::Destination),
        _ => None,
    };
    text.split(',').map(side).collect()
}

fn net(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// The IANA number of a protocol that `iptables-save` prints.
fn protocol_number(text: &str) -> Option<u8> {
    match text {
        "icmp" => Some(1),
        "ipv6-icmp" => Some(58),
        _ => {
            let named = Protocol::ALL.into_iter().find(|protocol| protocol.lower() == text);
            named.map_or_else(|| text.parse().ok(), |protocol| Some(protocol.number()))
        }
    }
}

fn ports(text: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let range = |text: &str| {
        let (from, to) = text.split_once(':').unwrap_or((text, text));
        Some(from.parse().ok()?..=to.parse().ok()?)
    };
    text.split(',').map(range).collect()
}

/// `0x4000/0x4000`, or without the mask.
fn masked(text: &str) -> Option<MaskedMark> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Some(MaskedMark { value: number(value)?, mask: number(mask)? })
}

/// `10.0.0.1:80`, `[fd00::1]:80`, `10.0.0.1`, `:80`.
fn socket(text: &str) -> Option<(Option<IpAddr>, Option<u16>)> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some((Some(socket.ip()), Some(socket.port())));
    }
    if let Some(port) = text.strip_prefix(':') {
        return Some((None, Some(port.parse().ok()?)));
    }
    Some((Some(text.trim_matches(['[', ']']).parse().ok()?), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Rule {
        Rule::parse(text, |chain| chain.starts_with("KUBE-"))
    }

    #[test]
    fn quoted_comments_are_unescaped() {
        let rule = parse(r#"-m comment --comment "a \"b\" \\ -j c" -j KUBE-SVC-1"#);
        assert_eq!((&*rule.comment, rule.chain()), (r#"a "b" \ -j c"#, Some("KUBE-SVC-1")));
        assert_eq!(parse("-m comment --comment \"\" -j ACCEPT").comment, "");
    }

    #[test]
    fn conditions_and_their_negation_are_read() {
        let rule = parse("! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ");
        let [source, destination, protocol, port] = &rule.matches[..] else { panic!("{rule:?}") };
        assert_eq!((source.negated, destination.negated), (true, false));
        assert_eq!(destination.condition, Condition::Address(Side::Destination, "10.96.0.10/32".parse().unwrap()));
        assert_eq!(protocol.condition, Condition::Protocol(6));
        assert_eq!(port.condition, Condition::Ports(Side::Destination, vec![80..=80]));
    }

    #[test]
    fn an_unknown_option_does_not_hide_the_target() {
        for options in
            ["-f", "-p tcp -m tcp --tcp-flags SYN,RST SYN", "-m physdev --physdev-is-bridged", "-p tcp ! --syn"]
        {
            let rule = parse(&format!("{options} -j KUBE-SVC-1"));
            assert!(rule.matches.iter().any(|one| matches!(one.condition, Condition::Unknown(_))), "{rule:?}");
            assert_eq!(rule.chain(), Some("KUBE-SVC-1"));
        }
    }
}
