//! The keys with which the API server signs tokens of ServiceAccounts. A token with another signature never reaches a
//! review, so that clients without a token cannot use up the reviews of others.
//!
//! ```text
//!   key id of a token ── known ──────────────────────────────▶ signature valid, or not
//!          └── unknown: GET /openid/v1/jwks, once for all ──▶ known now? ── no ──▶ not valid
//!                              └── failed ──▶ unverified: as many reviews as for any unknown client
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Request;
use kube::Client;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, EcdsaVerificationAlgorithm, RSA_PKCS1_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use runtime::{
    Rate, TokenBucket,
    failure::{Recovery, Repeated},
    lock,
};
use serde::Deserialize;
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use super::jwt::{Header, Jwt};
use crate::config::API_REQUEST_TIMEOUT;

/// Where an API server publishes its keys as a JSON Web Key Set (RFC 7517).
const KEYS_PATH: &str = "/openid/v1/jwks";
/// How often the keys are fetched because of tokens with unknown key ids, which a client may have invented.
const FETCH_RATE: Rate = Rate { burst: 4, every: Duration::from_secs(10) };

/// Verifies signatures. Clones share the keys.
#[derive(Clone)]
pub(super) struct SigningKeys {
    client: Client,
    state: Arc<Mutex<State>>,
    /// Held while the keys are fetched.
    fetching: Arc<AsyncMutex<TokenBucket>>,
}

#[derive(Debug, Default)]
struct State {
    keys: Arc<KeySet>,
    fetches: u64,
    failures: Repeated,
    /// Why the last fetch failed.
    error: Option<String>,
}

/// What the keys of the API server tell about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    Valid,
    /// With the reason.
    Invalid(String),
    /// Its key could not be fetched, or is of a type that is not supported here.
    Unverified,
}

/// Keys by their ids. `None`: of a type that is not supported here.
#[derive(Debug, Default)]
struct KeySet(BTreeMap<String, Option<Key>>);

/// A public key, with the algorithm that Kubernetes uses such a key for.
#[derive(Debug)]
struct Key {
    algorithm: &'static str,
    public: PublicKey,
}

#[derive(Debug)]
enum PublicKey {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    EllipticCurve(UnparsedPublicKey<Vec<u8>>),
}

/// The keys as they are published.
#[derive(Debug, Deserialize)]
struct PublishedKeys {
    keys: Vec<PublishedKey>,
}

/// A JSON Web Key. Numbers are in base64.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PublishedKey {
    kid: String,
    kty: String,
    crv: String,
    n: String,
    e: String,
    x: String,
    y: String,
}

impl SigningKeys {
    pub(super) fn new(client: Client) -> Self {
        let bucket = TokenBucket::full(Instant::now());
        Self { client, state: Arc::default(), fetching: Arc::new(AsyncMutex::new(bucket)) }
    }

    /// Verifies the signature of a token; `None`: it is no JSON Web Token. The keys are fetched first if the key of the
    /// token is unknown.
    pub(super) async fn verify(&self, jwt: Option<&Jwt<'_>>) -> Signature {
        if let Some(signature) = self.keys().verify(jwt) {
            return signature;
        }

        self.fetch_after_others().await;

        if let Some(signature) = self.keys().verify(jwt) {
            return signature;
        }
        if lock(&self.state).error.is_some() {
            return Signature::Unverified;
        }
        let id = jwt.map_or("", |jwt| jwt.header.kid.as_str());
        Signature::Invalid(format!("the API server has no key {id:?}"))
    }

    /// Why some signatures cannot be verified.
    pub(super) fn error(&self) -> Option<String> {
        let state = lock(&self.state);
        if state.error.is_some() {
            return state.error.clone();
        }
        let (id, _) = state.keys.0.iter().find(|(_, key)| key.is_none())?;
        Some(format!("the key {id:?} of the API server is for none of RS256, ES256 and ES384"))
    }

    fn keys(&self) -> Arc<KeySet> {
        lock(&self.state).keys.clone()
    }

    /// Waits for a fetch in progress, or fetches the keys unless that was done too often.
    async fn fetch_after_others(&self) {
        let fetches = lock(&self.state).fetches;
        let mut bucket = self.fetching.clone().lock_owned().await;
        if lock(&self.state).fetches != fetches || bucket.take(FETCH_RATE, Instant::now()).is_err() {
            return;
        }

        // In a task, because a client that disconnects must not end it.
        let keys = self.clone();
        let fetching = tokio::spawn(async move {
            keys.fetch().await;
            drop(bucket);
        });
        // Fails only when the process ends.
        let _ = fetching.await;
    }

    async fn fetch(&self) {
        let fetched = match timeout(API_REQUEST_TIMEOUT, request(&self.client)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(anyhow!("no answer within {API_REQUEST_TIMEOUT:?}")),
        };

        let mut state = lock(&self.state);
        state.fetches += 1;
        match fetched {
            Ok(keys) => {
                info!(keys = ?keys.0.keys(), "fetched the keys that the API server signs tokens with");
                state.keys = Arc::new(keys);
                state.error = None;
                if let Some(Recovery { count, duration }) = state.failures.recovered() {
                    info!(count, duration_ms = duration.as_millis(), "signatures of tokens are verified again");
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                if state.failures.failed(&error).is_news {
                    warn!(
                        error,
                        "cannot fetch the keys that the API server signs tokens with: forged tokens use up reviews"
                    );
                }
                state.error = Some(error);
            }
        }
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKeys").field("state", &self.state).finish_non_exhaustive()
    }
}

async fn request(client: &Client) -> Result<KeySet> {
    let request = Request::get(KEYS_PATH).body(Vec::new())?;
    let published = client.request_text(request).await.with_context(|| {
        format!(
            "GET {KEYS_PATH} (the frontend needs permission to get this path, \
             as the ClusterRole system:service-account-issuer-discovery gives it)"
        )
    })?;
    KeySet::parse(&published).with_context(|| format!("read the answer to GET {KEYS_PATH}"))
}

impl KeySet {
    fn parse(published: &str) -> Result<Self> {
        let published: PublishedKeys = serde_json::from_str(published)?;
        let mut keys = BTreeMap::new();
        for key in published.keys {
            let parsed = key.parse().with_context(|| format!("the key {:?}", key.kid))?;
            keys.insert(key.kid, parsed);
        }
        Ok(Self(keys))
    }

    /// `None`: the key of the token is not among these.
    fn verify(&self, jwt: Option<&Jwt<'_>>) -> Option<Signature> {
        let Some(jwt) = jwt else {
            if self.0.is_empty() {
                return None;
            }
            return Some(Signature::Invalid("it is not a JSON Web Token, as those of ServiceAccounts are".to_owned()));
        };
        match self.0.get(&jwt.header.kid)? {
            Some(key) => Some(key.verify(jwt)),
            None => Some(Signature::Unverified),
        }
    }
}

impl Key {
    fn verify(&self, jwt: &Jwt<'_>) -> Signature {
        let Header { alg, crit, .. } = &jwt.header;
        if crit.is_some() {
            return Signature::Invalid("its header has extensions (crit)".to_owned());
        }
        // The token does not choose: a public key could be taken for the secret of another algorithm.
        if alg != self.algorithm {
            return Signature::Invalid(format!("its algorithm is {alg:?}, but its key is for {}", self.algorithm));
        }
        let Ok(signature) = BASE64_URL_SAFE_NO_PAD.decode(jwt.signature) else {
            return Signature::Invalid("its signature is not in base64".to_owned());
        };

        let signed = jwt.signed.as_bytes();
        let verified = match &self.public {
            PublicKey::Rsa(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, signed, &signature),
            PublicKey::EllipticCurve(key) => key.verify(signed, &signature),
        };
        match verified {
            Ok(()) => Signature::Valid,
            Err(_) => Signature::Invalid("the API server has not signed it".to_owned()),
        }
    }
}

impl PublishedKey {
    /// `None`: of a type that is not supported here.
    fn parse(&self) -> Result<Option<Key>> {
        let (algorithm, public) = match (&*self.kty, &*self.crv) {
            ("RSA", _) => {
                ("RS256", PublicKey::Rsa(RsaPublicKeyComponents { n: number(&self.n)?, e: number(&self.e)? }))
            }
            ("EC", "P-256") => ("ES256", self.point(&ECDSA_P256_SHA256_FIXED)?),
            ("EC", "P-384") => ("ES384", self.point(&ECDSA_P384_SHA384_FIXED)?),
            _ => return Ok(None),
        };
        Ok(Some(Key { algorithm, public }))
    }

    fn point(&self, algorithm: &'static EcdsaVerificationAlgorithm) -> Result<PublicKey> {
        // The prefix of a point that is not compressed.
        let point = [&[4], &*number(&self.x)?, &*number(&self.y)?].concat();
        Ok(PublicKey::EllipticCurve(UnparsedPublicKey::new(algorithm, point)))
    }
}

fn number(text: &str) -> Result<Vec<u8>> {
    Ok(BASE64_URL_SAFE_NO_PAD.decode(text)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Public keys, and tokens that OpenSSL has signed.
    const SIGNATURES: &str = include_str!("signatures.json");

    fn verify(keys: &KeySet, token: &str) -> Option<Signature> {
        keys.verify(Jwt::parse(token).as_ref())
    }

    /// The token with another header.
    fn with_header(token: &str, header: &Value) -> String {
        let (_, rest) = token.split_once('.').unwrap();
        format!("{}.{rest}", BASE64_URL_SAFE_NO_PAD.encode(header.to_string()))
    }

    #[test]
    fn each_key_verifies_what_it_has_signed() {
        let keys = KeySet::parse(SIGNATURES).unwrap();
        let published: Value = serde_json::from_str(SIGNATURES).unwrap();
        let tokens: Vec<_> =
            published["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
        for token in &tokens {
            assert_eq!(verify(&keys, token), Some(Signature::Valid), "{token}");

            let other_claims = token.replace("eyJhdWQiOlsiZmFpcmxlYWQiXX0", "eyJhdWQiOlsiZmFpcmxlYWUiXX0");
            let reason = "the API server has not signed it".to_owned();
            assert_eq!(verify(&keys, &other_claims), Some(Signature::Invalid(reason)));
        }

        for header in [
            json!({"alg": "none", "kid": "rsa"}),
            json!({"alg": "HS256", "kid": "rsa"}),
            json!({"alg": "ES384", "kid": "rsa"}),
            json!({"alg": "ES384", "kid": "p384", "crit": ["exp"]}),
        ] {
            let signature = verify(&keys, &with_header(tokens[0], &header)).unwrap();
            assert!(matches!(signature, Signature::Invalid(_)), "{header}: {signature:?}");
        }
        assert_eq!(verify(&keys, &with_header(tokens[0], &json!({"alg": "RS256", "kid": "unknown"}))), None);
        let unsupported = with_header(tokens[0], &json!({"alg": "ES512", "kid": "p521"}));
        assert_eq!(verify(&keys, &unsupported), Some(Signature::Unverified));
        assert!(matches!(verify(&keys, "opaque"), Some(Signature::Invalid(_))));
        assert_eq!(verify(&KeySet::default(), "opaque"), None);
    }

    #[test]
    fn keys_that_cannot_be_read_are_named() {
        for (published, part) in
            [("{}", "keys"), (r#"{"keys": [{"kid": "a", "kty": "RSA", "n": "?", "e": "AQAB"}]}"#, "\"a\"")]
        {
            let error = format!("{:#}", KeySet::parse(published).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
