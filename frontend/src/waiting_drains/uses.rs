//! How addresses are used: decided once for each commit, however many questions there are about them.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use runtime::lock;

use crate::cluster::{AddressUse, ClusterState};

/// How many decisions are kept: more than pods end at the same time.
const MAX_USES: usize = 1024;

/// The decisions since the last commit.
#[derive(Debug, Default)]
pub(crate) struct AddressUses(Mutex<UsesOfCommit>);

#[derive(Debug, Default)]
struct UsesOfCommit {
    commit: u64,
    uses: HashMap<Vec<IpAddr>, Arc<AddressUse>>,
    #[cfg(test)]
    decisions: usize,
}

impl AddressUses {
    /// How addresses of a pod are used now.
    pub(crate) fn of(&self, cluster: &ClusterState, addresses: &[IpAddr]) -> Arc<AddressUse> {
        let commit = cluster.commit_count();
        if let Some(used) = lock(&self.0).of_commit(commit).get(addresses).cloned() {
            let is_current = cluster.has_committed_all();
            return if is_current { used } else { Arc::new(AddressUse { revision: None, ..(*used).clone() }) };
        }
        // The lock is not held: others decide the same.
        let used = Arc::new(cluster.use_of(addresses));
        let mut known = lock(&self.0);
        #[cfg(test)]
        {
            known.decisions += 1;
        }
        let uses = known.of_commit(commit);
        if used.revision.is_some() && uses.len() < MAX_USES {
            uses.insert(addresses.to_vec(), used.clone());
        }
        used
    }

    #[cfg(test)]
    pub(crate) fn decisions(&self) -> usize {
        lock(&self.0).decisions
    }
}

impl UsesOfCommit {
    /// Forgets those of other commits.
    fn of_commit(&mut self, commit: u64) -> &mut HashMap<Vec<IpAddr>, Arc<AddressUse>> {
        if self.commit != commit {
            self.commit = commit;
            self.uses.clear();
        }
        &mut self.uses
    }
}
