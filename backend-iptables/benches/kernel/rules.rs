//! Scripts for `iptables-restore`, made from the rules before and after a change: the shortest one, and that of
//! kube-proxy.

use std::{collections::BTreeMap, fmt::Write as _};

/// The chains that kube-proxy writes with every change.
const SHARED: [(&str, &str); 9] = [
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-FORWARD"),
    ("filter", "KUBE-NODEPORTS"),
    ("filter", "KUBE-PROXY-FIREWALL"),
    ("filter", "KUBE-SERVICES"),
    ("nat", "KUBE-MARK-MASQ"),
    ("nat", "KUBE-NODEPORTS"),
    ("nat", "KUBE-POSTROUTING"),
    ("nat", "KUBE-SERVICES"),
];

/// A chain of Fairlead.
const CLUSTER_IPS: (&str, &str) = ("filter", "FAIRLEAD-CLUSTER-IPS");

/// The rules of each table and chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules(BTreeMap<(String, String), Vec<String>>);

impl Rules {
    /// Parses the output of `iptables-save`.
    pub(crate) fn parse(saved: &str) -> Self {
        let (mut chains, mut table) = (BTreeMap::<_, Vec<_>>::new(), "");
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some((name, _)) = line.strip_prefix(':').and_then(|line| line.split_once(' ')) {
                chains.insert((table.to_owned(), name.to_owned()), Vec::new());
            } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|line| line.split_once(' ')) {
                chains.get_mut(&(table.to_owned(), chain.to_owned())).unwrap().push(rule.to_owned());
            }
        }
        Self(chains)
    }

    /// The same rules without a service.
    pub(crate) fn without(&self, service: &str) -> Self {
        let mut rules = self.clone();
        let of_service = format!("\"{service} ");
        for (table, chain) in [("nat", "KUBE-SERVICES"), CLUSTER_IPS] {
            rules.chain(table, chain).retain(|rule| !rule.contains(&of_service));
        }
        let exact = format!("\"{service}\" ");
        let is_of = |rule: &String| rule.contains(&of_service) || rule.contains(&exact);
        rules.0.retain(|(_, chain), rules| !is_hashed(chain) || !rules.iter().any(is_of));
        rules
    }

    /// Sorts the rules of shared chains, where the order does not matter.
    pub(crate) fn sorted(mut self) -> Self {
        for (table, chain) in SHARED.into_iter().chain([CLUSTER_IPS]) {
            self.chain(table, chain).sort_unstable();
        }
        self
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut Vec<String> {
        self.0.get_mut(&(table.to_owned(), chain.to_owned())).unwrap()
    }

    /// The shortest script: changed chains are written anew, rules of shared chains are added and deleted.
    pub(crate) fn least(&self, to: &Self) -> String {
        let table = |table: &str| {
            let (mut text, mut heads, mut gone) = (String::new(), String::new(), String::new());
            for ((_, chain), rules) in to.0.iter().filter(|((of, _), _)| of == table) {
                let old = self.0.get(&(table.to_owned(), chain.clone()));
                if old == Some(rules) {
                    continue;
                }
                if is_hashed(chain) {
                    writeln!(heads, ":{chain} - [0:0]").unwrap();
                    rules.iter().for_each(|rule| writeln!(text, "-A {chain} {rule}").unwrap());
                    continue;
                }
                let old = old.unwrap();
                let missing = rules.iter().filter(|rule| !old.contains(rule));
                missing.for_each(|rule| writeln!(text, "-I {chain} {rule}").unwrap());
                let surplus = old.iter().filter(|rule| !rules.contains(rule));
                surplus.for_each(|rule| writeln!(text, "-D {chain} {rule}").unwrap());
            }
            for (_, chain) in self.0.keys().filter(|key| key.0 == table && !to.0.contains_key(*key)) {
                writeln!(heads, ":{chain} - [0:0]").unwrap();
                writeln!(gone, "-X {chain}").unwrap();
            }
            part(table, &[heads, text, gone].concat())
        };
        // A service comes into the filter first, and leaves it last.
        let tables = if to.0.len() < self.0.len() { ["nat", "filter"] } else { ["filter", "nat"] };
        tables.map(table).concat()
    }

    /// The script of kube-proxy: all shared chains, and the chains of the changed service.
    pub(crate) fn kube_proxy(&self, to: &Self, service: &str) -> String {
        let words = [format!("\"{service} "), format!("\"{service}\" ")];
        let table = |table: &str| {
            let (mut text, mut heads, mut gone) = (String::new(), String::new(), String::new());
            for ((of, chain), rules) in to.0.iter().filter(|((of, _), _)| of == table) {
                let is_of = |rule: &String| words.iter().any(|word| rule.contains(word));
                let changed = is_hashed(chain) && rules.iter().any(is_of);
                if changed || SHARED.contains(&(of, chain)) {
                    writeln!(heads, ":{chain} - [0:0]").unwrap();
                    rules.iter().for_each(|rule| writeln!(text, "-A {chain} {rule}").unwrap());
                }
            }
            for (_, chain) in self.0.keys().filter(|key| key.0 == table && !to.0.contains_key(*key)) {
                writeln!(heads, ":{chain} - [0:0]").unwrap();
                writeln!(gone, "-X {chain}").unwrap();
            }
            part(table, &[heads, text, gone].concat())
        };
        ["filter", "nat"].map(table).concat()
    }
}

fn is_hashed(chain: &str) -> bool {
    chain.starts_with("KUBE-SVC-") || chain.starts_with("KUBE-SEP-")
}

fn part(table: &str, lines: &str) -> String {
    if lines.is_empty() { String::new() } else { format!("*{table}\n{lines}COMMIT\n") }
}
