//! The names that follow from an object: those of its service ports, and of objects beside it.

use std::sync::Arc;

use proto::model::ServicePortKey;

use crate::object::{ObjectName, ServiceObject, ServiceObjectPort, SliceObject};

pub(super) fn key_of(service: &ServiceObject, port: &ServiceObjectPort) -> ServicePortKey {
    let ObjectName { namespace, name } = &service.name;
    ServicePortKey::new(namespace.clone(), name.clone(), port.name.clone(), port.protocol)
}

pub(super) fn same_service(left: &ServicePortKey, right: &ServicePortKey) -> bool {
    (&left.namespace, &left.name) == (&right.namespace, &right.name)
}

pub(super) fn service_of(key: &ServicePortKey) -> ObjectName {
    ObjectName::new(key.namespace.clone(), key.name.clone())
}

/// The port of a Service with this key.
pub(super) fn port_of<'a>(service: &'a ServiceObject, key: &ServicePortKey) -> Option<&'a ServiceObjectPort> {
    let key = (&key.port_name, key.protocol);
    let at = service.ports.binary_search_by(|port| (&port.name, port.protocol).cmp(&key)).ok()?;
    service.ports.get(at)
}

/// An object in the same namespace.
pub(super) fn sibling(name: &ObjectName, other: &Arc<str>) -> ObjectName {
    ObjectName::new(name.namespace.clone(), other.clone())
}

/// The service ports that a slice has endpoints for.
pub(super) fn slice_keys(slice: &SliceObject) -> impl Iterator<Item = ServicePortKey> {
    slice.ports.iter().map(|port| {
        let namespace = slice.name.namespace.clone();
        ServicePortKey::new(namespace, slice.service.clone(), port.name.clone(), port.protocol)
    })
}
