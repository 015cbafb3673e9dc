//! The interface to the kernel: list our tables, commit a transaction. Implemented over netlink, and for tests as a
//! fake that makes the checks of the kernel.

mod encode;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests use all of it"))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
pub(crate) mod fake;
mod netlink;

use std::{collections::BTreeMap, future::Future, time::Duration};

use ::netlink::nft::{self, Chain, ListedRule, Set, Table};
use anyhow::Result;
use backend::{Drift, driver::Rejection};
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::EndpointKeys,
    element::{Element, ForgottenClients, Map},
    operation::Operation,
};
pub(crate) use netlink::Netlink;

/// A ruleset of nf_tables.
pub(crate) trait Kernel: Send + 'static {
    /// The content of our tables of this layout. `keys`: the desired keys of the endpoint maps, as a hint to list these
    /// maps faster.
    fn list(&mut self, keys: EndpointKeys) -> impl Future<Output = Result<PerFamily<Listing>>> + Send;

    /// The names of our tables, of any layout.
    fn tables(&mut self) -> impl Future<Output = Result<Vec<(IpFamily, String)>>> + Send;

    /// Whether no other process has changed our tables since they were listed. `false`: it may have.
    fn is_untouched(&mut self) -> bool {
        false
    }

    /// Executes all operations, or none. After an error, another transaction would fail as well.
    fn commit(
        &mut self,
        operations: Vec<(IpFamily, Operation)>,
    ) -> impl Future<Output = Result<TransactionOutcome>> + Send;

    /// Deletes stored clients, because a Service that is created again must not inherit the clients of the deleted one.
    /// Before Linux 6.16, which tells how many there are, they stay until their timeout.
    fn forget_clients(&mut self, _: Vec<ForgottenClients>) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns when another process has, or may have, changed our tables since they were listed. May be dropped before.
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send;
}

/// The outcome of a transaction.
#[derive(Debug)]
pub(crate) enum TransactionOutcome {
    /// The kernel executed all operations, within this time.
    Committed { took: Duration },
    /// The kernel executed none of them. It may accept the transaction without the part that it rejected.
    Rejected(Rejection),
}

/// One table as the kernel lists it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// `None`: the kernel has no such table, and the rest is empty, besides `others`.
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
