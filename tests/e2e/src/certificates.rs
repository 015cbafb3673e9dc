//! An authority that signs certificates of frontends, nodes and administrators, valid and invalid ones.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, date_time_ymd,
};

/// A self-signed authority.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// When a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub enum Validity {
    /// From 2020 to 2100.
    Now,
    /// Until 2021.
    Past,
    /// From 2099.
    Future,
}

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
        self.sign_valid(name, organization, hosts, Validity::Now)
    }

    /// The same, with a period of validity.
    #[must_use]
    pub fn sign_valid(&self, name: &str, organization: &str, hosts: &[&str], validity: Validity) -> (String, String) {
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
