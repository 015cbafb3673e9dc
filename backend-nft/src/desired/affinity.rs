//! Session affinity: a client that connects again within the timeout gets the endpoint that it had, as long as that is
//! in the pool.
//!
//! ```text
//!   affine-pool-3-60s:  1. a known client      affinity { VIP . client } = endpoint, endpoint . VIP is in live:  renew, dnat
//!                       2. a new one, or its   affine-endpoints { VIP . random } = endpoint:
//!                          endpoint is gone        forget what was remembered, remember this one, dnat
//!                       3. set full              goto pool-3
//! ```
//!
//! One map holds the clients of all service ports, whatever their timeouts: each entry has its own. An endpoint that
//! leaves a pool leaves `live`, and so none of its clients is known any more.
//!
//! All is in its place for the next lookup. nft cannot print that: it aborts at a rule in which what comes out of a map
//! is part of a key, or is remembered. So there is a word before the endpoint, and after the lookup a constant is
//! loaded over it: what is behind it nft then takes for what was loaded there before, which is the source of the reply.
//! That is not looked at, but it is what the endpoint will be.
//!
//! ```text
//!   0 . endpoint . port . VIP . protocol . port . client, or place in the pool       in IPv6 all sixteen registers
//!                         └─ key of affinity and of affine-endpoints ──┘
//!   └── their value ──┘
//!       └──────────── key of live ────────────┘
//! ```

use std::{num::NonZeroU32, time::Duration};

use netlink::nft::{CtDirection, CtKey, DynsetOp, Expr, LookupMatch, Register, Rule};
use proto::model::IpFamily;

use super::{
    PoolChain,
    rule::{Address, Line},
};
use crate::element::Map;

/// What belongs to one kind of pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Maps {
    /// Place to endpoint.
    pub(super) endpoints: Map,
    /// Client to endpoint.
    pub(super) clients: Map,
    /// The endpoints that are in the pool.
    pub(super) live: Map,
}

/// Where things are while a rule runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Zeros, then the endpoint.
    data: Register,
    endpoint: Register,
    vip: Register,
    /// A client or a place.
    end: Register,
}

/// The rules for the clients of a pool of so many endpoints. `pool`: the chain that does without.
pub(super) fn rules(
    family: IpFamily,
    Maps { endpoints, clients, live }: Maps,
    timeout: NonZeroU32,
    pool: PoolChain,
) -> Vec<Rule> {
    let timeout = Duration::from_secs(timeout.get().into());
    let (line, at) = begin(family, clients);
    let known = line
        .address(Address::Source, at.end)
        .push(lookup(clients, at.vip, Some(at.data)))
        .push(lookup(live, at.endpoint, None))
        .push(padding(at))
        .push(change(DynsetOp::Update, clients, at, Some(timeout)))
        .dnat_to(at.endpoint);
    let (line, at) = begin(family, clients);
    // An update renews an entry that is there, but does not change it.
    let unknown = line
        .random(at.end, pool.count)
        .push(lookup(endpoints, at.vip, Some(at.data)))
        .push(padding(at))
        .address(Address::Source, at.end)
        .push(change(DynsetOp::Delete, clients, at, None))
        .push(change(DynsetOp::Update, clients, at, Some(timeout)))
        .dnat_to(at.endpoint);
    let [endpoints, clients, live] = [endpoints, clients, live].map(Map::name);
    vec![
        known.comment(format!("a known client: to its endpoint in @{clients}, if in @{live} (shown as the reply's)")),
        unknown.comment(format!(
            "a new client: to one of {} in @{endpoints}, remembered (shown as the reply's)",
            pool.count
        )),
        Line::new(family).goto(pool.to_string()).comment(format!("no room in @{clients}: not remembered")),
    ]
}

/// Loads the VIP, and what nft is to take for the endpoint.
fn begin(family: IpFamily, clients: Map) -> (Line, Layout) {
    let line = Line::new(family);
    let data = Register::FIRST;
    let endpoint = data.plus(1);
    let port = endpoint.plus(line.words());
    let vip = port.plus(1);
    let source = match family {
        IpFamily::V4 => CtKey::SrcIp,
        IpFamily::V6 => CtKey::SrcIp6,
    };
    let reply = |dreg, key| Expr::Ct { dreg, key, direction: Some(CtDirection::Reply) };
    let line = line.push(reply(endpoint, source)).push(reply(port, CtKey::ProtoSrc));
    let (line, end) = line.front_at(clients.kind(), vip);
    (line, Layout { data, endpoint, vip, end })
}

/// The zeros that are there already.
fn padding(at: Layout) -> Expr {
    Expr::Immediate { dreg: at.data, data: [0; 4].into() }
}

fn change(op: DynsetOp, clients: Map, at: Layout, timeout: Option<Duration>) -> Expr {
    Expr::Dynset { set: clients.name().into(), op, key: at.vip, data: Some(at.data), timeout }
}

fn lookup(map: Map, sreg: Register, dreg: Option<Register>) -> Expr {
    Expr::Lookup { set: map.name().into(), sreg, dreg, matches: LookupMatch::InSet }
}
