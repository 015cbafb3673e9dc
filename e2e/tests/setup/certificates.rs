//! Valid and invalid certificates.

use super::NAME;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, date_time_ymd,
};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

#[derive(Clone, Copy)]
pub(crate) enum Validity {
    Now,
    Past,
    Future,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = params(name, "", &[NAME]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority"))
    }

    /// The authority's own certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// The authority's certificate and key, as used by a misconfigured server.
    pub(crate) fn as_server(&self) -> (String, String) {
        (self.0.pem(), self.0.key().serialize_pem())
    }

    /// A certificate and its key.
    pub(crate) fn sign(&self, name: &str, organization: &str, hosts: &[&str], validity: Validity) -> (String, String) {
        let mut params = params(name, organization, hosts);
        let (begin, end) = match validity {
            Validity::Now => (2020, 2100),
            Validity::Past => (2020, 2021),
            Validity::Future => (2099, 2100),
        };
        params.not_before = date_time_ymd(begin, 1, 1);
        params.not_after = date_time_ymd(end, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

fn params(name: &str, organization: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("names");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params
}
