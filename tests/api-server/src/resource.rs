//! The kinds that are served, and the paths of their requests.

use std::fmt;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// core/v1 Node.
    Node,
    /// core/v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice,
    /// networking.k8s.io/v1 ServiceCIDR.
    ServiceCidr,
    /// events.k8s.io/v1 Event.
    Event,
    /// core/v1 ConfigMap.
    ConfigMap,
}

/// All objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collection<'a> {
    pub(crate) resource: Resource,
    /// Of one namespace only.
    pub(crate) namespace: Option<&'a str>,
}

/// The objects that a path stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) resource: Resource,
    /// Of one namespace only.
    pub(crate) namespace: Option<String>,
    /// One object only.
    pub(crate) name: Option<String>,
}

// === impl Resource ===

impl Resource {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Node, Self::Service, Self::EndpointSlice, Self::ServiceCidr, Self::Event, Self::ConfigMap];

    /// `kind`.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Event => "Event",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// `apiVersion`.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Node | Self::Service | Self::ConfigMap => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::ServiceCidr => "networking.k8s.io/v1",
            Self::Event => "events.k8s.io/v1",
        }
    }

    /// The name in paths.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::ServiceCidr => "servicecidrs",
            Self::Event => "events",
            Self::ConfigMap => "configmaps",
        }
    }

    /// The API group; empty for the core group.
    pub(crate) fn group(self) -> &'static str {
        self.api_version().rsplit_once('/').map_or("", |(group, _)| group)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

// === impl Route ===

impl Route {
    /// `/api/v1/nodes`, `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME` and the like.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/api/").or_else(|| path.strip_prefix("/apis/"))?;
        for resource in Resource::ALL {
            let Some(rest) = rest.strip_prefix(resource.api_version()) else { continue };
            let mut parts = rest.split('/').skip(1);
            let mut plural = parts.next();
            let mut namespace = None;
            if plural == Some("namespaces") {
                namespace = Some(parts.next()?.to_owned());
                plural = parts.next();
            }
            if plural == Some(resource.plural()) {
                return Some(Self { resource, namespace, name: parts.next().map(str::to_owned) });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_routed() {
        let route = |resource, namespace: Option<&str>, name: Option<&str>| {
            Some(Route { resource, namespace: namespace.map(str::to_owned), name: name.map(str::to_owned) })
        };
        assert_eq!(Route::parse("/api/v1/nodes"), route(Resource::Node, None, None));
        assert_eq!(Route::parse("/api/v1/nodes/a"), route(Resource::Node, None, Some("a")));
        let path = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1";
        assert_eq!(Route::parse(path), route(Resource::EndpointSlice, Some("shop"), Some("web-1")));
        assert_eq!(Route::parse("/api/v1/pods"), None);
    }
}
