//! Reviews of tokens and permissions, and the keys that tokens are signed with.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};

use crate::{faults::Fault, status::Answer};

/// The user that a token belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewedUser {
    /// `system:serviceaccount:NAMESPACE:NAME` for a ServiceAccount.
    pub name: String,
    /// The node of the pod that the token is bound to.
    pub node: Option<String>,
    /// The audiences that the token is for.
    pub audiences: Vec<String>,
}

/// What reviews answer.
#[derive(Debug, Default)]
pub(crate) struct Reviewer {
    pub(crate) tokens: BTreeMap<String, ReviewedUser>,
    /// `VERB RESOURCE`; everything else is allowed.
    pub(crate) denied: BTreeSet<String>,
    pub(crate) fault: Option<Fault>,
}

// === impl Reviewer ===

impl Reviewer {
    /// The answer to a POST to a review. `None` if the path is none.
    pub(crate) fn answer(&self, path: &str, body: &[u8]) -> Option<Answer> {
        let review = match path {
            "/apis/authentication.k8s.io/v1/tokenreviews" => Self::token,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            | "/apis/authorization.k8s.io/v1/subjectaccessreviews" => Self::access,
            _ => return None,
        };
        let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
            return Some(Answer::error(400, "the body of the request is not JSON"));
        };
        object["status"] = review(self, &object["spec"]);
        object["metadata"] = json!({"creationTimestamp": null});
        Some(Answer::json(201, object.to_string()))
    }

    fn token(&self, spec: &Value) -> Value {
        let requested: Vec<_> = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let Some(user) = spec["token"].as_str().and_then(|token| self.tokens.get(token)) else {
            return json!({"user": {}, "error": "[invalid bearer token]"});
        };
        let audiences: Vec<_> =
            user.audiences.iter().filter(|audience| requested.contains(&audience.as_str())).collect();
        if audiences.is_empty() {
            return json!({"user": {}, "error": "[invalid bearer token]"});
        }
        let mut found = json!({"username": user.name, "groups": ["system:authenticated"]});
        if let Some(node) = &user.node {
            found["extra"] = json!({"authentication.kubernetes.io/node-name": [node]});
        }
        json!({"authenticated": true, "user": found, "audiences": audiences})
    }

    fn access(&self, spec: &Value) -> Value {
        let field = |name: &str| spec["resourceAttributes"][name].as_str().unwrap_or_default();
        let allowed = !self.denied.contains(&format!("{} {}", field("verb"), field("resource")));
        json!({"allowed": allowed})
    }
}

/// The keys that tokens are signed with.
#[derive(Debug, Default)]
pub(crate) struct SigningKeys {
    /// The newest one signs. Without any, none are published.
    keys: Vec<EcdsaKeyPair>,
    pub(crate) fault: Option<Fault>,
    pub(crate) requests: u64,
}

// === impl SigningKeys ===

impl SigningKeys {
    pub(crate) fn rotate(&mut self) {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
        self.keys.push(key);
    }

    /// A token with these claims, signed by the newest key.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        let key = self.keys.last().expect("a signing key");
        let header = json!({"alg": "ES256", "kid": key_id(key)});
        let [header, claims] = [&header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    /// The answer to a GET of the keys. `None` if the path is another one.
    pub(crate) fn answer(&mut self, path: &str) -> Option<Answer> {
        if path != "/openid/v1/jwks" {
            return None;
        }
        self.requests += 1;
        if self.keys.is_empty() {
            return Some(Answer::unknown_path(path));
        }
        let keys: Vec<_> = self.keys.iter().map(published).collect();
        Some(Answer::json(200, json!({"keys": keys}).to_string()))
    }
}

/// A JSON Web Key (RFC 7517).
fn published(key: &EcdsaKeyPair) -> Value {
    let point = &key.public_key().as_ref()[1..];
    let [x, y] = [&point[..32], &point[32..]].map(|number| BASE64_URL_SAFE_NO_PAD.encode(number));
    json!({"use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": key_id(key), "x": x, "y": y})
}

fn key_id(key: &EcdsaKeyPair) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(&key.public_key().as_ref()[1..17])
}
