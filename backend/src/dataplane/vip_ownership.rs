//! Which service port owns which VIP. The frontend resolves conflicts between Services; should two service ports have
//! the same VIP all the same, the first in key order owns it, and the others are reported as failed.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proto::model::{IpFamily, PerFamily, ServicePort, ServicePortFailure, ServicePortKey};

use super::{Vip, all_vips};
use crate::{Changes, NodeState};

/// The owner of each VIP, and the VIPs that further service ports have.
#[derive(Clone, Debug, Default)]
pub struct VipOwnership {
    owners: PerFamily<HashMap<Vip, ServicePortKey>>,
    /// The VIPs of a service port that another one owns. Almost always empty.
    conflicts: BTreeMap<ServicePortKey, BTreeSet<(IpFamily, Vip)>>,
    /// The VIPs that have got another owner, or have none any more, since the last update.
    changed: Vec<(IpFamily, Vip)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnershipChanges {
    /// The service ports to program: those that changed, and those that gain or lose a contested VIP.
    pub(crate) service_ports: BTreeSet<ServicePortKey>,
    /// The VIPs that have got another owner, or have none any more.
    pub(crate) vips: Vec<(IpFamily, Vip)>,
}

impl VipOwnership {
    /// The owners in a whole state.
    #[must_use]
    pub fn of(state: &NodeState) -> Self {
        let mut ownership = Self::default();
        for service in state.service_ports().values() {
            ownership.claim(&service.port);
            ownership.changed.clear();
        }
        ownership
    }

    /// Updates the owners in a state to those in the next one.
    pub(crate) fn update(&mut self, before: &NodeState, after: &NodeState, changes: &Changes) -> OwnershipChanges {
        let mut affected = changes.service_ports.clone();
        // Release all before claiming any: a VIP may move from one changed service port to another.
        for service in changes.service_ports.iter().filter_map(|key| before.service_port(key)) {
            affected.extend(self.release(&service.port));
        }
        for service in changes.service_ports.iter().filter_map(|key| after.service_port(key)) {
            affected.extend(self.claim(&service.port));
        }
        OwnershipChanges { service_ports: affected, vips: std::mem::take(&mut self.changed) }
    }

    /// Whether this service port owns the VIP.
    #[must_use]
    pub fn owns(&self, key: &ServicePortKey, family: IpFamily, vip: &Vip) -> bool {
        self.owners[family].get(vip) == Some(key)
    }

    /// The owner of the VIP.
    #[must_use]
    pub fn owner(&self, family: IpFamily, vip: &Vip) -> Option<&ServicePortKey> {
        self.owners[family].get(vip)
    }

    /// Claims all VIPs of a service port. Returns the owners that it displaces.
    fn claim(&mut self, port: &ServicePort) -> Vec<ServicePortKey> {
        all_vips(port).filter_map(|(family, vip)| self.claim_vip(&port.key, family, vip)).collect()
    }

    fn claim_vip(&mut self, key: &ServicePortKey, family: IpFamily, vip: Vip) -> Option<ServicePortKey> {
        let owner = self.owners[family].entry(vip).or_insert_with(|| {
            self.changed.push((family, vip));
            key.clone()
        });
        let (loser, displaced) = match (*owner).cmp(key) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Less => (key.clone(), None),
            std::cmp::Ordering::Greater => {
                let old = std::mem::replace(owner, key.clone());
                self.changed.push((family, vip));
                (old.clone(), Some(old))
            }
        };
        self.conflicts.entry(loser).or_default().insert((family, vip));
        displaced
    }

    /// Releases the VIPs that the service port owns. Returns the service ports that own them next.
    fn release(&mut self, port: &ServicePort) -> Vec<ServicePortKey> {
        self.conflicts.remove(&port.key);
        let mut new_owners = Vec::new();
        for (family, vip) in all_vips(port) {
            if !self.owns(&port.key, family, &vip) {
                continue;
            }
            self.owners[family].remove(&vip);
            self.changed.push((family, vip));
            let mut waiting = self.conflicts.iter_mut();
            let next = waiting.find_map(|(key, vips)| vips.remove(&(family, vip)).then(|| key.clone()));
            if let Some(next) = next {
                self.owners[family].insert(vip, next.clone());
                new_owners.push(next);
            }
        }
        self.conflicts.retain(|_, vips| !vips.is_empty());
        new_owners
    }

    /// One failure for each service port with a VIP that another one owns.
    pub(crate) fn failures(&self) -> impl Iterator<Item = ServicePortFailure> {
        self.conflicts.iter().map(|(key, vips)| {
            let conflicts = vips.iter().filter_map(|(family, vip)| {
                let owner = self.owners[*family].get(vip)?;
                Some(format!("{vip} belongs to {owner}"))
            });
            // A node port has the same text in both families.
            let conflicts: BTreeSet<String> = conflicts.collect();
            let reason = conflicts.into_iter().collect::<Vec<_>>().join("; ");
            // Retrying does not help: the conflict ends when the owner is removed.
            ServicePortFailure::rejected(key.clone(), reason).permanent()
        })
    }
}
