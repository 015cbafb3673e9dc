//! Generates CAs and certificates.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, date_time_ymd,
};

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server certificate.
    pub(crate) fn server(&self, name: &str) -> Pair {
        self.sign(CertificateParams::new(vec![name.to_owned()]).unwrap())
    }

    /// A client certificate of a node, as kubelets have it.
    pub(crate) fn node(&self, name: &str) -> Pair {
        self.sign(subject(&format!("system:node:{name}"), "system:nodes"))
    }

    /// A client certificate with a common name.
    pub(crate) fn named(&self, name: &str) -> Pair {
        self.sign(subject(name, "users"))
    }

    /// An expired client certificate of a node.
    pub(crate) fn expired(&self, name: &str) -> Pair {
        let mut params = subject(&format!("system:node:{name}"), "system:nodes");
        (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

fn subject(name: &str, organization: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for (kind, value) in [(DnType::CommonName, name), (DnType::OrganizationName, organization)] {
        if !value.is_empty() {
            params.distinguished_name.push(kind, value);
        }
    }
    params
}
