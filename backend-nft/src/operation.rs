//! The operations of a transaction.

use netlink::nft::{Chain, Rule, Set};

use crate::{
    desired::FixedChain,
    element::{Element, Map, PoolChain},
};

/// One step of a transaction, in one table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    /// Deletes the table of this name, of this layout or of another layout.
    DeleteTable(String),
    /// Creates the table, or clears its dormant flag.
    AddTable,
    AddChain(Chain),
    AddSet(Set),
    /// Deletes the rules of the chain.
    FlushChain(String),
    DeleteElements(Map, Elements),
    /// Deletes elements that Fairlead never writes, by their keys.
    DeleteForeign(Map, Vec<Box<[u8]>>),
    AddElements(Map, Elements),
    AddRule(String, Rule),
    DeleteChain(String),
    DeleteSet(String),
}

/// Elements, and the service ports that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) list: Vec<Element>,
    /// The index at which the elements of each update start; sorted.
    owners: Vec<(u32, Owner)>,
}

/// The index of an update; `None`: several service ports, or none.
pub(crate) type Owner = Option<u32>;

/// The repairs of the objects of a table that belong to no service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Repairs {
    /// Before the elements: tables, chains, sets, flushed chains.
    pub(crate) first: Vec<Operation>,
    /// Pool chains with other rules.
    pub(crate) pools: Vec<PoolChain>,
    /// Elements of VIPs without a service port.
    pub(crate) unowned: Vec<Element>,
    /// Elements that Fairlead never writes.
    pub(crate) foreign: Vec<(Map, Box<[u8]>)>,
    /// After the elements: rules, base chains.
    pub(crate) rules: Vec<Operation>,
    /// For the last transaction: foreign chains are flushed, and foreign chains and sets deleted. Until then, elements
    /// of another version may refer to them.
    pub(crate) last: Vec<Operation>,
}

// === impl Operation ===

impl Operation {
    /// The number of elements that are written.
    pub(crate) fn elements(&self) -> usize {
        match self {
            // The elements of the base ruleset count as one object.
            Self::AddElements(map, _) if map.is_fixed() => 0,
            Self::DeleteElements(..) | Self::AddElements(..) | Self::DeleteForeign(..) => self.writes(),
            _ => 0,
        }
    }

    /// The number of objects that are written.
    pub(crate) fn writes(&self) -> usize {
        match self {
            Self::AddElements(map, _) if map.is_fixed() => 1,
            Self::DeleteElements(_, elements) | Self::AddElements(_, elements) => elements.list.len(),
            Self::DeleteForeign(_, keys) => keys.len(),
            _ => 1,
        }
    }
}

// === impl Elements ===

impl Elements {
    pub(crate) fn push(&mut self, element: Element, owner: Owner) {
        if self.owners.last().is_none_or(|(_, last)| *last != owner) {
            self.owners.push((self.list.len() as u32, owner));
        }
        self.list.push(element);
    }

    pub(crate) fn owner(&self, index: usize) -> Owner {
        let end = self.owners.partition_point(|(start, _)| *start as usize <= index);
        end.checked_sub(1).and_then(|at| self.owners[at].1)
    }
}

// === impl FixedChain ===

impl FixedChain {
    pub(crate) fn add_rules(&self) -> impl Iterator<Item = Operation> {
        self.rules.iter().map(|rule| Operation::AddRule(self.chain.name.clone(), rule.clone()))
    }
}

#[cfg(test)]
mod tests {
    use backend::dataplane::Vip;
    use proto::model::Protocol;

    use super::*;
    use crate::element::ElementData;

    #[test]
    fn owners_are_found_by_element() {
        let mut elements = Elements::default();
        let vip = Vip::NodePort { port: 1, protocol: Protocol::Tcp };
        for owner in [None, Some(3), Some(3), Some(5)] {
            elements.push(Element { vip, map: Map::NodePorts, index: 0, data: ElementData::None }, owner);
        }
        assert_eq!([0, 1, 2, 3, 9].map(|index| elements.owner(index)), [None, Some(3), Some(3), Some(5), Some(5)]);
        assert_eq!(Elements::default().owner(0), None);
    }
}
