//! Reads the names in a client certificate. The certificate has been verified before.

use anyhow::{Result, anyhow, ensure};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    prelude::{FromDer as _, X509Certificate},
    x509::AttributeTypeAndValue,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// The common name of the subject.
    pub(crate) common_name: Option<String>,
    /// The organizations of the subject: groups, in Kubernetes.
    pub(crate) organizations: Vec<String>,
}

/// When a certificate expires, to be logged.
pub(crate) fn not_after(certificate: &CertificateDer<'_>) -> Result<String> {
    Ok(parse(certificate)?.validity().not_after.to_string())
}

impl Names {
    /// Reads a certificate. One with several common names is rejected as ambiguous.
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Result<Self> {
        let certificate = parse(certificate)?;
        let subject = certificate.subject();

        let mut common_names = subject.iter_common_name().map(text);
        let common_name = common_names.next().transpose()?;
        ensure!(common_names.next().is_none(), "more than one common name");

        let organizations = subject.iter_organization().map(text).collect::<Result<_>>()?;
        Ok(Self { common_name, organizations })
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>> {
    let (rest, parsed) = X509Certificate::from_der(certificate)?;
    ensure!(rest.is_empty(), "data follows the certificate");
    Ok(parsed)
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String> {
    let text = attribute.as_str().map_err(|error| anyhow!("read a name of the subject: {error}"))?;
    Ok(text.to_owned())
}
