//! The addresses at which health-check node ports are opened: those at which node ports answer. If they depend on the
//! node's interfaces, the addresses of the interfaces are listed again and again.

use std::{collections::HashSet, io, net::IpAddr, time::Duration};

use proto::model::IpFamily;
use runtime::{
    Backoff,
    failure::{Recovery, Repeated, chain},
    warn_if_news,
};
use tokio::task::spawn_blocking;
use tracing::info;

use crate::dataplane::{IPVS_DEVICE, NodePortAddresses};

/// How often the addresses of interfaces are listed, if listeners depend on them, and the first delay after a failure:
/// a load balancer that probes a new address soon finds the port open. Listing is cheap: the kernel takes about 10 ms
/// for 10,000 VIPs of IPVS, and less than a millisecond for a few addresses.
pub(super) const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// The longest delay before addresses that cannot be listed are listed again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The addresses of the node that health-check node ports are opened at.
#[derive(Debug)]
pub(super) struct ListenAddresses {
    served: NodePortAddresses,
    /// Lists the addresses of the node's interfaces, without VIPs. Blocks.
    pub(super) list_interfaces: fn() -> io::Result<HashSet<IpAddr>>,
    failures: Repeated,
    backoff: Backoff,
}

/// The result of listing the addresses of the node's interfaces.
pub(super) enum Listing {
    /// Empty if listeners do not depend on them.
    Addresses(HashSet<IpAddr>),
    Failed {
        retry_in: Duration,
    },
}

impl ListenAddresses {
    pub(super) fn new(served: NodePortAddresses) -> Self {
        Self {
            served,
            list_interfaces: || netlink::rtnl::addresses_except(&[IPVS_DEVICE]).map_err(io::Error::other),
            failures: Repeated::default(),
            backoff: Backoff::new(LIST_INTERVAL, MAX_RETRY_DELAY),
        }
    }

    /// Whether the addresses of the node's interfaces matter.
    pub(super) fn depend_on_interfaces(&self) -> bool {
        let NodePortAddresses::Cidrs(ranges) = &self.served else { return false };
        ranges.iter().any(|range| range.prefix_len() > 0)
    }

    /// Lists the addresses of the node's interfaces, if they matter. A failure is logged.
    pub(super) async fn list(&mut self) -> Listing {
        if !self.depend_on_interfaces() {
            return Listing::Addresses(HashSet::new());
        }

        // The thread inherits the network namespace.
        let listed = spawn_blocking(self.list_interfaces).await;
        match listed.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
            Ok(addresses) => {
                self.succeeded();
                Listing::Addresses(addresses)
            }
            Err(error) => Listing::Failed { retry_in: self.failed(&error) },
        }
    }

    fn succeeded(&mut self) {
        self.backoff.reset();
        if let Some(Recovery { count: failures, duration }) = self.failures.recovered() {
            let after_ms = duration.as_millis();
            info!(failures, after_ms, "listed the node's addresses for health-check node ports again");
        }
    }

    /// Returns the delay before the next attempt.
    fn failed(&mut self, error: &io::Error) -> Duration {
        let delay = self.backoff.next_delay();
        let retry_in_ms = delay.as_millis();
        let error = chain(error);
        warn_if_news!(
            self.failures.failed(&error),
            error,
            retry_in_ms,
            "cannot list the node's addresses for health-check node ports, retrying"
        );
        delay
    }

    /// The addresses of a family to listen at, as node ports answer: without loopback addresses, and without link-local
    /// addresses, which need an interface. `primary` is the node's primary address of the family.
    pub(super) fn of_family(
        &self,
        family: IpFamily,
        primary: Option<IpAddr>,
        interfaces: &HashSet<IpAddr>,
    ) -> Vec<IpAddr> {
        let NodePortAddresses::Cidrs(ranges) = &self.served else { return primary.into_iter().collect() };

        let is_of_family = |address: IpAddr| IpFamily::of(&address) == family;
        if ranges.iter().any(|range| range.prefix_len() == 0 && is_of_family(range.addr())) {
            return vec![family.unspecified()];
        }
        let is_listened_at = |address: &IpAddr| is_of_family(*address) && self.served.serve(address);
        interfaces.iter().copied().filter(is_listened_at).collect()
    }
}
