//! The rules that reject packets of connections to endpoints that are gone: in nf_tables or, with kernels that lack it,
//! in iptables.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use iptables::{Tools, VariantSelection};
use netlink::{conntrack::Flow, nft::NftHandle};
use proto::model::{IpFamily, PerFamily};

use super::{chain, table};

/// How long packets are rejected.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection whose packets are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rejected {
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

/// The rules, while there are any.
#[derive(Debug)]
pub(super) struct Rejecter {
    rules: RejectRules,
    until: PerFamily<Option<Instant>>,
}

#[derive(Debug)]
enum RejectRules {
    Table(NftHandle),
    Chain(Tools),
}

impl Rejected {
    pub(super) fn of(flow: &Flow) -> Self {
        Self { client: flow.original.source, vip: flow.original.destination, endpoint: flow.reply.source }
    }
}

impl Rejecter {
    /// Removes what a process that was killed has left.
    pub(super) fn open() -> Result<Self> {
        let rules = RejectRules::Table(NftHandle::open().context("open nf_tables")?);
        let mut rejecter = Self { rules, until: PerFamily::from_fn(|_| Some(Instant::now())) };
        rejecter.remove()?;
        Ok(rejecter)
    }

    /// When the rules are to be removed.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until.iter().filter_map(|(_, until)| *until).max()
    }

    /// Rejects packets of these connections from now on, and of no others of the family. Returns those of them that the
    /// rules may have.
    pub(super) fn reject(
        &mut self,
        family: IpFamily,
        mut connections: BTreeSet<Rejected>,
    ) -> Result<BTreeSet<Rejected>> {
        self.until[family] = Some(Instant::now() + TIMEOUT);
        if let RejectRules::Table(handle) = &mut self.rules {
            match table::reject(handle, family, &connections) {
                Err(error) if error.is_unsupported() => self.use_chain(),
                result => {
                    result.with_context(|| format!("reject packets in table {}", table::NAME))?;
                    return Ok(connections);
                }
            }
        }
        if let RejectRules::Chain(tools) = &mut self.rules {
            connections = connections.into_iter().take(chain::MAX).collect();
            chain::reject(tools, family, &connections)
                .with_context(|| format!("reject packets in {family} chain {}", chain::NAME))?;
        }
        Ok(connections)
    }

    /// Removes the rules, if it has written any.
    pub(super) fn remove(&mut self) -> Result<()> {
        for family in IpFamily::ALL.into_iter().filter(|family| self.until[*family].is_some()).collect::<Vec<_>>() {
            if let RejectRules::Table(handle) = &mut self.rules {
                match table::remove(handle, family) {
                    Err(error) if error.is_unsupported() => self.use_chain(),
                    result => result.with_context(|| format!("delete {family} table {}", table::NAME))?,
                }
            }
            if let RejectRules::Chain(tools) = &mut self.rules {
                chain::remove(tools, family).with_context(|| format!("delete {family} chain {}", chain::NAME))?;
            }
            self.until[family] = None;
        }
        Ok(())
    }

    fn use_chain(&mut self) {
        self.rules = RejectRules::Chain(Tools::new(VariantSelection::default()));
    }
}
