//! How many clients of a service port with session affinity are stored, and for how long.

use std::{num::NonZeroU32, ops::Range};

use backend::dataplane::Vip;
use netlink::nft::Fields;
use proto::model::IpFamily;

use super::map::MAX_AFFINE_CLIENTS;

/// The client buckets of a service port, unless its namespace has more than 16 with session affinity. They do not
/// depend on the number of ports, so that few clients lose their endpoint when a port is added or removed.
pub(super) const PORT_CLIENT_BUCKETS: u32 = 2_048;

/// The maximum number of client buckets of the service ports of one namespace together, a quarter of the map, unless it
/// has more service ports with session affinity than share these.
const MAX_CLIENT_BUCKETS: u32 = MAX_AFFINE_CLIENTS / 4;

/// The minimum number of client buckets of a service port: clients are to be spread over its endpoints. With this, the
/// number of buckets does not change any more from 2,049 service ports on.
const MIN_CLIENT_BUCKETS: u32 = 16;

/// How clients of a service port are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Affinity {
    /// Seconds from the last connection of a client to its removal.
    pub(crate) timeout: NonZeroU32,
    pub(crate) buckets: NonZeroU32,
}

/// Client buckets that a service port had, and has no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForgottenClients {
    pub(crate) family: IpFamily,
    pub(crate) pool_key: Vip,
    pub(crate) buckets: Range<u32>,
}

impl Affinity {
    /// The buckets of each of `ports` service ports of a namespace: [`PORT_CLIENT_BUCKETS`], as long as all ports
    /// together have at most [`MAX_CLIENT_BUCKETS`]. More ports share these by their number, rounded up to a power of
    /// two, so that a port more or less seldom changes it. At least [`MIN_CLIENT_BUCKETS`].
    pub(crate) fn buckets(ports: usize) -> NonZeroU32 {
        let shares = u32::try_from(ports.next_power_of_two()).unwrap_or(u32::MAX);
        let buckets = (MAX_CLIENT_BUCKETS / shares).clamp(MIN_CLIENT_BUCKETS, PORT_CLIENT_BUCKETS);
        NonZeroU32::new(buckets).unwrap_or(NonZeroU32::MIN)
    }
}

impl ForgottenClients {
    /// The keys in [`Map::AffineClients`](super::Map::AffineClients).
    pub(crate) fn keys(&self) -> impl Iterator<Item = Fields> {
        self.buckets.clone().map(|bucket| super::vip_fields(Fields::new(), &self.pool_key).mark(bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The service ports of a namespace have at most [`MAX_CLIENT_BUCKETS`] buckets together, unless they are many.
    #[test]
    fn ports_of_a_namespace_share_its_client_buckets() {
        let buckets = |ports| Affinity::buckets(ports).get();
        assert_eq!(
            [1, 16, 17, 32, 33, 128, 129, 256, 2_048, 2_049, 40_000].map(buckets),
            [2_048, 2_048, 1_536, 1_536, 768, 384, 192, 192, 24, 16, 16]
        );
        for ports in 1..=3_072 {
            assert!(buckets(ports) as usize * ports <= MAX_CLIENT_BUCKETS as usize, "{ports} ports");
        }
    }
}
