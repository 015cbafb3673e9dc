//! Authentication and authorization of clients.
//!
//! ```text
//!   client certificate ──▶ certificate::Names ──┐
//!                                               ├─▶ Authenticator ─▶ Identity ─▶ may_follow, may_inspect
//!   bearer token ──▶ tokens: signature, review ─┘                 ▲
//!   unix socket, --insecure ──────────────────────────────────────┘ Trusted
//! ```

mod authenticator;
pub(crate) mod certificate;
mod node_sources;
mod tokens;

use std::{fmt, sync::Arc};

use proto::model::Role;

pub use self::{
    authenticator::{Authenticator, AuthnError, AuthnOptions, is_node_name},
    tokens::{ServiceAccount, TokenOptions},
};
pub(crate) use self::{node_sources::NodeSources, tokens::TokenSource};

/// The identity of a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// Any client of a unix socket, or of a TCP listener without TLS.
    Trusted,
    /// A node.
    Node(Arc<str>),
    /// An administrator, which may see the state of all nodes. The name is that in the credential.
    Admin(Arc<str>),
}

/// Why a request is not authorized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessDenied {
    /// A node requests the state of another node.
    #[error("{0} may not follow node {1}: a node may follow only itself")]
    OtherNode(Identity, Arc<str>),
    /// An administrator connects in the role of a node's backend.
    #[error("{0} may follow node {1} as an observer only, not as its backend")]
    NotItsBackend(Identity, Arc<str>),
    /// A node requests the state of other nodes.
    #[error("{0} may not see the status of other nodes: name it with --admin-identity to allow that")]
    NotAdmin(Identity),
}

impl Identity {
    /// Whether the client may follow a node in this role.
    pub(crate) fn may_follow(&self, node: &Arc<str>, role: Role) -> Result<(), AccessDenied> {
        match (self, role) {
            (Self::Trusted, _) | (Self::Admin(_), Role::Observer) => Ok(()),
            (Self::Node(own), _) if own == node => Ok(()),
            (Self::Node(_), _) => Err(AccessDenied::OtherNode(self.clone(), node.clone())),
            (Self::Admin(_), Role::Backend | Role::Shadow) => {
                Err(AccessDenied::NotItsBackend(self.clone(), node.clone()))
            }
        }
    }

    /// Whether the client may see the status of a node, and how its endpoints are selected; empty: of all nodes.
    pub(crate) fn may_inspect(&self, node: &str) -> Result<(), AccessDenied> {
        match self {
            Self::Node(own) if **own != *node => Err(AccessDenied::NotAdmin(self.clone())),
            _ => Ok(()),
        }
    }

    /// Whether the client is shown all nodes and objects: also the problems of objects, and the pods that wait.
    pub(crate) fn sees_cluster(&self) -> bool {
        !matches!(self, Self::Node(_))
    }

    /// The identity that limits apply to when the client follows this node: without its own, that of the node.
    pub(crate) fn counted_as(&self, node: &Arc<str>) -> Self {
        match self {
            Self::Trusted => Self::Node(node.clone()),
            Self::Node(_) | Self::Admin(_) => self.clone(),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trusted => f.write_str("a trusted client"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Admin(name) => write!(f, "admin {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_follows_itself_and_admin_observes_all() {
        let (a, b): (Arc<str>, Arc<str>) = ("node-a".into(), "node-b".into());
        let (node, admin) = (Identity::Node(a.clone()), Identity::Admin("ops".into()));
        for role in [Role::Backend, Role::Observer, Role::Shadow] {
            assert_eq!(node.may_follow(&a, role), Ok(()));
            let denied = node.may_follow(&b, role).unwrap_err().to_string();
            assert!(denied.contains("node node-a") && denied.contains("node node-b"), "{denied}");
            assert_eq!(Identity::Trusted.may_follow(&b, role), Ok(()));
        }
        assert_eq!(admin.may_follow(&a, Role::Observer), Ok(()));
        for role in [Role::Backend, Role::Shadow] {
            assert!(admin.may_follow(&a, role).unwrap_err().to_string().contains("not as its backend"));
        }
    }

    #[test]
    fn node_inspects_itself_and_admin_all() {
        let (node, admin) = (Identity::Node("node-a".into()), Identity::Admin("ops".into()));
        for wanted in ["", "node-a", "node-b"] {
            assert_eq!(admin.may_inspect(wanted), Ok(()));
            assert_eq!(Identity::Trusted.may_inspect(wanted), Ok(()));
        }
        assert_eq!(node.may_inspect("node-a"), Ok(()));
        for wanted in ["", "node-b"] {
            assert_eq!(node.may_inspect(wanted), Err(AccessDenied::NotAdmin(node.clone())));
        }
        assert_eq!((admin.sees_cluster(), node.sees_cluster()), (true, false));
    }
}
