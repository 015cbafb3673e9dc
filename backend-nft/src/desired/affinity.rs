//! Session affinity: a client that connects again within the timeout gets the same endpoint, as long as that is in the
//! pool.
//!
//! ```text
//!   affine-pool-3-60s:  1. known client         affinity { VIP . client } = endpoint, and endpoint . VIP is in live:
//!                                                   renew the entry, dnat
//!                       2. new client, or its   affine-endpoints { VIP . random } = endpoint:
//!                          endpoint is gone         delete the old entry, add a new one, dnat
//!                       3. map full             goto pool-3
//! ```
//!
//! One map stores the clients of all service ports: each entry has its own timeout. An endpoint that leaves a pool is
//! removed from `live`, so that none of its clients matches rule 1 any more.
//!
//! The registers are arranged so that each result is in position for the next lookup. nft cannot print that: it aborts
//! at a rule in which the result of a lookup is part of a key or is stored in a map. So the endpoint is preceded by a
//! padding register, and after the lookup a constant is loaded into it. nft then takes what follows for the value that
//! was loaded there before: the source of the reply. The kernel does not use that value, but it shows an operator the
//! meaning, because the endpoint becomes the source of the reply.
//!
//! ```text
//!   0 . endpoint . port . VIP . protocol . port . client address, or slot            in IPv6 all sixteen registers
//!                         └─ key of affinity and of affine-endpoints ──┘
//!   └── their value ──┘
//!       └──────────── key of live ────────────┘
//! ```

use std::{num::NonZeroU32, time::Duration};

use netlink::nft::{CtDirection, CtKey, DynsetOp, Expr, Register, Rule};
use proto::model::IpFamily;

use super::{
    PoolChain,
    rule::{PacketAddress, RuleBuilder, lookup},
};
use crate::element::Map;

/// The maps and sets of one kind of pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AffinityMaps {
    /// Slot to endpoint.
    pub(super) endpoints: Map,
    /// Client to endpoint.
    pub(super) clients: Map,
    /// The endpoints of the pool.
    pub(super) live: Map,
}

/// The registers of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegisterLayout {
    /// The padding, which is followed by the endpoint.
    data: Register,
    endpoint: Register,
    vip: Register,
    /// A client address or a slot.
    end: Register,
}

/// The rules of a chain with session affinity. `pool`: the chain without affinity.
pub(super) fn rules(
    family: IpFamily,
    AffinityMaps { endpoints, clients, live }: AffinityMaps,
    timeout: NonZeroU32,
    pool: PoolChain,
) -> Vec<Rule> {
    let timeout = Duration::from_secs(timeout.get().into());
    let (builder, layout) = load_key(family, clients);
    let known = builder
        .load_address(PacketAddress::Source, layout.end)
        .push(lookup(clients, layout.vip, Some(layout.data)))
        .push(lookup(live, layout.endpoint, None))
        .push(padding(layout))
        .push(update_clients(DynsetOp::Update, clients, layout, Some(timeout)))
        .dnat_to(layout.endpoint);
    let (builder, layout) = load_key(family, clients);
    // An update renews an existing entry, but does not change its value: the entry is deleted first.
    let unknown = builder
        .random_index(layout.end, pool.count)
        .push(lookup(endpoints, layout.vip, Some(layout.data)))
        .push(padding(layout))
        .load_address(PacketAddress::Source, layout.end)
        .push(update_clients(DynsetOp::Delete, clients, layout, None))
        .push(update_clients(DynsetOp::Update, clients, layout, Some(timeout)))
        .dnat_to(layout.endpoint);
    let [endpoints, clients, live] = [endpoints, clients, live].map(Map::name);
    vec![
        known.comment(format!("a known client: to its endpoint in @{clients}, if in @{live} (shown as the reply's)")),
        unknown.comment(format!(
            "a new client: to one of {} in @{endpoints}, remembered (shown as the reply's)",
            pool.count
        )),
        RuleBuilder::new(family).goto(pool.to_string()).comment(format!("no room in @{clients}: not remembered")),
    ]
}

/// Loads the VIP, and the values that nft shows instead of the endpoint.
fn load_key(family: IpFamily, clients: Map) -> (RuleBuilder, RegisterLayout) {
    let builder = RuleBuilder::new(family);
    let data = Register::FIRST;
    let endpoint = data.plus(1);
    let port = endpoint.plus(builder.address_registers());
    let vip = port.plus(1);
    let source = match family {
        IpFamily::V4 => CtKey::SrcIp,
        IpFamily::V6 => CtKey::SrcIp6,
    };
    let reply = |dreg, key| Expr::Ct { dreg, key, direction: Some(CtDirection::Reply) };
    let builder = builder.push(reply(endpoint, source)).push(reply(port, CtKey::ProtoSrc));
    let (builder, end) = builder.load_vip(clients.vip_shape(), vip);
    (builder, RegisterLayout { data, endpoint, vip, end })
}

/// The padding, which is zero already.
fn padding(layout: RegisterLayout) -> Expr {
    Expr::Immediate { dreg: layout.data, data: [0; 4].into() }
}

fn update_clients(op: DynsetOp, clients: Map, layout: RegisterLayout, timeout: Option<Duration>) -> Expr {
    Expr::Dynset { set: clients.name().into(), op, key: layout.vip, data: Some(layout.data), timeout }
}
