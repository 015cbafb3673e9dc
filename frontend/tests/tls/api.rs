//! An API server that reviews tokens over HTTP, and counts the reviews.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Bytes, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) struct Api {
    address: SocketAddr,
    reviews: Arc<AtomicUsize>,
}

impl Api {
    /// Accepts tokens of the form `SERVICEACCOUNT@NODE`, for ServiceAccounts in kube-system.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reviews = Arc::new(AtomicUsize::new(0));
        let counter = reviews.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let counter = counter.clone();
                let service = service_fn(move |request| {
                    counter.fetch_add(1, Ordering::Relaxed);
                    answer(request)
                });
                // Ends when the client disconnects.
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, reviews }
    }

    pub(crate) fn reviews(&self) -> usize {
        self.reviews.load(Ordering::Relaxed)
    }

    /// Writes a kubeconfig for it.
    pub(crate) fn kubeconfig(&self, directory: &Path) -> PathBuf {
        kubeconfig(directory, self.address)
    }
}

pub(crate) fn kubeconfig(directory: &Path, address: SocketAddr) -> PathBuf {
    let named = |field: &str, value: Value| json!([{"name": "test", field: value}]);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": named("cluster", json!({"server": format!("http://{address}")})),
        "contexts": named("context", json!({"cluster": "test", "user": "test"})),
        "users": named("user", json!({})),
    });
    let path = directory.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri().path(), "/apis/authentication.k8s.io/v1/tokenreviews");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(review["spec"]["audiences"], json!(["fairlead"]));
    let account = review["spec"]["token"].as_str().unwrap().split_once('@');
    review["status"] = match account {
        Some((account, node)) => json!({
            "authenticated": true,
            "audiences": ["fairlead"],
            "user": {
                "username": format!("system:serviceaccount:kube-system:{account}"),
                "groups": ["system:serviceaccounts"],
                "extra": {"authentication.kubernetes.io/node-name": [node]},
            },
        }),
        None => json!({"authenticated": false, "error": "not signed here"}),
    };
    let response = Response::builder().status(201).header("content-type", "application/json");
    Ok(response.body(Full::new(review.to_string().into())).unwrap())
}
