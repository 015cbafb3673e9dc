//! Each wrong set-up, as the real client of a kubeconfig reports it: the error with its cause, and the advice.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::{core::v1::Node, networking::v1::ServiceCIDR};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use runtime::failure::chain;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::super::{Deadlines, api::KubernetesApi, decode::Watchable, request::Requests};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server certificate for 127.0.0.1.
fn leaf() -> CertificateParams {
    CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap()
}

/// A kubeconfig in a directory of its own.
struct Setup {
    directory: TempDir,
    cluster: Value,
    user: Value,
}

impl Setup {
    fn new(server: &str) -> Self {
        Self { directory: TempDir::new().unwrap(), cluster: json!({ "server": server }), user: json!({}) }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn kubeconfig(&self) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": self.cluster }],
            "users": [{ "name": "u", "user": self.user }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        self.file("kubeconfig", &config.to_string())
    }

    async fn start_error(&self) -> String {
        format!("{:#}", KubernetesApi::new(Some(&self.kubeconfig())).await.err().unwrap())
    }

    /// The error of a list, and the advice.
    async fn list_error<K: Watchable>(&self) -> (String, String) {
        let api = KubernetesApi::new(Some(&self.kubeconfig())).await.unwrap();
        let requests = Requests::<K>::new(api, Deadlines { response: Duration::from_secs(20), ..Deadlines::default() });
        let error = requests.page(&mut 1, None).await.unwrap_err();
        (chain(&error), requests.advice(&error).unwrap_or_default())
    }
}

#[track_caller]
fn assert_contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    assert!(!text.contains('\n'), "{text}");
}

/// A TLS server with a certificate and a kubeconfig that trusts `trusted`.
async fn tls(issuer: &Authority, trusted: &Authority, params: &CertificateParams) -> Setup {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap().der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth();
    let config = config.with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key.serialize_der().into())).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut setup = Setup::new(&format!("https://{}", listener.local_addr().unwrap()));
    setup.cluster["certificate-authority"] = json!(setup.file("ca.crt", &trusted.pem()));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            acceptor.accept(stream).await.ok();
        }
    });
    setup
}

/// A server that gives every request one response.
async fn http(status: &'static str, body: String) -> Setup {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setup = Setup::new(&format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _request = stream.read(&mut [0; 4096]).await.unwrap();
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.unwrap();
        }
    });
    setup
}

fn failure(code: u16, message: &str) -> String {
    json!({"kind": "Status", "status": "Failure", "message": message, "reason": "R", "code": code}).to_string()
}

#[tokio::test]
async fn wrong_ca() {
    let setup = tls(&authority("a"), &authority("b"), &leaf()).await;
    let (error, advice) = setup.list_error::<Node>().await;
    assert_contains(&error, &["connect 127.0.0.1:", "invalid peer certificate: UnknownIssuer"]);
    assert_contains(&advice, &["no CA in certificate-authority in /", "/kubeconfig has signed"]);
}

#[tokio::test]
async fn expired_certificate() {
    let (ca, mut params) = (authority("a"), leaf());
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 2, 1));
    let (error, advice) = tls(&ca, &ca, &params).await.list_error::<Node>().await;
    assert_contains(&error, &["invalid peer certificate", "certificate expired"]);
    assert_contains(&advice, &["expired at 2020-02-01T00:00:00Z", "renew the certificate"]);
}

#[tokio::test]
async fn clock_skew() {
    let (ca, mut params) = (authority("a"), leaf());
    (params.not_before, params.not_after) = (date_time_ymd(2098, 1, 1), date_time_ymd(2099, 2, 1));
    let (error, advice) = tls(&ca, &ca, &params).await.list_error::<Node>().await;
    assert_contains(&error, &["invalid peer certificate", "not valid yet"]);
    assert_contains(&advice, &["not valid before 2098-01-01T00:00:00Z", "local time", "compare the clocks"]);
}

#[tokio::test]
async fn wrong_san() {
    let ca = authority("a");
    let params = CertificateParams::new(vec!["api.example".to_owned()]).unwrap();
    let (error, advice) = tls(&ca, &ca, &params).await.list_error::<Node>().await;
    assert_contains(&error, &["invalid peer certificate", "api.example"]);
    assert_contains(&advice, &["is not for 127.0.0.1", "tls-server-name"]);
}

#[tokio::test]
async fn refused_port() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (error, advice) = Setup::new(&format!("https://{address}")).list_error::<Node>().await;
    assert_contains(&error, &[&format!("connect {address}: tcp connect error: Connection refused (os error 111)")]);
    assert_contains(&advice, &["nothing listens on that port", "port in server in /"]);
}

#[tokio::test]
async fn dns_failure() {
    let (error, advice) = Setup::new("https://api.invalid:6443").list_error::<Node>().await;
    assert_contains(&error, &["connect api.invalid:6443: dns error: failed to lookup address information"]);
    assert_contains(&advice, &["does not resolve"]);
}

#[tokio::test]
async fn server_of_the_other_scheme() {
    let ca = authority("a");
    let mut setup = tls(&ca, &ca, &leaf()).await;
    let plain = http("200 OK", String::new()).await;
    setup.cluster["server"] = json!(plain.cluster["server"].as_str().unwrap().replace("http:", "https:"));
    let (_, advice) = setup.list_error::<Node>().await;
    assert_contains(&advice, &["that port does not speak TLS"]);
}

#[tokio::test]
async fn unauthorized() {
    let (error, advice) = http("401 Unauthorized", failure(401, "Unauthorized")).await.list_error::<Node>().await;
    assert_eq!(error, "Unauthorized (401)");
    assert_contains(&advice, &["does not accept the credentials", "has not expired"]);
}

#[tokio::test]
async fn forbidden_by_rbac() {
    let message = "servicecidrs.networking.k8s.io is forbidden: User \"system:serviceaccount:kube-system:x\" cannot \
                   list resource \"servicecidrs\" in API group \"networking.k8s.io\" at the cluster scope";
    let (error, advice) = http("403 Forbidden", failure(403, message)).await.list_error::<ServiceCIDR>().await;
    assert_eq!(error, format!("{message} (403)"));
    assert_contains(&advice, &["grant list and watch on servicecidrs.networking.k8s.io to the user of", "ClusterRole"]);
    let (_, advice) = http("403 Forbidden", failure(403, "denied")).await.list_error::<Node>().await;
    assert_contains(&advice, &["grant list and watch on nodes to the user of the token or client certificate in /"]);
}

#[tokio::test]
async fn missing_kind() {
    let page = || http("404 Not Found", "404 page not found\n".to_owned());
    let (error, advice) = page().await.list_error::<ServiceCIDR>().await;
    assert_eq!(error, "404 page not found (404)");
    assert_contains(&advice, &["serves servicecidrs.networking.k8s.io from 1.33 on"]);
    let (_, advice) = page().await.list_error::<Node>().await;
    assert_contains(&advice, &["every API server serves nodes", "has no path"]);
}

#[tokio::test]
async fn web_page_at_a_wrong_path() {
    for (status, words) in [("200 OK", "the path in server in /"), ("404 Not Found", "has no path")] {
        let (error, advice) = http(status, "<!doctype html>\n<p>Hi".to_owned()).await.list_error::<Node>().await;
        assert_contains(&error, &["the response is an HTML page"]);
        assert_contains(&advice, &[words]);
    }
}

#[tokio::test]
async fn unreadable_files() {
    let mut setup = Setup::new("https://127.0.0.1:1");
    let missing = setup.directory.path().join("missing");
    let name = missing.to_str().unwrap().to_owned();
    for field in ["client-key", "client-certificate", "tokenFile"] {
        setup.user = json!({ field: missing });
        if field == "client-key" {
            setup.user["client-certificate"] = json!(setup.file("tls.crt", &authority("a").pem()));
        }
        if field == "client-certificate" {
            setup.user["client-key"] = json!(setup.file("tls.key", &KeyPair::generate().unwrap().serialize_pem()));
        }
        let error = setup.start_error().await;
        assert_contains(&error, &["/kubeconfig: ", &name, "No such file"]);
    }
    setup.user = json!({});
    setup.cluster["certificate-authority"] = json!(missing);
    assert_contains(&setup.start_error().await, &["certificate authority", &name]);
    setup.cluster["certificate-authority"] = json!(setup.file("ca.crt", "no certificate"));
    assert_contains(&setup.start_error().await, &["no certificate in certificate-authority in /", "PEM file"]);
}

#[tokio::test]
async fn unusable_kubeconfig() {
    let setup = Setup::new("https://127.0.0.1:1");
    let text = |error: anyhow::Error| format!("{error:#}");
    let error = text(KubernetesApi::new(Some(&setup.directory.path().join("none"))).await.err().unwrap());
    assert_contains(&error, &["/none", "No such file"]);
    let error = text(KubernetesApi::new(Some(&setup.file("broken", "{"))).await.err().unwrap());
    assert_contains(&error.replace('\n', " "), &["kubeconfig /", "YAML"]);
    let error =
        text(KubernetesApi::new(Some(&setup.file("empty", "apiVersion: v1\nkind: Config\n"))).await.err().unwrap());
    assert_contains(&error, &["context"]);
}
