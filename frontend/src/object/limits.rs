//! Limits of the parts of one Service.

/// How much of one Service is used. What exceeds a limit is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// External and load-balancer IPs. At most [`Self::MAX_LIST`].
    pub vips: usize,
    /// Ports times external and load-balancer IPs.
    pub port_vips: usize,
    /// Source ranges, without those that others contain or complete. Beyond it the load-balancer IPs are closed. At
    /// most [`Self::MAX_LIST`].
    pub source_ranges: usize,
    /// Ports times source ranges. Beyond it the load-balancer IPs are closed.
    pub port_source_ranges: usize,
    /// Endpoints of one service port, for each IP family.
    pub endpoints: usize,
    /// Endpoints of all service ports together, for each IP family.
    pub port_endpoints: usize,
}

impl ServiceLimits {
    /// A service port is one message, with at most 23 bytes for an address or a range: full lists are far below its
    /// limit of 1 MiB. A larger one would end the stream of every node.
    pub const MAX_LIST: usize = 4096;
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            vips: Self::MAX_LIST,
            port_vips: 20_000,
            source_ranges: Self::MAX_LIST,
            port_source_ranges: 50_000,
            endpoints: 10_000,
            port_endpoints: 100_000,
        }
    }
}
