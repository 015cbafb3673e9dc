//! How often the API server is asked, and the meaning of its results, with simulated time.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::bail;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::future::join_all;
use http::{Request, Response};
use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use kube::{Client, client::Body};
use tokio::time::{advance, sleep};

use super::*;

const BACKEND: &str = "system:serviceaccount:kube-system:backend";

/// An API server that takes a second, and accepts tokens that begin with `good`.
#[derive(Clone, Default)]
struct FakeApiServer(Arc<AtomicUsize>);

impl FakeApiServer {
    fn reviews(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn tokens(&self) -> Tokens {
        let reviews = self.0.clone();
        let service = tower::service_fn(move |request| {
            reviews.fetch_add(1, Ordering::Relaxed);
            answer(request)
        });
        Tokens::new(Client::new(service, "default"), options(), Arc::default())
    }
}

async fn answer(request: Request<Body>) -> anyhow::Result<Response<Body>> {
    let review: TokenReview = serde_json::from_slice(&request.into_body().collect_bytes().await?)?;
    sleep(Duration::from_secs(1)).await;
    let status = match review.spec.token.as_str() {
        token if token.starts_with("good") => status(BACKEND, &["node-a"]),
        token if token.starts_with("bad") => TokenReviewStatus::default(),
        "slow" => std::future::pending().await,
        _ => bail!("away"),
    };
    let review = TokenReview { status: Some(status), ..review };
    Ok(Response::new(serde_json::to_vec(&review)?.into()))
}

fn options() -> TokenOptions {
    let backend_accounts = ["kube-system/backend".parse().unwrap()].into();
    TokenOptions { audience: "fairlead".to_owned(), backend_accounts }
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

fn node() -> Result<Identity, AuthnError> {
    Ok(Identity::Node("node-a".into()))
}

#[tokio::test(start_paused = true)]
async fn accepted_token_is_cached() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    let answers = join_all((0..100).map(|_| tokens.identify("good"))).await;
    assert!(answers.iter().all(|answer| *answer == node()), "{answers:?}");
    assert_eq!(fake.reviews(), 1, "concurrent requests share a review");
    advance(ACCEPTED_TTL - Duration::from_secs(1)).await;
    assert_eq!(tokens.identify("good").await, node());
    assert_eq!(fake.reviews(), 1);
    advance(Duration::from_secs(2)).await;
    assert_eq!(tokens.identify("good").await, node());
    assert_eq!(fake.reviews(), 2, "the result has expired");
}

#[tokio::test(start_paused = true)]
async fn rejected_token_is_cached_for_a_shorter_time() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    for _ in 0..2 {
        let error = tokens.identify("bad").await.unwrap_err();
        assert_eq!(error.to_string(), "token rejected: the API server does not accept it");
    }
    assert_eq!(fake.reviews(), 1);
    advance(REJECTED_TTL).await;
    tokens.identify("bad").await.unwrap_err();
    assert_eq!(fake.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_reviews_are_not_cached() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    for token in ["other", "other", "slow", "slow"] {
        let error = tokens.identify(token).await.unwrap_err();
        assert!(matches!(error, AuthnError::Unavailable(_)), "{error}");
    }
    assert_eq!(fake.reviews(), 4);
}

#[tokio::test(start_paused = true)]
async fn concurrent_reviews_are_limited() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    let distinct: Vec<_> = (0..200).map(|number| format!("good{number}")).collect();
    let answers = join_all(distinct.iter().map(|token| tokens.identify(token))).await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    // Each takes a second, and requests time out after five.
    assert!((MAX_REVIEWS * 4..=MAX_REVIEWS * 5).contains(&answered), "{answered}");
}

#[tokio::test(start_paused = true)]
async fn cache_size_is_limited() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    assert_eq!(tokens.identify("good").await, node());
    advance(Duration::from_secs(1)).await;
    let keep = |number: usize| {
        let entry = tokens.entry(&format!("kept {number}"));
        let result = CachedResult { identity: node(), expires_at: Instant::now() + ACCEPTED_TTL };
        entry.set(result).unwrap();
    };
    (0..MAX_ENTRIES + 10).for_each(keep);
    assert_eq!(tokens.cache.lock().unwrap().len(), MAX_ENTRIES);
    tokens.identify("good").await.unwrap();
    assert_eq!(fake.reviews(), 2, "the result that expires first is evicted first");
    advance(ACCEPTED_TTL).await;
    keep(0);
    assert!(tokens.cache.lock().unwrap().len() <= 2, "expired results are evicted when the cache is full");
    let long = "x".repeat(MAX_TOKEN_BYTES + 1);
    tokens.identify(&long).await.unwrap_err();
    assert_eq!(fake.reviews(), 2);
}

#[test]
fn token_is_not_cached_beyond_its_expiry() {
    let now = SystemTime::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(accepted_ttl(now, None), ACCEPTED_TTL);
    assert_eq!(accepted_ttl(now, Some(after(3600))), ACCEPTED_TTL);
    assert_eq!(accepted_ttl(now, Some(after(7))), Duration::from_secs(7));
    assert_eq!(accepted_ttl(after(8), Some(after(7))), Duration::ZERO);
    let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"aud":["fairlead"],"exp":1700000000}"#);
    let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert_eq!(review::expiry(&format!("head.{claims}.sign")), Some(expected));
    assert_eq!(review::expiry("opaque"), None);
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
    assert_eq!((account.user().as_str(), account.to_string().as_str()), (BACKEND, "kube-system/backend"));
    for wrong in ["backend", "/backend", "kube-system/", "a/b/c", ""] {
        wrong.parse::<ServiceAccount>().unwrap_err();
    }
}
