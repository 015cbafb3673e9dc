//! Session affinity: a client that connects again within the timeout gets the same endpoint, as long as that is in the
//! pool.
//!
//! ```text
//!   affine-pool-3-60s:  1. known client         affine-clients { pool . bucket } = endpoint, and endpoint . pool is in
//!                                                   live: renew the entry, dnat
//!                       2. new client, or its   affine-endpoints { pool . random } = endpoint:
//!                          endpoint is gone         delete the old entry, add a new one, dnat
//!                       3. map full             goto pool-3
//! ```
//!
//! One map stores the clients of all service ports: each entry has its own timeout. Clients are stored by bucket, the
//! hash of their address modulo a constant: however many clients a Service has, it stores at most that many, and
//! clients of one bucket share an endpoint. An endpoint that leaves a pool is removed from `live`, so that none of its
//! clients matches rule 1 any more.
//!
//! The registers are arranged so that each result is in position for the next lookup. To nft, the endpoint is the
//! source of the reply, which was loaded there before (see [`padding`]). The kernel does not use that value, but it
//! shows an operator the meaning, because the endpoint becomes the source of the reply.
//!
//! ```text
//!   0 . endpoint . port . VIP . protocol . port . client bucket, or slot
//!                         └── the key of the pool ──┘     the value of an alias, with the port before it as padding
//!                         └─ key of affine-clients and affine-endpoints ─┘
//!   └── their value ──┘
//!       └──────────────── key of live ──────────────┘
//! ```

use std::time::Duration;

use netlink::nft::{CtDirection, CtKey, DynsetOp, Expr, Register, Rule};
use proto::model::{IpFamily, TrafficPolicy};

use super::rule::{RuleBuilder, lookup, padding};
use crate::element::{Affinity, Map, PoolChain};

/// The registers of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegisterLayout {
    /// The padding, which is followed by the endpoint.
    data: Register,
    endpoint: Register,
    pool_key: Register,
    /// A client bucket or a slot.
    end: Register,
}

const CLIENTS: Map = Map::AffineClients;

/// The map with the endpoints of a pool for this policy, by slot.
pub(super) const fn endpoints(policy: TrafficPolicy) -> Map {
    match policy {
        TrafficPolicy::Cluster => Map::AffineEndpoints,
        TrafficPolicy::Local => Map::LocalAffineEndpoints,
    }
}

/// The set with the endpoints of a pool for this policy.
pub(super) const fn live(policy: TrafficPolicy) -> Map {
    match policy {
        TrafficPolicy::Cluster => Map::Live,
        TrafficPolicy::Local => Map::LocalLive,
    }
}

/// The rules of a chain with session affinity. `aliases`: the map from a VIP to the key of its pool; `pool`: the chain
/// without affinity.
pub(super) fn rules(
    family: IpFamily,
    aliases: Option<Map>,
    policy: TrafficPolicy,
    Affinity { timeout, buckets }: Affinity,
    pool: PoolChain,
) -> Vec<Rule> {
    let timeout = Duration::from_secs(timeout.get().into());
    let endpoints = endpoints(policy);
    let live = live(policy);

    let (builder, layout) = load_key(family, aliases);
    let known = builder
        .load_client_bucket(layout.end, buckets.get())
        .push(lookup(CLIENTS, layout.pool_key, Some(layout.data)))
        .push(lookup(live, layout.endpoint, None))
        .push(padding(layout.data))
        .push(update_clients(DynsetOp::Update, layout, Some(timeout)))
        .dnat_to(layout.endpoint)
        .comment(format!(
            "a known client: to its endpoint in @{}, if in @{} (shown as the reply's)",
            CLIENTS.name(),
            live.name()
        ));

    let (builder, layout) = load_key(family, aliases);
    // An update renews an existing entry, but does not change its value: the entry is deleted first.
    let unknown = builder
        .random_index(layout.end, pool.count)
        .push(lookup(endpoints, layout.pool_key, Some(layout.data)))
        .push(padding(layout.data))
        .load_client_bucket(layout.end, buckets.get())
        .push(update_clients(DynsetOp::Delete, layout, None))
        .push(update_clients(DynsetOp::Update, layout, Some(timeout)))
        .dnat_to(layout.endpoint)
        .comment(format!(
            "a new client: to one of {} in @{}, remembered (shown as the reply's)",
            pool.count,
            endpoints.name()
        ));

    let without_affinity = RuleBuilder::new(family)
        .goto(pool.to_string())
        .comment(format!("no room in @{}: not remembered", CLIENTS.name()));
    vec![known, unknown, without_affinity]
}

/// Loads the key of the pool, and the values that nft shows instead of the endpoint.
fn load_key(family: IpFamily, aliases: Option<Map>) -> (RuleBuilder, RegisterLayout) {
    let builder = RuleBuilder::new(family);
    let data = Register::FIRST;
    let endpoint = data.plus(1);
    let port = endpoint.plus(builder.address_registers());
    let pool_key = port.plus(1);

    let source = match family {
        IpFamily::V4 => CtKey::SrcIp,
        IpFamily::V6 => CtKey::SrcIp6,
    };
    let reply = |dreg, key| Expr::Ct { dreg, key, direction: Some(CtDirection::Reply) };
    let (builder, end) = builder.load_pool_key(aliases, pool_key, port);
    let builder = builder.push(reply(endpoint, source)).push(reply(port, CtKey::ProtoSrc));
    (builder, RegisterLayout { data, endpoint, pool_key, end })
}

fn update_clients(op: DynsetOp, layout: RegisterLayout, timeout: Option<Duration>) -> Expr {
    Expr::Dynset { set: CLIENTS.name().into(), op, key: layout.pool_key, data: Some(layout.data), timeout }
}
