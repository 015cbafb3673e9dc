//! What an operator can do about a connection that fails, in terms of flags.

use std::error::Error;

use runtime::connect_advice::{ConnectSettings, causes, connect_advice};
use tonic::Code;

use super::error::StreamError;

/// The flags of a backend.
const SETTINGS: ConnectSettings<'_> = ConnectSettings {
    server: "the frontend",
    address: "--frontend",
    ca: "--tls-ca",
    server_name: "--frontend-name",
    client_certificate: "--tls-cert",
};

/// What to do about an error, if that is known.
pub(super) fn advice(error: &(dyn Error + 'static)) -> Option<String> {
    let code = causes(error).find_map(|cause| match cause.downcast_ref::<StreamError>()? {
        StreamError::Status(status) => Some(status.code()),
        StreamError::Invalid(_) => None,
    });
    let advice = match code {
        Some(Code::Unauthenticated) => {
            "the frontend needs a client certificate (--tls-cert, --tls-key) or a token (--token-file)"
        }
        Some(Code::PermissionDenied) => {
            "a certificate or token is valid for one node: check that --node-name (--node) is that node, and that \
             --tls-cert or --token-file are not another node's"
        }
        _ if causes(error).any(|cause| cause.to_string().starts_with("HTTP/2 was not negotiated")) => {
            "the server at that address is not a frontend: check the host and the port in --frontend"
        }
        _ => return connect_advice(error, &SETTINGS),
    };
    Some(advice.to_owned())
}
