//! Authentication and authorization over TLS: real handshakes on loopback, with generated certificates.

mod certificates;
mod files;
mod handshakes;
mod server;
mod unidentified;

use fairlead_frontend::identity::{AuthnOptions, TokenOptions};
use fake_api_server::{ApiServer, ReviewedUser, kubeconfig};
use proto::v1::Role;
use tonic::{Code, Status};

use self::{certificates::Authority, server::Server};
use crate::{running, stream, transport};

#[track_caller]
fn assert_rejected<T>(answer: Result<T, Status>, code: Code, parts: &[&str]) {
    let status = answer.err().expect("not rejected");
    assert_eq!(status.code(), code, "{status}");
    for part in parts {
        assert!(status.message().contains(part), "no {part} in {status}");
    }
}

#[tokio::test]
async fn node_may_follow_only_itself() {
    let server = Server::plain().await;
    let node = server.client(Some(server.authority.node("node-a"))).await;
    for role in [Role::Backend, Role::Observer] {
        node.watch("node-a", role).await.unwrap().commit().await;
        let answer = node.watch("node-b", role).await;
        assert_rejected(answer, Code::PermissionDenied, &["node node-a may not", "node node-b"]);
    }
}

#[tokio::test]
async fn node_may_inspect_only_itself() {
    let server = Server::plain().await;
    let node = server.client(Some(server.authority.node("node-a"))).await;
    let status = node.status_of("node-a").await.unwrap();
    assert!(status.nodes.iter().all(|status| status.node == "node-a") && status.problems.is_empty());
    assert_ne!(node.endpoints().await.err().map(|status| status.code()), Some(Code::PermissionDenied));
    for other in ["", "node-b"] {
        assert_rejected(node.status_of(other).await, Code::PermissionDenied, &["node node-a may not see the status"]);
    }
    assert_rejected(node.plan().await, Code::PermissionDenied, &["node node-a may not see the status"]);
    let other = server.client(Some(server.authority.node("node-b"))).await;
    assert_rejected(other.endpoints().await, Code::PermissionDenied, &["node node-b may not see"]);
}

#[tokio::test]
async fn node_sees_the_levels_of_its_own_pods_only() {
    let server = Server::plain().await;
    let node = server.client(Some(server.authority.node("node-a"))).await;

    assert!(node.drains("node-a").await.unwrap().is_some());
    assert_rejected(node.drains("node-b").await.map(drop), Code::PermissionDenied, &["node node-a may not see"]);
    assert_rejected(node.drains("").await.map(drop), Code::InvalidArgument, &["node: "]);
}

#[tokio::test]
async fn admin_may_observe_but_not_act_as_backend() {
    let server = Server::plain().await;
    let admin = server.client(Some(server.authority.named("ops"))).await;
    admin.watch("node-b", Role::Observer).await.unwrap().commit().await;
    admin.status().await.unwrap();
    let refused = admin.endpoints().await.err().map(|status| status.code());
    assert_ne!(refused, Some(Code::PermissionDenied));
    assert_eq!(admin.plan().await.unwrap().change_count, 0);
    assert_rejected(admin.watch("node-b", Role::Backend).await, Code::PermissionDenied, &["admin ops", "node-b"]);
}

#[tokio::test]
async fn clients_without_an_identity_are_rejected() {
    let server = Server::plain().await;
    let client = server.client(None).await;
    let message = ["no credential: present a client certificate"];
    assert_rejected(client.watch("node-a", Role::Backend).await, Code::Unauthenticated, &message);
    assert_rejected(client.watch("node-a", Role::Observer).await, Code::Unauthenticated, &message);
    assert_rejected(client.status().await, Code::Unauthenticated, &message);
    let token = client.with_token("backend@node-a");
    assert_rejected(token.status().await, Code::Unauthenticated, &["accepts no tokens"]);
    let unknown = server.client(Some(server.authority.named("node-a"))).await;
    let message = ["its subject has CN \"node-a\" and O \"users\"", "CN=system:node:NAME, O=system:nodes"];
    assert_rejected(unknown.watch("node-a", Role::Backend).await, Code::Unauthenticated, &message);
}

#[tokio::test]
async fn certificates_of_other_cas_and_expired_ones_are_rejected() {
    let server = Server::plain().await;
    for pair in [Authority::new().node("node-a"), server.authority.expired("node-a")] {
        // With TLS 1.3 the client may learn of it only with its first call.
        if let Ok(client) = server.connect(&server.authority, Some(pair)).await {
            let status = client.watch("node-a", Role::Backend).await.err().expect("not rejected");
            assert_ne!(status.code(), Code::Unauthenticated, "the handshake succeeded: {status}");
        }
    }
}

#[tokio::test]
async fn token_identifies_the_node_that_it_is_bound_to() {
    let api = ApiServer::start().unwrap();
    for (account, node) in [("backend", Some("node-a")), ("other", Some("node-a")), ("viewer", None)] {
        let name = format!("system:serviceaccount:kube-system:{account}");
        let user = ReviewedUser { name, node: node.map(str::to_owned), audiences: vec!["fairlead".to_owned()] };
        api.add_token(&format!("{account}@{}", node.unwrap_or_default()), user);
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(with_tokens(&directory, &api.kubeconfig())).await;
    let client = server.client(None).await;
    let node = client.with_token("backend@node-a");
    for _ in 0..3 {
        node.watch("node-a", Role::Backend).await.unwrap().commit().await;
    }
    let answer = node.watch("node-b", Role::Backend).await;
    assert_rejected(answer, Code::PermissionDenied, &["node node-a", "node node-b"]);
    assert_eq!(api.reviews(), 1, "one review per token");

    let other = client.with_token("other@node-a").watch("node-a", Role::Backend).await;
    assert_rejected(other, Code::Unauthenticated, &["system:serviceaccount:kube-system:other"]);
    let forged = client.with_token("forged");
    for _ in 0..2 {
        let answer = forged.watch("node-a", Role::Backend).await;
        assert_rejected(answer, Code::Unauthenticated, &["token rejected: [invalid bearer token]"]);
    }
    assert_eq!(api.reviews(), 3);
    client.with_token("viewer@").status().await.unwrap();
    assert_rejected(client.status().await, Code::Unauthenticated, &["or a bearer token"]);

    // A certificate takes precedence over a token, unless it is not recognized.
    let both = server.client(Some(server.authority.node("node-b"))).await.with_token("backend@node-a");
    both.watch("node-b", Role::Backend).await.unwrap().commit().await;
    let both = server.client(Some(server.authority.named("mesh"))).await.with_token("backend@node-a");
    both.watch("node-a", Role::Backend).await.unwrap().commit().await;
}

#[tokio::test]
async fn tokens_are_unavailable_without_an_api_server() {
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(with_tokens(&directory, &kubeconfig(unused))).await;
    let client = server.client(None).await.with_token("backend@node-a");
    let answer = client.watch("node-a", Role::Backend).await;
    assert_rejected(answer, Code::Unavailable, &["cannot review tokens"]);
}

fn with_tokens(directory: &tempfile::TempDir, kubeconfig: &str) -> AuthnOptions {
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    let backend_accounts = ["kube-system/backend".parse().unwrap()].into();
    AuthnOptions {
        admins: ["system:serviceaccount:kube-system:viewer".to_owned()].into(),
        tokens: Some(TokenOptions { audience: "fairlead".to_owned(), backend_accounts, issuers: [].into() }),
        kubeconfig: Some(path),
    }
}
