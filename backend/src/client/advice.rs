//! What to do about a connection that is not let in: the errors of TLS and the statuses of frontends, in terms of flags.

use std::{error::Error, io};

use rustls::{AlertDescription, CertificateError};
use tonic::{Code, Status};

/// What a frontend says about a certificate that it does not accept.
const ALERTS: [AlertDescription; 4] = [
    AlertDescription::CertificateExpired,
    AlertDescription::UnknownCA,
    AlertDescription::DecryptError,
    AlertDescription::BadCertificate,
];

/// What somebody who reads the log can do about an error, if that is known.
pub(super) fn advice(mut error: &(dyn Error + 'static)) -> Option<&'static str> {
    loop {
        let advice = match error.downcast_ref::<Status>() {
            Some(status) => about_status(status.code()),
            None => tls_error(error).as_ref().and_then(about_tls),
        };
        match advice {
            Some(advice) => return Some(advice),
            None => error = error.source()?,
        }
    }
}

/// TLS errors travel within I/O errors, whose `source` is that of what they hold. HTTP/2 keeps only the text of those.
fn tls_error(error: &(dyn Error + 'static)) -> Option<rustls::Error> {
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref)?;
    if let Some(error) = held.downcast_ref::<rustls::Error>() {
        return Some(error.clone());
    }
    let text = held.to_string();
    ALERTS.map(rustls::Error::AlertReceived).into_iter().find(|alert| alert.to_string() == text)
}

fn about_status(code: Code) -> Option<&'static str> {
    match code {
        Code::Unauthenticated => Some(
            "the frontend does not know who this is: it takes a certificate (--tls-cert, --tls-key) or a token (--token-file)",
        ),
        Code::PermissionDenied => Some(
            "a certificate or token is for one node: check that --node-name (--node) is that node's, and that --tls-cert or \
             --token-file are not another's",
        ),
        _ => None,
    }
}

fn about_tls(error: &rustls::Error) -> Option<&'static str> {
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            // The latter when one of the same name has signed it: an authority that was made anew.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Some("no authority in --tls-ca has signed the frontend's certificate")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                Some("the frontend's certificate has expired, or this machine's clock is wrong")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Some("the frontend's certificate is not valid yet, or this machine's clock is wrong")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Some(
                "the frontend's certificate is for another name: say which by --frontend-name, if it is the right one",
            ),
            _ => None,
        },
        rustls::Error::AlertReceived(Alert::CertificateExpired) => {
            Some("this node's certificate (--tls-cert) has expired, or a clock is wrong")
        }
        rustls::Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError | Alert::BadCertificate) => Some(
            "this node's certificate (--tls-cert) is of no authority that the frontend believes (its --tls-client-ca)",
        ),
        rustls::Error::InvalidMessage(_) => Some("what listens there does not speak TLS"),
        _ => None,
    }
}
