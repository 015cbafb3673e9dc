//! The files of TLS, replaced while it runs, and broken.

use std::time::Duration;

use fairlead_frontend::ReloadingTls;
use proto::v1::Role;
use tokio::time::{Instant, sleep};

use crate::{
    certificates::Authority,
    server::{PATIENCE, Server, files, write},
};

/// Asks until the answer is yes. The files are looked at every two seconds, and nothing tells when.
async fn eventually(what: &str, mut asked: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !asked().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn new_files_are_for_new_connections_and_streams_stay() {
    let server = Server::plain().await;
    let first = server.client(Some(server.authority.node("node-a"))).await;
    let mut stream = first.watch("node-a", Role::Backend).await.unwrap();
    stream.commit().await;
    let next = Authority::new();
    write(&server.directory, &next.server("localhost"), &next);
    eventually("the new certificate is shown", async || server.connect(&next, Some(next.node("node-b"))).await.is_ok())
        .await;
    let second = server.connect(&next, Some(next.node("node-b"))).await.unwrap();
    second.watch("node-b", Role::Backend).await.unwrap().commit().await;
    server.connect(&server.authority, None).await.err().expect("the old one is not shown any more");
    // What the old authority has signed does not pass any more.
    if let Ok(old) = server.connect(&next, Some(server.authority.node("node-a"))).await {
        old.watch("node-a", Role::Backend).await.err().expect("not refused");
    }
    // The stream of before goes on, and so does its connection.
    tokio::time::timeout(Duration::from_millis(100), stream.next()).await.expect_err("nothing is to be said");
    first.watch("node-a", Role::Observer).await.unwrap().commit().await;
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_one_and_shows() {
    let server = Server::plain().await;
    let admin = server.client(Some(server.authority.named("ops"))).await;
    let trouble = async || {
        let problems = admin.status().await.unwrap().problems;
        problems.into_iter().find(|problem| problem.object == "TLS").map(|problem| problem.message)
    };
    assert_eq!(trouble().await, None);
    let key = server.path("tls.key");
    let good = std::fs::read(&key).unwrap();
    for broken in ["nonsense", &Authority::new().server("localhost").key, ""] {
        std::fs::write(&key, broken).unwrap();
        eventually("the problem shows", async || {
            trouble().await.is_some_and(|trouble| trouble.contains(&format!("--tls-key {}", key.display())))
        })
        .await;
        server.client(Some(server.authority.node("node-a"))).await;
        std::fs::write(&key, &good).unwrap();
        eventually("the problem is over", async || trouble().await.is_none()).await;
    }
    let authorities = server.path("clients.crt");
    std::fs::remove_file(&authorities).unwrap();
    eventually("the problem shows", async || {
        trouble().await.is_some_and(|trouble| trouble.contains(&authorities.display().to_string()))
    })
    .await;
    server.client(Some(server.authority.node("node-a"))).await;
}

#[tokio::test]
async fn there_is_no_start_with_a_broken_file() {
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
    assert!(error.contains("--tls-cert") && error.contains("--tls-key"), "{error}");
}
