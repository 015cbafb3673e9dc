//! How often the API server is asked, and the meaning of its results, with simulated time.

use std::convert::Infallible;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use fake_api_server::{ApiServer, Fault, ReviewedUser};
use futures::future::join_all;
use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use kube::Client;
use serde_json::json;
use tokio::time::{advance, sleep};

use super::{
    cache::MAX_ENTRIES,
    limits::{CLIENT_RATE, NODE_REVIEWS, UNKNOWN_RATE, UNKNOWN_REVIEWS},
    *,
};

const BACKEND: &str = "system:serviceaccount:kube-system:backend";

/// An API server that takes a second for each review, and accepts the token `good`.
fn api_server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.set_review_fault(Some(Fault::Delay(Duration::from_secs(1))));
    accept(&server, "good");
    server
}

/// Lets reviews accept a token.
fn accept(server: &ApiServer, token: &str) {
    let user = ReviewedUser {
        name: BACKEND.to_owned(),
        node: Some("node-a".to_owned()),
        audiences: vec!["fairlead".to_owned()],
    };
    server.add_token(token, user);
}

/// Asks an API server without a connection, so that time can be simulated.
fn tokens(server: &ApiServer) -> Tokens {
    let server = server.clone();
    let service = tower::service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.call(request).await) }
    });
    Tokens::new(Client::new(service, "default"), options(), Arc::default())
}

fn options() -> TokenOptions {
    let backend_accounts = ["kube-system/backend".parse().unwrap()].into();
    TokenOptions { audience: "fairlead".to_owned(), backend_accounts, issuers: BTreeSet::new() }
}

fn status(user: &str, nodes: &[&str]) -> TokenReviewStatus {
    let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
    TokenReviewStatus {
        authenticated: Some(true),
        audiences: Some(vec!["fairlead".to_owned()]),
        user: Some(UserInfo {
            username: Some(user.to_owned()),
            extra: Some([("authentication.kubernetes.io/node-name".to_owned(), nodes)].into()),
            ..UserInfo::default()
        }),
        error: None,
    }
}

/// A token with these claims.
fn jwt(claims: &serde_json::Value, signature: &str) -> String {
    format!("e30.{}.{signature}", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()))
}

/// A token with the claims of one of a backend, which the API server does not accept.
fn forged_token(id: u64) -> String {
    jwt(&json!({"aud": ["fairlead"], "sub": BACKEND, "jti": id}), "forged")
}

/// A token of a backend.
fn backend_token(server: &ApiServer, id: u64) -> String {
    let token = jwt(&json!({"aud": ["fairlead"], "sub": BACKEND, "jti": id}), "genuine");
    accept(server, &token);
    token
}

fn source(address: [u8; 4], is_node: bool) -> TokenSource {
    TokenSource { address: Some(address.into()), is_node }
}

/// A source of nodes.
const NODE: TokenSource = TokenSource { address: None, is_node: true };

fn node() -> Result<Identity, AuthnError> {
    Ok(Identity::Node("node-a".into()))
}

#[tokio::test(start_paused = true)]
async fn accepted_token_is_cached() {
    let server = api_server();
    let tokens = tokens(&server);
    let answers = join_all((0..100).map(|_| tokens.identify("good", NODE))).await;
    assert!(answers.iter().all(|answer| *answer == node()), "{answers:?}");
    assert_eq!(server.reviews(), 1, "concurrent requests share a review");
    advance(ACCEPTED_TTL - Duration::from_secs(1)).await;
    assert_eq!(tokens.identify("good", NODE).await, node());
    assert_eq!(server.reviews(), 1);
    advance(Duration::from_secs(2)).await;
    assert_eq!(tokens.identify("good", NODE).await, node());
    assert_eq!(server.reviews(), 2, "the result has expired");
}

#[tokio::test(start_paused = true)]
async fn rejected_token_is_cached_for_a_shorter_time() {
    let server = api_server();
    let tokens = tokens(&server);
    for _ in 0..2 {
        let error = tokens.identify("bad", NODE).await.unwrap_err();
        assert_eq!(error.to_string(), "token rejected: [invalid bearer token]");
    }
    assert_eq!(server.reviews(), 1);
    advance(REJECTED_TTL).await;
    tokens.identify("bad", NODE).await.unwrap_err();
    assert_eq!(server.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_reviews_are_not_cached() {
    let server = api_server();
    let tokens = tokens(&server);
    for fault in [Fault::Refuse(500), Fault::Refuse(500), Fault::Hang, Fault::Hang] {
        server.set_review_fault(Some(fault));
        let error = tokens.identify("good", NODE).await.unwrap_err();
        assert!(matches!(error, AuthnError::Unavailable(_)), "{error}");
    }
    assert_eq!(server.reviews(), 4);
}

#[tokio::test(start_paused = true)]
async fn concurrent_reviews_are_limited() {
    let server = api_server();
    let tokens = tokens(&server);
    let distinct: Vec<_> = (0..200).map(|number| backend_token(&server, number)).collect();
    let identified = distinct
        .iter()
        .enumerate()
        .map(|(number, token)| tokens.identify(token, source([192, 0, 2, number as u8], true)));
    let answers = join_all(identified).await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    // Each takes a second, and requests time out after five.
    assert!((NODE_REVIEWS * 4..=NODE_REVIEWS * 5).contains(&answered), "{answered}");
}

#[tokio::test(start_paused = true)]
async fn token_that_cannot_be_accepted_is_rejected_without_a_review() {
    let server = api_server();
    let issuers = ["https://cluster.example".to_owned()].into();
    let tokens = Tokens { options: TokenOptions { issuers, ..options() }, ..tokens(&server) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let good = json!({
        "iss": "https://cluster.example", "aud": ["other", "fairlead"], "sub": BACKEND, "exp": now + 3600,
    });
    let without = |key: &str, value: serde_json::Value| {
        let mut claims = good.clone();
        claims[key] = value;
        jwt(&claims, "signature")
    };
    let rejected = [
        (without("iss", json!("https://other.example")), "its issuer is"),
        (without("aud", json!("https://kubernetes.default.svc")), "its audiences are"),
        (without("aud", json!([])), "its audiences are"),
        (without("exp", json!(now - 3600)), "it expired 3600s ago"),
        (without("sub", json!("system:serviceaccount:default:other")), "it belongs to"),
    ];
    for (token, why) in rejected {
        let error = tokens.identify(&token, NODE).await.unwrap_err().to_string();
        assert!(error.starts_with("token rejected: ") && error.contains(why), "{error}");
    }
    assert_eq!(server.reviews(), 0);
    let good = jwt(&good, "signature");
    accept(&server, &good);
    assert_eq!(tokens.identify(&good, NODE).await, node());
    assert_eq!(server.reviews(), 1);
}

#[tokio::test(start_paused = true)]
async fn claims_that_a_client_has_chosen_are_short_in_errors() {
    let server = api_server();
    let tokens = tokens(&server);
    let long = jwt(&json!({"aud": ["x".repeat(10_000)]}), "signature");
    let error = tokens.identify(&long, NODE).await.unwrap_err().to_string();
    assert!(error.contains("\"fairlead\" is required, but its audiences are") && error.len() < 300, "{error}");
}

/// 180 clients that send random tokens for 25 seconds: the number of reviews is bounded, and the token of a node is
/// reviewed at once.
async fn random_tokens(token: fn(u64) -> String) {
    let seconds = 25;
    let most = u64::from(UNKNOWN_RATE.burst.min(CLIENT_RATE.burst)) + seconds * 5;
    let server = api_server();
    let tokens = Arc::new(tokens(&server));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..180 {
        let tokens = tokens.clone();
        clients.spawn(async move {
            for attempt in 0.. {
                let token = token(client * 1_000_000 + attempt);
                tokens.identify(&token, source([192, 0, 2, 1], false)).await.unwrap_err();
                sleep(Duration::from_millis(50)).await;
            }
        });
    }
    let nodes = 20;
    sleep(Duration::from_secs(seconds - nodes)).await;
    for number in 0..nodes as u8 {
        let (began, reviews) = (Instant::now(), server.reviews());
        let token = backend_token(&server, u64::from(number));
        assert_eq!(tokens.identify(&token, source([198, 51, 100, number], true)).await, node());
        let others = server.reviews() - reviews - 1;
        assert!(others <= 2 * UNKNOWN_REVIEWS as u64, "{others} reviews were served before that of a node");
        assert_eq!(began.elapsed(), Duration::from_secs(1), "the simulated time of one review");
    }
    let reviews = server.reviews() - nodes;
    assert!(reviews <= most, "{reviews} reviews for random tokens");
    assert!(tokens.cache.lock().len() < 1000 && tokens.limiter.clients() <= 64);
}

#[tokio::test(start_paused = true)]
async fn random_tokens_do_not_delay_those_of_nodes() {
    random_tokens(|number| format!("bad{number}")).await;
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_do_not_delay_those_of_nodes() {
    random_tokens(forged_token).await;
}

/// A token of the backend of a node, which the API server has signed.
fn signed_token(server: &ApiServer, node: &str, id: u64) -> String {
    let claims = json!({"aud": ["fairlead"], "sub": BACKEND, "jti": id, "kubernetes.io": {"node": {"name": node}}});
    let token = server.sign(&claims);
    let user =
        ReviewedUser { name: BACKEND.to_owned(), node: Some(node.to_owned()), audiences: vec!["fairlead".to_owned()] };
    server.add_token(&token, user);
    token
}

/// The token with the signature of another one.
fn with_signature_of(token: &str, other: &str) -> String {
    let (signed, _) = token.rsplit_once('.').unwrap();
    let (_, signature) = other.rsplit_once('.').unwrap();
    format!("{signed}.{signature}")
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_from_the_address_of_a_node_never_reach_a_review() {
    let server = api_server();
    server.rotate_signing_key();
    let tokens = tokens(&server);
    let here = source([192, 0, 2, 1], true);
    let signed = signed_token(&server, "node-a", 0);
    let of_another_key = {
        let foreign = ApiServer::in_process();
        foreign.rotate_signing_key();
        signed_token(&foreign, "node-a", 0)
    };
    let forged = (1..1000).map(|id| match id % 4 {
        0 => forged_token(id),
        1 => with_signature_of(&server.sign(&json!({"aud": ["fairlead"], "sub": BACKEND, "jti": id})), &signed),
        2 => with_signature_of(&of_another_key, &format!("x.{}", BASE64_URL_SAFE_NO_PAD.encode(id.to_string()))),
        _ => format!("bad{id}"),
    });
    for token in forged {
        let error = tokens.identify(&token, here).await.unwrap_err();
        assert!(matches!(error, AuthnError::Token(_)), "{error}");
    }
    assert_eq!(server.reviews(), 0);

    for id in 0..20 {
        let token = signed_token(&server, "node-a", id);
        assert_eq!(tokens.identify(&token, here).await, node());
    }
    assert_eq!((server.reviews(), tokens.keys_error(), tokens.cache.lock().len()), (20, None, 20));
}

#[tokio::test(start_paused = true)]
async fn node_uses_up_its_own_reviews_only() {
    let server = api_server();
    server.set_review_fault(None);
    server.rotate_signing_key();
    let tokens = tokens(&server);
    let shared = source([192, 0, 2, 1], true);
    let mut rejected = 0;
    for id in 0..100 {
        let token = signed_token(&server, "greedy", id);
        rejected += u64::from(tokens.identify(&token, shared).await.is_err());
    }
    assert_eq!(rejected, 100 - u64::from(CLIENT_RATE.burst));
    for id in 0..100 {
        let name = format!("node-{id}");
        let token = signed_token(&server, &name, id);
        assert_eq!(tokens.identify(&token, shared).await, Ok(Identity::Node(name.as_str().into())));
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_new_key_are_accepted_after_one_fetch() {
    let server = api_server();
    server.rotate_signing_key();
    let tokens = tokens(&server);
    let before = signed_token(&server, "node-a", 0);
    assert_eq!(tokens.identify(&before, NODE).await, node());
    assert_eq!(server.signing_keys_requests(), 1);

    server.rotate_signing_key();
    server.set_signing_keys_fault(Some(Fault::Delay(Duration::from_secs(1))));
    let after: Vec<_> = (0..15).map(|id| signed_token(&server, "node-a", id)).collect();
    let answers = join_all(after.iter().map(|token| tokens.identify(token, NODE))).await;
    assert!(answers.iter().all(|answer| *answer == node()), "{answers:?}");
    assert_eq!(server.signing_keys_requests(), 2, "one fetch for all");
    assert_eq!(tokens.identify(&signed_token(&server, "node-a", 99), NODE).await, node());
    assert_eq!(server.signing_keys_requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn unknown_key_ids_cause_few_fetches() {
    let server = api_server();
    server.rotate_signing_key();
    let tokens = tokens(&server);
    let foreign = ApiServer::in_process();
    for id in 0..600 {
        foreign.rotate_signing_key();
        let error = tokens.identify(&signed_token(&foreign, "node-a", id), NODE).await.unwrap_err().to_string();
        assert!(error.contains("the API server has no key"), "{error}");
        sleep(Duration::from_millis(100)).await;
    }
    // In a minute.
    assert!(server.signing_keys_requests() <= 4 + 6, "{}", server.signing_keys_requests());
    assert_eq!(server.reviews(), 0);
    server.rotate_signing_key();
    advance(Duration::from_secs(10)).await;
    assert_eq!(tokens.identify(&signed_token(&server, "node-a", 0), NODE).await, node());
}

#[tokio::test(start_paused = true)]
async fn clients_that_disconnect_do_not_end_a_fetch() {
    let server = api_server();
    server.rotate_signing_key();
    server.set_signing_keys_fault(Some(Fault::Delay(Duration::from_secs(1))));
    let tokens = tokens(&server);
    let token = signed_token(&server, "node-a", 0);
    timeout(Duration::from_millis(10), tokens.identify(&token, NODE)).await.unwrap_err();
    assert_eq!(tokens.identify(&token, NODE).await, node());
    assert_eq!(server.signing_keys_requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_keys_tokens_are_reviewed_and_the_reason_is_reported() {
    let server = api_server();
    server.rotate_signing_key();
    let tokens = tokens(&server);
    for fault in [Fault::Refuse(403), Fault::Hang] {
        server.set_signing_keys_fault(Some(fault));
        advance(Duration::from_secs(60)).await;
        assert_eq!(tokens.identify(&signed_token(&server, "node-a", 0), NODE).await, node());
        advance(ACCEPTED_TTL).await;
    }
    assert_eq!(server.reviews(), 2);
    let error = tokens.keys_error().unwrap();
    assert!(error.contains("no answer within 5s"), "{error}");

    server.set_signing_keys_fault(None);
    advance(Duration::from_secs(60)).await;
    assert_eq!(tokens.identify(&signed_token(&server, "node-a", 1), NODE).await, node());
    assert_eq!(tokens.keys_error(), None);

    // Known keys stay in use while new ones cannot be fetched.
    server.set_signing_keys_fault(Some(Fault::Refuse(403)));
    let (known, reviews) = (signed_token(&server, "node-a", 2), server.reviews());
    server.rotate_signing_key();
    assert_eq!(tokens.identify(&signed_token(&server, "node-a", 3), NODE).await, node());
    let error = tokens.keys_error().unwrap();
    assert!(error.contains("system:service-account-issuer-discovery"), "{error}");
    let forged = with_signature_of(&known, &signed_token(&server, "node-a", 4));
    tokens.identify(&forged, NODE).await.unwrap_err();
    assert_eq!(server.reviews(), reviews + 1);
}

#[tokio::test(start_paused = true)]
async fn cache_size_is_limited() {
    let server = api_server();
    let tokens = tokens(&server);
    assert_eq!(tokens.identify("good", NODE).await, node());
    advance(Duration::from_secs(1)).await;
    let keep = |number: usize| {
        let entry = tokens.cache.entry(hash(&format!("kept {number}")));
        let result = CachedResult { identity: node(), expires_at: Instant::now() + ACCEPTED_TTL };
        entry.set(result).unwrap();
    };
    (0..MAX_ENTRIES + 10).for_each(keep);
    assert_eq!(tokens.cache.lock().len(), MAX_ENTRIES);
    tokens.identify("good", NODE).await.unwrap();
    assert_eq!(server.reviews(), 2, "the result that expires first is evicted first");
    advance(ACCEPTED_TTL).await;
    keep(0);
    assert!(tokens.cache.lock().len() <= 2, "expired results are evicted when the cache is full");
}

#[test]
fn token_is_not_cached_beyond_its_expiry() {
    let now = SystemTime::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(accepted_ttl(now, None), ACCEPTED_TTL);
    assert_eq!(accepted_ttl(now, Some(after(3600))), ACCEPTED_TTL);
    assert_eq!(accepted_ttl(now, Some(after(7))), Duration::from_secs(7));
    assert_eq!(accepted_ttl(after(8), Some(after(7))), Duration::ZERO);
    let token = jwt(&json!({"aud": ["fairlead"], "exp": 1_700_000_000}), "signature");
    let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert_eq!(Jwt::parse(&token).unwrap().claims.expiry(), Some(expected));
    for opaque in ["opaque", "a.b.c", "..", "a.b.c.d"] {
        assert!(Jwt::parse(opaque).is_none(), "{opaque}");
    }
}

#[test]
fn only_backend_tokens_bound_to_a_node_identify_nodes() {
    let admins = ["system:serviceaccount:ops:viewer".to_owned()].into();
    let identity = |status: &TokenReviewStatus| review::identity(status, &options(), &admins);
    assert_eq!(identity(&status(BACKEND, &["node-a"])), Ok(Identity::Node("node-a".into())));
    let admin = "system:serviceaccount:ops:viewer";
    assert_eq!(identity(&status(admin, &[])), Ok(Identity::Admin(admin.into())));

    let other = identity(&status("system:serviceaccount:kube-system:other", &["node-a"])).unwrap_err();
    assert!(other.contains("kube-system:other"), "{other}");
    for nodes in [&[][..], &["a", "b"], &[""], &["a/b"]] {
        let error = identity(&status(BACKEND, nodes)).unwrap_err();
        assert!(error.contains("not bound to a node"), "{error}");
    }
    let elsewhere = Some(vec!["https://kubernetes.default.svc".to_owned()]);
    for audiences in [elsewhere, None] {
        let error = identity(&TokenReviewStatus { audiences, ..status(BACKEND, &["node-a"]) }).unwrap_err();
        assert!(error.contains("\"fairlead\" is required"), "{error}");
    }
    let refused = TokenReviewStatus { authenticated: Some(false), ..status(BACKEND, &["node-a"]) };
    identity(&refused).unwrap_err();
}

#[test]
fn service_accounts_need_a_namespace() {
    let account: ServiceAccount = "kube-system/backend".parse().unwrap();
    assert_eq!(account.0, BACKEND);
    for wrong in ["backend", "/backend", "kube-system/", "a/b/c", ""] {
        wrong.parse::<ServiceAccount>().unwrap_err();
    }
}
