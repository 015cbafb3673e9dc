//! The content of the tables besides the base ruleset: chains of service ports, and their rules in shared chains. After
//! the kernel was read, none of it belongs to a service port. Service ports claim their chains and rules; unclaimed
//! content is deleted in the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use backend::dataplane::Vip;
use iptables::Table;

use crate::{desired::Base, observed::Observed, table::SharedChain};

/// The name of a chain.
pub(crate) type ChainKey = (Table, Arc<str>);

/// A rule of a shared chain.
pub(crate) type LineKey = (SharedChain, Arc<str>);

/// The content of a family, besides the base ruleset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    chains: BTreeMap<ChainKey, ChainContent>,
    lines: BTreeMap<LineKey, LineContent>,
    unneeded_chains: BTreeSet<ChainKey>,
    /// The lines that occur more often than they are needed.
    unneeded_lines: BTreeSet<LineKey>,
    /// The number of chains and rules, with which the cost of a script grows.
    rules: usize,
    /// The number of rules in each shared chain, in the order of [`SharedChain::ALL`].
    shared: [usize; SharedChain::ALL.len()],
}

/// A chain in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainContent {
    /// The hash of its rules, which would take more memory.
    pub(crate) hash: u64,
    /// The number of its rules.
    pub(crate) rules: u32,
    /// Whether rules of other programs jumped to it when it was read.
    pub(crate) is_used: bool,
    /// Whether it belongs to a service port.
    pub(crate) is_needed: bool,
}

/// A rule of a shared chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineContent {
    /// How often the kernel contains it.
    pub(crate) count: u32,
    /// How many service ports need it. All of them share one rule.
    pub(crate) users: u32,
}

/// The chains and rules of one service port in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) vips: Box<[Vip]>,
    pub(crate) chains: Box<[ChainKey]>,
    pub(crate) lines: Box<[LineKey]>,
}

/// The changes by a transaction; `None`: the chain is deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContentChanges {
    pub(crate) chains: BTreeMap<ChainKey, Option<ChainContent>>,
    pub(crate) lines: BTreeMap<LineKey, LineContent>,
}

// === impl Content ===

impl Content {
    /// Our chains and rules besides the base ruleset, which no service port has claimed.
    pub(crate) fn of(observed: &Observed, base: &Base) -> Self {
        let mut content = Self::default();
        let fixed: BTreeSet<(Table, &str)> = base.chains.iter().map(|chain| (chain.table, &*chain.name)).collect();
        for (table, name, rules) in observed.ours() {
            if let Some(shared) = SharedChain::of(table, name) {
                let fixed_rules = base.fixed_rules(shared);
                for rule in rules.iter().filter(|rule| !fixed_rules.lines().any(|fixed| fixed == *rule)) {
                    let key = (shared, Arc::from(rule.as_str()));
                    let LineContent { count, users } = content.line(&key);
                    content.set_line(key, LineContent { count: count + 1, users });
                }
            } else if !fixed.contains(&(table, name)) {
                let is_used = observed.is_used(table, name);
                let chain = ChainContent { is_used, is_needed: false, ..ChainContent::of(rules) };
                content.set_chain((table, Arc::from(name)), Some(chain));
            }
        }
        content
    }

    pub(crate) fn chain(&self, key: &ChainKey) -> Option<ChainContent> {
        self.chains.get(key).copied()
    }

    pub(crate) fn line(&self, key: &LineKey) -> LineContent {
        self.lines.get(key).copied().unwrap_or_default()
    }

    /// The rules of service ports in a shared chain, sorted.
    pub(crate) fn lines_of(&self, shared: SharedChain) -> impl Iterator<Item = (&LineKey, &LineContent)> {
        let first: LineKey = (shared, Arc::from(""));
        self.lines.range(first..).take_while(move |((of, _), _)| *of == shared)
    }

    /// The number of chains and rules.
    pub(crate) fn rules(&self) -> usize {
        self.rules
    }

    /// The number of rules of service ports in a shared chain.
    pub(crate) fn shared_rules(&self, shared: SharedChain) -> usize {
        self.shared[shared as usize]
    }

    /// Whether there are chains or rules that no service port needs.
    pub(crate) fn has_unneeded(&self) -> bool {
        !self.unneeded_chains.is_empty() || !self.unneeded_lines.is_empty()
    }

    pub(crate) fn unneeded_chains(&self) -> impl Iterator<Item = &ChainKey> {
        self.unneeded_chains.iter()
    }

    pub(crate) fn unneeded_lines(&self) -> impl Iterator<Item = &LineKey> {
        self.unneeded_lines.iter()
    }

    /// Whether both contain the same chains and rules. Which service ports need them is not compared.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.hashes().eq(other.hashes()) && self.counts().eq(other.counts())
    }

    fn hashes(&self) -> impl Iterator<Item = (&ChainKey, u64)> {
        self.chains.iter().map(|(key, chain)| (key, chain.hash))
    }

    fn counts(&self) -> impl Iterator<Item = (&LineKey, u32)> {
        self.lines.iter().map(|(key, line)| (key, line.count))
    }

    /// Records that a transaction with these changes was committed.
    pub(crate) fn commit(&mut self, changes: ContentChanges) {
        for (key, chain) in changes.chains {
            self.set_chain(key, chain);
        }
        for (key, line) in changes.lines {
            self.set_line(key, line);
        }
    }

    /// Records that a service port has its chains and rules of an earlier content. If another process has removed any
    /// of them since, that is not noticed here.
    pub(crate) fn claim(&mut self, Installed { chains, lines, .. }: &Installed, earlier: &Self) {
        for key in chains {
            self.set_chain(key.clone(), earlier.chain(key));
        }
        for key in lines {
            let LineContent { count, users } = self.line(key);
            self.set_line(key.clone(), LineContent { count: count.max(1), users: users + 1 });
        }
    }

    fn set_chain(&mut self, key: ChainKey, chain: Option<ChainContent>) {
        if let Some(before) = self.chains.remove(&key) {
            self.rules -= before.size();
            self.unneeded_chains.remove(&key);
        }
        let Some(chain) = chain else { return };

        self.rules += chain.size();
        if chain.is_unneeded() {
            self.unneeded_chains.insert(key.clone());
        }
        self.chains.insert(key, chain);
    }

    fn set_line(&mut self, key: LineKey, line: LineContent) {
        let before = self.lines.remove(&key).unwrap_or_default();
        for rules in [&mut self.rules, &mut self.shared[key.0 as usize]] {
            *rules = *rules + line.count as usize - before.count as usize;
        }

        if line.count > line.users.min(1) {
            self.unneeded_lines.insert(key.clone());
        } else {
            self.unneeded_lines.remove(&key);
        }
        if line != LineContent::default() {
            self.lines.insert(key, line);
        }
    }
}

// === impl ChainContent ===

impl ChainContent {
    /// A chain of a service port with these rules.
    pub(crate) fn of(rules: &[String]) -> Self {
        let mut hasher = DefaultHasher::new();
        rules.hash(&mut hasher);
        Self { hash: hasher.finish(), rules: rules.len() as u32, is_used: false, is_needed: true }
    }

    pub(crate) fn has(&self, rules: &[String]) -> bool {
        self.hash == Self::of(rules).hash
    }

    /// The number of the chain and its rules.
    fn size(&self) -> usize {
        1 + self.rules as usize
    }

    /// A chain that is used by other programs stays, without rules.
    fn is_unneeded(&self) -> bool {
        !self.is_needed && (self.rules > 0 || !self.is_used)
    }
}
