//! The API server as the operator configured it: a client, and the settings that logs and advice refer to.

use std::{io, path::Path, sync::Arc, time::Duration};

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use futures::{AsyncBufRead, TryStreamExt as _};
use http::{Response, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Limited};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::Status,
};
use runtime::{connect_advice::ConnectSettings, failure::chain};

use super::{
    advice::advice,
    request::{MAX_RESPONSE_BYTES, RequestError},
};

/// Where a pod finds the CA certificate of its cluster, and the token of its ServiceAccount.
const POD_FILES: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The longest time for a connection, with TLS. Where packets are lost, the kernel sends the first one again at ever
/// longer intervals; a new attempt reaches an API server that is back sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of the API server. It connects with the first request.
#[derive(Clone)]
pub struct KubernetesApi {
    client: Client,
    /// `host:port`.
    server: String,
    pub(super) settings: Arc<ApiSettings>,
}

/// What an operator can change about the connection to the API server, by name.
#[derive(Debug)]
pub(super) struct ApiSettings {
    pub(super) address: String,
    pub(super) ca: String,
    pub(super) client_certificate: String,
    pub(super) credentials: String,
}

impl KubernetesApi {
    /// The API server of a kubeconfig, or else of the cluster that this pod runs in.
    ///
    /// # Errors
    /// When the kubeconfig, or a file that it refers to, cannot be read or is invalid.
    pub async fn new(kubeconfig: Option<&Path>) -> Result<Self> {
        let Some(path) = kubeconfig else {
            let config = Config::incluster();
            let config = config.map_err(|error| anyhow!("{}; outside of a pod, give --kubeconfig", chain(&error)))?;
            return Self::checked(config, ApiSettings::of_pod(), "credentials of the pod");
        };

        let origin = format!("kubeconfig {}", path.display());
        let config = read_kubeconfig(path).await.map_err(|error| anyhow!("{origin}: {}", chain(&error)))?;
        Self::checked(config, ApiSettings::of_kubeconfig(path), &origin)
    }

    /// Fails if no request could succeed. `origin` is where the configuration comes from, for people.
    fn checked(config: Config, settings: ApiSettings, origin: &str) -> Result<Self> {
        // Otherwise each request would fail because of an unknown issuer.
        ensure!(
            config.root_cert.as_ref().is_none_or(|certificates| !certificates.is_empty()),
            "no certificate in {}; use a PEM file with the CA certificate of the API server",
            settings.ca
        );
        Self::from_config(config, settings).map_err(|error| anyhow!("{origin}: {}", chain(&error)))
    }

    /// A client that reports each failure to its caller: by itself kube retries silently, for up to 17 minutes. Of its
    /// own timeouts only that for connecting is used; the others are [`Deadlines`](super::Deadlines).
    pub(super) fn from_config(mut config: Config, settings: ApiSettings) -> kube::Result<Self> {
        let url = &config.cluster_url;
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
        let server = format!("{}:{port}", url.host().unwrap_or_default());

        config.default_retry = false;
        config.read_timeout = None;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        Ok(Self { client: Client::try_from(config)?, server, settings: Arc::new(settings) })
    }

    /// An API server in the same process: a function that answers requests. For simulations.
    #[cfg(feature = "testing")]
    pub fn in_process<F, B>(answer: impl Fn(http::Request<Body>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        let answer = tower::service_fn(move |request| {
            let answer = answer(request);
            async move { Ok::<_, std::convert::Infallible>(answer.await) }
        });
        let settings = Arc::new(ApiSettings::of_kubeconfig(Path::new("none")));
        Self { client: Client::new(answer, "default"), server: "in process".to_owned(), settings }
    }

    /// The client itself.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sends a request, and returns the body of the response.
    pub(super) async fn send(
        &self,
        request: kube::Result<http::Request<Vec<u8>>>,
    ) -> Result<impl AsyncBufRead + use<>, RequestError> {
        let response = match request {
            Ok(request) => self.client.send(request.map(Body::from)).await,
            Err(error) => Err(error),
        };
        let response = response.map_err(|error| RequestError::of(error, &self.server))?;

        if response.status().is_client_error() || response.status().is_server_error() {
            return Err(refusal(response).await);
        }
        Ok(response.into_body().into_data_stream().map_err(io::Error::other).into_async_read())
    }

    /// An error of [`Self::client`] for people: all its causes, and what to do about it.
    pub(crate) fn explain(&self, error: kube::Error, resource: &str) -> anyhow::Error {
        let error = RequestError::of(error, &self.server);
        let text = chain(&error);
        match advice(&error, &self.settings, resource, None) {
            Some(advice) => anyhow!("{text}; {advice}"),
            None => anyhow!("{text}"),
        }
    }
}

async fn read_kubeconfig(path: &Path) -> Result<Config, KubeconfigError> {
    let file = Kubeconfig::read_from(path)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await
}

/// The error of a response: its `Status`, or another body as the message of one; and the header `Retry-After`, which
/// throttled requests have.
async fn refusal(response: Response<Body>) -> RequestError {
    let code = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());

    let body = match Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let status = match serde_json::from_slice::<Status>(&body) {
        Ok(status) => status,
        Err(_) => Status::failure(String::from_utf8_lossy(&body).trim(), "").with_code(code),
    };
    RequestError::Refused(status.boxed(), retry_after)
}

impl ApiSettings {
    pub(super) fn of_kubeconfig(path: &Path) -> Self {
        let field = |name: &str| format!("{name} in {}", path.display());
        Self {
            address: field("server"),
            ca: field("certificate-authority"),
            client_certificate: field("client-certificate"),
            credentials: field("the token or client certificate"),
        }
    }

    fn of_pod() -> Self {
        Self {
            address: "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT".to_owned(),
            ca: format!("{POD_FILES}/ca.crt"),
            client_certificate: "client-certificate in a kubeconfig".to_owned(),
            credentials: format!("the ServiceAccount token in {POD_FILES}/token"),
        }
    }

    pub(super) fn connect(&self) -> ConnectSettings<'_> {
        ConnectSettings {
            server: "the API server",
            address: &self.address,
            ca: &self.ca,
            server_name: "tls-server-name in a kubeconfig",
            client_certificate: &self.client_certificate,
        }
    }
}
