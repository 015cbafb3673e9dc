//! The nf_tables rules that reject packets of connections to endpoints that are gone: in a table of their own, in every
//! mode. Its elements expire, so that a process which is killed leaves none behind.

use std::collections::BTreeSet;

use netlink::nft::{
    Chain, ChainType, CmpOp, CtDirection, CtKey, DataType, Element, Expr, Fields, Hook, LookupMatch, MetaKey, NftBatch,
    NftHandle, PayloadBase, Register, RejectWith, Rule, Set, SetFlags, Table, priority,
};
use proto::model::IpFamily;

use super::rejecter::{Rejected, TIMEOUT};

pub(super) const NAME: &str = "fairlead-resets";
const SET: &str = "gone";

/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// Rejects packets of these connections from now on, instead of those of earlier ones.
pub(super) fn reject(
    handle: &mut NftHandle,
    family: IpFamily,
    connections: &BTreeSet<Rejected>,
) -> netlink::Result<()> {
    let table = table(family);
    let set = set(family);

    let mut batch = NftBatch::new();
    batch.add_table(&table);
    batch.delete_table(&table);
    batch.add_table(&table);
    batch.add_set(&table, &set);

    for (name, hook) in [("forward", Hook::Forward), ("output", Hook::Output)] {
        // Before the chains of other programs that drop packets as invalid.
        batch.add_chain(&table, &Chain::base(name, ChainType::Filter, hook, priority::FILTER - 1));
        batch.add_rule(&table, name, &rule(family));
    }

    let keys: Vec<_> = connections.iter().map(key).collect();
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

fn key(Rejected { client, vip, endpoint }: &Rejected) -> Fields {
    // Without the port of the endpoint, because nft cannot list a key with more than five fields.
    let fields = Fields::new().addr(client.ip()).port(client.port());
    fields.addr(vip.ip()).port(vip.port()).addr(endpoint.ip())
}

fn table(family: IpFamily) -> Table {
    Table::new(family, NAME).comment("connections to endpoints that are gone, for some seconds")
}

fn set(family: IpFamily) -> Set {
    let address = match family {
        IpFamily::V4 => DataType::Ipv4Addr,
        IpFamily::V6 => DataType::Ipv6Addr,
    };
    let key = [address, DataType::InetService, address, DataType::InetService, address];
    Set { flags: SetFlags::TIMEOUT, ..Set::new(SET, key) }
}

/// Matches the packets of the client in an open connection:
/// `ct original ip saddr . ct original proto-src . ct original ip daddr . ct original proto-dst . ip daddr @gone`.
fn rule(family: IpFamily) -> Rule {
    let (client, vip, len, daddr_offset) = match family {
        IpFamily::V4 => (CtKey::SrcIp, CtKey::DstIp, 4, 16),
        IpFamily::V6 => (CtKey::SrcIp6, CtKey::DstIp6, 16, 24),
    };
    let first = Register::FIRST;
    let address_registers = (len / 4) as u8;
    // Each address is followed by a port.
    let at = |address: u8| first.plus(address * (address_registers + 1));
    let port_at = |address: u8| at(address).plus(address_registers);

    let ct = |key, dreg| Expr::Ct { key, dreg, direction: Some(CtDirection::Original) };
    let cmp = |op, data: &[u8]| Expr::Cmp { sreg: first, op, data: data.into() };
    let of_packet = |key| Expr::Ct { key, dreg: first, direction: None };
    let established = CtKey::STATE_ESTABLISHED.to_ne_bytes();

    Rule::new([
        Expr::Meta { key: MetaKey::L4proto, dreg: first },
        cmp(CmpOp::Eq, &[TCP]),
        of_packet(CtKey::State),
        Expr::Bitwise { sreg: first, dreg: first, mask: established.into(), xor: [0; 4].into() },
        cmp(CmpOp::Neq, &[0; 4]),
        of_packet(CtKey::Direction),
        cmp(CmpOp::Eq, &[CtDirection::Original as u8]),
        ct(client, at(0)),
        ct(CtKey::ProtoSrc, port_at(0)),
        ct(vip, at(1)),
        ct(CtKey::ProtoDst, port_at(1)),
        Expr::Payload { dreg: at(2), base: PayloadBase::Network, offset: daddr_offset, len },
        Expr::Lookup { set: SET.into(), sreg: first, dreg: None, matches: LookupMatch::InSet },
        Expr::Reject(RejectWith::TcpReset),
    ])
}
