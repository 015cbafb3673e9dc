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

const fn needed(group: &'static str, resource: &'static str, verb: &'static str) -> Permission {
    Permission { group, resource, verb, allowed: false, optional: None }
}

const fn optional(permission: Permission, without: &'static str) -> Permission {
    Permission { optional: Some(without), ..permission }
}

const NO_CIDRS: &str = "packets to unused addresses of the service CIDRs are not dropped";
const NO_EVENTS: &str = "no Events on Services that nodes cannot program";

/// As in the ClusterRole of the chart.
const PERMISSIONS: [Permission; 11] = [
    needed("", "services", "list"),
    needed("", "services", "watch"),
    needed("", "nodes", "list"),
    needed("", "nodes", "watch"),
    needed("discovery.k8s.io", "endpointslices", "list"),
    needed("discovery.k8s.io", "endpointslices", "watch"),
    optional(needed("networking.k8s.io", "servicecidrs", "list"), NO_CIDRS),
    optional(needed("networking.k8s.io", "servicecidrs", "watch"), NO_CIDRS),
    optional(
        needed("authentication.k8s.io", "tokenreviews", "create"),
        "nodes can authenticate with certificates only, not with tokens",
    ),
    optional(needed("events.k8s.io", "events", "create"), NO_EVENTS),
    optional(needed("events.k8s.io", "events", "patch"), NO_EVENTS),
];

/// Which of the permissions the user of a kubeconfig has. There is no timeout.
///
/// # Errors
/// When the kubeconfig is unusable, or the API server does not respond.
pub async fn check_permissions(kubeconfig: &Path) -> Result<Vec<Permission>> {
    let api = KubernetesApi::new(Some(kubeconfig)).await?;
    try_join_all(PERMISSIONS.map(|permission| review(&api, permission))).await
}

async fn review(api: &KubernetesApi, permission: Permission) -> Result<Permission> {
    let Permission { group, resource, verb, .. } = permission;
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec =
        SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..SelfSubjectAccessReviewSpec::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let created = Api::all(api.client()).create(&PostParams::default(), &review).await;
    let created = created.map_err(|error| api.explain(error)).context("create a SelfSubjectAccessReview")?;
    Ok(Permission { allowed: created.status.is_some_and(|status| status.allowed), ..permission })
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
