//! One TokenReview: the request to the API server, and the meaning of the result.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::{Api, api::PostParams};

use super::TokenOptions;
use crate::identity::{Identity, is_node_name};

/// The key in `status.user.extra` with the node that a token is bound to (since Kubernetes 1.30, for tokens of pods).
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Requests the review of a token from the API server.
pub(super) async fn review(api: &Api<TokenReview>, token: &str, audience: &str) -> Result<TokenReviewStatus> {
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![audience.to_owned()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let reviewed = api
        .create(&PostParams::default(), &review)
        .await
        .context("create a TokenReview (the frontend needs permission to create tokenreviews.authentication.k8s.io)")?;
    reviewed.status.context("TokenReview without a status")
}

/// The identity of the holder of a reviewed token, or why the token is rejected.
pub(super) fn identity(
    status: &TokenReviewStatus,
    options: &TokenOptions,
    admins: &BTreeSet<String>,
) -> Result<Identity, String> {
    if status.authenticated != Some(true) {
        return Err(status.error.clone().unwrap_or_else(|| "the API server does not accept it".to_owned()));
    }

    // An API server that returns no audiences has not checked them.
    let audiences = status.audiences.as_deref().unwrap_or_default();
    options.check_audiences(audiences)?;

    let user = status.user.as_ref();
    let name = user.and_then(|user| user.username.as_deref()).unwrap_or_default();
    if admins.contains(name) {
        return Ok(Identity::Admin(name.into()));
    }
    options.check_backend(name)?;

    let extra = user.and_then(|user| user.extra.as_ref()).and_then(|extra| extra.get(NODE_NAME));
    match extra.map(Vec::as_slice) {
        Some([node]) if is_node_name(node) => Ok(Identity::Node(node.as_str().into())),
        _ => Err(format!(
            "it belongs to {name:?}, but is not bound to a node: use the token of a projected volume of a pod, \
             in Kubernetes 1.30 or later"
        )),
    }
}
