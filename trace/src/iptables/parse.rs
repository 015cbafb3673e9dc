//! What `iptables-save` prints, as rules.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use ipnet::IpNet;

use super::{Match, Policy, Rule, Sense, Side, Table, Target, What};

/// Targets that let a packet go on as it was, as far as its way is concerned.
const HARMLESS: [&str; 12] =
    ["LOG", "NFLOG", "TRACE", "CT", "NOTRACK", "TCPMSS", "CHECKSUM", "CLASSIFY", "NFACCT", "SET", "DSCP", "TOS"];
/// Options of matches that say nothing about a packet, or what holds of every one here.
const PLAIN: [&str; 5] = ["--reap", "--rsource", "--fragment", "--syn", "--rttl"];

/// The tables in what one program has saved. `program`: its name, for people; `v4`: whether it is IPv4's.
pub fn read(program: &str, v4: bool, saved: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut chains = HashSet::new();
    for line in saved.lines() {
        let Some((kind, rest)) = line.split_at_checked(1) else { continue };
        match (kind, tables.last_mut()) {
            ("*", _) => {
                chains.clear();
                let (policies, rules) = (HashMap::new(), HashMap::new());
                let (program, name) = (program.to_owned(), rest.trim().to_owned());
                tables.push(Table { program, v4, name, policies, rules });
            }
            (":", Some(table)) => {
                let mut words = rest.split_whitespace();
                let (Some(name), Some(policy)) = (words.next(), words.next()) else { continue };
                chains.insert(name.to_owned());
                let policy = if policy == "DROP" { Policy::Drop } else { Policy::Accept };
                // Those of other chains are `-`.
                if !rest.contains(" - ") {
                    table.policies.insert(name.to_owned(), policy);
                }
            }
            ("-", Some(table)) => {
                if let Some((chain, rule)) =
                    rest.strip_prefix("A ").map(|rest| rest.split_once(' ').unwrap_or((rest, "")))
                {
                    table.rules.entry(chain.to_owned()).or_default().push(parse(rule, &chains));
                }
            }
            _ => {}
        }
    }
    tables
}

/// Reads one rule, word by word.
struct Reader {
    words: std::vec::IntoIter<String>,
    sense: Sense,
    /// The `-m` that the options belong to.
    module: String,
    rule: Rule,
}

/// One rule. `chains`: the names of the table's chains.
pub(super) fn parse(text: &str, chains: &HashSet<String>) -> Rule {
    let rule = Rule { text: text.to_owned(), comment: String::new(), matches: Vec::new(), target: Target::None };
    let words = split(text).into_iter();
    let mut reader = Reader { words, sense: Sense::Is, module: String::new(), rule };
    while let Some(word) = reader.words.next() {
        reader.option(&word, chains);
    }
    reader.rule
}

/// Words; in quotes they may have spaces.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), None::<String>, false, false);
    for c in text.chars() {
        match c {
            _ if escaped => {
                word.get_or_insert_default().push(c);
                escaped = false;
            }
            '\\' if quoted => escaped = true,
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

impl Reader {
    fn next(&mut self) -> String {
        self.words.next().unwrap_or_default()
    }

    /// A condition with the sense that was said before it.
    fn push(&mut self, what: Option<What>, option: &str, value: &str) {
        let what = what.unwrap_or_else(|| What::Unknown(format!("-m {} {option} {value}", self.module)));
        let sense = std::mem::replace(&mut self.sense, Sense::Is);
        self.rule.matches.push(Match { sense, what });
    }

    fn option(&mut self, option: &str, chains: &HashSet<String>) {
        match option {
            "!" => self.sense = Sense::IsNot,
            "-m" => self.module = self.next(),
            "--comment" => self.rule.comment = self.next(),
            "-j" | "-g" => {
                let name = self.next();
                let rest: Vec<_> = self.words.by_ref().collect();
                self.rule.target = match option {
                    _ if !chains.contains(&name) => target(&name, &rest),
                    "-j" => Target::Jump(name),
                    _ => Target::Goto(name),
                };
            }
            plain if PLAIN.contains(&plain) => {}
            // It is renewed, or looked at for a time that nobody tells.
            "--seconds" | "--mask" if self.module == "recent" => drop(self.next()),
            "--rcheck" | "--update" => self.push(Some(What::Remembered(String::new())), option, ""),
            "--set" if self.module == "recent" => self.push(Some(What::Remember(String::new())), option, ""),
            "--name" if self.module == "recent" => {
                let name = self.next();
                if let Some(Match { what: What::Remembered(list) | What::Remember(list), .. }) =
                    self.rule.matches.last_mut()
                {
                    *list = name;
                }
            }
            "--match-set" => {
                let (name, sides) = (self.next(), self.next());
                let text = format!("{name} {sides}");
                let what = sides_of(&sides).map(|sides| What::InSet { name, sides });
                self.push(what, option, &text);
            }
            // Whether it comes over a bridge that filters; without a value.
            "--physdev-is-in" | "--physdev-is-out" | "--physdev-is-bridged" => self.push(None, option, ""),
            "--mode" => {
                let mode = self.next();
                if mode != "random" {
                    self.push(None, option, &mode);
                }
            }
            _ => {
                let value = self.next();
                let what = self.condition(option, &value);
                self.push(what, option, &value);
            }
        }
    }

    /// An option with one value.
    fn condition(&self, option: &str, value: &str) -> Option<What> {
        let (source, destination) = (Side::Source, Side::Destination);
        Some(match option {
            "-s" => What::Address(source, net(value)?),
            "-d" => What::Address(destination, net(value)?),
            "-p" => What::Protocol(protocol(value)?),
            "-i" => What::Interface(source, value.to_owned()),
            "-o" => What::Interface(destination, value.to_owned()),
            "--sport" | "--sports" => What::Ports(source, ports(value)?),
            "--dport" | "--dports" => What::Ports(destination, ports(value)?),
            "--mark" => {
                let (value, mask) = masked(value)?;
                if self.module == "connmark" { What::ConnMark { value, mask } } else { What::Mark { value, mask } }
            }
            "--ctstate" | "--state" => What::State(value.split(',').map(str::to_owned).collect()),
            "--src-type" if value == "LOCAL" => What::Local(source),
            "--dst-type" if value == "LOCAL" => What::Local(destination),
            "--probability" => What::Random(value.parse().ok()?),
            _ => return None,
        })
    }
}

fn target(name: &str, options: &[String]) -> Target {
    let value = |option: &str| {
        let at = options.iter().position(|word| word == option)?;
        options.get(at + 1).map(String::as_str)
    };
    let unknown = || Target::Unknown(format!("{name} {}", options.join(" ")));
    match name {
        "ACCEPT" => Target::Accept,
        "DROP" => Target::Drop,
        "RETURN" => Target::Return,
        "REJECT" => Target::Reject(value("--reject-with").unwrap_or("icmp-port-unreachable").to_owned()),
        "MASQUERADE" => Target::Masquerade,
        "MARK" => match value("--set-xmark").and_then(masked) {
            Some((value, mask)) => Target::Mark { value, mask },
            None => unknown(),
        },
        "SET" if options.iter().any(|option| option == "--map-set") => map_mark(options).unwrap_or_else(unknown),
        "CONNMARK" => conn_mark(options, &value).unwrap_or_else(unknown),
        "DNAT" => match value("--to-destination").and_then(socket) {
            Some((address, port)) => Target::Dnat { address, port },
            None => unknown(),
        },
        "SNAT" => match value("--to-source").and_then(socket) {
            Some((address, _)) => Target::Snat(address),
            None => unknown(),
        },
        name if HARMLESS.contains(&name) => Target::Harmless,
        _ => unknown(),
    }
}

/// `--map-set NAME dst,dst --map-mark`.
fn map_mark(options: &[String]) -> Option<Target> {
    match options {
        [map_set, name, sides, what] if map_set == "--map-set" && what == "--map-mark" => {
            Some(Target::MapMark { name: name.clone(), sides: sides_of(sides)? })
        }
        _ => None,
    }
}

fn conn_mark<'a>(options: &[String], value: &impl Fn(&str) -> Option<&'a str>) -> Option<Target> {
    if let Some(to) = value("--set-xmark") {
        let (value, mask) = masked(to)?;
        return Some(Target::ConnMark { value, mask });
    }
    let mask = |option| value(option).map_or(Some(u32::MAX), |mask| Some(masked(mask)?.0));
    let (packet, connection) = (mask("--nfmask")?, mask("--ctmask")?);
    match options.first()?.as_str() {
        "--save-mark" => Some(Target::SaveMark { packet, connection }),
        "--restore-mark" => Some(Target::RestoreMark { packet, connection }),
        _ => None,
    }
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

fn protocol(text: &str) -> Option<u8> {
    Some(match text {
        "tcp" => 6,
        "udp" => 17,
        "sctp" => 132,
        "icmp" => 1,
        "ipv6-icmp" => 58,
        number => number.parse().ok()?,
    })
}

fn ports(text: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let range = |text: &str| {
        let (from, to) = text.split_once(':').unwrap_or((text, text));
        Some(from.parse().ok()?..=to.parse().ok()?)
    };
    text.split(',').map(range).collect()
}

/// `0x4000/0x4000`, or without the mask.
fn masked(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match text.split_once('/') {
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
        None => Some((number(text)?, u32::MAX)),
    }
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
