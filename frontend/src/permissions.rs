//! The permissions that a frontend needs, and whether it has them (SelfSubjectAccessReview).

use std::{fmt, path::Path};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, api::PostParams};

use crate::source::KubernetesApi;

/// A verb on a resource that a frontend uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    group: &'static str,
    resource: &'static str,
    verb: &'static str,
    /// Whether it is granted.
    pub allowed: bool,
    /// What does not work without it. `None`: nothing works.
    pub optional: Option<&'static str>,
}

const NO_CIDRS: Option<&str> = Some("packets to unused addresses of the service CIDRs are not dropped");
const NO_EVENTS: Option<&str> = Some("no Events on Services that nodes cannot program");
const NO_TOKENS: Option<&str> = Some("nodes can authenticate with certificates only, not with tokens");

/// API group, resource, verb, and what does not work without it; as in the ClusterRole of the chart.
const PERMISSIONS: [(&str, &str, &str, Option<&str>); 11] = [
    ("", "services", "list", None),
    ("", "services", "watch", None),
    ("", "nodes", "list", None),
    ("", "nodes", "watch", None),
    ("discovery.k8s.io", "endpointslices", "list", None),
    ("discovery.k8s.io", "endpointslices", "watch", None),
    ("networking.k8s.io", "servicecidrs", "list", NO_CIDRS),
    ("networking.k8s.io", "servicecidrs", "watch", NO_CIDRS),
    ("authentication.k8s.io", "tokenreviews", "create", NO_TOKENS),
    ("events.k8s.io", "events", "create", NO_EVENTS),
    ("events.k8s.io", "events", "patch", NO_EVENTS),
];

/// Which of the permissions the user of a kubeconfig has. There is no timeout.
///
/// # Errors
/// When the kubeconfig is unusable, or the API server does not respond.
pub async fn check_permissions(kubeconfig: &Path) -> Result<Vec<Permission>> {
    let api = KubernetesApi::new(Some(kubeconfig)).await?;
    let review = async |(group, resource, verb, optional)| {
        let allowed = is_allowed(&api, group, resource, verb).await?;
        Ok(Permission { group, resource, verb, allowed, optional })
    };
    try_join_all(PERMISSIONS.map(review)).await
}

async fn is_allowed(api: &KubernetesApi, group: &str, resource: &str, verb: &str) -> Result<bool> {
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some(verb.to_owned()),
        ..Default::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let created = Api::all(api.client()).create(&PostParams::default(), &review).await;
    let created = created.map_err(|error| api.explain(error)).context("create a SelfSubjectAccessReview")?;
    Ok(created.status.is_some_and(|status| status.allowed))
}

impl fmt::Display for Permission {
    /// `watch services`, `list endpointslices.discovery.k8s.io`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, resource, verb, .. } = self;
        match *group {
            "" => write!(f, "{verb} {resource}"),
            group => write!(f, "{verb} {resource}.{group}"),
        }
    }
}
