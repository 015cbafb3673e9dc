//! Texts for `iptables-restore`, made by hand from what was saved before and after a change: the fewest lines that lead from one to the
//! other, and those that kube-proxy would write.

use std::{collections::BTreeMap, fmt::Write as _};

/// The chains of kube-proxy that lead to services, and what else it writes each time.
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

/// One more, of ours.
const CLUSTER_IPS: (&str, &str) = ("filter", "FAIRLEAD-CLUSTER-IPS");

/// Table and chain, each with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules(BTreeMap<(String, String), Vec<String>>);

impl Rules {
    /// What `iptables-save` printed.
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

    /// The same without a service.
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

    /// Order does not count in chains that services share.
    pub(crate) fn sorted(mut self) -> Self {
        for (table, chain) in SHARED.into_iter().chain([CLUSTER_IPS]) {
            self.chain(table, chain).sort_unstable();
        }
        self
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut Vec<String> {
        self.0.get_mut(&(table.to_owned(), chain.to_owned())).unwrap()
    }

    /// The least that leads there: chains whose content changes are filled anew, lines that services share are put in and taken out.
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

    /// As kube-proxy would lead there: what services share, whole, and the chains of the service that changed.
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
