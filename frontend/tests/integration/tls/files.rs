//! TLS files that are replaced while the frontend runs, and unusable ones.

use std::time::Duration;

use fairlead_frontend::ReloadingTls;
use proto::v1::Role;
use tokio::time::{Instant, sleep};

use super::{
    certificates::Authority,
    server::{Server, TIMEOUT, files, write},
};

/// Repeats the check until it succeeds. The files are read every two seconds.
pub(crate) async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !check().await {
        assert!(Instant::now() < deadline, "timed out: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn new_files_apply_to_new_connections_only() {
    let server = Server::plain().await;
    let first = server.client(Some(server.authority.node("node-a"))).await;
    let mut stream = first.watch("node-a", Role::Backend).await.unwrap();
    stream.commit().await;
    let next = Authority::new();
    write(&server.directory, &next.server("localhost"), &next);
    eventually("the new certificate is used", async || server.connect(&next, Some(next.node("node-b"))).await.is_ok())
        .await;
    let second = server.connect(&next, Some(next.node("node-b"))).await.unwrap();
    second.watch("node-b", Role::Backend).await.unwrap().commit().await;
    server.connect(&server.authority, None).await.err().expect("the old certificate is no longer used");
    // Certificates of the old CA are rejected.
    if let Ok(old) = server.connect(&next, Some(server.authority.node("node-a"))).await {
        old.watch("node-a", Role::Backend).await.err().expect("not rejected");
    }
    // The existing stream and its connection stay open.
    tokio::time::timeout(Duration::from_millis(100), stream.next()).await.expect_err("unexpected message");
    first.watch("node-a", Role::Observer).await.unwrap().commit().await;
}

#[tokio::test]
async fn unusable_file_is_reported_and_the_old_one_stays_in_use() {
    let server = Server::plain().await;
    let admin = server.client(Some(server.authority.named("ops"))).await;
    let tls_problem = async || {
        let problems = admin.status().await.unwrap().problems;
        problems.into_iter().find(|problem| problem.object == "TLS").map(|problem| problem.message)
    };
    assert_eq!(tls_problem().await, None);
    let key = server.path("tls.key");
    let good = std::fs::read(&key).unwrap();
    for broken in ["nonsense", &Authority::new().server("localhost").key, ""] {
        std::fs::write(&key, broken).unwrap();
        eventually("the problem is reported", async || {
            tls_problem().await.is_some_and(|message| message.contains(&format!("--tls-key {}", key.display())))
        })
        .await;
        server.client(Some(server.authority.node("node-a"))).await;
        std::fs::write(&key, &good).unwrap();
        eventually("the problem is resolved", async || tls_problem().await.is_none()).await;
    }
    let authorities = server.path("clients.crt");
    std::fs::remove_file(&authorities).unwrap();
    eventually("the problem is reported", async || {
        tls_problem().await.is_some_and(|message| message.contains(&authorities.display().to_string()))
    })
    .await;
    server.client(Some(server.authority.node("node-a"))).await;
}

#[tokio::test]
async fn unusable_file_prevents_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let pair = authority.server("localhost");
    let cases = [("tls.crt", "--tls-cert"), ("tls.key", "--tls-key"), ("clients.crt", "--tls-client-ca")];
    for (file, flag) in cases {
        let path = directory.path().join(file);
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for content in [Some("nonsense"), Some(bad), None] {
            write(&directory, &pair, &authority);
            match content {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let error = format!("{:#}", ReloadingTls::load(files(&directory)).await.unwrap_err());
            assert!(error.contains(&format!("{flag} {}", path.display())), "{error}");
        }
    }
    write(&directory, &pair, &authority);
    std::fs::write(directory.path().join("tls.key"), authority.server("localhost").key).unwrap();
    let error = format!("{:#}", ReloadingTls::load(files(&directory)).await.unwrap_err());
    let expected = format!("tls.key is not the private key of --tls-cert {}/tls.crt", directory.path().display());
    assert!(error.contains(&expected), "{error}");

    let version_1 = include_str!("../../../../fairlead/runtime/src/version-1.crt");
    std::fs::write(directory.path().join("tls.crt"), version_1).unwrap();
    let error = format!("{:#}", ReloadingTls::load(files(&directory)).await.unwrap_err());
    assert!(error.contains("tls.crt is of X.509 version 1, which TLS does not accept"), "{error}");
}
