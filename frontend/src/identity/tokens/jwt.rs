//! JSON Web Tokens (RFC 7519) in their compact form: a header, claims and a signature.
//!
//! The claims are read before the signature is verified, because they can only lead to a rejection.

use std::{
    collections::BTreeSet,
    slice,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{SERVICE_ACCOUNT, TokenOptions};
use crate::config::MAX_CLOCK_DIFFERENCE;

/// A token, taken apart.
#[derive(Debug)]
pub(super) struct Jwt<'a> {
    pub(super) header: Header,
    pub(super) claims: Claims,
    /// The part that is signed.
    pub(super) signed: &'a str,
    /// In base64.
    pub(super) signature: &'a str,
}

/// How a token is signed.
#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(default)]
    pub(super) alg: String,
    /// The id of the key. Empty: it names none.
    #[serde(default)]
    pub(super) kid: String,
    /// Extensions that have to be understood. Kubernetes uses none.
    pub(super) crit: Option<Value>,
}

/// The claims of a token that show whether it can be accepted.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    #[serde(default)]
    iss: String,
    #[serde(default)]
    sub: String,
    /// One audience, or a list.
    #[serde(default)]
    aud: Value,
    exp: Option<f64>,
    #[serde(default, rename = "kubernetes.io")]
    bound: Bound,
}

/// What a token is bound to.
#[derive(Debug, Default, Deserialize)]
struct Bound {
    #[serde(default)]
    node: BoundNode,
}

#[derive(Debug, Default, Deserialize)]
struct BoundNode {
    #[serde(default)]
    name: String,
}

impl<'a> Jwt<'a> {
    /// `None` if the token has another form: only the API server knows its content.
    pub(super) fn parse(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        Some(Self { header: decode(header)?, claims: decode(claims)?, signed, signature })
    }
}

/// Reads a part of a token.
fn decode<T: DeserializeOwned>(part: &str) -> Option<T> {
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

impl Claims {
    /// When the token expires, if it does.
    pub(super) fn expiry(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(self.exp?).ok()?)
    }

    /// The name of the client that a token with a valid signature was issued to: its node, or its ServiceAccount.
    pub(super) fn holder(&self) -> &str {
        if self.bound.node.name.is_empty() { &self.sub } else { &self.bound.node.name }
    }

    /// Why the token cannot be accepted, whatever its signature is.
    pub(super) fn check(
        &self,
        options: &TokenOptions,
        admins: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<(), String> {
        let Self { iss, sub, aud, .. } = self;
        let audiences = aud.as_array().map_or(slice::from_ref(aud), Vec::as_slice);
        let audiences: Vec<_> = audiences.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        options.check_audiences(&audiences)?;

        if let Some(expiry) = self.expiry()
            && expiry + MAX_CLOCK_DIFFERENCE < now
        {
            let ago = now.duration_since(expiry).unwrap_or_default().as_secs();
            return Err(format!("it expired {ago}s ago by the clock of the frontend"));
        }

        if !options.issuers.is_empty() && !options.issuers.contains(iss) {
            return Err(format!("its issuer is not a --token-issuer: {iss:?}"));
        }
        if sub.starts_with(SERVICE_ACCOUNT) && !admins.contains(sub) {
            options.check_backend(sub)?;
        }
        Ok(())
    }
}
