//! Counts service ports with traffic policy Local and endpoints on other nodes only, at a cost proportional to the
//! changes.

use proto::{
    model::{IpFamily, PerFamily, TrafficPolicy},
    state::ServicePortChange,
};

use crate::{NoLocalEndpoints, ServicePortState};

/// Updates the counts with what has been programmed.
pub(crate) fn count_no_local(counts: &mut PerFamily<NoLocalEndpoints>, changes: &[ServicePortChange<'_>]) {
    for ServicePortChange { before, after, .. } in changes {
        let [before, after] = [before, after].map(|service| service.map(lacks).unwrap_or_default());
        for family in IpFamily::ALL {
            let counts = &mut counts[family];
            counts.internal = counts.internal + after[family].internal - before[family].internal;
            counts.external = counts.external + after[family].external - before[family].external;
        }
    }
}

/// 1 for each policy of a service port that lacks local endpoints.
fn lacks(service: &ServicePortState) -> PerFamily<NoLocalEndpoints> {
    let ServicePortState { port, local, .. } = service;
    PerFamily::from_fn(|family| {
        let elsewhere = port.any_endpoints[family] && local[family].is_empty();
        let internal = elsewhere && port.internal_policy == TrafficPolicy::Local;
        let external = elsewhere && port.external_policy == TrafficPolicy::Local && port.externally_accessible();
        NoLocalEndpoints { internal: internal.into(), external: external.into() }
    })
}
