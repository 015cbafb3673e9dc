//! How many clients of a service port with session affinity are stored, and for how long.

use std::num::NonZeroU32;

/// The maximum number of client buckets of the service ports of one Service together.
const MAX_CLIENT_BUCKETS: u32 = 16_384;

/// The client buckets of a service port of a Service with at most eight ports. They do not depend on the number of
/// ports, so that few Services lose the endpoints of their clients when a port is added or removed.
pub(super) const PORT_CLIENT_BUCKETS: u32 = MAX_CLIENT_BUCKETS / 8;

/// How clients of a service port are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Affinity {
    /// Seconds from the last connection of a client to its removal.
    pub(crate) timeout: NonZeroU32,
    /// The number of buckets.
    pub(crate) buckets: NonZeroU32,
}

impl Affinity {
    /// With this many ports or more, the ports of a Service have one bucket each. (An object of the API has no more
    /// than [`MAX_CLIENT_BUCKETS`] ports.)
    pub(crate) const MAX_PORTS: usize = 1_024;

    /// The buckets of each of `ports` service ports of a Service: [`PORT_CLIENT_BUCKETS`], as long as all ports
    /// together have at most [`MAX_CLIENT_BUCKETS`]. More ports share these by their number, rounded up to a power of
    /// two, so that a port more or less seldom changes it. At least one.
    pub(crate) fn new(timeout: NonZeroU32, ports: usize) -> Self {
        let buckets = match u32::try_from(ports.next_power_of_two()) {
            Ok(shares) if ports < Self::MAX_PORTS => (MAX_CLIENT_BUCKETS / shares).min(PORT_CLIENT_BUCKETS),
            _ => 1,
        };
        let buckets = NonZeroU32::new(buckets).unwrap_or(NonZeroU32::MIN);
        Self { timeout, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many ports a Service has, its ports together have at most [`MAX_CLIENT_BUCKETS`] buckets.
    #[test]
    fn ports_of_a_service_share_its_client_buckets() {
        let timeout = NonZeroU32::MIN;
        let buckets = |ports: usize| Affinity::new(timeout, ports).buckets.get();
        assert_eq!([1, 2, 3, 20, 511, 512, 1_000].map(buckets), [2_048, 2_048, 2_048, 512, 32, 32, 16]);
        for ports in 1..2_000 {
            let counted = ports.min(Affinity::MAX_PORTS);
            assert!(buckets(counted) as usize * ports <= MAX_CLIENT_BUCKETS as usize, "{ports} ports");
        }
    }
}
