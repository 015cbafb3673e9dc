//! An authority that signs certificates of frontends, nodes and administrators.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, date_time_ymd,
};

/// A self-signed authority.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new authority, whose certificate has this common name and these host names.
    #[must_use]
    pub fn new(name: &str, hosts: &[&str]) -> Self {
        let mut params = params(name, "", hosts);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority"))
    }

    /// The authority's own certificate.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate with this common name, organization and host names, and its key.
    #[must_use]
    pub fn sign(&self, name: &str, organization: &str, hosts: &[&str]) -> (String, String) {
        let mut params = params(name, organization, hosts);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
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
