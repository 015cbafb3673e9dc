//! Changes of virtual servers and destinations. Each is a message; there are no transactions.

use std::net::SocketAddr;

use super::{Destination, Scheduling, VirtualServerKey, abi::cmd, codec};
use crate::genl;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpvsCommand {
    /// Creates a virtual server; rejected (`EEXIST`) if it exists.
    AddServer(VirtualServerKey, Scheduling),
    /// Changes the scheduler, flags or timeout of a virtual server. Its destinations and connections stay.
    SetServer(VirtualServerKey, Scheduling),
    /// Deletes a virtual server with its destinations.
    DeleteServer(VirtualServerKey),
    /// Creates a destination; rejected (`EEXIST`) if it exists.
    AddDestination(VirtualServerKey, Destination),
    /// Changes the weight or thresholds of a destination. Its connections continue.
    SetDestination(VirtualServerKey, Destination),
    /// Deletes a destination. Its connections end with their next packet if `expire_nodest_conn` is set.
    DeleteDestination(VirtualServerKey, SocketAddr),
}

// === impl IpvsCommand ===

impl IpvsCommand {
    /// Appends the command as a message.
    pub(super) fn write(&self, buf: &mut Vec<u8>, family: u16, seq: u32, flags: u16) {
        let (number, service) = match self {
            Self::AddServer(service, _) => (cmd::NEW_SERVICE, service),
            Self::SetServer(service, _) => (cmd::SET_SERVICE, service),
            Self::DeleteServer(service) => (cmd::DEL_SERVICE, service),
            Self::AddDestination(service, _) => (cmd::NEW_DEST, service),
            Self::SetDestination(service, _) => (cmd::SET_DEST, service),
            Self::DeleteDestination(service, _) => (cmd::DEL_DEST, service),
        };

        genl::put(buf, family, number, flags, seq, |buf| match self {
            Self::AddServer(_, scheduling) | Self::SetServer(_, scheduling) => {
                codec::write_scheduling(buf, service, scheduling);
            }
            Self::DeleteServer(_) => codec::write_service(buf, service),
            Self::AddDestination(_, destination) | Self::SetDestination(_, destination) => {
                codec::write_service(buf, service);
                codec::write_destination(buf, destination);
            }
            Self::DeleteDestination(_, address) => {
                codec::write_service(buf, service);
                codec::write_destination(buf, &Destination::new(*address, 0));
            }
        });
    }
}
