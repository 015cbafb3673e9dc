//! Which connections a server keeps: a limited number in total and for each client, where a new connection replaces an
//! old one, so that idle connections cannot lock out other clients.
//!
//! ```text
//!   accepted ──admit(key)──▶ the key has its maximum? its own oldest connection is evicted
//!                            the table is full?       the oldest connection of the key with the most is evicted
//!            ◀── ConnectionPermit ──── dropped: the connection has ended; evicted(): it must be closed
//! ```

mod table;

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

pub use table::{ConnectionBounds, ConnectionPermit, ConnectionTable};

use super::primitives;

/// The source by which connections are counted: an IPv4 address, or the /64 of an IPv6 address, because a client can
/// use all addresses of a /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientSource(IpAddr);

impl From<IpAddr> for ClientSource {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

impl fmt::Display for ClientSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(total: usize, per_key: usize) -> ConnectionTable<&'static str> {
        ConnectionTable::new("test", ConnectionBounds { total, per_key })
    }

    /// Whether the connection was evicted.
    fn is_evicted(permit: &ConnectionPermit<&'static str>) -> bool {
        permit.table.with(|open| !open.by_key.get(permit.key).is_some_and(|open| open.contains_key(&permit.id)))
    }

    #[tokio::test]
    async fn client_beyond_its_bound_loses_its_own_oldest_connection() {
        let table = table(10, 2);
        let other = table.admit("other");
        let [first, second, third] = ["client"; 3].map(|key| table.admit(key));
        first.evicted().await;
        assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&third) && !is_evicted(&other));
        assert_eq!(table.count(), 3);
        drop([first, second, third]);
        assert_eq!(table.count(), 1);
    }

    #[tokio::test]
    async fn full_table_evicts_the_oldest_connection_of_the_client_with_the_most() {
        let table = table(5, 3);
        let oldest = table.admit("single");
        let [first, second, _third] = ["flood"; 3].map(|key| table.admit(key));
        let _pair = table.admit("pair");
        let _newcomer = table.admit("newcomer");
        assert!(is_evicted(&first) && !is_evicted(&oldest));
        // Now all but `flood` have one connection.
        let _another = table.admit("another");
        assert!(is_evicted(&second) && !is_evicted(&oldest));
        // All have one: the oldest is evicted.
        let _last = table.admit("last");
        assert!(is_evicted(&oldest));
        assert_eq!(table.count(), 5);
    }

    #[tokio::test]
    async fn idle_connections_are_evicted_before_busy_ones() {
        let table = table(10, 2);
        let [busy, idle] = ["client"; 2].map(|key| table.admit(key));
        busy.set_busy();
        let third = table.admit("client");
        assert!(is_evicted(&idle) && !is_evicted(&busy));
        third.set_busy();
        let _fourth = table.admit("client");
        assert!(is_evicted(&busy), "all are busy: the oldest one");
    }

    #[test]
    fn ipv6_clients_are_counted_by_their_64_bit_prefix() {
        let source = |text: &str| ClientSource::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_eq!(
            [source("2001:db8::1"), source("192.0.2.1")].map(|source| source.to_string()),
            ["2001:db8::/64", "192.0.2.1"]
        );
    }
}
