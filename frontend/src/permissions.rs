//! What a frontend must be allowed to do, and whether it is: the API server is asked.

use std::{fmt, path::Path};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};

use crate::source::kubernetes_client;

/// Something that a frontend does with the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    group: &'static str,
    resource: &'static str,
    verb: &'static str,
    /// Whether it may.
    pub allowed: bool,
    /// What is missing without it, where a frontend can do without.
    pub optional: Option<&'static str>,
}

const fn needed(group: &'static str, resource: &'static str, verb: &'static str) -> Permission {
    Permission { group, resource, verb, allowed: false, optional: None }
}

const fn optional(permission: Permission, without: &'static str) -> Permission {
    Permission { optional: Some(without), ..permission }
}

const NO_CIDRS: &str = "addresses of the service CIDRs that no Service has are not dropped";
const NO_EVENTS: &str = "no Events tell on a Service that nodes cannot program it";

/// Those of the ClusterRole in the chart.
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
        "nodes cannot show who they are by tokens, only by certificates",
    ),
    optional(needed("events.k8s.io", "events", "create"), NO_EVENTS),
    optional(needed("events.k8s.io", "events", "patch"), NO_EVENTS),
];

/// What the holder of a kubeconfig may do of all that. There is no time limit.
///
/// # Errors
/// When the API server does not answer.
pub async fn check_permissions(kubeconfig: &Path) -> Result<Vec<Permission>> {
    let client = kubernetes_client(Some(kubeconfig)).await?;
    try_join_all(PERMISSIONS.map(|permission| ask(client.clone(), permission))).await
}

async fn ask(client: Client, permission: Permission) -> Result<Permission> {
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
    let answer = Api::all(client).create(&PostParams::default(), &review).await;
    let status = answer.context("SelfSubjectAccessReview")?.status;
    Ok(Permission { allowed: status.is_some_and(|status| status.allowed), ..permission })
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
