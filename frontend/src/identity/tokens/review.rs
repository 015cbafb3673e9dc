//! One TokenReview: the question to the API server, and what its answer means.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::{Api, Client, api::PostParams};
use serde::Deserialize;

use super::{ServiceAccount, TokenOptions};
use crate::identity::{Identity, authenticator::is_node_name};

/// Where Kubernetes says which node a token is bound to: `status.user.extra` (since 1.30, for the token of a pod).
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Asks about tokens.
pub(super) trait Review: Send + Sync {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus>>;
}

/// The one who issues tokens.
pub(super) struct ApiServer {
    api: Api<TokenReview>,
    audience: String,
}

impl ApiServer {
    pub(super) fn new(client: Client, audience: String) -> Self {
        Self { api: Api::all(client), audience }
    }
}

impl Review for ApiServer {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus>> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![self.audience.clone()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        Box::pin(async move {
            let answer = self.api.create(&PostParams::default(), &review).await;
            let answer = answer.context("TokenReview (the frontend must be allowed to create them)")?;
            answer.status.context("TokenReview: the answer has no status")
        })
    }
}

/// Who the answer says that the holder is, or why it is nobody.
pub(super) fn identity(
    status: &TokenReviewStatus,
    options: &TokenOptions,
    admins: &BTreeSet<String>,
) -> Result<Identity, String> {
    if status.authenticated != Some(true) {
        return Err(status.error.clone().unwrap_or_else(|| "the API server does not know it".to_owned()));
    }
    // An API server that says nothing about audiences has not looked at them.
    let audiences = status.audiences.as_deref().unwrap_or_default();
    if !audiences.contains(&options.audience) {
        return Err(format!("it is meant for {audiences:?}, not for {:?}", options.audience));
    }
    let user = status.user.as_ref();
    let name = user.and_then(|user| user.username.as_deref()).unwrap_or_default();
    if admins.contains(name) {
        return Ok(Identity::Admin(name.into()));
    }
    if !options.backend_accounts.iter().map(ServiceAccount::user).any(|agent| agent == name) {
        return Err(format!("it is of {name:?}, which is none of the agents' ServiceAccounts"));
    }
    let extra = user.and_then(|user| user.extra.as_ref()).and_then(|extra| extra.get(NODE_NAME));
    match extra.map(Vec::as_slice) {
        Some([node]) if is_node_name(node) => Ok(Identity::Node(node.as_str().into())),
        _ => Err(format!(
            "it is of {name:?}, but not bound to a node: it must come from a projected volume of a pod, in \
             Kubernetes 1.30 or later"
        )),
    }
}

/// Until when a token is valid, if it says so. Its signature is not looked at: whoever reviews it has.
pub(super) fn expiry(token: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: u64,
    }
    let payload = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Claims = serde_json::from_slice(&payload).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp))
}
