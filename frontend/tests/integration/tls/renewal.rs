//! A CA that is replaced while clients are connected. The test is the kubelet, which copies Secrets into files.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fairlead_frontend::{CertificateLifetimes, Config, Frontend, RenewalOptions};
use fake_api_server::{ApiServer, Resource};
use jiff::Timestamp;
use proto::v1::Role;
use runtime::Shutdown;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    certificates::Authority,
    files::eventually,
    server::{Server, TIMEOUT, write},
};

const HOUR: Duration = Duration::from_secs(3600);

fn secret(name: &str, certificate: &str, key: &str) -> Value {
    let [certificate, key] = [certificate, key].map(|text| BASE64_STANDARD.encode(text));
    json!({"metadata": {"namespace": "ns", "name": name}, "data": {"tls.crt": certificate, "tls.key": key}})
}

fn bundle(authorities: &str, extended: SystemTime) -> Value {
    let extended = Timestamp::try_from(extended).unwrap().to_string();
    let metadata =
        json!({"namespace": "ns", "name": "fl-ca", "annotations": {"fairlead.io/bundle-extended": extended}});
    json!({"metadata": metadata, "data": {"ca.crt": authorities}})
}

/// Runs a replica until it has written this often, and returns its last write.
async fn renew(api: &ApiServer, directory: &tempfile::TempDir, writes: usize) -> Value {
    let kubeconfig = directory.path().join("kubeconfig");
    fs::write(&kubeconfig, api.kubeconfig()).unwrap();
    let mut received = api.writes();
    let (trigger, shutdown) = Shutdown::channel();
    let replica = tokio::spawn(async move {
        let lifetimes = CertificateLifetimes { certificate: 100 * HOUR, authority: 1000 * HOUR, overlap: HOUR };
        let options = RenewalOptions { objects: "ns/fl".parse().unwrap(), lifetimes };
        Frontend::new(Config::default()).renew_certificates(Some(&kubeconfig), options, shutdown).await
    });
    let mut last = Value::Null;
    for _ in 0..writes {
        last = timeout(TIMEOUT, received.recv()).await.expect("no write").unwrap().1;
    }
    drop(trigger);
    replica.await.unwrap().unwrap();
    last
}

#[tokio::test]
async fn connected_clients_stay_and_others_connect_while_the_ca_is_replaced() {
    let server = Server::plain().await;
    let (old, key) = Authority::due("fl-ca");
    let certificate = old.server("localhost");
    write(&server.directory, &certificate, &server.authority);
    let api = ApiServer::start().unwrap();
    let _ = api.put(Resource::Secret, secret("fl-ca", &old.pem(), &key));
    let _ = api.put(Resource::Secret, secret("fl-tls", &certificate.certificate, &certificate.key));
    let _ = api.put(Resource::ConfigMap, bundle(&old.pem(), SystemTime::now() - 1000 * HOUR));
    let node = || Some(server.authority.node("node-a"));
    let connects = async |bundle: &str| server.connect_trusting(bundle, node()).await.is_ok();
    eventually("the certificate of the release is used", async || connects(&old.pem()).await).await;
    let connected = server.connect_trusting(&old.pem(), node()).await.unwrap();
    let mut stream = connected.watch("node-a", Role::Backend).await.unwrap();

    // During the overlap clients with the old bundle and with the new one connect.
    let patch = renew(&api, &server.directory, 2).await;
    let both = patch["data"]["ca.crt"].as_str().unwrap().to_owned();
    let new = both.strip_prefix(&old.pem().replace("\r\n", "\n")).expect("the old CA is the first one").to_owned();
    assert!(connects(&old.pem()).await && connects(&both).await);
    assert!(!connects(&new).await, "the new CA has not signed yet");

    // After it the new CA signs. Clients with the new bundle connect.
    let _ = api.put(Resource::ConfigMap, bundle(&both, SystemTime::now() - 2 * HOUR));
    let patch = renew(&api, &server.directory, 2).await;
    for file in ["tls.crt", "tls.key"] {
        let content = BASE64_STANDARD.decode(patch["data"][file].as_str().unwrap()).unwrap();
        fs::write(server.path(file), content).unwrap();
    }
    eventually("the new certificate is used", async || connects(&new).await).await;
    assert!(connects(&both).await);
    assert!(!connects(&old.pem()).await, "the old CA signs no more");

    // The client that trusts only the old CA could not connect again: its connection and its stream are still open.
    stream.commit().await;
    connected.watch("node-a", Role::Observer).await.unwrap().commit().await;
}
