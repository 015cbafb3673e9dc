//! What would change if objects were applied. They are applied to the index, which is locked meanwhile, and taken back.
//!
//! ```text
//!   objects ──▶ Trial: applied ──resolve──▶ views after ─┐
//!                      taken back ─resolve─▶ views before ┴─▶ by zone, and by node with pools of its own:
//!                                                             PlannedChange
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    iter, mem,
    sync::Arc,
};

use proto::{
    model::{IpFamily, ServicePort, ServicePortKey, TrafficPolicy},
    v1::{LostEndpoints, NodeGroup, PlanResponse, PlannedChange, Problem},
};

use crate::{
    object::{ClusterObject, ObjectKind, ObjectName, ObjectProblem, ParsedObject},
    view::{Scoped, ServicePortView, describe, vips},
};

use super::{Index, pending::PendingChanges, problems::ProblemLog, same_service};

/// How many service ports a plan may affect: no commit is possible while they are resolved.
const MAX_PORTS: usize = 4096;
/// How many endpoints these may have, before and after together, except for those of a single Service.
const MAX_ENDPOINTS: usize = 200_000;
/// How many changes, and how many problems, are listed.
const MAX_LISTED: usize = 256;
/// How many nodes of a group are named.
const MAX_NODES: usize = 16;
/// How many VIPs of a service port are named.
const MAX_VIPS: usize = 32;
/// The start of a VIP that stands for a cluster IP which the API server would allocate, in each IP family.
const UNALLOCATED: [&str; 2] = ["240.0.0.", "[100::"];

/// The index with other objects, until this is dropped.
struct Trial<'a> {
    index: &'a mut Index,
    /// What the objects have replaced, in this order.
    replaced: Vec<(ObjectKind, ObjectName, Option<ClusterObject>)>,
    pending: PendingChanges,
    limited: BTreeSet<ObjectName>,
    /// A plan concerns all nodes.
    only_node: Option<Arc<str>>,
    problems: ProblemLog,
}

#[derive(Clone, Copy)]
struct ViewChange<'a> {
    before: Option<&'a ServicePortView>,
    after: Option<&'a ServicePortView>,
    /// If it is removed: that of the same Service which has its port at the VIPs then.
    renamed: Option<&'a ServicePortView>,
}

/// The views of service ports with the objects of a plan; `None`: the service port does not exist then.
type ViewsAfter = BTreeMap<ServicePortKey, Option<ServicePortView>>;

/// How many endpoints the views of a plan have, before and after together.
struct EndpointCount {
    endpoints: usize,
    /// A single Service may have more than [`MAX_ENDPOINTS`].
    is_one_service: bool,
}

/// What nodes would notice of a change.
#[derive(Default)]
struct NodeEffects {
    changed: NodeGroup,
    /// By the traffic that loses all endpoints.
    lost: BTreeMap<String, NodeGroup>,
}

impl Index {
    /// What would change if these objects were applied. Listed are the first changes and problems: of these objects,
    /// and those that others would have in addition. The index stays as it is. The error says what is too large.
    pub(crate) fn plan(&mut self, objects: Vec<ParsedObject>) -> Result<PlanResponse, String> {
        let planned: BTreeSet<_> = objects.iter().map(|parsed| (parsed.kind, parsed.name.clone())).collect();
        let mut trial = Trial::new(self);
        for parsed in objects {
            trial.apply(parsed);
        }

        let keys: Vec<_> = mem::take(&mut trial.index.pending.ports).into_keys().collect();
        if keys.len() > MAX_PORTS {
            return Err(format!("{} service ports are affected, more than {MAX_PORTS}: split the files", keys.len()));
        }
        let mut endpoints = EndpointCount::of(&keys);
        let views_after = trial.views(&keys, &mut endpoints)?;
        let problems_after = mem::take(&mut trial.index.problems);

        trial.rollback();
        let mut plan = trial.changes(&views_after, &mut endpoints)?;
        let problems_before = &trial.index.problems;
        plan.problems = new_problems(&planned, problems_before, &problems_after);

        let refused_before = problems_before.refused_claims();
        let refused_after = problems_after.refused_claims();
        plan.conflict_count = refused_after.difference(&refused_before).count() as u64;
        Ok(plan)
    }

    fn current(&self, kind: ObjectKind, name: &ObjectName) -> Option<ClusterObject> {
        match kind {
            ObjectKind::Service => match self.services.get(name) {
                Some(service) => Some(ClusterObject::Service(service.clone())),
                None => self.foreign_services.get(name).cloned().map(ClusterObject::ForeignService),
            },
            ObjectKind::EndpointSlice => self.slice(name).cloned().map(ClusterObject::EndpointSlice),
            ObjectKind::Node | ObjectKind::ServiceCidr => None,
        }
    }

    /// On all nodes: those without pools of their own by zone.
    fn node_effects(&self, change: ViewChange<'_>) -> NodeEffects {
        let mut effects = NodeEffects::default();
        let zone_of = |node: &str| self.nodes.get(node).map_or("", |node| &*node.zone);
        let differences = change.differences(zone_of);
        let differs = |node: &str, zone: &str| differences.iter().any(|pool| *pool.resolve(node, zone));
        let own: BTreeSet<&Arc<str>> = change.views().flat_map(ServicePortView::nodes).collect();

        let mut own_of_zones = BTreeMap::<&str, usize>::new();
        for name in own.iter().filter(|name| self.topology().has_node(name)) {
            let node: &str = name;
            let zone = zone_of(node);
            if self.nodes.contains_key(node) {
                *own_of_zones.entry(zone).or_default() += 1;
            }
            if differs(node, zone) {
                effects.add(1, iter::once(node), change.lost(node, zone));
            }
        }

        for (zone, members) in &self.zones {
            let zone: &str = zone;
            let others = members.len() - own_of_zones.get(zone).copied().unwrap_or_default();
            if others > 0 && differs("", zone) {
                let names = members.iter().filter(|name| !own.contains(name)).map(|name| &**name);
                effects.add(others, names, change.lost("", zone));
            }
        }
        effects
    }
}

impl<'a> Trial<'a> {
    fn new(index: &'a mut Index) -> Self {
        Self {
            replaced: Vec::new(),
            pending: mem::take(&mut index.pending),
            limited: index.limited.clone(),
            only_node: index.only_node.take(),
            problems: mem::take(&mut index.problems),
            index,
        }
    }

    fn apply(&mut self, mut parsed: ParsedObject) {
        let before = self.index.current(parsed.kind, &parsed.name);
        // An object keeps its time. A new one is the newest.
        let created = match &before {
            Some(ClusterObject::Service(service)) => service.created,
            Some(ClusterObject::EndpointSlice(slice)) => slice.created,
            _ => None,
        };
        match &mut parsed.object {
            Some(ClusterObject::Service(service)) => service.created = created,
            Some(ClusterObject::EndpointSlice(slice)) => slice.created = created,
            _ => {}
        }
        self.replaced.push((parsed.kind, parsed.name.clone(), before));
        self.index.apply_one(parsed);
    }

    /// The views of service ports with the objects applied.
    fn views(&mut self, keys: &[ServicePortKey], endpoints: &mut EndpointCount) -> Result<ViewsAfter, String> {
        let mut all = BTreeMap::new();
        for keys in keys.chunk_by(same_service) {
            let mut views = Vec::new();
            self.index.resolve(keys, &mut views);
            endpoints.add(&views)?;
            all.extend(views);
        }
        Ok(all)
    }

    /// The changes from the views without the objects to these, after the rollback.
    fn changes(&mut self, views_after: &ViewsAfter, endpoints: &mut EndpointCount) -> Result<PlanResponse, String> {
        let mut plan = PlanResponse::default();
        let keys: Vec<_> = views_after.keys().cloned().collect();
        for keys in keys.chunk_by(same_service) {
            let mut views = Vec::new();
            self.index.resolve(keys, &mut views);
            endpoints.add(&views)?;

            for (key, before) in views {
                // Without a view after, the ports of the Service depended on each other before only.
                let Some(after) = views_after.get(&key) else { continue };
                if before == *after {
                    continue;
                }

                let renamed = match (&before, after) {
                    (Some(removed), None) => with_same_port(removed, keys, views_after),
                    _ => None,
                };
                let change = ViewChange { before: before.as_ref(), after: after.as_ref(), renamed };
                let effects = self.index.node_effects(change);
                plan.change_count += 1;
                plan.losing_count += u64::from(!effects.lost.is_empty());
                if plan.changes.len() < MAX_LISTED {
                    plan.changes.push(change.planned(&key, effects));
                }
            }
        }
        Ok(plan)
    }

    fn rollback(&mut self) {
        while let Some((kind, name, object)) = self.replaced.pop() {
            self.index.put(kind, name, object);
        }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.rollback();
        self.index.pending = mem::take(&mut self.pending);
        self.index.limited = mem::take(&mut self.limited);
        self.index.only_node = self.only_node.take();
        self.index.problems = mem::take(&mut self.problems);
    }
}

/// The service port of the same Service that has the port of a removed one at its VIPs.
fn with_same_port<'a>(
    removed: &ServicePortView,
    keys: &[ServicePortKey],
    views_after: &'a ViewsAfter,
) -> Option<&'a ServicePortView> {
    let at_vips = |port: &ServicePort| (port.port, port.key.protocol);
    let mut views = keys.iter().filter_map(|key| views_after.get(key)?.as_ref());
    views.find(|view| at_vips(&view.port) == at_vips(&removed.port))
}

impl EndpointCount {
    fn of(keys: &[ServicePortKey]) -> Self {
        Self { endpoints: 0, is_one_service: keys.iter().all(|key| same_service(key, &keys[0])) }
    }

    /// Adds the endpoints of views. The error says that there are too many.
    fn add(&mut self, views: &[(ServicePortKey, Option<ServicePortView>)]) -> Result<(), String> {
        self.endpoints += views.iter().filter_map(|(_, view)| Some(view.as_ref()?.endpoints())).sum::<usize>();
        if self.endpoints <= MAX_ENDPOINTS || self.is_one_service {
            return Ok(());
        }
        Err(format!("more than {MAX_ENDPOINTS} endpoints are affected, before and after: split the files"))
    }
}

/// The first problems after the changes: of the planned objects, and those that others would have in addition.
fn new_problems(planned: &BTreeSet<(ObjectKind, ObjectName)>, before: &ProblemLog, after: &ProblemLog) -> Vec<Problem> {
    let known: BTreeSet<_> = before.iter().collect();
    let is_listed = |problem: &(ObjectKind, &ObjectName, ObjectProblem)| {
        planned.contains(&(problem.0, problem.1.clone())) || !known.contains(problem)
    };
    let listed = after.iter().filter(is_listed).take(MAX_LISTED);
    listed.map(|(kind, name, problem)| problem.into_wire(kind, name)).collect()
}

impl<'a> ViewChange<'a> {
    fn views(self) -> impl Iterator<Item = &'a ServicePortView> {
        self.before.into_iter().chain(self.after)
    }

    /// For people.
    fn planned(self, key: &ServicePortKey, NodeEffects { changed, lost }: NodeEffects) -> PlannedChange {
        let vips = |view: Option<&ServicePortView>| view.map(|view| vips(&view.port)).unwrap_or_default();
        let had = vips(self.before);
        let has = vips(self.after);
        let lost = lost.into_iter().map(|(traffic, nodes)| LostEndpoints { traffic, nodes: Some(nodes) });
        PlannedChange {
            service_port: key.to_string(),
            summary: describe(self.before, self.after),
            gained_vips: has.difference(&had).take(MAX_VIPS).map(|vip| shown(vip)).collect(),
            lost_vips: had.difference(&has).take(MAX_VIPS).map(|vip| shown(vip)).collect(),
            nodes: Some(changed),
            lost_endpoints: lost.collect(),
        }
    }

    /// The nodes that would have another service port, or other pools: those for which any of these is true.
    fn differences<'z>(self, zone_of: impl Fn(&str) -> &'z str) -> Vec<Scoped<bool>> {
        let (before, after) = match (self.before, self.after) {
            (Some(before), Some(after)) if before.port == after.port => (before, after),
            _ => return vec![Scoped { default: true, ..Scoped::default() }],
        };
        let pools = iter::zip(before.pools(), after.pools());
        let differences = pools.map(|((.., before), (.., after))| {
            let in_zone = |zone: &Arc<str>| (zone.clone(), before.in_zone(zone) != after.in_zone(zone));
            let on_node = |node: &Arc<str>| {
                let zone = zone_of(node);
                (node.clone(), before.resolve(node, zone) != after.resolve(node, zone))
            };
            Scoped {
                default: before.default != after.default,
                zones: before.zones.keys().chain(after.zones.keys()).map(in_zone).collect(),
                nodes: before.nodes.keys().chain(after.nodes.keys()).map(on_node).collect(),
            }
        });
        differences.collect()
    }

    /// The traffic that has endpoints on a node before, and none after.
    fn lost(self, node: &str, zone: &str) -> impl Iterator<Item = String> {
        let kinds = IpFamily::ALL.into_iter().flat_map(|family| [(family, false), (family, true)]);
        kinds.filter_map(move |(family, is_external)| {
            let had = self.before.and_then(|view| serves(view, family, is_external, node, zone));
            if had != Some(true) {
                return None;
            }
            let Some(after) = self.after.or(self.renamed) else {
                return Some(format!("{family}: the service port is removed"));
            };
            let (field, policy) = match is_external {
                false => ("internalTrafficPolicy", after.port.internal_policy),
                true => ("externalTrafficPolicy", after.port.external_policy),
            };
            let name = if self.after.is_none() { format!(", as {}", after.port.key) } else { String::new() };
            let has = serves(after, family, is_external, node, zone);
            (has == Some(false)).then(|| format!("{field} {policy:?}, {family}{name}"))
        })
    }
}

impl NodeEffects {
    /// Adds nodes for which a change is the same, and the traffic that has no endpoints there any more.
    fn add<'n>(
        &mut self,
        count: usize,
        names: impl Iterator<Item = &'n str> + Clone,
        lost: impl Iterator<Item = String>,
    ) {
        let add = |group: &mut NodeGroup| {
            group.count += count as u64;
            let more = MAX_NODES.saturating_sub(group.names.len());
            group.names.extend(names.clone().take(more).map(str::to_owned));
        };
        add(&mut self.changed);
        // A removed service port is lost once.
        for traffic in lost.collect::<BTreeSet<_>>() {
            add(self.lost.entry(traffic).or_default());
        }
    }
}

/// Whether there are endpoints on a node in a zone for traffic to the cluster IPs, or to the external VIPs; `None` if
/// there is no such VIP.
fn serves(view: &ServicePortView, family: IpFamily, is_external: bool, node: &str, zone: &str) -> Option<bool> {
    if is_external && !view.port.externally_accessible() {
        return None;
    }
    let policy = if is_external { view.port.external_policy } else { view.port.internal_policy };
    Some(match policy {
        TrafficPolicy::Cluster => !view.cluster_pool(family, node, zone).is_empty(),
        TrafficPolicy::Local => view.local_pool(family, node).is_some(),
    })
}

fn shown(vip: &str) -> String {
    let is_unallocated = UNALLOCATED.iter().any(|start| vip.starts_with(start));
    if is_unallocated { "a new cluster IP".to_owned() } else { vip.to_owned() }
}
