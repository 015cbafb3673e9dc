//! Objects as they arrive: parsed while they are decoded, so that nothing else of them is ever kept.

use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::super::parse;
use crate::object::Parsed;

/// A kind that is watched, and which objects of it.
pub(super) trait Watchable:
    parse::Resource + kube::Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static
{
    /// Label selector.
    const LABELS: Option<&'static str>;
    /// Field selector.
    const FIELDS: Option<&'static str>;
    /// Whether there is no doing without.
    const NEED: Need;
}

/// What it means when the API does not offer a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Something is wrong: nobody can be served before it is mended.
    Required,
    /// The cluster is older than the kind, or does not let us read it. There is no such object, then.
    Optional,
}

/// An object of type `K`, parsed. One that does not decode as a `K` arrives as well, as one that is unusable: it must not
/// stand in the way of the others on its page.
#[derive(Clone, Debug)]
pub(super) struct Arrived<K> {
    /// What matters of it.
    pub(super) parsed: Parsed,
    /// What a watcher needs of it: `resourceVersion`.
    metadata: ObjectMeta,
    of: PhantomData<K>,
}

impl Watchable for Service {
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/service-proxy-name");
    const FIELDS: Option<&'static str> = Some("spec.clusterIP!=None");
    const NEED: Need = Need::Required;
}

impl Watchable for EndpointSlice {
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/headless");
    const FIELDS: Option<&'static str> = None;
    const NEED: Need = Need::Required;
}

impl Watchable for Node {
    const LABELS: Option<&'static str> = None;
    const FIELDS: Option<&'static str> = None;
    const NEED: Need = Need::Required;
}

/// Served since Kubernetes 1.33. Reading it is a permission of its own (`networking.k8s.io`, `servicecidrs`: list, watch).
impl Watchable for ServiceCIDR {
    const LABELS: Option<&'static str> = None;
    const FIELDS: Option<&'static str> = None;
    const NEED: Need = Need::Optional;
}

// === impl Arrived ===

impl<'de, K: Watchable> Deserialize<'de> for Arrived<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        let metadata = ObjectMeta {
            resource_version: json["metadata"]["resourceVersion"].as_str().map(str::to_owned),
            ..ObjectMeta::default()
        };
        Ok(Self { parsed: parse::from_json::<K>(&json), metadata, of: PhantomData })
    }
}

impl<K: Watchable> kube::Resource for Arrived<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
