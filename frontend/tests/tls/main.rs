//! Who is let in over TLS, and to what: real handshakes on loopback, with certificates made for the test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

mod api;
mod certificates;
mod files;
mod handshakes;
mod server;

use fairlead_frontend::identity::{AuthnOptions, TokenOptions};
use proto::v1::Role;
use tonic::{Code, Status};

use self::{
    api::{Api, kubeconfig},
    certificates::Authority,
    server::Server,
};

#[track_caller]
fn assert_refused<T>(answer: Result<T, Status>, code: Code, parts: &[&str]) {
    let status = answer.err().expect("not refused");
    assert_eq!(status.code(), code, "{status}");
    for part in parts {
        assert!(status.message().contains(part), "no {part} in {status}");
    }
}

#[tokio::test]
async fn a_node_is_given_its_own_view_and_no_other() {
    let server = Server::plain().await;
    let node = server.client(Some(server.authority.node("node-a"))).await;
    for role in [Role::Backend, Role::Observer] {
        node.watch("node-a", role).await.unwrap().commit().await;
        let answer = node.watch("node-b", role).await;
        assert_refused(answer, Code::PermissionDenied, &["node node-a may not", "node node-b"]);
    }
    assert_refused(node.status().await, Code::PermissionDenied, &["node node-a may not see the status"]);
    assert_refused(node.endpoints().await, Code::PermissionDenied, &["node node-a may not see"]);
}

#[tokio::test]
async fn an_admin_looks_at_everything_and_is_no_agent() {
    let server = Server::plain().await;
    let admin = server.client(Some(server.authority.named("ops"))).await;
    admin.watch("node-b", Role::Observer).await.unwrap().commit().await;
    admin.status().await.unwrap();
    let refused = admin.endpoints().await.err().map(|status| status.code());
    assert_ne!(refused, Some(Code::PermissionDenied));
    assert_refused(admin.watch("node-b", Role::Backend).await, Code::PermissionDenied, &["admin ops", "node-b"]);
}

#[tokio::test]
async fn a_uri_names_a_node_where_the_operator_says_so() {
    let prefix = "spiffe://example.org/node/";
    let access = AuthnOptions { node_uri_prefix: Some(prefix.to_owned()), ..AuthnOptions::default() };
    let server = Server::start(access).await;
    let node = server.client(Some(server.authority.uri(&format!("{prefix}node-a")))).await;
    node.watch("node-a", Role::Backend).await.unwrap().commit().await;
    let answer = node.watch("node-b", Role::Backend).await;
    assert_refused(answer, Code::PermissionDenied, &["node node-a", "node node-b"]);
    let other = server.client(Some(server.authority.uri("spiffe://example.com/node/node-a"))).await;
    let answer = other.watch("node-a", Role::Backend).await;
    assert_refused(answer, Code::Unauthenticated, &["spiffe://example.com/node/node-a"]);
}

#[tokio::test]
async fn nobody_is_let_in_without_an_identity() {
    let server = Server::plain().await;
    let client = server.client(None).await;
    let refused = ["no identity: show a client certificate"];
    assert_refused(client.watch("node-a", Role::Backend).await, Code::Unauthenticated, &refused);
    assert_refused(client.watch("node-a", Role::Observer).await, Code::Unauthenticated, &refused);
    assert_refused(client.status().await, Code::Unauthenticated, &refused);
    let token = client.with_token("agent@node-a");
    assert_refused(token.status().await, Code::Unauthenticated, &["not told to take any"]);
    let stranger = server.client(Some(server.authority.named("node-a"))).await;
    assert_refused(stranger.watch("node-a", Role::Backend).await, Code::Unauthenticated, &["of nobody", "people"]);
}

#[tokio::test]
async fn certificates_of_others_and_of_the_past_do_not_pass() {
    let server = Server::plain().await;
    for pair in [Authority::new().node("node-a"), server.authority.expired("node-a")] {
        // A client learns of it with its handshake or with its first call: TLS 1.3 leaves that open.
        if let Ok(client) = server.connect(&server.authority, Some(pair)).await {
            let status = client.watch("node-a", Role::Backend).await.err().expect("not refused");
            assert_ne!(status.code(), Code::Unauthenticated, "it came through: {status}");
        }
    }
}

#[tokio::test]
async fn a_token_makes_its_holder_the_node_that_it_is_bound_to() {
    let api = Api::start().await;
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(with_tokens(api.kubeconfig(directory.path()))).await;
    let client = server.client(None).await;
    let node = client.with_token("agent@node-a");
    for _ in 0..3 {
        node.watch("node-a", Role::Backend).await.unwrap().commit().await;
    }
    let answer = node.watch("node-b", Role::Backend).await;
    assert_refused(answer, Code::PermissionDenied, &["node node-a", "node node-b"]);
    assert_eq!(api.asked(), 1, "one token, one question");

    let other = client.with_token("other@node-a").watch("node-a", Role::Backend).await;
    assert_refused(other, Code::Unauthenticated, &["system:serviceaccount:kube-system:other"]);
    let forged = client.with_token("forged");
    for _ in 0..2 {
        let answer = forged.watch("node-a", Role::Backend).await;
        assert_refused(answer, Code::Unauthenticated, &["not accepted: not signed here"]);
    }
    assert_eq!(api.asked(), 3);
    client.with_token("looker@").status().await.unwrap();
    assert_refused(client.status().await, Code::Unauthenticated, &["or a token"]);

    // A certificate goes before a token, unless it is of nobody.
    let both = server.client(Some(server.authority.node("node-b"))).await.with_token("agent@node-a");
    both.watch("node-b", Role::Backend).await.unwrap().commit().await;
    let both = server.client(Some(server.authority.named("mesh"))).await.with_token("agent@node-a");
    both.watch("node-a", Role::Backend).await.unwrap().commit().await;
}

#[tokio::test]
async fn without_an_api_server_tokens_are_for_later() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(with_tokens(kubeconfig(directory.path(), nobody))).await;
    let client = server.client(None).await.with_token("agent@node-a");
    let answer = client.watch("node-a", Role::Backend).await;
    assert_refused(answer, Code::Unavailable, &["cannot be reviewed at present"]);
}

fn with_tokens(kubeconfig: std::path::PathBuf) -> AuthnOptions {
    let backend_accounts = ["kube-system/agent".parse().unwrap()].into();
    AuthnOptions {
        admins: ["system:serviceaccount:kube-system:looker".to_owned()].into(),
        tokens: Some(TokenOptions { audience: "fairlead".to_owned(), backend_accounts }),
        kubeconfig: Some(kubeconfig),
        ..AuthnOptions::default()
    }
}
