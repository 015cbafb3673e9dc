//! The address family, as all subsystems but nf_tables number it.

use std::net::IpAddr;

numbered! {
    /// An address family.
    AddressFamily {
        /// IPv4, `AF_INET`.
        V4 = 2,
        /// IPv6, `AF_INET6`.
        V6 = 10,
    }
}

impl AddressFamily {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}
