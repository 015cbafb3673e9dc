//! Each failure as rustls and the kernel report it, from real handshakes.

use std::{net::TcpListener as StdListener, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    pki_types::{CertificateDer, PrivateKeyDer},
};

use super::*;

const SETTINGS: ConnectSettings<'_> = ConnectSettings {
    server: "the API server",
    address: "clusters[].cluster.server",
    ca: "certificate-authority",
    server_name: "tls-server-name",
    client_certificate: "client-certificate",
};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Issuer {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// The parameters of a certificate for `api.example`, valid now.
fn leaf() -> CertificateParams {
    CertificateParams::new(vec!["api.example".to_owned()]).unwrap()
}

struct Server {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Server {
    fn new(issuer: &Issuer, params: &CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, issuer).unwrap();
        Self { chain: vec![certificate.der().clone()], key: PrivateKeyDer::Pkcs8(key.serialize_der().into()) }
    }
}

/// What the client of a handshake over memory reports, wrapped as tokio-rustls wraps it.
fn handshake(server: Server, trusted: &Issuer, name: &'static str) -> io::Error {
    let provider = || Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let mut client = ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
    let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(server.chain, server.key).unwrap();
    let mut server = ServerConnection::new(Arc::new(config)).unwrap();
    loop {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets().unwrap();
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        if let Err(error) = client.process_new_packets() {
            return io::Error::new(io::ErrorKind::InvalidData, error);
        }
        assert!(client.is_handshaking(), "the client accepts the certificate");
    }
}

/// An error of another library around it.
#[derive(Debug, thiserror::Error)]
#[error("client error (Connect)")]
struct Outer(#[source] io::Error);

#[track_caller]
fn assert_advice(error: io::Error, failure: impl Fn(&ConnectFailure) -> bool, words: &[&str]) {
    let error = Outer(io::Error::other(error));
    let found = ConnectFailure::of(&error).unwrap_or_else(|| panic!("{error:?}"));
    assert!(failure(&found), "{found:?}");
    let advice = connect_advice(&error, &SETTINGS).unwrap();
    for word in words {
        assert!(advice.contains(word), "{word:?} is not in {advice:?}");
    }
    assert!(!advice.contains('\n'));
}

#[test]
fn wrong_ca() {
    let error = handshake(Server::new(&authority("a"), &leaf()), &authority("b"), "api.example");
    assert_advice(
        error,
        |found| *found == ConnectFailure::UnknownIssuer,
        &["no CA in certificate-authority has signed"],
    );
}

#[test]
fn recreated_ca_of_the_same_name() {
    let error = handshake(Server::new(&authority("a"), &leaf()), &authority("a"), "api.example");
    assert_advice(error, |found| *found == ConnectFailure::UnknownIssuer, &["may have been replaced"]);
}

#[test]
fn ca_certificate_as_server_certificate() {
    let mut params = leaf();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let der = key.serialize_der();
    let own = CertifiedIssuer::self_signed(params, key).unwrap();
    let server = Server { chain: vec![own.der().clone()], key: PrivateKeyDer::Pkcs8(der.into()) };
    let error = handshake(server, &own, "api.example");
    let is_it = |found: &ConnectFailure| *found == ConnectFailure::CaUsedAsServerCertificate;
    assert_advice(error, is_it, &["uses a CA certificate as its server certificate", "certificate-authority"]);
}

#[test]
fn expired_certificate_names_both_times() {
    let ca = authority("a");
    let mut params = leaf();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2020, 2, 1);
    let error = handshake(Server::new(&ca, &params), &ca, "api.example");
    let is_it = |found: &ConnectFailure| matches!(found, ConnectFailure::Expired { not_after: Some(_) });
    assert_advice(error, is_it, &["expired at 2020-02-01T00:00:00Z", "the local time is 2"]);
}

#[test]
fn certificate_of_the_future_asks_to_compare_clocks() {
    let ca = authority("a");
    let mut params = leaf();
    params.not_before = date_time_ymd(2098, 1, 1);
    params.not_after = date_time_ymd(2099, 1, 1);
    let error = handshake(Server::new(&ca, &params), &ca, "api.example");
    let is_it = |found: &ConnectFailure| matches!(found, ConnectFailure::NotYetValid { not_before: Some(_) });
    assert_advice(
        error,
        is_it,
        &["not valid before 2098-01-01T00:00:00Z", "the local time is 2", "compare the clocks"],
    );
}

#[test]
fn wrong_name_lists_the_names_of_the_certificate() {
    let ca = authority("a");
    let params = CertificateParams::new(vec!["api.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    let error = handshake(Server::new(&ca, &params), &ca, "10.0.0.2");
    let is_it = |found: &ConnectFailure| matches!(found, ConnectFailure::WrongName { expected: Some(_), .. });
    assert_advice(error, is_it, &["is for api.example, 10.0.0.1, not for 10.0.0.2", "tls-server-name"]);
}

#[test]
fn client_certificate_as_server_certificate() {
    let ca = authority("a");
    let mut params = leaf();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let error = handshake(Server::new(&ca, &params), &ca, "api.example");
    assert_advice(error, |found| *found == ConnectFailure::WrongPurpose, &["serverAuth"]);
}

#[test]
fn alert_about_the_client_certificate_is_recognized_from_its_text() {
    let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
    let kept = io::Error::other(alert.to_string());
    for error in [io::Error::other(alert), kept] {
        let is_it = |found: &ConnectFailure| *found == ConnectFailure::ClientCertificateRejected;
        assert_advice(error, is_it, &["(client-certificate)"]);
    }
}

#[test]
fn refused_port() {
    let address = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = std::net::TcpStream::connect(address).unwrap_err();
    assert_advice(error, |found| *found == ConnectFailure::Refused, &["nothing listens", "clusters[].cluster.server"]);
}

#[test]
fn name_that_does_not_resolve() {
    let error = std::net::TcpStream::connect("no-such-host.invalid:6443").unwrap_err();
    assert_advice(error, |found| *found == ConnectFailure::UnresolvedName, &["does not resolve", "DNS"]);
}

#[test]
fn other_errors_have_no_advice() {
    assert_eq!(connect_advice(&io::Error::other("disk full"), &SETTINGS), None);
}
