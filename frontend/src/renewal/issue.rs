//! Keys and certificates: a new CA, and a certificate that a CA signs.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SanType, date_time_ymd,
};
use ring::digest::{SHA256, digest};
use runtime::certificate::Validity;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use x509_parser::{
    extensions::GeneralName,
    pem::Pem,
    prelude::{FromDer as _, X509Certificate},
};

use super::plan::Fingerprint;

/// A certificate in PEM, with what decides about its renewal.
#[derive(Clone, Debug)]
pub(super) struct CertificatePem {
    pub(super) pem: String,
    der: Vec<u8>,
    pub(super) fingerprint: Fingerprint,
    pub(super) validity: Validity,
}

/// A new certificate and its key, both PEM.
pub(super) struct IssuedCertificate {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The certificates of a PEM text, in order. Other blocks are ignored.
pub(super) fn certificates(text: &str) -> Result<Vec<CertificatePem>> {
    let mut certificates = Vec::new();
    for pem in Pem::iter_from_buffer(text.as_bytes()) {
        let pem = pem.context("invalid PEM")?;
        if pem.label == "CERTIFICATE" {
            certificates.push(CertificatePem::of_der(pem.contents)?);
        }
    }
    Ok(certificates)
}

/// A new CA with this common name.
pub(super) fn create_authority(name: &str, validity: Validity) -> Result<IssuedCertificate> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, validity);
    let key = KeyPair::generate()?;
    Ok(IssuedCertificate { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// Signs a certificate with a new key, for the names of another one.
pub(super) fn issue(
    authority: &CertificatePem,
    authority_key: &str,
    old: &CertificatePem,
    validity: Validity,
) -> Result<IssuedCertificate> {
    let issuer = Issuer::from_ca_cert_der(&authority.der.as_slice().into(), read_key(authority_key)?)?;
    let mut params = CertificateParams::default();
    let old = old.parse()?;
    if let Some(name) = old.subject().iter_common_name().next() {
        params.distinguished_name = common_name(name.as_str().context("the common name is no text")?);
    }
    params.subject_alt_names = names(&old)?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut params, validity);
    let key = KeyPair::generate()?;
    Ok(IssuedCertificate { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn set_validity(params: &mut CertificateParams, Validity { not_before, not_after }: Validity) {
    let time = |seconds: i64| {
        let seconds = u64::try_from(seconds).unwrap_or_default();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = time(not_before);
    params.not_after = time(not_after);
}

/// The DNS names and IP addresses of a certificate.
fn names(certificate: &X509Certificate<'_>) -> Result<Vec<SanType>> {
    let extension = certificate.subject_alternative_name()?.context("it has no subject alternative names")?;
    let names = extension.value.general_names.iter().map(|name| match name {
        GeneralName::DNSName(name) => Ok(SanType::DnsName((*name).try_into()?)),
        GeneralName::IPAddress(bytes) => Ok(SanType::IpAddress(match (<[u8; 4]>::try_from(*bytes), bytes.len()) {
            (Ok(bytes), _) => IpAddr::from(bytes),
            (_, 16) => IpAddr::from(<[u8; 16]>::try_from(*bytes)?),
            _ => bail!("an IP address has {} bytes", bytes.len()),
        })),
        other => bail!("unsupported subject alternative name {other:?}"),
    });
    names.collect()
}

/// Reads a key in PKCS#8, or an RSA key in PKCS#1, which Helm creates.
fn read_key(pem: &str) -> Result<KeyPair> {
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("invalid private key of the CA")?;
    let key = match key {
        PrivateKeyDer::Pkcs1(key) => PrivatePkcs8KeyDer::from(rsa_to_pkcs8(key.secret_pkcs1_der())),
        PrivateKeyDer::Pkcs8(key) => key,
        _ => bail!("the private key of the CA is neither PKCS#8 nor PKCS#1"),
    };
    KeyPair::try_from(&key).context("unsupported private key of the CA")
}

/// `PrivateKeyInfo` of RFC 5208 with an `RSAPrivateKey`.
fn rsa_to_pkcs8(key: &[u8]) -> Vec<u8> {
    /// Version 0; the algorithm rsaEncryption (1.2.840.113549.1.1.1) without parameters.
    const HEADER: &[u8] = b"\x02\x01\x00\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
    let octets = der(0x04, key);
    der(0x30, &[HEADER, &octets].concat())
}

/// A DER value of this type.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut value = vec![tag];
    match content.len() {
        0..0x80 => value.push(content.len() as u8),
        _ => {
            value.push(0x80 | length.len() as u8);
            value.extend(length);
        }
    }
    value.extend(content);
    value
}

// === impl CertificatePem ===

impl CertificatePem {
    fn of_der(der: Vec<u8>) -> Result<Self> {
        let (rest, certificate) = X509Certificate::from_der(&der).context("invalid certificate")?;
        ensure!(rest.is_empty(), "data follows a certificate");
        let validity = certificate.validity();
        let validity =
            Validity { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() };
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, &der).as_ref());
        let pem = pem(&der);
        Ok(Self { pem, der, fingerprint: Fingerprint(fingerprint), validity })
    }

    fn parse(&self) -> Result<X509Certificate<'_>> {
        Ok(X509Certificate::from_der(&self.der)?.1)
    }

    /// Whether it is a CA with this common name that has signed itself.
    pub(super) fn is_authority(&self, name: &str) -> bool {
        let Ok(certificate) = self.parse() else { return false };
        let mut names = certificate.subject().iter_common_name();
        certificate.is_ca()
            && names.any(|common_name| common_name.as_str() == Ok(name))
            && certificate.verify_signature(None).is_ok()
    }

    /// Whether this CA has signed the certificate.
    pub(super) fn has_signed(&self, certificate: &Self) -> bool {
        let (Ok(authority), Ok(certificate)) = (self.parse(), certificate.parse()) else { return false };
        certificate.issuer() == authority.subject()
            && certificate.verify_signature(Some(authority.public_key())).is_ok()
    }

    /// Its subject alternative names.
    #[cfg(test)]
    pub(super) fn server_names(&self) -> Vec<SanType> {
        names(&self.parse().unwrap()).unwrap()
    }

    /// Whether this is its key.
    pub(super) fn has_key(&self, key: &str) -> Result<bool> {
        Ok(read_key(key)?.subject_public_key_info() == self.parse()?.public_key().raw)
    }
}

fn pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
