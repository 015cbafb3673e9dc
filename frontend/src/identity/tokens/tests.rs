//! How often the API server is asked, and the meaning of its results, with simulated time.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::bail;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::future::join_all;
use http::{Request, Response};
use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use kube::{Client, client::Body};
use serde_json::json;
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
        token if token.starts_with("good") || token.ends_with(".good") => status(BACKEND, &["node-a"]),
        token if token.starts_with("bad") || token.ends_with(".bad") => TokenReviewStatus::default(),
        "slow" => std::future::pending().await,
        _ => bail!("away"),
    };
    let review = TokenReview { status: Some(status), ..review };
    Ok(Response::new(serde_json::to_vec(&review)?.into()))
}

fn options() -> TokenOptions {
    let backend_accounts = ["kube-system/backend".parse().unwrap()].into();
    let limits = TokenLimits::default();
    TokenOptions { audience: "fairlead".to_owned(), backend_accounts, issuers: BTreeSet::new(), limits }
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

/// A token with the claims of one of a backend, which the API server accepts if its signature is `good`.
fn backend_token(id: &str, signature: &str) -> String {
    jwt(&json!({"aud": ["fairlead"], "sub": BACKEND, "jti": id}), signature)
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
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    let answers = join_all((0..100).map(|_| tokens.identify("good", NODE))).await;
    assert!(answers.iter().all(|answer| *answer == node()), "{answers:?}");
    assert_eq!(fake.reviews(), 1, "concurrent requests share a review");
    advance(ACCEPTED_TTL - Duration::from_secs(1)).await;
    assert_eq!(tokens.identify("good", NODE).await, node());
    assert_eq!(fake.reviews(), 1);
    advance(Duration::from_secs(2)).await;
    assert_eq!(tokens.identify("good", NODE).await, node());
    assert_eq!(fake.reviews(), 2, "the result has expired");
}

#[tokio::test(start_paused = true)]
async fn rejected_token_is_cached_for_a_shorter_time() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    for _ in 0..2 {
        let error = tokens.identify("bad", NODE).await.unwrap_err();
        assert_eq!(error.to_string(), "token rejected: the API server does not accept it");
    }
    assert_eq!(fake.reviews(), 1);
    advance(REJECTED_TTL).await;
    tokens.identify("bad", NODE).await.unwrap_err();
    assert_eq!(fake.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_reviews_are_not_cached() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    for token in ["other", "other", "slow", "slow"] {
        let error = tokens.identify(token, NODE).await.unwrap_err();
        assert!(matches!(error, AuthnError::Unavailable(_)), "{error}");
    }
    assert_eq!(fake.reviews(), 4);
}

#[tokio::test(start_paused = true)]
async fn concurrent_reviews_are_limited() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    let distinct: Vec<_> = (0..200).map(|number| backend_token(&number.to_string(), "good")).collect();
    let identified = distinct
        .iter()
        .enumerate()
        .map(|(number, token)| tokens.identify(token, source([192, 0, 2, number as u8], true)));
    let answers = join_all(identified).await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    // Each takes a second, and requests time out after five.
    let limit = TokenLimits::default().node_reviews;
    assert!((limit * 4..=limit * 5).contains(&answered), "{answered}");
}

#[tokio::test(start_paused = true)]
async fn token_that_cannot_be_accepted_is_rejected_without_a_review() {
    let fake = FakeApiServer::default();
    let issuers = ["https://cluster.example".to_owned()].into();
    let tokens = Tokens { options: TokenOptions { issuers, ..options() }, ..fake.tokens() };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let good = json!({
        "iss": "https://cluster.example", "aud": ["other", "fairlead"], "sub": BACKEND, "exp": now + 3600,
    });
    let without = |key: &str, value: serde_json::Value| {
        let mut claims = good.clone();
        claims[key] = value;
        jwt(&claims, "bad")
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
    assert_eq!(fake.reviews(), 0);
    assert_eq!(tokens.identify(&jwt(&good, "good"), NODE).await, node());
    assert_eq!(fake.reviews(), 1);
}

/// 180 clients that send random tokens for 25 seconds: the number of reviews is bounded, and the token of a node is
/// reviewed at once.
async fn random_tokens(token: fn(u64) -> String, most: usize, at_a_time: usize) {
    let fake = FakeApiServer::default();
    let tokens = Arc::new(fake.tokens());
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
    let before_nodes = 5;
    sleep(Duration::from_secs(before_nodes)).await;
    for number in 0..20 {
        let (began, reviews) = (Instant::now(), fake.reviews());
        let token = backend_token(&number.to_string(), "good");
        assert_eq!(tokens.identify(&token, source([198, 51, 100, number], true)).await, node());
        let others = fake.reviews() - reviews - 1;
        assert!(others <= 2 * at_a_time, "{others} reviews were served before that of a node");
        assert_eq!(began.elapsed(), Duration::from_secs(1), "the simulated time of one review");
    }
    let reviews = fake.reviews() - 20;
    assert!(reviews <= most, "{reviews} reviews for random tokens");
    assert!(tokens.cache().len() < 1000 && tokens.limiter.sources() <= 64);
}

#[tokio::test(start_paused = true)]
async fn random_tokens_do_not_delay_those_of_nodes() {
    let limits = TokenLimits::default();
    // In 25 s.
    let most = limits.opaque.burst as usize + 25 * 2;
    random_tokens(|number| format!("bad{number}"), most, limits.opaque_reviews).await;
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_do_not_delay_those_of_nodes() {
    let limits = TokenLimits::default();
    let most = limits.source.burst as usize + 25 * 5;
    random_tokens(|number| backend_token(&number.to_string(), "bad"), most, limits.unknown_reviews).await;
}

#[tokio::test(start_paused = true)]
async fn token_that_was_accepted_is_reviewed_again_beyond_the_limits() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    let here = source([192, 0, 2, 1], false);
    let good = backend_token("node", "good");
    assert_eq!(tokens.identify(&good, here).await, node());
    advance(ACCEPTED_TTL).await;
    let forged: Vec<_> = (0..100).map(|number| backend_token(&number.to_string(), "bad")).collect();
    let answers = join_all(forged.iter().map(|token| tokens.identify(token, here))).await;
    assert!(answers.iter().any(|answer| matches!(answer, Err(AuthnError::TooManyReviews(_)))));
    assert_eq!(tokens.identify(&good, here).await, node());
}

#[tokio::test(start_paused = true)]
async fn cache_size_is_limited() {
    let fake = FakeApiServer::default();
    let tokens = fake.tokens();
    assert_eq!(tokens.identify("good", NODE).await, node());
    advance(Duration::from_secs(1)).await;
    let keep = |number: usize| {
        let entry = tokens.entry(hash(&format!("kept {number}"))).0;
        let result = CachedResult { identity: node(), expires_at: Instant::now() + ACCEPTED_TTL };
        entry.set(result).unwrap();
    };
    (0..MAX_ENTRIES + 10).for_each(keep);
    assert_eq!(tokens.cache.lock().unwrap().len(), MAX_ENTRIES);
    tokens.identify("good", NODE).await.unwrap();
    assert_eq!(fake.reviews(), 2, "the result that expires first is evicted first");
    advance(ACCEPTED_TTL).await;
    keep(0);
    assert!(tokens.cache.lock().unwrap().len() <= 2, "expired results are evicted when the cache is full");
    let long = "x".repeat(MAX_TOKEN_BYTES + 1);
    tokens.identify(&long, NODE).await.unwrap_err();
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
    let claims = Claims::parse(&format!("head.{claims}.sign")).unwrap();
    assert_eq!(claims.expiry(), Some(expected));
    for opaque in ["opaque", "a.b.c", "..", "a.b.c.d"] {
        assert!(Claims::parse(opaque).is_none(), "{opaque}");
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
    assert_eq!((account.user().as_str(), account.to_string().as_str()), (BACKEND, "kube-system/backend"));
    for wrong in ["backend", "/backend", "kube-system/", "a/b/c", ""] {
        wrong.parse::<ServiceAccount>().unwrap_err();
    }
}
