//! ServiceAccount tokens: who holds one, asked of the API server once and remembered for a while.
//!
//! ```text
//!   token ──SHA-256──▶ entry ── verdict still holds ─────────────────────▶ identity, or why not
//!                        └── none: TokenReview (one a token at a time) ──▶ verdict, kept until `lifetime` is over
//! ```

mod review;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::anyhow;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::{Instant, timeout},
};
use tracing::{debug, warn};

use self::review::{ApiServer, Review};
use super::{Identity, authenticator::AuthnError};

/// How long a good token is believed without asking again; never longer than it is valid.
const GOOD: Duration = Duration::from_secs(120);
/// How long a bad one is refused without asking again.
const BAD: Duration = Duration::from_secs(10);
/// How many verdicts are kept: those of three times the nodes of the largest clusters.
const MAX_ENTRIES: usize = 16_384;
/// How many reviews are under way at most.
const MAX_REVIEWS: usize = 32;
/// How long a review may take, with the wait for its turn.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than any token of the API server.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Whose tokens are taken.
#[derive(Clone, Debug)]
pub struct TokenOptions {
    /// What the token must be meant for: `audience` of a projected volume.
    pub audience: String,
    /// Whose token makes its holder the node that it is bound to.
    pub backend_accounts: BTreeSet<ServiceAccount>,
}

/// A ServiceAccount: `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAccount {
    /// Its metadata.namespace.
    pub namespace: String,
    /// Its metadata.name.
    pub name: String,
}

/// Knows whose tokens are whose.
pub(super) struct Tokens {
    review: Box<dyn Review>,
    options: TokenOptions,
    admins: Arc<BTreeSet<String>>,
    /// By the hash of the token: the token itself is not kept.
    entries: Mutex<HashMap<Key, Arc<Entry>>>,
    reviews: Semaphore,
}

type Key = [u8; SHA256_OUTPUT_LEN];
type Entry = OnceCell<Verdict>;

#[derive(Debug)]
struct Verdict {
    identity: Result<Identity, AuthnError>,
    /// Until when it holds.
    until: Instant,
}

// === impl Tokens ===

impl Tokens {
    pub(super) fn new(client: kube::Client, options: TokenOptions, admins: Arc<BTreeSet<String>>) -> Self {
        let review = Box::new(ApiServer::new(client, options.audience.clone()));
        Self::with(review, options, admins)
    }

    fn with(review: Box<dyn Review>, options: TokenOptions, admins: Arc<BTreeSet<String>>) -> Self {
        let reviews = Semaphore::new(MAX_REVIEWS);
        Self { review, options, admins, entries: Mutex::default(), reviews }
    }

    /// Who holds a token.
    pub(super) async fn identify(&self, token: &str) -> Result<Identity, AuthnError> {
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(AuthnError::Token(format!("it has {} bytes", token.len())));
        }
        let entry = self.entry(token);
        // Whoever comes while a review is under way waits for it; when it fails, the next one tries.
        let verdict = entry.get_or_try_init(|| self.ask(token)).await?;
        verdict.identity.clone()
    }

    /// What is known of a token, or an empty entry.
    fn entry(&self, token: &str) -> Arc<Entry> {
        let hash = digest(&SHA256, token.as_bytes());
        let mut key = [0; SHA256_OUTPUT_LEN];
        key.copy_from_slice(hash.as_ref());
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(&key)
            && entry.get().is_none_or(|verdict| verdict.until > now)
        {
            return entry.clone();
        }
        if entries.len() >= MAX_ENTRIES {
            make_room(&mut entries, now);
        }
        let entry = Arc::new(Entry::new());
        entries.insert(key, entry.clone());
        entry
    }

    async fn ask(&self, token: &str) -> Result<Verdict, AuthnError> {
        let reviewed = timeout(REVIEW_TIMEOUT, async {
            let _turn = self.reviews.acquire().await?;
            self.review.review(token).await
        });
        let reviewed = reviewed.await.unwrap_or_else(|_| Err(anyhow!("no answer within {REVIEW_TIMEOUT:?}")));
        let status = reviewed.map_err(|error| {
            warn!(error = format!("{error:#}"), "a token could not be reviewed");
            AuthnError::Unavailable(format!("{error:#}"))
        })?;
        let identity = review::identity(&status, &self.options, &self.admins).map_err(AuthnError::Token);
        debug!(?identity, "a token was reviewed");
        let lifetime = match identity {
            Ok(_) => lifetime(SystemTime::now(), review::expiry(token)),
            Err(_) => BAD,
        };
        Ok(Verdict { identity, until: Instant::now() + lifetime })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("options", &self.options).finish_non_exhaustive()
    }
}

/// How long a good token is believed.
fn lifetime(now: SystemTime, expiry: Option<SystemTime>) -> Duration {
    let left = expiry.map_or(GOOD, |expiry| expiry.duration_since(now).unwrap_or_default());
    left.min(GOOD)
}

/// Takes what is over; when nothing is, the verdict that ends first, and what nobody waits for.
fn make_room(entries: &mut HashMap<Key, Arc<Entry>>, now: Instant) {
    entries.retain(|_, entry| match entry.get() {
        Some(verdict) => verdict.until > now,
        None => Arc::strong_count(entry) > 1,
    });
    if entries.len() >= MAX_ENTRIES {
        let first = entries.iter().min_by_key(|(_, entry)| entry.get().map(|verdict| verdict.until));
        let first = first.map(|(key, _)| *key);
        first.map(|key| entries.remove(&key));
    }
}

// === impl ServiceAccount ===

impl ServiceAccount {
    /// Its user name in Kubernetes.
    fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ServiceAccount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("{text:?} is no ServiceAccount, such as kube-system/fairlead")),
        }
    }
}
