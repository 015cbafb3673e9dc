//! Who a client is, and what it may ask for.
//!
//! ```text
//!   client certificate ──▶ certificate::Names ──┐
//!                                               ├─▶ Authenticator ──▶ Identity ──▶ may_follow(node, role), may_see_all()
//!   bearer token ──▶ tokens: TokenReview ───────┘                 ▲
//!   unix socket, --insecure ──────────────────────────────────────┘ Trusted
//! ```

mod authenticator;
pub(crate) mod certificate;
mod tokens;

use std::{fmt, sync::Arc};

use proto::model::Role;

pub use self::{
    authenticator::{Authenticator, AuthnError, AuthnOptions},
    tokens::{ServiceAccount, TokenOptions},
};

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Whoever may open the socket, or anybody at all where the operator wants that.
    Trusted,
    /// A node.
    Node(Arc<str>),
    /// Somebody who may look at everything, by the name that is in the credential.
    Admin(Arc<str>),
}

/// Why somebody is not given what they ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessDenied {
    /// A node asks for the view of another.
    #[error("{identity} may not follow the view of node {wanted}: a node is given its own view only")]
    OtherNode {
        /// Who asks.
        identity: Identity,
        /// Whose view was asked for.
        wanted: Arc<str>,
    },
    /// An admin wants to be taken for an agent.
    #[error("{identity} may look at the view of node {wanted}, but not as its agent")]
    NotItsBackend {
        /// Who asks.
        identity: Identity,
        /// Whose view was asked for.
        wanted: Arc<str>,
    },
    /// A node asks about all of them.
    #[error("{0} may not see the status of all nodes: that is for admins")]
    NotAdmin(Identity),
}

impl Identity {
    /// Whether this is somebody who may follow the view of a node in this role.
    pub(crate) fn may_follow(&self, node: &Arc<str>, role: Role) -> Result<(), AccessDenied> {
        match (self, role) {
            (Self::Trusted, _) | (Self::Admin(_), Role::Observer) => Ok(()),
            (Self::Node(own), _) if own == node => Ok(()),
            (Self::Node(_), _) => Err(AccessDenied::OtherNode { identity: self.clone(), wanted: node.clone() }),
            (Self::Admin(_), Role::Backend | Role::Shadow) => {
                Err(AccessDenied::NotItsBackend { identity: self.clone(), wanted: node.clone() })
            }
        }
    }

    /// Whether this is somebody who may see the status, which tells of all nodes.
    pub(crate) fn may_see_all(&self) -> Result<(), AccessDenied> {
        match self {
            Self::Trusted | Self::Admin(_) => Ok(()),
            Self::Node(_) => Err(AccessDenied::NotAdmin(self.clone())),
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
    fn a_node_is_given_its_own_view_and_an_admin_looks_at_all() {
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
            assert!(admin.may_follow(&a, role).unwrap_err().to_string().contains("not as its agent"));
        }
        assert_eq!(admin.may_see_all(), Ok(()));
        assert_eq!(Identity::Trusted.may_see_all(), Ok(()));
        assert_eq!(node.may_see_all(), Err(AccessDenied::NotAdmin(node)));
    }
}
