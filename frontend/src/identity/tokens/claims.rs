//! The claims of a token, read without verifying its signature: they can only lead to a rejection. Whether they are
//! true is decided by the API server.

use std::{
    collections::BTreeSet,
    slice,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::Value;

use super::{SERVICE_ACCOUNT, TokenOptions};

/// How far the clocks of the frontend and the API server may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// The claims of a JSON Web Token (RFC 7519) that show whether it can be accepted.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    #[serde(default)]
    iss: String,
    #[serde(default)]
    sub: String,
    /// One, or a list.
    #[serde(default)]
    aud: Value,
    exp: Option<f64>,
}

impl Claims {
    /// `None` if the token is not a JSON Web Token: only the API server knows its content.
    pub(super) fn parse(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
    }

    /// When the token expires, if it does.
    pub(super) fn expiry(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(self.exp?).ok()?)
    }

    /// Why the token cannot be accepted, whatever its signature is.
    pub(super) fn check(
        &self,
        options: &TokenOptions,
        admins: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<(), String> {
        let Self { iss, sub, aud, exp: _ } = self;
        let audiences = aud.as_array().map_or(slice::from_ref(aud), Vec::as_slice);
        let audiences: Vec<_> = audiences.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        options.check_audiences(&audiences)?;
        if let Some(expiry) = self.expiry()
            && expiry + LEEWAY < now
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
