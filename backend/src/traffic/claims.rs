//! Who owns which front. The frontend never lets two service ports claim one VIP or node port; if it happens all the same, the
//! first in key order has it, and the others are told.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proto::model::{FailureKind, IpFamily, PerFamily, ServicePort, ServicePortFailure, ServicePortKey};

use super::{Front, fronts};
use crate::{Changes, NodeState};

/// The claims of all service ports.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    owners: PerFamily<HashMap<Front, ServicePortKey>>,
    /// What belongs to somebody else. Almost always empty.
    lost: BTreeMap<ServicePortKey, BTreeSet<(IpFamily, Front)>>,
}

impl Claims {
    /// Those of a whole state.
    #[must_use]
    pub fn of(state: &NodeState) -> Self {
        let mut claims = Self::default();
        for service in state.services().values() {
            claims.claim(&service.port);
        }
        claims
    }

    /// Follows a change to `state`; `had` tells what has led to a service port. Returns the service ports to look at: those that changed,
    /// and those that gain or lose a contested front by it.
    pub fn follow<F: IntoIterator<Item = (IpFamily, Front)>>(
        &mut self,
        state: &NodeState,
        changes: &Changes,
        had: impl Fn(&ServicePortKey) -> F,
    ) -> BTreeSet<ServicePortKey> {
        let mut touched = changes.services.clone();
        // All are released first: what one gives up another may take.
        for key in &changes.services {
            touched.extend(self.release(key, had(key)));
        }
        for service in changes.services.iter().filter_map(|key| state.service(key)) {
            touched.extend(self.claim(&service.port));
        }
        touched
    }

    /// Whether the front belongs to this service port.
    #[must_use]
    pub fn owns(&self, key: &ServicePortKey, family: IpFamily, front: &Front) -> bool {
        self.owners[family].get(front) == Some(key)
    }

    /// To whom the front belongs.
    #[must_use]
    pub fn owner(&self, family: IpFamily, front: &Front) -> Option<&ServicePortKey> {
        self.owners[family].get(front)
    }

    /// Whether the front belongs to anybody.
    #[must_use]
    pub fn is_owned(&self, family: IpFamily, front: &Front) -> bool {
        self.owners[family].contains_key(front)
    }

    /// A service port claims all that leads to it. Tells whose fronts it takes.
    fn claim(&mut self, port: &ServicePort) -> Vec<ServicePortKey> {
        let mut displaced = Vec::new();
        for family in IpFamily::ALL {
            for (front, _) in fronts(port, family) {
                displaced.extend(self.claim_front(&port.key, family, front));
            }
        }
        displaced
    }

    fn claim_front(&mut self, key: &ServicePortKey, family: IpFamily, front: Front) -> Option<ServicePortKey> {
        let owner = self.owners[family].entry(front).or_insert_with(|| key.clone());
        let (loser, displaced) = match (*owner).cmp(key) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Less => (key.clone(), None),
            std::cmp::Ordering::Greater => {
                let old = std::mem::replace(owner, key.clone());
                (old.clone(), Some(old))
            }
        };
        self.lost.entry(loser).or_default().insert((family, front));
        displaced
    }

    /// A service port gives up those of `had` that it has. Tells who comes into them.
    fn release(
        &mut self,
        key: &ServicePortKey,
        had: impl IntoIterator<Item = (IpFamily, Front)>,
    ) -> Vec<ServicePortKey> {
        self.lost.remove(key);
        let mut heirs = Vec::new();
        for (family, front) in had {
            if !self.owns(key, family, &front) {
                continue;
            }
            self.owners[family].remove(&front);
            let heir = self.lost.iter_mut().find_map(|(key, lost)| lost.remove(&(family, front)).then(|| key.clone()));
            if let Some(heir) = heir {
                self.owners[family].insert(front, heir.clone());
                heirs.push(heir);
            }
        }
        self.lost.retain(|_, lost| !lost.is_empty());
        heirs
    }

    /// One failure for each service port that has lost something.
    pub fn failures(&self) -> impl Iterator<Item = ServicePortFailure> {
        self.lost.iter().map(|(key, lost)| {
            let conflicts = lost.iter().filter_map(|(family, front)| {
                let owner = self.owners[*family].get(front)?;
                Some(format!("{front} belongs to {owner}"))
            });
            // Both families of a node port say the same.
            let conflicts: BTreeSet<String> = conflicts.collect();
            let reason = conflicts.into_iter().collect::<Vec<_>>().join("; ");
            // It resolves itself when the owner goes away, not by trying again.
            ServicePortFailure { key: key.clone(), reason, retryable: false, kind: FailureKind::Program }
        })
    }
}
