//! The applied state: the objects of this backend in the kernel after the last successful sync.

use std::collections::BTreeMap;

use proto::model::{IpFamily, PerFamily, ServicePortFailure, ServicePortKey};

use crate::dataplane::{Vip, VipOwnership};

/// The objects that the kernel contains because of us. It makes an incremental update possible without reading the
/// kernel.
pub trait Applied: Send + 'static {
    /// The VIPs that lead to a service port.
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)>;

    /// Whether objects remain that no service port needs, or may remain.
    fn has_unneeded(&self) -> bool;

    /// Whether packets reach what is programmed. Until they do, those of an earlier version serve, with the service
    /// ports as they were.
    fn is_serving(&self) -> bool {
        true
    }

    /// The VIPs whose objects in the kernel are used by a service port that does not own the VIP, each with that
    /// service port, unless it has been programmed since the kernel was read.
    fn used_vips(&self, _: &VipOwnership) -> Vec<((IpFamily, Vip), ServicePortKey)> {
        Vec::new()
    }

    /// Whether the kernel, when it was read, contained everything that the service port should have.
    fn is_programmed(&self, _: &ServicePortKey) -> bool {
        false
    }

    /// Forgets what was computed for a service port, because its objects in the kernel may have to change, for example
    /// because a VIP has got another owner.
    fn invalidate(&mut self, _: &ServicePortKey) {}

    /// These VIPs have got other owners, or have none any more.
    fn owners_changed(&mut self, _: &VipOwnership, _: &[(IpFamily, Vip)]) {}

    /// The service ports that are not programmed completely although the kernel accepted the transaction.
    fn failures(&self) -> Vec<ServicePortFailure> {
        Vec::new()
    }
}

/// The desired objects of a service port in the kernel, in each family; `None`: nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortUpdate<D> {
    /// The service port.
    pub key: ServicePortKey,
    /// The desired objects.
    pub desired: PerFamily<Option<D>>,
}

/// The objects of each service port in the kernel, in each family.
#[derive(Clone, Debug)]
pub struct AppliedServicePorts<T>(BTreeMap<ServicePortKey, PerFamily<Option<T>>>);

// === impl ServicePortUpdate ===

impl<D> ServicePortUpdate<D> {
    fn is_empty(&self) -> bool {
        self.desired.iter().all(|(_, desired)| desired.is_none())
    }
}

// === impl AppliedServicePorts ===

impl<T> Default for AppliedServicePorts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> FromIterator<ServicePortUpdate<T>> for AppliedServicePorts<T> {
    fn from_iter<I: IntoIterator<Item = ServicePortUpdate<T>>>(updates: I) -> Self {
        let updates = updates.into_iter().filter(|update| !update.is_empty());
        Self(updates.map(|update| (update.key, update.desired)).collect())
    }
}

impl<T> AppliedServicePorts<T> {
    /// The objects of a service port in a family.
    #[must_use]
    pub fn get(&self, key: &ServicePortKey, family: IpFamily) -> Option<&T> {
        self.0.get(key)?[family].as_ref()
    }

    /// Whether a service port has anything in the kernel.
    #[must_use]
    pub fn contains(&self, key: &ServicePortKey) -> bool {
        self.0.contains_key(key)
    }

    /// The objects of the service ports in a family.
    pub fn of_family(&self, family: IpFamily) -> impl Iterator<Item = &T> {
        self.0.values().filter_map(move |service_port| service_port[family].as_ref())
    }

    /// Records that an update was programmed.
    pub fn commit(&mut self, update: ServicePortUpdate<T>) {
        if update.is_empty() {
            self.0.remove(&update.key);
        } else {
            self.0.insert(update.key, update.desired);
        }
    }

    /// The VIPs of a service port in both families; `vips` returns the VIPs of one family.
    pub fn vips<'a, V: IntoIterator<Item = &'a Vip>>(
        &'a self,
        key: &ServicePortKey,
        vips: impl Fn(&'a T) -> V,
    ) -> Vec<(IpFamily, Vip)> {
        let mut list = Vec::new();
        for family in IpFamily::ALL {
            let of_family = self.get(key, family).map(&vips).into_iter().flatten();
            list.extend(of_family.map(|vip| (family, *vip)));
        }
        list
    }
}
