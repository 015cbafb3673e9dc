//! The nf_tables rules that reject packets of connections to endpoints that are gone: in a table of their own, in every
//! mode. Its elements expire, so that a process which is killed leaves none behind.

use std::time::Duration;

use netlink::nft::{
    Chain, ChainType, CmpOp, Comment, CtDirection, CtKey, DataType, Element, Expr, Fields, Hook, LookupMatch, MetaKey,
    NftBatch, NftHandle, PayloadBase, Register, RejectWith, Rule, Set, SetFlags, Table, TableFamily, priority,
};
use proto::model::IpFamily;

use super::rejecter::Route;

/// The table of each family.
pub(super) const NAME: &str = "fairlead-resets";
const SET: &str = "gone";
/// How long packets are rejected, unless the rules are removed before.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The most routes. Connections of others are probed when these are closed.
pub(super) const MAX_ROUTES: usize = 20_000;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// Rejects packets of these routes from now on.
pub(super) fn reject(handle: &mut NftHandle, family: IpFamily, routes: &[Route]) -> netlink::Result<()> {
    let table = table(family);
    let set = set(family);
    let mut batch = NftBatch::new();
    batch.add_table(&table);
    batch.add_set(&table, &set);
    for (name, hook) in [("forward", Hook::Forward), ("output", Hook::Output)] {
        // Before those that drop what they take for invalid.
        batch.add_chain(&table, &Chain::base(name, ChainType::Filter, hook, priority::FILTER - 1));
        batch.flush_chain(&table, name);
        batch.add_rule(&table, name, &rule(family));
    }
    let keys: Vec<_> = routes.iter().map(key).collect();
    let element = |key| Element { timeout: Some(TIMEOUT), ..Element::key(key) };
    batch.add_elements(&table, &set, keys.iter().map(|key| element(key)));
    handle.commit(&batch)
}

/// Deletes the table of a family, if it exists.
pub(super) fn remove(handle: &mut NftHandle, family: IpFamily) -> netlink::Result<()> {
    let mut batch = NftBatch::new();
    batch.delete_table(&table(family));
    match handle.commit(&batch) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn key(Route { vip, endpoint }: &Route) -> Fields {
    let fields = Fields::new().addr(vip.ip()).port(vip.port());
    fields.addr(endpoint.ip()).port(endpoint.port())
}

pub(super) fn family(family: IpFamily) -> TableFamily {
    match family {
        IpFamily::V4 => TableFamily::Ip,
        IpFamily::V6 => TableFamily::Ip6,
    }
}

fn table(ip_family: IpFamily) -> Table {
    let comment = Comment::from("connections to endpoints that are gone, for at most a minute");
    Table { comment: Some(comment), ..Table::new(family(ip_family), NAME) }
}

fn set(family: IpFamily) -> Set {
    let address = match family {
        IpFamily::V4 => DataType::Ipv4Addr,
        IpFamily::V6 => DataType::Ipv6Addr,
    };
    let key = [address, DataType::InetService, address, DataType::InetService];
    Set::new(SET, key).flags(SetFlags::TIMEOUT)
}

/// `ct original ip daddr . ct original proto-dst . ip daddr . tcp dport @gone reject with tcp reset`
fn rule(family: IpFamily) -> Rule {
    let (vip, len, daddr_offset) = match family {
        IpFamily::V4 => (CtKey::DstIp, 4, 16),
        IpFamily::V6 => (CtKey::DstIp6, 16, 24),
    };
    let first = Register::FIRST;
    let address_registers = (len / 4) as u8;
    let at = |distance| first.plus(distance);
    let ct = |key, dreg| Expr::Ct { key, dreg, direction: Some(CtDirection::Original) };
    Rule::new([
        Expr::Meta { key: MetaKey::L4proto, dreg: first },
        Expr::Cmp { sreg: first, op: CmpOp::Eq, data: [TCP].into() },
        ct(vip, at(0)),
        ct(CtKey::ProtoDst, at(address_registers)),
        Expr::Payload { dreg: at(address_registers + 1), base: PayloadBase::Network, offset: daddr_offset, len },
        Expr::Payload { dreg: at(2 * address_registers + 1), base: PayloadBase::Transport, offset: 2, len: 2 },
        Expr::Lookup { set: SET.into(), sreg: first, dreg: None, matches: LookupMatch::InSet },
        Expr::Reject(RejectWith::TcpReset),
    ])
}
