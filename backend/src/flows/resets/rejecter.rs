//! The rules that reject packets of connections to endpoints that are gone: in nf_tables or, with kernels that lack it,
//! in iptables.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use iptables::{Tools, VariantSelection};
use netlink::{conntrack::Flow, nft::NftHandle};
use proto::model::{IpFamily, PerFamily};
use runtime::{Backoff, failure::Repeated};

use super::{chain, table};
use crate::{Nat, flows::worker::log_failure};

/// How long packets are rejected.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest delay before a failed removal of rules that are not revoked is retried.
pub(super) const MAX_REMOVAL_DELAY: Duration = Duration::from_secs(300);

/// A connection whose packets are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rejected {
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

/// The rules of the network namespace of the calling thread.
#[derive(Debug)]
pub(in crate::flows) struct Rejecter {
    nf_tables: Option<NftHandle>,
    /// With a kernel that lacks nf_tables.
    iptables: Option<Tools>,
    families: PerFamily<FamilyRules>,
    /// The part of the kernel that translates connections.
    pub(super) nat: Nat,
}

/// The rules of a family.
#[derive(Debug)]
pub(super) struct FamilyRules {
    /// When the rules are to be removed; `None`: there are none.
    pub(super) until: Option<Instant>,
    /// The connections whose packets are rejected, each with the namespace of its Service; empty if they are not known.
    connections: BTreeMap<Rejected, Arc<str>>,
    /// Whether the rules reject connections to an endpoint that has returned: a removal that fails is retried soon.
    pub(super) is_revoked: bool,
    backoff: Backoff,
    failures: Repeated,
}

impl Rejected {
    pub(super) fn of(flow: &Flow) -> Self {
        Self { client: flow.original.source, vip: flow.original.destination, endpoint: flow.reply.source }
    }
}

impl FamilyRules {
    /// A process that was killed may have left rules, which are to be removed now.
    pub(super) fn unknown() -> Self {
        Self {
            until: Some(Instant::now()),
            connections: BTreeMap::new(),
            is_revoked: false,
            backoff: Backoff::new(TIMEOUT, MAX_REMOVAL_DELAY),
            failures: Repeated::default(),
        }
    }

    /// The rules were removed, or are to be removed later if that has failed.
    pub(super) fn removed(&mut self, result: Result<()>) {
        if result.is_err() {
            let mut delay = self.backoff.next_delay();
            if self.is_revoked {
                delay = delay.min(TIMEOUT);
            }
            self.until = Some(Instant::now() + delay);
        } else {
            self.is_revoked = false;
            self.backoff.reset();
        }

        let error = result.err().map(|error| format!("{error:#}"));
        let failing = "cannot remove the rules that reset connections, retrying";
        log_failure(&mut self.failures, error, failing, "rules that reset connections are removed again");
    }
}

impl Rejecter {
    pub(in crate::flows) fn new(nat: Nat) -> Self {
        Self { nf_tables: None, iptables: None, families: PerFamily::from_fn(|_| FamilyRules::unknown()), nat }
    }

    /// When rules are to be removed next.
    pub(in crate::flows) fn until(&self) -> Option<Instant> {
        self.families.iter().filter_map(|(_, rules)| rules.until).min()
    }

    /// Rejects packets of these connections from now on, and of no others of the family. Each connection has the
    /// namespace of its Service. With iptables, only the first connections are rejected.
    pub(super) fn reject(&mut self, family: IpFamily, connections: BTreeMap<Rejected, Arc<str>>) -> Result<()> {
        let rules = &mut self.families[family];
        rules.until = Some(Instant::now() + TIMEOUT);
        rules.connections = connections;
        self.update(family)
    }

    /// Whether the packets of a connection are rejected.
    pub(super) fn rejects(&self, family: IpFamily, flow: &Flow) -> bool {
        self.families[family].connections.contains_key(&Rejected::of(flow))
    }

    /// Removes the rules of these namespaces, and leaves others until their time is over. Rules of unknown connections,
    /// and rules that could not be removed, may belong to any namespace. If the removal fails, all rules of the family
    /// are removed later.
    pub(in crate::flows) fn revoke(&mut self, namespaces: &BTreeSet<Arc<str>>) {
        if namespaces.is_empty() {
            return;
        }
        for family in IpFamily::ALL {
            let rules = &mut self.families[family];
            let is_unknown = rules.until.is_some() && rules.connections.is_empty();
            let revoked = rules.connections.extract_if(.., |_, namespace| namespaces.contains(namespace));
            if revoked.count() == 0 && !is_unknown {
                continue;
            }

            rules.is_revoked = true;
            let result = if rules.connections.is_empty() {
                rules.until = None;
                self.remove_of(family)
            } else {
                self.update(family)
            };
            self.families[family].removed(result);
        }
    }

    /// Removes the rules that are to be removed by this time; `None`: all rules. A removal that fails is tried again
    /// later.
    pub(in crate::flows) fn remove(&mut self, by: Option<Instant>) {
        let is_due = |until: &mut Instant| by.is_none_or(|by| *until <= by);
        for family in IpFamily::ALL {
            let rules = &mut self.families[family];
            if rules.until.take_if(is_due).is_some() {
                rules.connections.clear();
                rules.is_revoked |= by.is_none();
                let result = self.remove_of(family);
                self.families[family].removed(result);
            }
        }
    }

    /// Writes the rules for the connections of a family, instead of earlier ones.
    fn update(&mut self, family: IpFamily) -> Result<()> {
        let rejected: BTreeSet<_> = self.families[family].connections.keys().copied().collect();
        let write = |handle: &mut NftHandle| table::reject(handle, family, &rejected);
        let tools = self.write(write, || format!("reject packets in table {}", table::NAME))?;
        let Some(tools) = tools else { return Ok(()) };

        let rejected: BTreeSet<_> = rejected.into_iter().take(chain::MAX_CONNECTIONS).collect();
        chain::reject(tools, family, &rejected)
            .with_context(|| format!("reject packets in {family} chain {}", chain::NAME))?;
        self.families[family].connections.retain(|connection, _| rejected.contains(connection));
        Ok(())
    }

    fn remove_of(&mut self, family: IpFamily) -> Result<()> {
        let write = |handle: &mut NftHandle| table::remove(handle, family);
        let tools = self.write(write, || format!("delete {family} table {}", table::NAME))?;
        let Some(tools) = tools else { return Ok(()) };
        chain::remove(tools, family).with_context(|| format!("delete {family} chain {}", chain::NAME))
    }

    /// Writes to nf_tables. If the kernel lacks nf_tables, nothing is written, and the tools of iptables are returned.
    fn write(
        &mut self,
        write: impl FnOnce(&mut NftHandle) -> netlink::Result<()>,
        description: impl FnOnce() -> String,
    ) -> Result<Option<&mut Tools>> {
        let Self { nf_tables, iptables, .. } = self;
        if iptables.is_none() {
            let handle = match nf_tables {
                Some(handle) => handle,
                None => nf_tables.insert(NftHandle::open().context("open nf_tables")?),
            };
            match write(handle) {
                Err(error) if error.is_unsupported() => *iptables = Some(Tools::new(VariantSelection::default())),
                Ok(()) => return Ok(None),
                Err(error) => {
                    *nf_tables = None;
                    return Err(error).with_context(description);
                }
            }
        }
        Ok(iptables.as_mut())
    }
}
