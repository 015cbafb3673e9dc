//! Authentication of clients by listener, and the gRPC status for a client that is rejected.

use std::sync::Arc;

use tonic::{Request, Status, metadata::MetadataMap};
use tracing::info;

use super::{connection::Peer, tls::ReloadingTls};
use crate::identity::{AccessDenied, Authenticator, AuthnError, Identity};

/// What TLS listeners need: the certificate of the frontend, and the means to identify clients.
#[derive(Clone, Debug)]
pub struct TlsAuth {
    pub(super) tls: ReloadingTls,
    authenticator: Arc<Authenticator>,
}

/// How a listener identifies its clients.
#[derive(Clone, Debug)]
pub(super) enum ListenerAuth {
    /// Not at all: every client is trusted.
    Trusted,
    Tls(TlsAuth),
}

impl TlsAuth {
    /// Serves the certificate of `tls` to clients that `authenticator` identifies.
    #[must_use]
    pub fn new(tls: ReloadingTls, authenticator: Authenticator) -> Self {
        Self { tls, authenticator: Arc::new(authenticator) }
    }
}

impl ListenerAuth {
    /// Identifies the client that sent a request.
    pub(super) async fn identify<T: Sync>(&self, request: &Request<T>) -> Result<Identity, Status> {
        let Self::Tls(auth) = self else { return Ok(Identity::Trusted) };
        let peer: Option<&Peer> = request.extensions().get();
        let names = peer.and_then(|peer| peer.names.as_deref());
        let identified = auth.authenticator.identify(names, bearer(request.metadata())).await;
        identified.map_err(|error| {
            info!(client = ?peer.and_then(|peer| peer.address), %error, "client rejected, it could not be identified");
            to_status(&error)
        })
    }
}

/// The token in `authorization: Bearer TOKEN`.
fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let (scheme, token) = metadata.get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn to_status(error: &AuthnError) -> Status {
    let message = error.to_string();
    match error {
        AuthnError::Unavailable(_) => Status::unavailable(message),
        AuthnError::NoCredential { .. } | AuthnError::UnknownNames(_) | AuthnError::Token(_) => {
            Status::unauthenticated(message)
        }
    }
}

pub(super) fn denied(denied: &AccessDenied) -> Status {
    Status::permission_denied(denied.to_string())
}
