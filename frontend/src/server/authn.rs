//! Authentication of clients by listener, and the gRPC status for a client that is rejected.

use std::sync::Arc;

use http::{HeaderMap, header::AUTHORIZATION, request::Parts};
use tonic::Status;
use tracing::{debug, info};

use super::connection::Peer;
use crate::{
    identity::{Authenticator, AuthnError, Identity, TokenSource},
    tls::ReloadingTls,
};

/// What TLS listeners need: the certificate of the frontend, and the means to identify clients.
#[derive(Clone, Debug)]
pub struct TlsAuth {
    pub(crate) tls: ReloadingTls,
    pub(crate) authenticator: Arc<Authenticator>,
}

impl TlsAuth {
    /// Serves the certificate of `tls` to clients that `authenticator` identifies.
    #[must_use]
    pub fn new(tls: ReloadingTls, authenticator: Authenticator) -> Self {
        Self { tls, authenticator: Arc::new(authenticator) }
    }

    /// Identifies the client that sent a request, by its certificate and headers: the body has not been read.
    pub(super) async fn identify(&self, request: &Parts) -> Result<Identity, Status> {
        let peer = request.extensions.get::<Arc<Peer>>();
        let peer = peer.ok_or_else(|| Status::internal("the connection of the call is unknown"))?;
        let is_node = peer.ip().is_some_and(|address| peer.admission.is_node_source(address));
        let source = TokenSource { address: peer.ip(), is_node };

        match self.authenticator.identify(peer.names.get(), bearer(&request.headers), source).await {
            Ok(identity) => {
                peer.set_identity(&identity);
                Ok(identity)
            }
            Err(error) => {
                let text = "client rejected, it could not be identified";
                match peer.admission.count_rejection(peer.ip()) {
                    Some(count) => info!(client = ?peer.address, %error, count, "{text}"),
                    None => debug!(client = ?peer.address, %error, "{text}"),
                }
                Err(to_status(&error))
            }
        }
    }
}

/// The token in `authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { Some(token.trim()) } else { None }
}

fn to_status(error: &AuthnError) -> Status {
    let message = error.to_string();
    match error {
        AuthnError::Unavailable(_) | AuthnError::TooManyReviews(_) => Status::unavailable(message),
        AuthnError::NoCredential { .. } | AuthnError::UnknownNames(_) | AuthnError::Token(_) => {
            Status::unauthenticated(message)
        }
    }
}
