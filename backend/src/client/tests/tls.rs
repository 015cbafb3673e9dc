//! Certificates and tokens: which clients are accepted, and what errors advise. The test creates the certificates.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tokio::fs;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::*;

/// A CA.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, both PEM.
struct SignedCertificate {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, name: &str) -> SignedCertificate {
        self.sign_with(CertificateParams::new(vec![name.to_owned()]).unwrap())
    }

    /// An expired certificate and its key.
    fn sign_expired(&self, name: &str) -> SignedCertificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign_with(params)
    }

    fn sign_with(&self, params: CertificateParams) -> SignedCertificate {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        SignedCertificate { certificate, key: key.serialize_pem() }
    }
}

/// A server at `https://localhost:<port>` that takes only nodes whose certificate `authority` has signed. Its streams
/// tell the test which `authorization` they carry.
async fn serve(authority: &Authority) -> (String, mpsc::UnboundedReceiver<Option<String>>) {
    serve_as(authority, authority.sign("localhost")).await
}

/// A server with this certificate.
async fn serve_as(
    authority: &Authority,
    SignedCertificate { certificate, key }: SignedCertificate,
) -> (String, mpsc::UnboundedReceiver<Option<String>>) {
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(certificate, key))
        .client_ca_root(Certificate::from_pem(authority.pem()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let (opened, _peers) = mpsc::unbounded_channel();
    let (seen, tokens) = mpsc::unbounded_channel();
    let service = server::FairleadServer::with_interceptor(Scripted(opened), move |request: Request<()>| {
        let token = request.metadata().get("authorization").map(|token| token.to_str().unwrap().to_owned());
        seen.send(token).unwrap();
        Ok(request)
    });
    let server = Server::builder().tls_config(tls).unwrap().add_service(service);
    tokio::spawn(async move {
        let _peers = _peers;
        server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    (address, tokens)
}

async fn write(dir: &Path, authorities: &Authority, signer: &Authority, token: &str) -> Credentials {
    let path = |name: &str| dir.join(name);
    let SignedCertificate { certificate, key } = signer.sign("node-1");
    fs::write(path("ca.crt"), authorities.pem()).await.unwrap();
    fs::write(path("tls.crt"), certificate).await.unwrap();
    fs::write(path("tls.key"), key).await.unwrap();
    fs::write(path("token"), token).await.unwrap();
    Credentials {
        authorities: Some(path("ca.crt")),
        identity: Some((path("tls.crt"), path("tls.key"))),
        token: Some(path("token")),
        frontend_name: None,
    }
}

/// The error of connecting to a frontend.
async fn failure(address: String, credentials: Credentials) -> String {
    let mut grpc = Grpc::new(GrpcOptions { endpoints: vec![address], credentials, ..GrpcOptions::default() }).unwrap();
    format!("{:#}", grpc.connect(mk_hello()).await.expect_err("it connects"))
}

#[tokio::test]
async fn both_ends_are_authenticated_and_files_may_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(), Authority::new());
    let (address, mut tokens) = serve(&ours).await;
    let credentials = write(dir.path(), &ours, &ours, "first\n").await;
    let mut grpc = Grpc::new(GrpcOptions { endpoints: vec![address], credentials, ..GrpcOptions::default() }).unwrap();
    grpc.connect(mk_hello()).await.unwrap();
    assert_eq!(tokens.recv().await.unwrap().as_deref(), Some("Bearer first"));

    // The token is not sent to a frontend that the node does not trust.
    write(dir.path(), &other, &ours, "secret").await;
    grpc.connect(mk_hello()).await.unwrap_err();
    // The frontend rejects a node that it does not trust.
    write(dir.path(), &ours, &other, "secret").await;
    grpc.connect(mk_hello()).await.unwrap_err();
    assert!(tokens.try_recv().is_err());

    write(dir.path(), &ours, &ours, "second").await;
    grpc.connect(mk_hello()).await.unwrap();
    assert_eq!(tokens.recv().await.unwrap().as_deref(), Some("Bearer second"));

    fs::remove_file(dir.path().join("token")).await.unwrap();
    let error = grpc.connect(mk_hello()).await.unwrap_err();
    assert!(format!("{error:#}").contains("token"), "{error:#}");
}

#[tokio::test]
async fn changed_bundle_is_read_for_the_next_connection_and_each_of_its_cas_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    let credentials = write(dir.path(), &old, &old, "token").await;
    let (before, _tokens) = serve(&old).await;
    let (after, _tokens) = serve_as(&old, new.sign("localhost")).await;
    let grpc = |address: &String| {
        let (endpoints, credentials) = (vec![address.clone()], credentials.clone());
        Grpc::new(GrpcOptions { endpoints, credentials, ..GrpcOptions::default() }).unwrap()
    };
    let (mut to_before, mut to_after) = (grpc(&before), grpc(&after));
    to_before.connect(mk_hello()).await.unwrap();
    to_after.connect(mk_hello()).await.expect_err("the new CA is not trusted yet");
    fs::write(dir.path().join("ca.crt"), old.pem() + &new.pem()).await.unwrap();
    to_before.connect(mk_hello()).await.unwrap();
    to_after.connect(mk_hello()).await.unwrap();
    fs::write(dir.path().join("ca.crt"), new.pem()).await.unwrap();
    to_before.connect(mk_hello()).await.expect_err("the old CA is no longer trusted");
    to_after.connect(mk_hello()).await.unwrap();
}

#[tokio::test]
async fn certificate_must_contain_the_expected_name() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let (address, _tokens) = serve_as(&ours, ours.sign("frontend.example")).await;
    let credentials = write(dir.path(), &ours, &ours, "token").await;
    for address in [address.clone(), address.replace("localhost", "127.0.0.1")] {
        let error = failure(address.clone(), credentials.clone()).await;
        assert!(error.contains("--frontend-name") && error.contains("frontend.example"), "{error}");
        let named = Credentials { frontend_name: Some("frontend.example".to_owned()), ..credentials.clone() };
        let mut grpc =
            Grpc::new(GrpcOptions { endpoints: vec![address], credentials: named, ..GrpcOptions::default() }).unwrap();
        grpc.connect(mk_hello()).await.unwrap();
    }
    // A certificate for the IP address needs no name.
    let (address, _tokens) = serve_as(&ours, ours.sign("127.0.0.1")).await;
    let address = address.replace("localhost", "127.0.0.1");
    let mut grpc = Grpc::new(GrpcOptions { endpoints: vec![address], credentials, ..GrpcOptions::default() }).unwrap();
    grpc.connect(mk_hello()).await.unwrap();
}

#[tokio::test]
async fn tls_errors_advise_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(), Authority::new());
    let (address, _tokens) = serve(&ours).await;
    let credentials = write(dir.path(), &other, &ours, "token").await;
    let error = failure(address.clone(), credentials.clone()).await;
    assert!(error.contains("no CA in --tls-ca has signed"), "{error}");

    write(dir.path(), &ours, &other, "token").await;
    let error = failure(address.clone(), credentials.clone()).await;
    assert!(error.contains("rejects the client certificate (--tls-cert)"), "{error}");

    write(dir.path(), &ours, &ours, "token").await;
    let SignedCertificate { certificate, key } = ours.sign_expired("node-1");
    fs::write(dir.path().join("tls.crt"), certificate).await.unwrap();
    fs::write(dir.path().join("tls.key"), key).await.unwrap();
    let error = failure(address.clone(), credentials.clone()).await;
    assert!(error.contains("rejects the client certificate (--tls-cert)"), "{error}");
    assert!(error.contains("tls.crt: the certificate expired at 2002-01-01T00:00:00Z"), "{error}");

    let another = ours.sign("node-1");
    fs::write(dir.path().join("tls.key"), another.key).await.unwrap();
    let error = failure(address.clone(), credentials.clone()).await;
    assert!(error.contains("tls.key is not the private key of --tls-cert"), "{error}");
    let error = failure(address, Credentials { authorities: None, ..credentials.clone() }).await;
    assert!(error.contains("an https address requires --tls-ca: a PEM file with the CA certificate"), "{error}");
    write(dir.path(), &ours, &ours, "token").await;

    let (address, _tokens) = serve_as(&ours, ours.sign_expired("localhost")).await;
    let error = failure(address, credentials.clone()).await;
    assert!(error.contains("the certificate of the frontend expired"), "{error}");

    fs::remove_file(dir.path().join("tls.key")).await.unwrap();
    let (address, _tokens) = serve(&ours).await;
    let error = failure(address, credentials.clone()).await;
    assert!(error.contains("cannot read") && error.contains("tls.key (--tls-key: check the path"), "{error}");
    assert!(error.contains("No such file"), "{error}");
    write(dir.path(), &ours, &ours, "token").await;

    let plain = Server::builder().add_service(server::FairleadServer::new(Scripted(mpsc::unbounded_channel().0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(plain.serve_with_incoming(TcpListenerStream::new(listener)));
    let error = failure(address, credentials).await;
    assert!(error.contains("does not speak TLS"), "{error}");
}

#[test]
fn rejected_calls_advise_what_to_do() {
    let advice = |status: Status| advice(&StreamError::Status(status)).unwrap_or_default();
    assert!(advice(Status::permission_denied("node a may not follow the view of node b")).contains("--node-name"));
    assert!(advice(Status::unauthenticated("no credential: present one")).contains("--token-file"));
    assert_eq!(advice(Status::unauthenticated("certificate identity not recognized: its subject has no CN")), "");
    assert_eq!(advice(Status::unavailable("going")), "");
}

#[tokio::test]
async fn token_is_never_sent_in_the_clear() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let credentials = write(dir.path(), &authority, &authority, "secret").await;
    let mut frontend = super::serve();
    let endpoints = vec![frontend.address.clone()];
    let mut grpc = Grpc::new(GrpcOptions { endpoints, credentials, ..GrpcOptions::default() }).unwrap();
    let (_session, peer) = frontend.session(&mut grpc).await;
    assert_eq!(peer.metadata.get("authorization"), None);
}
