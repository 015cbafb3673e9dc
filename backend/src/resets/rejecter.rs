//! The rules that reject packets of connections to endpoints that are gone: in nf_tables or, with kernels that lack it,
//! in iptables.

use std::{collections::BTreeSet, net::SocketAddr, time::Instant};

use anyhow::{Context as _, Result};
use iptables::{Tools, VariantSelection};
use netlink::{conntrack::Flow, nft::NftHandle};
use proto::model::{IpFamily, PerFamily};

use super::{chain, table};

/// What rejected packets have in common: the VIP and the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) vip: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

/// The routes that are rejected, and what rejects them.
#[derive(Debug)]
pub(super) struct Rejecter {
    rules: RejectRules,
    rejected: PerFamily<BTreeSet<Route>>,
    opened: Instant,
}

#[derive(Debug)]
enum RejectRules {
    Table(NftHandle),
    Chain(Tools),
}

impl Route {
    pub(super) fn of(flow: &Flow) -> Self {
        Self { vip: flow.original.destination, endpoint: flow.reply.source }
    }
}

impl Rejecter {
    pub(super) fn open() -> Result<Self> {
        let rules = RejectRules::Table(NftHandle::open().context("open nf_tables")?);
        Ok(Self { rules, rejected: PerFamily::default(), opened: Instant::now() })
    }

    /// Whether its rules may end soon.
    pub(super) fn is_old(&self) -> bool {
        self.opened.elapsed() > table::TIMEOUT / 2
    }

    pub(super) fn is_rejecting(&self, family: IpFamily, route: &Route) -> bool {
        self.rejected[family].contains(route)
    }

    /// Rejects packets of these routes from now on, of as many as the rules may have.
    pub(super) fn reject(&mut self, family: IpFamily, routes: impl Iterator<Item = Route>) -> Result<()> {
        let wanted: BTreeSet<_> = routes.filter(|route| !self.rejected[family].contains(route)).collect();
        if let RejectRules::Table(handle) = &mut self.rules {
            let room = table::MAX_ROUTES.saturating_sub(self.rejected[family].len());
            let new: Vec<_> = wanted.iter().copied().take(room).collect();
            match table::reject(handle, family, &new) {
                Ok(()) => {
                    self.rejected[family].extend(new);
                    return Ok(());
                }
                Err(error) if error.is_unsupported() => {
                    self.rules = RejectRules::Chain(Tools::new(VariantSelection::default()));
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("reject packets in table {}", table::NAME));
                }
            }
        }
        if let RejectRules::Chain(tools) = &mut self.rules {
            let all: BTreeSet<_> = self.rejected[family].union(&wanted).copied().take(chain::MAX_ROUTES).collect();
            if all.len() > self.rejected[family].len() {
                chain::reject(tools, family, &all)
                    .with_context(|| format!("reject packets in {family} chain {}", chain::NAME))?;
                self.rejected[family] = all;
            }
        }
        Ok(())
    }

    /// Removes the rules, if it has written any.
    pub(super) fn remove(&mut self) -> Result<()> {
        let rejected = std::mem::take(&mut self.rejected);
        for (family, _) in rejected.iter().filter(|(_, routes)| !routes.is_empty()) {
            match &mut self.rules {
                RejectRules::Table(handle) => {
                    table::remove(handle, family).with_context(|| format!("delete {family} table {}", table::NAME))?;
                }
                RejectRules::Chain(tools) => {
                    chain::remove(tools, family).with_context(|| format!("delete {family} chain {}", chain::NAME))?;
                }
            }
        }
        Ok(())
    }
}
