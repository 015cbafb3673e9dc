//! The problems of objects: kept by object, and reported with one notice for each object, at a limited rate.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    time::Duration,
};

use proto::model::ServicePortKey;
use runtime::{Rate, TokenBucket, failure::LINE_INTERVALS};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::object::{ObjectId, ObjectKind, ObjectName, ObjectProblem};

use super::{
    keys::service_of,
    vip_conflicts::{RefusedClaims, VipClaim},
};

/// How many problems of one object are listed. The others are counted.
const MAX_LISTED: usize = 32;
/// How many problems a notice describes.
const MAX_DESCRIBED: usize = 4;
/// Notices about all objects together. Further ones are late, not lost.
const NOTICE_RATE: Rate = Rate { burst: 200, every: Duration::from_millis(200) };
/// The most objects whose last notice is remembered. Beyond it only [`NOTICE_RATE`] limits further ones.
const MAX_REMEMBERED: usize = 16_384;

#[derive(Debug)]
pub(crate) struct ProblemLog {
    objects: BTreeMap<ObjectId, ObjectProblems>,
    /// Objects whose problems have changed since the last notice about them, and how often.
    changed: BTreeMap<ObjectId, u64>,
    noticed: HashMap<ObjectId, LastNotice>,
    bucket: TokenBucket,
    /// When the bucket has a token again, and the object that gets it: all take turns.
    blocked: Option<(Instant, ObjectId)>,
}

/// How problems of an object are found. They are listed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProblemSource {
    /// The Service exceeds the limits of the operator.
    Policy,
    /// Its endpoints exceed them.
    Endpoints,
    /// Hints of the EndpointSlice are not used.
    Hints,
    /// The object was parsed.
    Fields,
}

#[derive(Debug, Default)]
struct ObjectProblems {
    /// None of them is empty.
    by_source: BTreeMap<ProblemSource, Vec<ObjectProblem>>,
    /// Found by VIP conflict resolution. Several service ports of one Service can have the same problem.
    claims: BTreeMap<ServicePortKey, RefusedClaims>,
}

#[derive(Clone, Copy, Debug)]
struct LastNotice {
    /// When the next one may follow.
    next: Instant,
    delay: Duration,
    /// Whether it was about problems.
    any: bool,
}

/// That the problems of an object have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectNotice {
    pub(crate) kind: ObjectKind,
    pub(crate) name: ObjectName,
    /// The first problems. Empty: the object has none any more.
    pub(crate) problems: Vec<ObjectProblem>,
    /// The number of all its problems.
    pub(crate) count: usize,
    /// How often its problems have changed since the last notice.
    pub(crate) changes: u64,
    /// Of its Event: why a part of the object is not used; the first that applies.
    pub(crate) reason: &'static str,
}

/// The number of Services with problems of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProblemCounts {
    pub(crate) problems: usize,
    /// VIPs and node ports that service ports claim and do not get.
    pub(crate) vip_conflicts: usize,
    /// Services that exceed a limit of the operator.
    pub(crate) limited_services: usize,
}

impl Default for ProblemLog {
    fn default() -> Self {
        let bucket = TokenBucket::full(Instant::now());
        Self { objects: BTreeMap::new(), changed: BTreeMap::new(), noticed: HashMap::new(), bucket, blocked: None }
    }
}

impl ProblemLog {
    /// The problems by object, each once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ObjectKind, &ObjectName, ObjectProblem)> {
        self.objects.iter().flat_map(|(id, object)| list(id, object, MAX_LISTED))
    }

    /// The problems of an object, each once.
    pub(super) fn of<'a>(
        &'a self,
        kind: ObjectKind,
        name: &ObjectName,
    ) -> impl Iterator<Item = (ObjectKind, &'a ObjectName, ObjectProblem)> + use<'a> {
        let object = self.objects.get_key_value(&(kind, name.clone()));
        object.into_iter().flat_map(|(id, object)| list(id, object, MAX_LISTED))
    }

    /// The first problems by object, each once, and the number of problems of the other objects, which are not visited
    /// one by one. One of them may tell how many problems the last object has in total.
    pub(crate) fn first(&self, most: usize) -> (Vec<(ObjectKind, &ObjectName, ObjectProblem)>, usize) {
        let mut first = Vec::new();
        let mut objects = self.objects.iter();
        while first.len() < most
            && let Some((id, object)) = objects.next()
        {
            first.extend(list(id, object, MAX_LISTED.min(most - first.len())));
        }
        (first, objects.map(|(_, object)| object.count()).sum())
    }

    /// The objects of a kind that have problems.
    pub(super) fn names(&self, kind: ObjectKind) -> impl Iterator<Item = &ObjectName> {
        self.objects.keys().filter(move |(of, _)| *of == kind).map(|(_, name)| name)
    }

    /// For metrics.
    pub(crate) fn counts(&self) -> ProblemCounts {
        let mut counts = ProblemCounts::default();
        for object in self.objects.values() {
            counts.problems += object.count();
            counts.vip_conflicts += object.refused();
            counts.limited_services += usize::from(object.is_limited());
        }
        counts
    }

    /// The claims that service ports do not get.
    pub(super) fn refused_claims(&self) -> BTreeSet<(&ServicePortKey, VipClaim)> {
        let of_ports = self.objects.values().flat_map(|object| &object.claims);
        of_ports.flat_map(|(key, refused)| refused.claims.iter().map(move |claim| (key, *claim))).collect()
    }

    /// The first service ports after one that do not get all their claims, in their order.
    pub(super) fn refused_after(&self, last: Option<&ServicePortKey>, most: usize) -> Vec<ServicePortKey> {
        let name = last.map_or_else(|| ObjectName::new("", ""), service_of);
        let services = self.objects.range((ObjectKind::Service, name)..);
        let services = services.take_while(|((kind, _), _)| *kind == ObjectKind::Service);
        let after = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let keys = services.flat_map(|(_, object)| object.claims.range::<ServicePortKey, _>(after));
        keys.map(|(key, _)| key.clone()).take(most).collect()
    }

    /// Replaces the problems of an object that one source finds.
    pub(super) fn set(
        &mut self,
        kind: ObjectKind,
        name: &ObjectName,
        source: ProblemSource,
        problems: impl IntoIterator<Item = ObjectProblem>,
    ) {
        let problems: Vec<_> = problems.into_iter().collect();
        let problems = Some(problems).filter(|problems| !problems.is_empty());
        self.change(kind, name, problems.is_some(), |object| replace(&mut object.by_source, source, problems));
    }

    /// Replaces the claims that a service port does not get.
    pub(super) fn set_claims(&mut self, service: &ObjectName, key: &ServicePortKey, refused: RefusedClaims) {
        let refused = Some(refused).filter(|refused| !refused.claims.is_empty());
        self.change(ObjectKind::Service, service, refused.is_some(), |object| {
            replace(&mut object.claims, key.clone(), refused)
        });
    }

    /// `change` returns whether it has changed anything. `adds`: it leaves problems.
    fn change(
        &mut self,
        kind: ObjectKind,
        name: &ObjectName,
        adds: bool,
        change: impl FnOnce(&mut ObjectProblems) -> bool,
    ) {
        let id = (kind, name.clone());
        if !adds && !self.objects.contains_key(&id) {
            return;
        }
        let object = self.objects.entry(id.clone()).or_default();
        let changed = change(object);
        let is_empty = object.is_empty();
        if is_empty {
            self.objects.remove(&id);
        }
        if is_empty && self.noticed.get(&id).is_none_or(|last| !last.any) {
            // Never reported, and solved.
            self.changed.remove(&id);
        } else if changed {
            *self.changed.entry(id).or_default() += 1;
        }
    }

    /// What is to be reported now, and when there may be more.
    pub(crate) fn take_notices(&mut self, now: Instant) -> (Vec<ObjectNotice>, Option<Instant>) {
        if let Some((until, _)) = self.blocked.as_ref().filter(|(until, _)| now < *until) {
            return (Vec::new(), Some(*until));
        }

        let mut ids: Vec<_> = self.changed.keys().cloned().collect();
        if let Some((_, first)) = self.blocked.take() {
            let turn = ids.partition_point(|id| *id < first);
            ids.rotate_left(turn);
        }

        let mut notices = Vec::new();
        let mut next = None::<Instant>;
        for id in ids {
            let last = self.noticed.get(&id).copied();
            if let Some(last) = last.filter(|last| now < last.next) {
                next = Some(next.map_or(last.next, |next| next.min(last.next)));
                continue;
            }
            if let Err(until) = self.bucket.take(NOTICE_RATE, now) {
                next = Some(until);
                self.blocked = Some((until, id));
                break;
            }

            let changes = self.changed.remove(&id).unwrap_or_default();
            let problems = self.objects.get(&id);
            notices.push(ObjectNotice::of(&id, problems, changes));

            let (least, most) = LINE_INTERVALS;
            let delay = last.filter(|last| now < last.next + last.delay).map_or(least, |last| most.min(last.delay * 2));
            if self.noticed.len() < MAX_REMEMBERED || last.is_some() {
                self.noticed.insert(id, LastNotice { next: now + delay, delay, any: problems.is_some() });
            }
        }

        if self.noticed.len() >= MAX_REMEMBERED {
            self.noticed.retain(|id, last| now < last.next + last.delay || self.objects.contains_key(id));
        }
        (notices, next)
    }
}

/// The first problems of an object, each once.
fn list<'a>(
    (kind, name): &'a ObjectId,
    object: &ObjectProblems,
    most: usize,
) -> impl Iterator<Item = (ObjectKind, &'a ObjectName, ObjectProblem)> + use<'a> {
    object.listed(most).into_iter().map(move |problem| (*kind, name, problem))
}

/// Replaces or removes a value. Returns whether it changes.
fn replace<K: Ord, V: PartialEq>(values: &mut BTreeMap<K, V>, key: K, new: Option<V>) -> bool {
    let changed = values.get(&key) != new.as_ref();
    match new {
        Some(new) => values.insert(key, new),
        None => values.remove(&key),
    };
    changed
}

impl ObjectProblems {
    fn is_empty(&self) -> bool {
        self.by_source.is_empty() && self.claims.is_empty()
    }

    fn is_limited(&self) -> bool {
        [ProblemSource::Policy, ProblemSource::Endpoints].iter().any(|source| self.by_source.contains_key(source))
    }

    /// The number of refused claims.
    fn refused(&self) -> usize {
        self.claims.values().map(|refused| refused.claims.len()).sum()
    }

    /// The number of problems, those of several service ports counted for each.
    fn count(&self) -> usize {
        self.by_source.values().map(Vec::len).sum::<usize>() + self.refused()
    }

    /// The first problems, each once.
    fn listed(&self, most: usize) -> Vec<ObjectProblem> {
        #[cfg(test)]
        crate::testing::count_steps(1);
        let of_claims = self.claims.values().flat_map(|refused| &refused.problems);
        let mut listed = BTreeSet::new();
        for problem in self.by_source.values().flatten().chain(of_claims) {
            if listed.len() == most && !listed.contains(problem) {
                let message = format!("{} problems in total; the others are not listed", self.count());
                let last = ObjectProblem { field: "more".to_owned(), message };
                return listed.into_iter().cloned().chain([last]).collect();
            }
            listed.insert(problem);
        }
        listed.into_iter().cloned().collect()
    }

    /// See [`ObjectNotice::reason`].
    fn reason(&self) -> &'static str {
        if self.is_limited() {
            "LimitExceeded"
        } else if !self.claims.is_empty() {
            "VIPConflict"
        } else {
            "InvalidField"
        }
    }
}

impl ObjectNotice {
    fn of((kind, name): &ObjectId, object: Option<&ObjectProblems>, changes: u64) -> Self {
        Self {
            kind: *kind,
            name: name.clone(),
            problems: object.map(|object| object.listed(MAX_DESCRIBED)).unwrap_or_default(),
            count: object.map_or(0, ObjectProblems::count),
            changes,
            reason: object.map_or("", ObjectProblems::reason),
        }
    }

    /// The first problems: each field and what is wrong with it.
    pub(crate) fn describe(&self) -> String {
        let described = self.problems.iter().map(|ObjectProblem { field, message }| format!("{field}: {message}"));
        described.collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn log(&self) {
        let Self { kind, name, count, changes, .. } = self;
        if self.problems.is_empty() {
            info!(%kind, object = %name, changes, "problems of an object resolved");
        } else {
            warn!(%kind, object = %name, count, changes, problems = self.describe(), "parts of an object are not used");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> ObjectName {
        ObjectName::new("ns", format!("slice-{number}"))
    }

    fn bad_addresses(round: usize) -> Vec<ObjectProblem> {
        let bad = |n| ObjectProblem {
            field: format!("endpoints[{n}].addresses[0]"),
            message: format!("127.{round}.0.1: a loopback address; ignored"),
        };
        (0..1000).map(bad).collect()
    }

    fn one_bad_address() -> Vec<ObjectProblem> {
        vec![ObjectProblem { field: "endpoints[0].addresses[0]".to_owned(), message: "127.0.0.1: ignored".to_owned() }]
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn ten_updates_with_a_thousand_bad_addresses_are_two_lines() {
        let (mut log, start) = (ProblemLog::default(), Instant::now());
        let mut notices = Vec::new();
        for round in 0..10 {
            log.set(ObjectKind::EndpointSlice, &name(0), ProblemSource::Fields, bad_addresses(round));
            notices.extend(log.take_notices(start + seconds(round as u64) / 4).0);
        }
        assert_eq!(notices.len(), 1);
        assert_eq!((notices[0].count, notices[0].changes), (1000, 1));
        assert!(notices[0].describe().len() < 400, "{}", notices[0].describe());
        let (later, next) = log.take_notices(start + seconds(10));
        assert_eq!((later.len(), later[0].changes, next), (1, 9, None));
        assert_eq!(log.iter().count(), MAX_LISTED + 1);
    }

    #[test]
    fn problems_beyond_the_limit_are_counted() {
        let mut log = ProblemLog::default();
        log.set(ObjectKind::EndpointSlice, &name(0), ProblemSource::Fields, bad_addresses(0));
        log.set(ObjectKind::EndpointSlice, &name(1), ProblemSource::Fields, bad_addresses(1));
        log.set(ObjectKind::EndpointSlice, &name(2), ProblemSource::Fields, one_bad_address());
        let counts = |most| {
            let (first, others) = log.first(most);
            (first.len(), first.last().map(|(_, _, problem)| problem.message.clone()), others)
        };
        let in_total = Some("1000 problems in total; the others are not listed".to_owned());
        assert_eq!(counts(0), (0, None, 2_001));
        assert_eq!(counts(3), (4, in_total.clone(), 1_001));
        assert_eq!(counts(MAX_LISTED + 4), (MAX_LISTED + 5, in_total, 1));
        assert_eq!(counts(100), (2 * MAX_LISTED + 3, Some("127.0.0.1: ignored".to_owned()), 0));
    }

    #[test]
    fn object_that_changes_every_second_of_a_day_has_few_lines() {
        let (mut log, start) = (ProblemLog::default(), Instant::now());
        let mut lines = 0;
        for second in 0..86_400 {
            // Valid every other second.
            let problems = if second % 2 == 0 { one_bad_address() } else { Vec::new() };
            log.set(ObjectKind::EndpointSlice, &name(0), ProblemSource::Fields, problems);
            lines += log.take_notices(start + seconds(second)).0.len();
        }
        assert!(lines < 160, "{lines} lines");
    }

    #[test]
    fn objects_that_are_created_and_deleted_share_one_rate() {
        let (mut log, start) = (ProblemLog::default(), Instant::now());
        let mut lines = 0;
        for number in 0..20_000 {
            let now = start + seconds(60) * u32::try_from(number).unwrap() / 20_000;
            log.set(ObjectKind::EndpointSlice, &name(number), ProblemSource::Fields, one_bad_address());
            lines += log.take_notices(now).0.len();
            log.set(ObjectKind::EndpointSlice, &name(number), ProblemSource::Fields, Vec::new());
            lines += log.take_notices(now).0.len();
        }
        assert!(lines <= 200 + 60 * 5 + 1, "{lines} lines");
        assert!(log.objects.is_empty() && log.changed.len() <= lines, "{}", log.changed.len());
    }

    #[test]
    fn end_of_problems_is_one_line() {
        let (mut log, start) = (ProblemLog::default(), Instant::now());
        let mut after = |problems, at| {
            log.set(ObjectKind::Service, &name(0), ProblemSource::Fields, problems);
            log.take_notices(start + seconds(at))
        };
        assert_eq!(after(one_bad_address(), 0).0.len(), 1);
        assert_eq!(after(Vec::new(), 1), (vec![], Some(start + seconds(10))));
        let (notices, next) = after(Vec::new(), 10);
        assert_eq!((notices.len(), notices[0].problems.len(), next), (1, 0, None));
        assert_eq!(after(one_bad_address(), 11), (vec![], Some(start + seconds(30))));
        assert_eq!(after(Vec::new(), 12).0, [], "it was never reported again");
    }
}
