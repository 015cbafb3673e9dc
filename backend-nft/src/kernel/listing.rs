//! What the kernel lists of our tables.

use std::collections::BTreeMap;

use netlink::nft::{self, Chain, ListedRule, Set, Table};
use proto::model::IpFamily;

use crate::element::{Element, Map};

/// One table as the kernel lists it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// `None`: there is none, and the rest is empty, besides `others`.
    pub(crate) table: Option<Table>,
    pub(crate) chains: Vec<Chain>,
    pub(crate) sets: Vec<Set>,
    pub(crate) rules: Vec<ListedRule>,
    /// The elements of the maps that have our definition, in any order.
    pub(crate) elements: Vec<Element>,
    /// The keys of elements that we never write.
    pub(crate) foreign: Vec<(Map, Box<[u8]>)>,
    /// Our tables of other layouts, and whether packets traverse them.
    pub(crate) others: BTreeMap<String, bool>,
}

// === impl Listing ===

impl Listing {
    /// Adds a listed element.
    pub(crate) fn insert(&mut self, map: Map, family: IpFamily, element: &nft::Element<'_>) {
        match Element::read(map, family, element) {
            Some(element) => self.elements.push(element),
            None => self.foreign.push((map, element.key.into())),
        }
    }
}

/// Whether packets traverse a table with these chains.
pub(crate) fn serves(chains: &[Chain]) -> bool {
    chains.iter().any(|chain| chain.base.is_some())
}
