//! The applied state: what the last successful sync left in the kernel.

use std::collections::BTreeMap;

use proto::model::{IpFamily, PerFamily, ServicePortFailure, ServicePortKey};

use crate::dataplane::{Vip, VipOwnership};

/// What the kernel contains because of us. It makes an incremental update possible without reading the kernel.
pub trait Applied: Send + 'static {
    /// The VIPs that lead to a service port.
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)>;

    /// The VIPs whose objects in the kernel a service port uses that does not own the VIP, and that service port, as
    /// far as it is not programmed since the kernel was read.
    fn used_vips(&self, _: &VipOwnership) -> Vec<((IpFamily, Vip), ServicePortKey)> {
        Vec::new()
    }

    /// The service ports that are not programmed completely although the kernel accepted the transaction.
    fn failures(&self) -> Vec<ServicePortFailure> {
        Vec::new()
    }
}

/// What one service port should have in the kernel, in each family; `None`: nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortUpdate<D> {
    /// The service port.
    pub key: ServicePortKey,
    /// What it should have.
    pub desired: PerFamily<Option<D>>,
}

/// What each service port has in the kernel, in each family.
#[derive(Clone, Debug)]
pub struct AppliedServicePorts<T>(BTreeMap<ServicePortKey, PerFamily<Option<T>>>);

// === impl AppliedServicePorts ===

impl<T> Default for AppliedServicePorts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> AppliedServicePorts<T> {
    /// What a service port has in a family.
    #[must_use]
    pub fn get(&self, key: &ServicePortKey, family: IpFamily) -> Option<&T> {
        self.0.get(key)?[family].as_ref()
    }

    /// What the service ports have in a family.
    pub fn of_family(&self, family: IpFamily) -> impl Iterator<Item = &T> {
        self.0.values().filter_map(move |service_port| service_port[family].as_ref())
    }

    /// Records that an update was programmed.
    pub fn commit<D: Into<T>>(&mut self, update: ServicePortUpdate<D>) {
        let ServicePortUpdate { key, desired: PerFamily { v4, v6 } } = update;
        if v4.is_none() && v6.is_none() {
            self.0.remove(&key);
        } else {
            self.0.insert(key, PerFamily { v4: v4.map(Into::into), v6: v6.map(Into::into) });
        }
    }

    /// The VIPs of a service port in both families; `vips` gives those of one.
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
