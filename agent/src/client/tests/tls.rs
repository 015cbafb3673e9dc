//! Who is believed, and who is told what: certificates made for the test, a server on loopback.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::fs;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::*;

/// An authority, and what it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key, both PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// A server at `https://localhost:<port>` that takes only nodes whose certificate `authority` has signed. Its streams tell the
/// test which `authorization` they carry.
async fn serve(authority: &Authority) -> (String, mpsc::UnboundedReceiver<Option<String>>) {
    let (certificate, key) = authority.sign("localhost");
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
    let (certificate, key) = signer.sign("node-1");
    fs::write(path("ca.crt"), authorities.pem()).await.unwrap();
    fs::write(path("tls.crt"), certificate).await.unwrap();
    fs::write(path("tls.key"), key).await.unwrap();
    fs::write(path("token"), token).await.unwrap();
    Credentials {
        authorities: Some(path("ca.crt")),
        identity: Some((path("tls.crt"), path("tls.key"))),
        token: Some(path("token")),
    }
}

#[tokio::test]
async fn both_ends_are_checked_and_files_may_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(), Authority::new());
    let (address, mut tokens) = serve(&ours).await;
    let credentials = write(dir.path(), &ours, &ours, "first\n").await;
    let mut grpc = Grpc::new(GrpcOptions { endpoints: vec![address], credentials }).unwrap();
    grpc.connect(mk_hello()).await.unwrap();
    assert_eq!(tokens.recv().await.unwrap().as_deref(), Some("Bearer first"));

    // A frontend that the node does not trust is told nothing.
    write(dir.path(), &other, &ours, "secret").await;
    grpc.connect(mk_hello()).await.unwrap_err();
    // A node that the frontend does not trust is not let in.
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
async fn token_is_never_sent_in_the_clear() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let credentials = write(dir.path(), &authority, &authority, "secret").await;
    let mut frontend = super::serve();
    let endpoints = vec![frontend.address.clone()];
    let mut grpc = Grpc::new(GrpcOptions { endpoints, credentials }).unwrap();
    let (_session, peer) = frontend.session(&mut grpc).await;
    assert_eq!(peer.metadata.get("authorization"), None);
}
