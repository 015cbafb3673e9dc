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
}

/// The effects of a commit on the ownership of VIPs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnershipChanges {
    /// The service ports to program, because they changed, or gain or lose a contested VIP.
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
            ownership.claim(&service.port, &mut OwnershipChanges::default());
        }
        ownership
    }

    /// Updates the owners in a state to those in the next one.
    pub(crate) fn update(&mut self, before: &NodeState, after: &NodeState, changes: &Changes) -> OwnershipChanges {
        let mut changed = OwnershipChanges { service_ports: changes.service_ports.clone(), vips: Vec::new() };
        // Release all before claiming any: a VIP may move from one changed service port to another.
        for service in changes.service_ports.iter().filter_map(|key| before.service_port(key)) {
            self.release(&service.port, &mut changed);
        }
        for service in changes.service_ports.iter().filter_map(|key| after.service_port(key)) {
            self.claim(&service.port, &mut changed);
        }
        changed
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

    /// Claims all VIPs of a service port. The owners that it displaces are to be programmed.
    fn claim(&mut self, port: &ServicePort, changes: &mut OwnershipChanges) {
        let key = &port.key;
        for (family, vip) in all_vips(port) {
            let owner = self.owners[family].entry(vip).or_insert_with(|| {
                changes.vips.push((family, vip));
                key.clone()
            });
            let loser = match (*owner).cmp(key) {
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Less => key.clone(),
                std::cmp::Ordering::Greater => {
                    let displaced = std::mem::replace(owner, key.clone());
                    changes.vips.push((family, vip));
                    changes.service_ports.insert(displaced.clone());
                    displaced
                }
            };
            self.conflicts.entry(loser).or_default().insert((family, vip));
        }
    }

    /// Releases the VIPs that the service port owns. Their next owners are to be programmed.
    fn release(&mut self, port: &ServicePort, changes: &mut OwnershipChanges) {
        self.conflicts.remove(&port.key);
        for (family, vip) in all_vips(port) {
            if !self.owns(&port.key, family, &vip) {
                continue;
            }
            self.owners[family].remove(&vip);
            changes.vips.push((family, vip));

            let mut waiting = self.conflicts.iter_mut();
            if let Some((next, vips)) = waiting.find(|(_, vips)| vips.contains(&(family, vip))) {
                vips.remove(&(family, vip));
                self.owners[family].insert(vip, next.clone());
                changes.service_ports.insert(next.clone());
            }
        }
        self.conflicts.retain(|_, vips| !vips.is_empty());
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
