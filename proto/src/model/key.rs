//! The key of a service port: namespace, Service name, port name and protocol.

use std::{fmt, str::FromStr, sync::Arc};

use serde::Serialize;

/// A transport protocol, as in Kubernetes `ServicePort.protocol`. The values are IANA protocol numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u8)]
pub enum Protocol {
    /// `IPPROTO_TCP`
    Tcp = 6,
    /// `IPPROTO_UDP`
    Udp = 17,
    /// `IPPROTO_SCTP`
    Sctp = 132,
}

/// The error for a name that is not a protocol of Kubernetes Services.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown protocol {0:?}: expected TCP, UDP or SCTP")]
pub struct ParseProtocolError(pub String);

/// Identifies a [`super::ServicePort`] in the cluster. Ordered by its fields; clones share the strings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ServicePortKey {
    /// Service `metadata.namespace`.
    pub namespace: Arc<str>,
    /// Service `metadata.name`.
    pub name: Arc<str>,
    /// `spec.ports[].name`; empty if the port has no name.
    pub port_name: Arc<str>,
    /// `spec.ports[].protocol`.
    pub protocol: Protocol,
}

impl Protocol {
    /// All protocols, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IANA protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The lower-case name, as in `nft` and `iptables`.
    #[must_use]
    pub const fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    /// Parses the upper-case name of the Kubernetes API, such as `TCP`.
    fn from_str(name: &str) -> Result<Self, ParseProtocolError> {
        Self::ALL
            .into_iter()
            .find(|protocol| protocol.to_string() == name)
            .ok_or_else(|| ParseProtocolError(name.to_owned()))
    }
}

impl ServicePortKey {
    /// Makes a key.
    #[must_use]
    pub fn new(
        namespace: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
        port_name: impl Into<Arc<str>>,
        protocol: Protocol,
    ) -> Self {
        Self { namespace: namespace.into(), name: name.into(), port_name: port_name.into(), protocol }
    }
}

impl fmt::Display for ServicePortKey {
    /// `namespace/name:port-name/tcp`, or `namespace/name/tcp` for a port without a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        if !self.port_name.is_empty() {
            write!(f, ":{}", self.port_name)?;
        }
        write!(f, "/{}", self.protocol.lower())
    }
}
