//! Who is let in by which listener, and what a client that is not let in is told.

use std::sync::Arc;

use tonic::{Request, Status, metadata::MetadataMap};
use tracing::info;

use super::{connection::Peer, tls::ReloadingTls};
use crate::identity::{AccessDenied, Authenticator, AuthnError, Identity};

/// What TLS listeners share: the frontend's certificate, and how clients are known.
#[derive(Clone, Debug)]
pub struct TlsAuth {
    pub(super) tls: ReloadingTls,
    authenticator: Arc<Authenticator>,
}

/// What a listener knows of its clients.
#[derive(Clone, Debug)]
pub(super) enum ListenerAuth {
    /// Nothing: whoever comes in is trusted.
    Trusted,
    Tls(TlsAuth),
}

impl TlsAuth {
    /// With this certificate, for the clients that `access` knows.
    #[must_use]
    pub fn new(tls: ReloadingTls, authenticator: Authenticator) -> Self {
        Self { tls, authenticator: Arc::new(authenticator) }
    }
}

impl ListenerAuth {
    /// Who makes a request.
    pub(super) async fn identify<T: Sync>(&self, request: &Request<T>) -> Result<Identity, Status> {
        let Self::Tls(auth) = self else { return Ok(Identity::Trusted) };
        let peer: Option<&Peer> = request.extensions().get();
        let names = peer.and_then(|peer| peer.names.as_deref());
        let identified = auth.authenticator.identify(names, bearer(request.metadata())).await;
        identified.map_err(|error| {
            info!(client = ?peer.and_then(|peer| peer.address), %error, "a client is not known");
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

/// What somebody is told who may not have what was asked for.
pub(super) fn denied(denied: &AccessDenied) -> Status {
    Status::permission_denied(denied.to_string())
}
