//! Identifies clients by ServiceAccount tokens: the signature is verified here, then the API server is asked in a
//! TokenReview whether the token is still valid. The result is cached.
//!
//! ```text
//!   token ──claims: could it be accepted?──no──▶ error
//!      └──SHA-256──▶ entry ── result valid ──────────────────────────────────────────▶ identity or error
//!                      └── no result, one at a time per token
//!                            └──signature──not valid──▶ error
//!                                  └──limits──▶ TokenReview ──▶ cached until it expires
//! ```

mod cache;
mod jwt;
mod limits;
mod review;
mod signing_keys;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    str::FromStr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use anyhow::{Result, anyhow};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus};
use kube::Api;
use ring::digest::{SHA256, digest};
use runtime::{
    failure::{Recovery, Repeated},
    lock,
};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use self::{
    cache::{CachedResult, TokenCache, TokenHash},
    jwt::Jwt,
    limits::{ReviewClient, ReviewLimiter},
    signing_keys::{Signature, SigningKeys},
};
use super::{Identity, authenticator::AuthnError};
use crate::{config::API_REQUEST_TIMEOUT, excerpt::excerpt};

pub(crate) use self::limits::TokenSource;

/// What the cache is built on: a module, so that the tests in `tests/simulation/concurrency/` can replace it.
mod primitives {
    pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
}

/// The prefix of the user names of ServiceAccounts.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// How long an accepted token is cached; never longer than it is valid.
const ACCEPTED_TTL: Duration = Duration::from_secs(120);
/// How long a rejected token is cached.
const REJECTED_TTL: Duration = Duration::from_secs(30);

/// Which tokens are accepted.
#[derive(Clone, Debug)]
pub struct TokenOptions {
    /// The required audience: `audience` of the projected volume.
    pub audience: String,
    /// ServiceAccounts of backends. Their tokens identify the node that the token is bound to.
    pub backend_accounts: BTreeSet<ServiceAccount>,
    /// The accepted issuers. Empty: those that the API server accepts.
    pub issuers: BTreeSet<String>,
}

/// The user name of a ServiceAccount in Kubernetes, parsed from `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAccount(String);

#[derive(Debug)]
pub(super) struct Tokens {
    api: Api<TokenReview>,
    options: TokenOptions,
    admins: Arc<BTreeSet<String>>,
    cache: TokenCache<Identity, AuthnError>,
    keys: SigningKeys,
    limiter: ReviewLimiter,
    failures: Mutex<Repeated>,
}

impl Tokens {
    pub(super) fn new(client: kube::Client, options: TokenOptions, admins: Arc<BTreeSet<String>>) -> Self {
        Self {
            keys: SigningKeys::new(client.clone()),
            api: Api::all(client),
            options,
            admins,
            cache: TokenCache::default(),
            limiter: ReviewLimiter::default(),
            failures: Mutex::default(),
        }
    }

    /// Why the signatures of tokens cannot be verified.
    pub(super) fn keys_error(&self) -> Option<String> {
        self.keys.error()
    }

    pub(super) async fn identify(&self, token: &str, source: TokenSource) -> Result<Identity, AuthnError> {
        if token.is_empty() {
            return Err(AuthnError::Token("it is empty".to_owned()));
        }

        let jwt = Jwt::parse(token);
        if let Some(Jwt { claims, .. }) = &jwt {
            let checked = claims.check(&self.options, &self.admins, SystemTime::now());
            // The client has chosen the claims, which stand at the end of an error.
            checked.map_err(|why| AuthnError::Token(excerpt(&why)))?;
        }

        // Concurrent requests with one token share a review. When it fails, the next of them retries.
        let hash = hash(token);
        let entry = self.cache.entry(hash);
        match entry.get_or_try_init(|| self.review(token, jwt.as_ref(), source)).await {
            Ok(result) => result.identity.clone(),
            Err(error) => {
                self.cache.forget(&hash, entry);
                Err(error)
            }
        }
    }

    /// The result of a review, unless the token is forged or the API server does not answer. `jwt`: the parts of the
    /// token, if it is a JSON Web Token.
    async fn review(
        &self,
        token: &str,
        jwt: Option<&Jwt<'_>>,
        source: TokenSource,
    ) -> Result<CachedResult<Identity, AuthnError>, AuthnError> {
        let client = match (self.keys.verify(jwt).await, jwt) {
            (Signature::Invalid(why), _) => return Err(AuthnError::Token(excerpt(&why))),
            (Signature::Valid, Some(jwt)) => ReviewClient::Holder(jwt.claims.holder().to_owned()),
            (Signature::Valid, None) | (Signature::Unverified, _) => source.client(),
        };
        self.limiter.count(&client).map_err(|wait| AuthnError::TooManyReviews(wait.as_secs() + 1))?;

        let reviewed = self.request_review(token, &client).await;
        let status = reviewed.map_err(|error| self.failed(&format!("{error:#}")))?;
        if let Some(Recovery { count, duration }) = lock(&self.failures).recovered() {
            info!(count, duration_ms = duration.as_millis(), "token reviews succeed again");
        }

        let identity = review::identity(&status, &self.options, &self.admins).map_err(AuthnError::Token);
        debug!(?identity, "token reviewed");
        let ttl = match identity {
            Ok(_) => accepted_ttl(SystemTime::now(), jwt.and_then(|jwt| jwt.claims.expiry())),
            Err(_) => REJECTED_TTL,
        };
        Ok(CachedResult { identity, expires_at: Instant::now() + ttl })
    }

    /// Asks the API server, after reviews for other clients if there are many.
    async fn request_review(&self, token: &str, client: &ReviewClient) -> Result<TokenReviewStatus> {
        let review = async {
            let _permit = self.limiter.start(client).await?;
            review::review(&self.api, token, &self.options.audience).await
        };
        match timeout(API_REQUEST_TIMEOUT, review).await {
            Ok(reviewed) => reviewed,
            Err(_) => Err(anyhow!("the API server did not answer within {API_REQUEST_TIMEOUT:?}")),
        }
    }

    fn failed(&self, error: &str) -> AuthnError {
        if lock(&self.failures).failed(error).is_news {
            warn!(error, "cannot review tokens, rejecting clients that use one");
        }
        AuthnError::Unavailable(error.to_owned())
    }
}

fn hash(token: &str) -> TokenHash {
    let mut hash = TokenHash::default();
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

/// How long an accepted token is cached.
fn accepted_ttl(now: SystemTime, expiry: Option<SystemTime>) -> Duration {
    let left = expiry.map_or(ACCEPTED_TTL, |expiry| expiry.duration_since(now).unwrap_or_default());
    left.min(ACCEPTED_TTL)
}

impl TokenOptions {
    fn check_audiences(&self, audiences: &[String]) -> Result<(), String> {
        if audiences.contains(&self.audience) {
            return Ok(());
        }
        Err(format!("audience {:?} is required, but its audiences are {audiences:?}", self.audience))
    }

    /// Fails if a user is none of the ServiceAccounts of backends.
    fn check_backend(&self, user: &str) -> Result<(), String> {
        if self.backend_accounts.iter().any(|account| account.0 == user) {
            return Ok(());
        }
        Err(format!("it belongs to neither the ServiceAccount of a backend nor an administrator, but to {user:?}"))
    }
}

impl FromStr for ServiceAccount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self(format!("{SERVICE_ACCOUNT}{namespace}:{name}")))
            }
            _ => {
                Err(format!("{text:?} is not a ServiceAccount: expected NAMESPACE/NAME, such as kube-system/fairlead"))
            }
        }
    }
}
