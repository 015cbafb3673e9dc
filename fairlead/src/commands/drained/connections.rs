//! The TCP connections of a pod's clients, read from the files of the pod's network namespace in `/proc`.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead, BufReader, ErrorKind},
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep_until};

/// The TCP sockets of the network namespace. Connections over IPv4 to a listener of both families are in [`IPV6_FILE`].
const IPV4_FILE: &str = "/proc/net/tcp";
const IPV6_FILE: &str = "/proc/net/tcp6";
/// How often the files are read, because the kernel does not announce the end of a connection.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// States of the kernel's `enum` in `net/tcp_states.h`.
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// The number of open connections by port of the pod. A port without a connection is absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OpenConnections(BTreeMap<u16, usize>);

/// A row of one of the files.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    local_port: u16,
    state: u8,
    /// 0 if no process has the socket.
    inode: u64,
}

/// Waits until no connection to one of the ports is open, or the deadline has passed. Returns the connections that are
/// open then.
pub(super) async fn wait_until_closed(ports: &[u16], deadline: Instant) -> Result<OpenConnections> {
    loop {
        let open = OpenConnections::read(ports)?;
        let now = Instant::now();
        if open.is_empty() || now >= deadline {
            return Ok(open);
        }
        sleep_until(deadline.min(now + READ_INTERVAL)).await;
    }
}

impl OpenConnections {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn read(ports: &[u16]) -> Result<Self> {
        let mut open = Self::default();
        for path in [IPV4_FILE, IPV6_FILE] {
            let file = match File::open(path) {
                // The kernel has no IPv6.
                Err(error) if error.kind() == ErrorKind::NotFound && path == IPV6_FILE => continue,
                file => file.with_context(|| format!("cannot open {path}"))?,
            };
            open.add(BufReader::new(file), ports).with_context(|| format!("cannot read {path}"))?;
        }
        Ok(open)
    }

    /// Adds the open connections of a file to these ports.
    fn add(&mut self, file: impl BufRead, ports: &[u16]) -> Result<()> {
        for row in file.lines().skip(1) {
            let row = row?;
            let socket = Socket::parse(&row).with_context(|| format!("not a row of a TCP socket: {row:?}"))?;
            if ports.contains(&socket.local_port) && socket.is_open_connection() {
                *self.0.entry(socket.local_port).or_default() += 1;
            }
        }
        Ok(())
    }
}

impl fmt::Display for OpenConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_port: Vec<_> = self.0.iter().map(|(port, count)| format!("{count} to port {port}")).collect();
        match self.0.values().sum::<usize>() {
            0 => f.write_str("no connection is left"),
            1 => write!(f, "1 connection is still open: {}", by_port.join(", ")),
            total => write!(f, "{total} connections are still open: {}", by_port.join(", ")),
        }
    }
}

impl Socket {
    /// Parses the columns of a row: number, local and remote address, state, queues, timer, retransmissions, user,
    /// timeout, inode, and others.
    fn parse(row: &str) -> Option<Self> {
        let columns: Vec<_> = row.split_ascii_whitespace().collect();
        let (_, local_port) = columns.get(1)?.split_once(':')?;
        Some(Self {
            local_port: u16::from_str_radix(local_port, 16).ok()?,
            state: u8::from_str_radix(columns.get(3)?, 16).ok()?,
            inode: columns.get(9)?.parse().ok()?,
        })
    }

    /// Whether data of a connection can be lost when the pod ends.
    fn is_open_connection(&self) -> bool {
        match self.state {
            LISTEN | TIME_WAIT | CLOSE => false,
            // The client has acknowledged all data and the end, and no process would read what it still sends. Clients
            // that keep connections in a pool may close them much later.
            FIN_WAIT2 => self.inode != 0,
            // Without a process, too: the connection waits to be accepted, or the kernel still sends its last data.
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a namespace with connections in all states, and both of their ends: port 8080 is 1F90, 8443 is 20FB.
    const IPV4: &str = include_str!("connections/testing/tcp");
    const IPV6: &str = include_str!("connections/testing/tcp6");

    fn open(ports: &[u16]) -> OpenConnections {
        let mut open = OpenConnections::default();
        for file in [IPV4, IPV6] {
            open.add(file.as_bytes(), ports).unwrap();
        }
        open
    }

    #[test]
    fn connections_of_both_families_are_counted_by_port() {
        assert_eq!(open(&[8080, 8443]), OpenConnections([(8080, 6), (8443, 2)].into()));
        assert_eq!(open(&[8443, 8443, 80]), OpenConnections([(8443, 2)].into()));
        assert!(open(&[80]).is_empty());
    }

    #[test]
    fn connections_that_cannot_lose_data_are_not_open() {
        let sockets: Vec<_> = IPV4.lines().skip(1).map(|row| Socket::parse(row).unwrap()).collect();
        let (open, closed): (Vec<_>, Vec<_>) =
            sockets.iter().filter(|socket| socket.local_port == 8080).partition(|socket| socket.is_open_connection());

        let states = |sockets: &[&Socket]| sockets.iter().map(|socket| socket.state).collect::<Vec<_>>();
        // Half closed by the server; closed by the client; established; closed while data is sent; not accepted.
        assert_eq!(states(&open), [FIN_WAIT2, 8, 1, 4, 1]);
        // Of two the client has not closed its end.
        assert_eq!(states(&closed), [LISTEN, FIN_WAIT2, TIME_WAIT, FIN_WAIT2]);
    }

    #[test]
    fn unknown_formats_are_errors() {
        for row in ["", "0: 0100007F 0100007F 01", "0: 0100007F:1F90 0100007F:B68C 01 0:0 0:0 0 0 0"] {
            let file = format!("sl local_address\n{row}\n");
            let error = OpenConnections::default().add(file.as_bytes(), &[8080]).unwrap_err();
            assert_eq!(error.to_string(), format!("not a row of a TCP socket: {row:?}"));
        }
    }

    #[test]
    fn counts_are_printed_by_port() {
        assert_eq!(open(&[80]).to_string(), "no connection is left");
        assert_eq!(open(&[8080, 8443]).to_string(), "8 connections are still open: 6 to port 8080, 2 to port 8443");
        let last = OpenConnections([(8443, 1)].into());
        assert_eq!(last.to_string(), "1 connection is still open: 1 to port 8443");
    }
}
