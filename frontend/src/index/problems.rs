//! The problems of objects: kept by object, logged when they appear and when they are resolved.

use std::collections::{BTreeMap, BTreeSet};

use proto::model::ServicePortKey;
use tracing::{info, warn};

use crate::object::{ObjectKind, ObjectName, ObjectProblem};

/// The problems of all objects.
#[derive(Debug, Default)]
pub(super) struct ProblemLog(BTreeMap<(ObjectKind, ObjectName), ObjectProblems>);

/// The problems of one object.
#[derive(Debug, Default)]
struct ObjectProblems {
    /// Found when the object was parsed.
    source: Vec<ObjectProblem>,
    /// Found by VIP conflict resolution. Several service ports of one Service can have the same problem.
    claims: BTreeMap<ServicePortKey, Vec<ObjectProblem>>,
}

impl ProblemLog {
    /// By object, each problem once.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ObjectKind, &ObjectName, Vec<&ObjectProblem>)> {
        self.0.iter().map(|((kind, name), object)| (*kind, name, object.all().into_iter().collect()))
    }

    /// The objects of a kind that have problems.
    pub(super) fn names(&self, kind: ObjectKind) -> impl Iterator<Item = &ObjectName> {
        self.0.keys().filter(move |(of, _)| *of == kind).map(|(_, name)| name)
    }

    /// Replaces the problems that the source has found in an object.
    pub(super) fn set_source(&mut self, kind: ObjectKind, name: &ObjectName, problems: Vec<ObjectProblem>) {
        let old = self.0.get(&(kind, name.clone())).map_or(&[][..], |object| &object.source);
        if old != problems {
            self.change(kind, name, |object| object.source = problems);
        }
    }

    /// Replaces the problems of the VIP claims of one service port.
    pub(super) fn set_claims(&mut self, service: &ObjectName, key: &ServicePortKey, problems: Vec<ObjectProblem>) {
        let object = self.0.get(&(ObjectKind::Service, service.clone()));
        let old = object.and_then(|object| object.claims.get(key)).map_or(&[][..], Vec::as_slice);
        if old == problems {
            return;
        }
        self.change(ObjectKind::Service, service, |object| {
            if problems.is_empty() {
                object.claims.remove(key);
            } else {
                object.claims.insert(key.clone(), problems);
            }
        });
    }

    fn change(&mut self, kind: ObjectKind, name: &ObjectName, change: impl FnOnce(&mut ObjectProblems)) {
        let object = self.0.entry((kind, name.clone())).or_default();
        let before: BTreeSet<_> = object.all().into_iter().cloned().collect();
        change(object);
        let after = object.all();
        for ObjectProblem { field, message } in after.iter().filter(|problem| !before.contains(**problem)) {
            warn!(%kind, object = %name, field, message, "invalid field of an object");
        }
        for ObjectProblem { field, message } in before.iter().filter(|problem| !after.contains(problem)) {
            info!(%kind, object = %name, field, message, "problem of an object resolved");
        }
        if after.is_empty() {
            self.0.remove(&(kind, name.clone()));
        }
    }
}

impl ObjectProblems {
    fn all(&self) -> BTreeSet<&ObjectProblem> {
        self.source.iter().chain(self.claims.values().flatten()).collect()
    }
}
