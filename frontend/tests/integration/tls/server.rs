//! A frontend with TLS, whose files a test may replace, and clients with various credentials.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use fairlead_frontend::{
    Config, Listener, ReloadingTls, TlsAuth, TlsFiles,
    identity::{Authenticator, AuthnOptions},
    object::{ObjectKind, SourceUpdate},
};
use proto::v1::{self, fairlead_client::FairleadClient, server_message};
use runtime::Trigger;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    version::TLS13,
};
use tokio::{net::TcpStream, sync::mpsc};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{
    Request, Status,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{
    certificates::{Authority, Pair},
    running::RunningFrontend,
    stream::Stream,
    transport::{self, ReadRate},
};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    /// The CA of the frontend's certificate and of accepted client certificates.
    pub(crate) authority: Authority,
    pub(crate) address: SocketAddr,
    pub(crate) directory: tempfile::TempDir,
    _updates: mpsc::Sender<SourceUpdate>,
    _trigger: Trigger,
}

/// Makes calls, with a token or without.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) channel: Channel,
    token: Option<&'static str>,
}

impl Server {
    pub(crate) async fn start(access: AuthnOptions) -> Self {
        Self::with(Config::default(), access).await
    }

    pub(crate) async fn with(config: Config, access: AuthnOptions) -> Self {
        let authority = Authority::new();
        let directory = tempfile::tempdir().unwrap();
        write(&directory, &authority.server("localhost"), &authority);
        let tls = ReloadingTls::load(files(&directory)).await.unwrap();
        let auth = TlsAuth::new(tls.clone(), Authenticator::new(access).await.unwrap());
        let running = RunningFrontend::start(config);
        running.send(ObjectKind::ALL.map(|kind| SourceUpdate::Replace(kind, Vec::new()))).await;
        running.ready.wait().await;
        let listener = Listener::bind_tls("127.0.0.1:0", auth).await.unwrap();
        let Listener::Tls(_, address, _) = listener else { panic!("{listener}") };
        tokio::spawn(tls.watch_files(running.shutdown.clone()));
        running.serve(listener);
        let RunningFrontend { updates, trigger, .. } = running;
        Self { authority, address, directory, _updates: updates, _trigger: trigger }
    }

    /// Identifies nodes by their certificates, and `ops` as an admin.
    pub(crate) async fn plain() -> Self {
        let admins = ["ops".to_owned()].into();
        Self::start(AuthnOptions { admins, ..AuthnOptions::default() }).await
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Connects with a client certificate of this server's CA, or without.
    pub(crate) async fn client(&self, pair: Option<Pair>) -> Client {
        self.connect(&self.authority, pair).await.unwrap()
    }

    /// A TLS connection without HTTP/2, with a client certificate or without.
    pub(crate) async fn tls_stream(&self, stream: TcpStream, pair: Option<Pair>) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(&[&TLS13]).unwrap().with_root_certificates(roots);
        let mut config = match pair {
            Some(Pair { certificate, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }

    /// Connects without a certificate. The counter is that of the bytes in both directions, before encryption.
    pub(crate) async fn counting_channel(&self, stream: TcpStream) -> (Channel, Arc<AtomicU64>) {
        let stream = self.tls_stream(stream, None).await;
        transport::channel(Endpoint::from_static("http://localhost"), stream, ReadRate::Full).await.unwrap()
    }

    /// Connects, trusting the CA `authority`.
    pub(crate) async fn connect(
        &self,
        authority: &Authority,
        pair: Option<Pair>,
    ) -> Result<Client, tonic::transport::Error> {
        self.connect_trusting(&authority.pem(), pair).await
    }

    /// Connects, trusting the CAs of a bundle.
    pub(crate) async fn connect_trusting(
        &self,
        bundle: &str,
        pair: Option<Pair>,
    ) -> Result<Client, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(bundle));
        if let Some(Pair { certificate, key }) = pair {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = Endpoint::try_from(format!("https://localhost:{}", self.address.port())).unwrap();
        let channel = endpoint.tls_config(tls)?.connect().await?;
        Ok(Client { channel, token: None })
    }
}

/// The paths of the TLS files of a server.
pub(crate) fn files(directory: &tempfile::TempDir) -> TlsFiles {
    let path = |name| directory.path().join(name);
    TlsFiles { certificate: path("tls.crt"), key: path("tls.key"), client_authorities: Some(path("clients.crt")) }
}

pub(crate) fn write(directory: &tempfile::TempDir, pair: &Pair, clients: &Authority) {
    let write = |name, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("tls.crt", &pair.certificate);
    write("tls.key", &pair.key);
    write("clients.crt", &clients.pem());
}

impl Client {
    pub(crate) fn with_token(&self, token: &'static str) -> Self {
        Self { token: Some(token), ..self.clone() }
    }

    /// Sends Hello and waits for Welcome.
    pub(crate) async fn watch(&self, node: &str, role: v1::Role) -> Result<Stream, Status> {
        let hello = v1::Hello { protocol_version: 1, node: node.to_owned(), role: role.into(), ..v1::Hello::default() };
        let (metadata, ..) = self.request(()).into_parts();
        let mut stream = Stream::of(FairleadClient::new(self.channel.clone()), metadata, hello).await?;
        assert!(matches!(stream.next().await?, Some(server_message::Message::Welcome(_))));
        Ok(stream)
    }

    pub(crate) async fn status(&self) -> Result<v1::StatusResponse, Status> {
        self.status_of("").await
    }

    pub(crate) async fn status_of(&self, node: &str) -> Result<v1::StatusResponse, Status> {
        let mut client = FairleadClient::new(self.channel.clone());
        let request = v1::StatusRequest { node: node.to_owned(), ..v1::StatusRequest::default() };
        Ok(client.status(self.request(request)).await?.into_inner())
    }

    /// The first message about the pods of a node.
    pub(crate) async fn drains(&self, node: &str) -> Result<Option<v1::DrainLevels>, Status> {
        let mut client = FairleadClient::new(self.channel.clone());
        let request = v1::DrainsRequest { node: node.to_owned() };
        client.drains(self.request(request)).await?.into_inner().message().await
    }

    pub(crate) async fn endpoints(&self) -> Result<v1::EndpointsResponse, Status> {
        let mut client = FairleadClient::new(self.channel.clone());
        let [namespace, name, node] = ["ns", "s0", "node-a"].map(str::to_owned);
        let request = v1::EndpointsRequest { namespace, name, node, port: String::new() };
        Ok(client.endpoints(self.request(request)).await?.into_inner())
    }

    pub(crate) async fn plan(&self) -> Result<v1::PlanResponse, Status> {
        let mut client = FairleadClient::new(self.channel.clone());
        // Larger than other requests may be.
        let documents = " ".repeat(64 << 10);
        Ok(client.plan(self.request(v1::PlanRequest { documents })).await?.into_inner())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        request
    }
}
