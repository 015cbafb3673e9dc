//! Who is let in by which listener, and what a client that is not let in is told.

use std::sync::Arc;

use tonic::{Request, Status, metadata::MetadataMap};
use tracing::info;

use super::{connection::Peer, tls::Tls};
use crate::identity::{Access, Denied, Identity, Unidentified};

/// What TLS listeners share: the frontend's certificate, and how clients are known.
#[derive(Clone, Debug)]
pub struct Gate {
    pub(super) tls: Tls,
    access: Arc<Access>,
}

/// What a listener knows of its clients.
#[derive(Clone, Debug)]
pub(super) enum Entrance {
    /// Nothing: whoever comes in is trusted.
    Open,
    Guarded(Gate),
}

impl Gate {
    /// With this certificate, for the clients that `access` knows.
    #[must_use]
    pub fn new(tls: Tls, access: Access) -> Self {
        Self { tls, access: Arc::new(access) }
    }
}

impl Entrance {
    /// Who makes a request.
    pub(super) async fn identify<T: Sync>(&self, request: &Request<T>) -> Result<Identity, Status> {
        let Self::Guarded(gate) = self else { return Ok(Identity::Trusted) };
        let peer: Option<&Peer> = request.extensions().get();
        let names = peer.and_then(|peer| peer.names.as_deref());
        let identified = gate.access.identify(names, bearer(request.metadata())).await;
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

fn to_status(error: &Unidentified) -> Status {
    let message = error.to_string();
    match error {
        Unidentified::Unavailable(_) => Status::unavailable(message),
        Unidentified::NoCredential { .. } | Unidentified::UnknownNames(_) | Unidentified::Token(_) => {
            Status::unauthenticated(message)
        }
    }
}

/// What somebody is told who may not have what was asked for.
pub(super) fn denied(denied: &Denied) -> Status {
    Status::permission_denied(denied.to_string())
}
