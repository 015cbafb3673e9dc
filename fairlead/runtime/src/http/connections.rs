//! The bounds of connections of an HTTP server. Connections from the machine itself (the kubelet probes pods on the
//! host network from there, and `kubectl port-forward` connects from there) have a share that other clients cannot use.

use std::{io, net::IpAddr};

use tokio::net::TcpStream;

use crate::{ClientSource, ConnectionBounds, ConnectionPermit, ConnectionTable};

/// Connections from the machine itself, such as probes of the kubelet, and the `preStop` hooks that it sends for many
/// pods at once. No address has a part of its own: a process of the machine can connect from any loopback address.
const LOCAL: ConnectionBounds = ConnectionBounds { total: 512, per_key: 512 };
/// Connections from elsewhere: in all, and of one source (IPv6: /64).
const REMOTE: ConnectionBounds = ConnectionBounds { total: 128, per_key: 32 };

/// The open connections of an HTTP server. Clones share the same bounds.
#[derive(Clone, Debug)]
pub struct HttpConnections {
    local: ConnectionTable<ClientSource>,
    remote: ConnectionTable<ClientSource>,
}

impl Default for HttpConnections {
    fn default() -> Self {
        Self { local: ConnectionTable::new("local HTTP", LOCAL), remote: ConnectionTable::new("HTTP", REMOTE) }
    }
}

impl HttpConnections {
    /// Admits a connection, and evicts another one if a bound is reached.
    pub(super) fn admit(&self, stream: &TcpStream) -> io::Result<ConnectionPermit<ClientSource>> {
        let client = stream.peer_addr()?.ip().to_canonical();
        let server = stream.local_addr()?.ip().to_canonical();
        let table = if is_local(client, server) { &self.local } else { &self.remote };
        Ok(table.admit(client.into()))
    }
}

/// Whether a connection comes from the machine itself: the kernel then uses the destination address as source, unless
/// the client chose another one, or the connection was redirected to a loopback address.
fn is_local(client: IpAddr, server: IpAddr) -> bool {
    client.is_loopback() || server.is_loopback() || client == server
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HttpConnections {
        /// The highest number of open connections.
        pub(in crate::http) const MAX: usize = LOCAL.total + REMOTE.total;

        /// How many connections are open.
        pub(in crate::http) fn count(&self) -> usize {
            self.local.count() + self.remote.count()
        }
    }

    #[test]
    fn connections_to_own_addresses_are_local() {
        let local = |client: &str, server: &str| is_local(client.parse().unwrap(), server.parse().unwrap());
        assert!(local("127.0.0.1", "127.0.0.1") && local("192.0.2.1", "192.0.2.1") && local("::1", "::1"));
        assert!(local("192.0.2.1", "127.0.0.1") && local("2001:db8::1", "::1"), "redirected");
        assert!(!local("192.0.2.2", "192.0.2.1") && !local("2001:db8::2", "2001:db8::1"));
    }
}
