//! A kernel for tests: a map of objects that rejects what the kernel rejects. The instances of a test share it, as
//! successive processes share the kernel of a node.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use backend::InstalledObject;
use iptables::ChainSpec;
use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, PerFamily};

use super::{ConnectionCounts, Connections, Kernel, Listing, Ours, Prepared, Rejected, Summary, UnusableFamily};
use crate::{
    object::{Object, Value},
    plan::{Objects, Operation, destinations},
    set::SetId,
};

/// A kernel that contains the committed objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// The rules of the base objects, once they exist.
    rules: Option<PerFamily<Vec<ChainSpec>>>,
    objects: Objects,
    /// The connections of each destination.
    connections: HashMap<(VirtualServerKey, SocketAddr), u32>,
    elsewhere: HashSet<IpAddr>,
    /// Rejected when they are added.
    rejected: BTreeSet<Object>,
    /// A scheduler that does not exist; `rr` replaces it.
    missing_scheduler: Option<&'static str>,
    /// A family that cannot be prepared.
    unusable: Option<IpFamily>,
    /// Whether connection counts are not answered.
    is_stalled: bool,
    /// Whether commits are not executed, and do not end.
    has_stalled_commits: bool,
    /// The executed operations.
    log: Vec<Operation>,
    /// The number of commits.
    commits: usize,
}

// === impl Fake ===

impl Fake {
    /// All objects.
    pub(crate) fn objects(&self) -> Objects {
        self.lock().objects.clone()
    }

    /// Adds or changes an object as another process would.
    pub(crate) fn put(&self, object: Object, value: Value) {
        self.lock().objects.insert(object, value);
    }

    /// Removes an object as another process would.
    pub(crate) fn lose(&self, object: &Object) {
        self.lock().objects.remove(object);
    }

    /// Deletes everything.
    pub(crate) fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Removes an object that nothing refers to, as another process would. Whether there is one.
    pub(crate) fn remove_any(&self, number: usize) -> bool {
        let mut inner = self.lock();
        let is_listed = |object: &&Object| matches!(object, Object::SetEntry(..) | Object::Address(_));
        let mut objects: Vec<_> = inner.objects.keys().filter(is_listed).copied().collect();
        objects.sort_unstable_by_key(|object| format!("{object:?}"));
        let Some(object) = number.checked_rem(objects.len()).map(|index| objects[index]) else { return false };
        inner.objects.remove(&object).is_some()
    }

    /// Gives every destination this number of connections.
    pub(crate) fn connect(&self, count: u32) {
        let mut inner = self.lock();
        let all: Vec<_> = inner.objects.keys().copied().collect();
        for object in all {
            if let Object::Destination(server, address) = object {
                inner.connections.insert((server, address), count);
            }
        }
    }

    /// Sets the addresses of other devices.
    pub(crate) fn set_elsewhere(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.lock().elsewhere = addresses.into_iter().collect();
    }

    /// Rejects these objects from now on, and no others.
    pub(crate) fn reject(&self, objects: impl IntoIterator<Item = Object>) {
        self.lock().rejected = objects.into_iter().collect();
    }

    /// Removes a scheduler; `None`: all exist again.
    pub(crate) fn remove_scheduler(&self, scheduler: Option<&'static str>) {
        self.lock().missing_scheduler = scheduler;
    }

    /// Makes a family unusable; `None`: both can be programmed.
    pub(crate) fn set_unusable(&self, family: Option<IpFamily>) {
        self.lock().unusable = family;
    }

    /// Whether to leave questions for connection counts without an answer.
    pub(crate) fn set_stalled(&self, is_stalled: bool) {
        self.lock().is_stalled = is_stalled;
    }

    /// Whether to leave commits without an end; they execute nothing.
    pub(crate) fn set_stalled_commits(&self, has_stalled_commits: bool) {
        self.lock().has_stalled_commits = has_stalled_commits;
    }

    /// The operations executed since the last call.
    pub(crate) fn log(&self) -> Vec<Operation> {
        std::mem::take(&mut self.lock().log)
    }

    /// The number of commits since the last call.
    pub(crate) fn commits(&self) -> usize {
        std::mem::take(&mut self.lock().commits)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for Fake {
    async fn prepare(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> Result<Prepared> {
        let mut inner = self.lock();
        let is_used = |family: &IpFamily| !rules[*family].is_empty();
        if let Some(family) = inner.unusable.filter(is_used) {
            return Ok(Prepared {
                writes: 0,
                unusable: vec![UnusableFamily { family, reason: "no such table".to_owned(), is_permanent: true }],
            });
        }
        let differs = inner.rules.as_ref() != Some(&rules);
        inner.rules = Some(rules);
        Ok(Prepared { writes: usize::from(differs), unusable: Vec::new() })
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        let inner = self.lock();
        let is_ours = |object: &Object| match object {
            Object::Server(server) | Object::Destination(server, _) => ours.has(server, &inner.objects),
            Object::Address(address) => !ours.excludes(address),
            Object::SetEntry(..) => true,
        };
        let listed = inner.objects.iter().filter(|(object, _)| is_ours(object));
        let objects = listed.map(|(object, value)| (*object, value.clone())).collect();
        Ok(Listing { objects, elsewhere: inner.elsewhere.clone() })
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<HashMap<usize, Rejected>> {
        let has_stalled_commits = self.lock().has_stalled_commits;
        if has_stalled_commits {
            return std::future::pending().await;
        }

        let mut inner = self.lock();
        inner.commits += 1;
        let mut rejected = HashMap::new();
        for (index, mut operation) in operations.into_iter().enumerate() {
            let instead = inner.stand_in(&mut operation);
            match inner.execute(&operation) {
                Ok(()) => {
                    inner.log.push(operation);
                    if instead.is_some() {
                        rejected.insert(index, Rejected { reason: "no such scheduler".to_owned(), instead });
                    }
                }
                Err(reason) => drop(rejected.insert(index, Rejected { reason: reason.to_owned(), instead: None })),
            }
        }
        Ok(rejected)
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        let is_stalled = self.lock().is_stalled;
        if is_stalled {
            return std::future::pending().await;
        }

        let inner = self.lock();
        let mut counts = HashMap::new();
        for (object, _) in servers.iter().flat_map(|server| destinations(&inner.objects, *server)) {
            if let Object::Destination(server, address) = object {
                let key = (*server, *address);
                let active = inner.connections.get(&key).copied().unwrap_or_default();
                counts.insert(key, Connections { active, inactive: 0 });
            }
        }
        Ok(counts)
    }

    async fn summary(&mut self) -> Result<Summary> {
        let inner = self.lock();
        let mut summary = Summary { elsewhere: inner.elsewhere.clone(), ..Summary::default() };
        summary.sets = SetId::all().map(|set| (set, 0)).collect();
        for object in inner.objects.keys() {
            match object {
                Object::SetEntry(set, _) => *summary.sets.entry(*set).or_default() += 1,
                Object::Address(_) => summary.addresses += 1,
                Object::Server(server) => drop(summary.servers.insert(*server)),
                Object::Destination(..) => {}
            }
        }
        Ok(summary)
    }

    async fn has_rules(&mut self, rules: PerFamily<Vec<ChainSpec>>) -> Result<bool> {
        Ok(self.lock().rules.as_ref() == Some(&rules))
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        let inner = self.lock();
        Ok(inner.rules.is_some() || !inner.objects.is_empty())
    }

    async fn installed_objects(&mut self, _: Ours) -> Result<Vec<InstalledObject>> {
        Ok(Vec::new())
    }

    async fn cleanup(&mut self, ours: Ours) -> Result<()> {
        let listed = self.list(ours).await?.objects;
        let mut inner = self.lock();
        inner.rules = None;
        inner.objects.retain(|object, _| !listed.contains_key(object));
        Ok(())
    }
}

// === impl Inner ===

impl Inner {
    /// Replaces a scheduler that does not exist.
    fn stand_in(&self, operation: &mut Operation) -> Option<Value> {
        let (Operation::Add(_, value) | Operation::Change(_, value)) = operation else { return None };
        let Value::Scheduling(scheduling) = value else { return None };
        if self.missing_scheduler != Some(&*scheduling.scheduler) {
            return None;
        }
        scheduling.scheduler = "rr".into();
        Some(value.clone())
    }

    fn execute(&mut self, operation: &Operation) -> Result<(), &'static str> {
        let exists = self.objects.contains_key(operation.object());
        match operation {
            Operation::Add(object, _) if self.rejected.contains(object) => return Err("invalid argument"),
            Operation::Add(..) if exists => return Err("the object exists"),
            Operation::Change(..) | Operation::Remove(_) if !exists => return Err("the object does not exist"),
            Operation::Add(Object::Destination(server, _), _)
                if !self.objects.contains_key(&Object::Server(*server)) =>
            {
                return Err("the virtual server does not exist");
            }
            Operation::Add(object, value) | Operation::Change(object, value) => {
                self.objects.insert(*object, value.clone());
            }
            Operation::Remove(object) => {
                self.objects.remove(object);
                if let Object::Server(server) = object {
                    assert!(
                        destinations(&self.objects, *server).next().is_none(),
                        "{server} is removed with destinations"
                    );
                }
            }
        }
        Ok(())
    }
}
