//! Decoded expressions equal the encoded ones.

use std::time::Duration;

use proptest::{collection::vec, option, prelude::*};

use super::*;
use crate::{
    attr::{Put, attrs},
    nft::{element::Verdict, table::TableFamily},
};

fn register() -> impl Strategy<Value = Register> {
    (8..=23u8).prop_map(|number| Register::new(number).unwrap())
}

fn bytes() -> impl Strategy<Value = Constant> {
    vec(any::<u8>(), 1..=16).prop_map(Constant::from)
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,30}"
}

fn verdict() -> impl Strategy<Value = Verdict<'static>> {
    prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Drop),
        Just(Verdict::Continue),
        Just(Verdict::Return),
        name().prop_map(Verdict::jump),
        name().prop_map(Verdict::goto),
        Just(Verdict::Other(-2)),
    ]
}

/// A value for which `from_number` returns one.
fn choice<T: fmt::Debug>(from_number: fn(u32) -> Option<T>) -> impl Strategy<Value = T> {
    let known: Vec<u32> = (0..64).filter(|&number| from_number(number).is_some()).collect();
    proptest::sample::select(known).prop_map(move |number| from_number(number).unwrap())
}

fn loads() -> impl Strategy<Value = Expr> {
    prop_oneof![
        (register(), choice(PayloadBase::from_number), any::<u32>(), any::<u32>())
            .prop_map(|(dreg, base, offset, len)| Expr::Payload { dreg, base, offset, len }),
        (register(), choice(MetaKey::from_number)).prop_map(|(dreg, key)| Expr::Meta { dreg, key }),
        (register(), choice(MetaKey::from_number)).prop_map(|(sreg, key)| Expr::MetaSet { sreg, key }),
        (register(), choice(CtKey::from_number), option::of(choice(CtDirection::from_number)))
            .prop_map(|(dreg, key, direction)| Expr::Ct { dreg, key, direction }),
        (register(), choice(FibResult::from_number), 0..64u32).prop_map(|(dreg, result, flags)| Expr::Fib {
            dreg,
            result,
            flags: FibFlags(flags)
        }),
        (register(), bytes()).prop_map(|(dreg, data)| Expr::Immediate { dreg, data }),
        (register(), register(), 0..2u32, any::<u32>(), any::<u32>())
            .prop_map(|(sreg, dreg, op, len, size)| Expr::Byteorder { sreg, dreg, op, len, size }),
        (register(), choice(NumgenType::from_number), any::<u32>(), any::<u32>())
            .prop_map(|(dreg, kind, modulus, offset)| Expr::Numgen { dreg, kind, modulus, offset }),
        (register(), register(), any::<u32>(), any::<u32>(), any::<u32>())
            .prop_map(|(sreg, dreg, len, modulus, seed)| Expr::Hash { sreg, dreg, len, modulus, seed }),
    ]
}

fn tests() -> impl Strategy<Value = Expr> {
    prop_oneof![
        (register(), choice(CmpOp::from_number), bytes()).prop_map(|(sreg, op, data)| Expr::Cmp { sreg, op, data }),
        (register(), choice(RangeOp::from_number), bytes(), bytes()).prop_map(|(sreg, op, from, to)| Expr::Range {
            sreg,
            op,
            from,
            to
        }),
        (register(), register(), bytes(), bytes()).prop_map(|(sreg, dreg, mask, xor)| Expr::Bitwise {
            sreg,
            dreg,
            mask,
            xor
        }),
        (name(), register(), option::of(register()), choice(LookupMatch::from_number))
            .prop_map(|(set, sreg, dreg, matches)| Expr::Lookup { set, sreg, dreg, matches }),
    ]
}

fn statements() -> impl Strategy<Value = Expr> {
    let timeout = option::of((1..=86_400_000u64).prop_map(Duration::from_millis));
    let nat_flags = (0..8u32).prop_map(|bits| NatFlags(bits << 2));
    prop_oneof![
        verdict().prop_map(Expr::Verdict),
        (name(), choice(DynsetOp::from_number), register(), option::of(register()), timeout)
            .prop_map(|(set, op, key, data, timeout)| Expr::Dynset { set, op, key, data, timeout }),
        nat_flags.prop_map(|flags| Expr::Masquerade { flags }),
        any::<u8>().prop_map(|code| Expr::Reject(RejectWith::Icmp(code))),
        Just(Expr::Reject(RejectWith::TcpReset)),
        any::<u8>().prop_map(|code| Expr::Reject(RejectWith::Icmpx(code))),
        Just(Expr::Counter),
        // A range of one value is a single value, as in kernel dumps.
        (choice(NatType::from_number), register(), option::of(register()), register(), option::of(register()), 0..8u32)
            .prop_map(|(kind, addr, addr_max, port, port_max, bits)| Expr::Nat {
                kind,
                family: TableFamily::Ip6,
                addr: Some(addr),
                addr_max: addr_max.filter(|max| *max != addr),
                port: Some(port),
                port_max: port_max.filter(|max| *max != port),
                flags: NatFlags(bits << 2),
            }),
    ]
}

proptest! {
    #[test]
    fn decoded_expressions_equal_the_encoded(list in vec(prop_oneof![loads(), tests(), statements()], 0..8)) {
        let mut buf = Vec::new();
        put_exprs(&mut buf, &list);
        prop_assert_eq!(read_exprs(attrs(&buf)), list);
    }

    #[test]
    fn any_bytes_are_decoded_without_panic(bytes in vec(any::<u8>(), 0..200)) {
        read_exprs(attrs(&bytes));
    }
}

fn read_one(name: &str, write: impl FnOnce(&mut Vec<u8>)) -> Expr {
    let mut buf = Vec::new();
    buf.nest(1, |buf| {
        buf.put_str(1, name);
        buf.nest(2, write);
    });
    read_exprs(attrs(&buf)).remove(0)
}

#[test]
fn an_unknown_expression_stays_unchanged() {
    // `meta iifgroup`, a masquerade to a range of ports, and `quota`.
    for (name, attributes) in [("meta", &[(1u16, 1u32), (2, 21)][..]), ("masq", &[(2, 1), (3, 2)]), ("quota", &[])] {
        let write = |buf: &mut Vec<u8>| attributes.iter().for_each(|&(kind, value)| buf.put_u32(kind, value));
        let read = read_one(name, write);
        let mut data = Vec::new();
        write(&mut data);
        assert_eq!(read, Expr::Other { name: name.into(), data: data.into() });
        let mut written = Vec::new();
        put_exprs(&mut written, std::slice::from_ref(&read));
        assert_eq!(read_exprs(attrs(&written)), [read]);
    }
}

#[test]
fn a_shift_is_not_decoded_as_a_mask() {
    let read = read_one("bitwise", |buf| {
        for (kind, value) in [(1, 1), (2, 1), (3, 4), (6, 1)] {
            buf.put_u32(kind, value);
        }
    });
    assert!(matches!(read, Expr::Other { .. }), "{read:?}");
}

#[test]
fn registers_have_the_numbers_of_kernel_dumps() {
    let wire: Vec<u32> = (8..=23).map(|number| Register::new(number).unwrap().wire()).collect();
    assert_eq!(wire, [1, 9, 10, 11, 2, 13, 14, 15, 3, 17, 18, 19, 4, 21, 22, 23]);
    for number in 8..=23 {
        let register = Register::new(number).unwrap();
        assert_eq!(Register::from_wire(register.wire()), Some(register));
        assert_eq!(Register::from_wire(u32::from(number)), Some(register), "both numbers are the same register");
    }
    assert_eq!((Register::new(7), Register::new(24), Register::from_wire(5)), (None, None, None));
    assert_eq!(Register::FIRST.plus(3), Register::new(11).unwrap());
}

#[test]
fn an_expression_of_odd_length_leaves_the_next_one_readable() {
    let odd = Expr::Other { name: "quota".into(), data: vec![1, 2, 3].into() };
    let exprs = vec![odd, Expr::Verdict(Verdict::Drop)];
    let mut written = Vec::new();
    put_exprs(&mut written, &exprs);
    assert_eq!(read_exprs(attrs(&written)), exprs);
}
