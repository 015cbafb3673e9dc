//! What `iptables-save` prints, read as far as it matters here: which chains there are, and where rules lead.

use std::{collections::BTreeMap, fmt};

/// One table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) name: String,
    /// Each with its policy; `-` for a chain that somebody made.
    chains: BTreeMap<String, String>,
    pub(crate) rules: Vec<Rule>,
}

/// One rule, as printed: `-A FORWARD -m comment --comment "..." -j KUBE-FORWARD`.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) chain: String,
    text: String,
    /// What follows the chain, without quotes.
    words: Vec<String>,
}

/// Reads all tables. Lines that are none of ours to understand are left out.
pub(crate) fn parse(saved: &str) -> Vec<Table> {
    let mut tables = Vec::<Table>::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            tables.push(Table { name: name.to_owned(), ..Table::default() });
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split(' ');
            if let (Some(name), Some(policy)) = (words.next(), words.next()) {
                table.chains.insert(name.to_owned(), policy.to_owned());
            }
        } else if line.starts_with("-A ") {
            let mut words = words(line).into_iter().skip(1);
            if let Some(chain) = words.next() {
                table.rules.push(Rule { chain, text: line.to_owned(), words: words.collect() });
            }
        }
    }
    tables
}

/// Splits a line at blanks outside of quotes; `\` takes the next character as it is.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut quoted, mut escaped) = (false, false);
    for character in line.chars() {
        match character {
            _ if escaped => {
                escaped = false;
                word.push(character);
            }
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            _ => word.push(character),
        }
    }
    words.push(word);
    words
}

// === impl Table ===

impl Table {
    pub(crate) fn chains(&self) -> impl Iterator<Item = &str> {
        self.chains.keys().map(String::as_str)
    }

    pub(crate) fn is_built_in(&self, chain: &str) -> bool {
        self.chains.get(chain).is_some_and(|policy| policy != "-")
    }

    /// Whether what no rule accepts is not forwarded.
    pub(crate) fn drops_forwarded(&self) -> bool {
        self.name == "filter" && self.chains.get("FORWARD").is_some_and(|policy| policy == "DROP")
    }
}

// === impl Rule ===

impl Rule {
    /// Where it leads.
    pub(crate) fn target(&self) -> Option<&str> {
        let at = self.words.iter().position(|word| word == "-j" || word == "-g")?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// What follows an option, if it is there: of `-d`, `10.96.0.10/32`. Negated options do not count.
    pub(crate) fn value(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == option)?;
        let negated = at.checked_sub(1).is_some_and(|before| self.words[before] == "!");
        self.words.get(at + 1).filter(|_| !negated).map(String::as_str)
    }

    /// Whether an option is there, negated or not.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.words.iter().any(|word| word == option)
    }

    /// Where it leads, if it has the form of kube-proxy's jumps: any packet, or any that opens a connection.
    pub(crate) fn plain_jump(&self) -> Option<&str> {
        let mut words = &self.words[..];
        loop {
            let four = words.first_chunk().map(|four: &[String; 4]| four.each_ref().map(String::as_str));
            match (four, words) {
                (Some(["-m", "comment", "--comment", _] | ["-m", "conntrack", "--ctstate", "NEW"]), _) => {
                    words = &words[4..];
                }
                (_, [jump, target]) if jump == "-j" => return Some(target),
                _ => return None,
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
