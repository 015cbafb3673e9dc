//! The report of a data plane when the kernel does not accept a transaction.

/// The operations that the kernel rejected. Service ports are given by their index in
/// [`Change::service_ports`](super::Change).
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
pub struct Rejection {
    /// The service ports that the kernel named, each with the reason.
    pub named: Vec<(u32, String)>,
    /// The reason of a rejection that could not be traced to a service port.
    pub unnamed: Option<String>,
}

/// How a transaction treats objects that no service port in it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unneeded {
    /// It deletes them.
    Delete,
    /// It leaves them: a later transaction may need them.
    Keep,
}

impl Rejection {
    /// The first reason.
    fn reason(&self) -> &str {
        let reasons = self.named.iter().map(|(_, reason)| reason).chain(&self.unnamed);
        reasons.map(String::as_str).next().unwrap_or("rejected")
    }
}
