//! A kernel for tests: it holds pieces, and refuses what the kernel refuses. Shared by the instances of a test, as one
//! process after the other shares the kernel of a node.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use backend::InstalledObject;
use ipnet::IpNet;
use netlink::ipvs::VirtualServerKey;
use proto::model::PerFamily;

use super::{Base, ConnectionCounts, Connections, Kernel, Listing, Ours, Rejected, RulesFound, Summary, VipEntries};
use crate::{
    desired::Rules,
    object::{Object, Value},
    plan::{Objects, Operation, destinations},
    set::SetId,
};

/// A kernel that holds what it is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    base: Option<Base>,
    objects: Objects,
    /// What destinations have.
    connections: HashMap<(VirtualServerKey, SocketAddr), u32>,
    elsewhere: HashSet<IpAddr>,
    /// Rejected whenever they are to be added.
    poison: BTreeSet<Object>,
    /// A scheduler that is not there: `rr` stands in for it.
    lacks: Option<&'static str>,
    /// All that was executed.
    log: Vec<Operation>,
    /// How often a commit was asked for.
    commits: usize,
}

// === impl Fake ===

impl Fake {
    /// What is there.
    pub(crate) fn objects(&self) -> Objects {
        self.lock().objects.clone()
    }

    /// Objects that another program has added or changed.
    pub(crate) fn put(&self, object: Object, value: Value) {
        self.lock().objects.insert(object, value);
    }

    /// Another program removes it.
    pub(crate) fn lose(&self, object: &Object) {
        self.lock().objects.remove(object);
    }

    /// Every destination has so many connections from now on.
    pub(crate) fn connect(&self, count: u32) {
        let mut inner = self.lock();
        let all: Vec<_> = inner.objects.keys().copied().collect();
        for object in all {
            if let Object::Destination(server, address) = object {
                inner.connections.insert((server, address), count);
            }
        }
    }

    /// Other devices have these.
    pub(crate) fn set_elsewhere(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.lock().elsewhere = addresses.into_iter().collect();
    }

    /// Refuses this piece from now on, and no other.
    pub(crate) fn refuse(&self, object: Option<Object>) {
        self.lock().poison = object.into_iter().collect();
    }

    /// Has this scheduler no more, or all of them again.
    pub(crate) fn lack(&self, scheduler: Option<&'static str>) {
        self.lock().lacks = scheduler;
    }

    /// What was executed since the last call.
    pub(crate) fn log(&self) -> Vec<Operation> {
        std::mem::take(&mut self.lock().log)
    }

    /// In how many commits since the last call.
    pub(crate) fn commits(&self) -> usize {
        std::mem::take(&mut self.lock().commits)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for Fake {
    async fn prepare(&mut self, base: Base) -> Result<usize> {
        let mut inner = self.lock();
        let differs = inner.base.as_ref() != Some(&base);
        inner.base = Some(base);
        Ok(usize::from(differs))
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        let inner = self.lock();
        let addresses = inner.objects.keys().filter_map(|object| match object {
            Object::Address(address) => Some(*address),
            _ => None,
        });
        let addresses: HashSet<IpAddr> = addresses.filter(|address| !ours.excludes(address)).collect();
        let fronts = VipEntries::of(&inner.objects);
        let is_ours = |object: &Object| match object {
            Object::Server(server) | Object::Destination(server, _) => ours.has(server, &addresses, &fronts),
            Object::Address(address) => !ours.excludes(address),
            Object::SetEntry(..) => true,
        };
        let objects = inner.objects.iter().filter(|(object, _)| is_ours(object));
        let objects = objects.map(|(object, value)| (*object, value.clone())).collect();
        Ok(Listing { objects, elsewhere: inner.elsewhere.clone() })
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<Vec<Rejected>> {
        let mut inner = self.lock();
        inner.commits += 1;
        let mut refused = Vec::new();
        for (index, mut operation) in operations.into_iter().enumerate() {
            let instead = inner.stand_in(&mut operation);
            match inner.execute(&operation) {
                Ok(()) => {
                    inner.log.push(operation);
                    if instead.is_some() {
                        refused.push(Rejected { index, reason: "no such scheduler".to_owned(), instead });
                    }
                }
                Err(reason) => refused.push(Rejected { index, reason: reason.to_owned(), instead: None }),
            }
        }
        Ok(refused)
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        let inner = self.lock();
        let mut found = HashMap::new();
        for (object, _) in servers.iter().flat_map(|server| destinations(&inner.objects, *server)) {
            if let Object::Destination(server, address) = object {
                let key = (*server, *address);
                let active = inner.connections.get(&key).copied().unwrap_or_default();
                found.insert(key, Connections { active, inactive: 0 });
            }
        }
        Ok(found)
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

    async fn check(&mut self, rules: PerFamily<Rules>) -> Result<RulesFound> {
        let is_right = self.lock().base.as_ref().is_some_and(|base| base.rules == rules);
        Ok(if is_right { RulesFound::Right } else { RulesFound::Wrong })
    }

    async fn installed_objects(&mut self, _: Vec<IpNet>) -> Result<Vec<InstalledObject>> {
        Ok(Vec::new())
    }

    async fn cleanup(&mut self, exclude: Vec<IpNet>) -> Result<()> {
        let ours = Ours { exclude, ..Ours::default() };
        let listed = self.list(ours).await?.objects;
        let mut inner = self.lock();
        inner.base = None;
        inner.objects.retain(|object, _| !listed.contains_key(object));
        Ok(())
    }
}

// === impl Inner ===

impl Inner {
    /// Another scheduler, where the one that is asked for is not there.
    fn stand_in(&self, operation: &mut Operation) -> Option<Value> {
        let (Operation::Add(_, value) | Operation::Change(_, value)) = operation else { return None };
        let Value::Scheduling(scheduling) = value else { return None };
        if self.lacks != Some(&*scheduling.scheduler) {
            return None;
        }
        scheduling.scheduler = "rr".into();
        Some(value.clone())
    }

    fn execute(&mut self, operation: &Operation) -> Result<(), &'static str> {
        let is_there = self.objects.contains_key(operation.object());
        match operation {
            Operation::Add(object, _) if self.poison.contains(object) => return Err("poison"),
            Operation::Add(..) if is_there => return Err("it is there already"),
            Operation::Change(..) | Operation::Remove(_) if !is_there => return Err("it is not there"),
            Operation::Add(Object::Destination(server, _), _)
                if !self.objects.contains_key(&Object::Server(*server)) =>
            {
                return Err("there is no such virtual server");
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
