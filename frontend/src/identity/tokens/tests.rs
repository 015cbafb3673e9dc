//! What is asked how often, and what the answers mean; the clock is the test's.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::bail;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use tokio::time::{advance, sleep};

use super::*;

const AGENT: &str = "system:serviceaccount:kube-system:agent";

/// An API server that takes a second, and knows tokens that begin with `good`.
#[derive(Clone, Default)]
struct Fake(Arc<AtomicUsize>);

impl Fake {
    fn asked(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn tokens(&self) -> Tokens {
        Tokens::with(Box::new(self.clone()), options(), Arc::new(BTreeSet::new()))
    }
}

impl Review for Fake {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, anyhow::Result<TokenReviewStatus>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            sleep(Duration::from_secs(1)).await;
            match token {
                token if token.starts_with("good") => Ok(status(AGENT, &["node-a"])),
                token if token.starts_with("bad") => Ok(TokenReviewStatus::default()),
                "slow" => std::future::pending().await,
                _ => bail!("away"),
            }
        })
    }
}

fn options() -> TokenOptions {
    let backend_accounts = ["kube-system/agent".parse().unwrap()].into();
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
async fn a_token_is_asked_about_once_for_a_while() {
    let fake = Fake::default();
    let tokens = fake.tokens();
    let answers = join_all((0..100).map(|_| tokens.identify("good"))).await;
    assert!(answers.iter().all(|answer| *answer == node()), "{answers:?}");
    assert_eq!(fake.asked(), 1, "who comes together is told together");
    advance(GOOD - Duration::from_secs(1)).await;
    assert_eq!(tokens.identify("good").await, node());
    assert_eq!(fake.asked(), 1);
    advance(Duration::from_secs(2)).await;
    assert_eq!(tokens.identify("good").await, node());
    assert_eq!(fake.asked(), 2, "after that it may have been revoked");
}

#[tokio::test(start_paused = true)]
async fn a_bad_token_is_soon_asked_about_again() {
    let fake = Fake::default();
    let tokens = fake.tokens();
    for _ in 0..2 {
        let error = tokens.identify("bad").await.unwrap_err();
        assert_eq!(error.to_string(), "the token is not accepted: the API server does not know it");
    }
    assert_eq!(fake.asked(), 1);
    advance(BAD).await;
    tokens.identify("bad").await.unwrap_err();
    assert_eq!(fake.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn failures_are_not_remembered() {
    let fake = Fake::default();
    let tokens = fake.tokens();
    for token in ["other", "other", "slow", "slow"] {
        let error = tokens.identify(token).await.unwrap_err();
        assert!(matches!(error, AuthnError::Unavailable(_)), "{error}");
    }
    assert_eq!(fake.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn slow_reviews_do_not_pile_up() {
    let fake = Fake::default();
    let tokens = fake.tokens();
    let distinct: Vec<_> = (0..200).map(|number| format!("good{number}")).collect();
    let answers = join_all(distinct.iter().map(|token| tokens.identify(token))).await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    // A second each, so many at once, for as long as anybody waits.
    assert!((MAX_REVIEWS * 4..=MAX_REVIEWS * 5).contains(&answered), "{answered}");
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_is_bounded() {
    let fake = Fake::default();
    let tokens = fake.tokens();
    assert_eq!(tokens.identify("good").await, node());
    advance(Duration::from_secs(1)).await;
    let keep = |number: usize| {
        let entry = tokens.entry(&format!("kept {number}"));
        let verdict = Verdict { identity: node(), until: Instant::now() + GOOD };
        entry.set(verdict).unwrap();
    };
    (0..MAX_ENTRIES + 10).for_each(keep);
    assert_eq!(tokens.entries.lock().unwrap().len(), MAX_ENTRIES);
    tokens.identify("good").await.unwrap();
    assert_eq!(fake.asked(), 2, "what ends first goes first");
    advance(GOOD).await;
    keep(0);
    assert!(tokens.entries.lock().unwrap().len() <= 2, "what is over goes when there is need");
    let long = "x".repeat(MAX_TOKEN_BYTES + 1);
    tokens.identify(&long).await.unwrap_err();
    assert_eq!(fake.asked(), 2);
}

#[test]
fn a_token_is_never_believed_longer_than_it_is_valid() {
    let now = SystemTime::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(lifetime(now, None), GOOD);
    assert_eq!(lifetime(now, Some(after(3600))), GOOD);
    assert_eq!(lifetime(now, Some(after(7))), Duration::from_secs(7));
    assert_eq!(lifetime(after(8), Some(after(7))), Duration::ZERO);
    let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"aud":["fairlead"],"exp":1700000000}"#);
    let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert_eq!(review::expiry(&format!("head.{claims}.sign")), Some(expected));
    assert_eq!(review::expiry("opaque"), None);
}

#[test]
fn only_agents_that_are_bound_to_a_node_are_nodes() {
    let admins = ["system:serviceaccount:ops:looker".to_owned()].into();
    let identity = |status: &TokenReviewStatus| review::identity(status, &options(), &admins);
    assert_eq!(identity(&status(AGENT, &["node-a"])), Ok(Identity::Node("node-a".into())));
    let admin = "system:serviceaccount:ops:looker";
    assert_eq!(identity(&status(admin, &[])), Ok(Identity::Admin(admin.into())));

    let other = identity(&status("system:serviceaccount:kube-system:other", &["node-a"])).unwrap_err();
    assert!(other.contains("kube-system:other"), "{other}");
    for nodes in [&[][..], &["a", "b"], &[""], &["a/b"]] {
        let error = identity(&status(AGENT, nodes)).unwrap_err();
        assert!(error.contains("not bound to a node"), "{error}");
    }
    let elsewhere = Some(vec!["https://kubernetes.default.svc".to_owned()]);
    for audiences in [elsewhere, None] {
        let error = identity(&TokenReviewStatus { audiences, ..status(AGENT, &["node-a"]) }).unwrap_err();
        assert!(error.contains("not for \"fairlead\""), "{error}");
    }
    let refused = TokenReviewStatus { authenticated: Some(false), ..status(AGENT, &["node-a"]) };
    identity(&refused).unwrap_err();
}

#[test]
fn service_accounts_have_a_namespace() {
    let account: ServiceAccount = "kube-system/agent".parse().unwrap();
    assert_eq!((account.user().as_str(), account.to_string().as_str()), (AGENT, "kube-system/agent"));
    for wrong in ["agent", "/agent", "kube-system/", "a/b/c", ""] {
        wrong.parse::<ServiceAccount>().unwrap_err();
    }
}
