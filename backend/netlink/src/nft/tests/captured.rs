//! Batches compared with those of nft for the same command: `captured/nft-1.0.6.txt`.

use std::time::Duration;

use super::fixtures::*;
use crate::{
    message::messages,
    nft::{decode::Body, *},
};

const CAPTURED: &str = include_str!("../captured/nft-1.0.6.txt");

/// The comparison of our bytes with nft's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wire {
    /// Equal behind the message's header.
    Same,
    /// They decode to equal objects; the bytes differ for this reason.
    Differ(&'static str),
}
use Wire::{Differ, Same};

/// nft also sends the set's number in the transaction.
const SET_ID: Wire = Differ("set id");
/// nft also sends the expressions of a set's `typeof`.
const TYPEOF: Wire = Differ("typeof in userdata");

fn t() -> Table {
    Table::new(TableFamily::Ip, "t")
}

const VIP: [DataType; 3] = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
const SOCKET: [DataType; 2] = [DataType::Ipv4Addr, DataType::InetService];

fn vip(last: u8, proto: u8, port: u16) -> Fields {
    Fields::new().addr([10, 96, 0, last]).proto(proto).port(port)
}

fn objects() -> Vec<(&'static str, Wire, NftBatch)> {
    let mut list = Vec::new();
    let mut case = |command, bytes, write: &dyn Fn(&mut NftBatch)| {
        let mut batch = NftBatch::new();
        write(&mut batch);
        list.push((command, bytes, batch));
    };
    case("add table ip t { comment \"services\"; }", Same, &|b| b.add_table(&t().comment("services")));
    case("delete table ip6 t", Same, &|b| b.delete_table(&Table::new(TableFamily::Ip6, "t")));
    case("add chain ip t pool-1 { comment \"one endpoint\"; }", Same, &|b| {
        b.add_chain(&t(), &Chain::regular("pool-1").comment("one endpoint"));
    });
    case("add chain ip t nat { type nat hook prerouting priority dstnat; policy accept; }", Same, &|b| {
        b.add_chain(&t(), &Chain::base("nat", ChainType::Nat, Hook::Prerouting, priority::DSTNAT));
    });
    let out = "add chain ip t out { type filter hook output priority -10; policy drop; comment \"first\"; }";
    case(out, Same, &|b| {
        let base = BaseChain { kind: ChainType::Filter, hook: Hook::Output, priority: -10, policy: Policy::Drop };
        b.add_chain(&t(), &Chain { base: Some(base), ..Chain::regular("out").comment("first") });
    });
    case("delete chain ip t pool-3", Same, &|b| b.delete_chain(&t(), "pool-3"));
    case("flush chain ip t f", Same, &|b| b.flush_chain(&t(), "f"));
    let m1 = "add map ip t m1 { type ipv4_addr . inet_proto . inet_service : verdict; comment \"VIP to pool\"; }";
    case(m1, TYPEOF, &|b| b.add_set(&t(), &Set::map("m1", VIP, [DataType::Verdict]).comment("VIP to pool")));
    let m2 = "add map ip t m2 { type ipv4_addr . inet_proto . inet_service . mark : ipv4_addr . inet_service; }";
    case(m2, TYPEOF, &|b| b.add_set(&t(), &Set::map("m2", [&VIP[..], &[DataType::Mark]].concat(), SOCKET)));
    let m3 = "add map ip t m3 { type ipv4_addr . inet_service : mark; flags dynamic,timeout; size 1000; timeout 10s; }";
    case(m3, TYPEOF, &|b| {
        let flags = SetFlags::EVAL | SetFlags::TIMEOUT;
        let map = Set { flags, size: Some(1000), ..Set::map("m3", SOCKET, [DataType::Mark]) };
        b.add_set(&t(), &Set { timeout: Some(Duration::from_secs(10)), ..map });
    });
    let s1 = "add set ip t s1 { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval; }";
    case(s1, TYPEOF, &|b| {
        let key = [&VIP[..], &[DataType::Ipv4Addr]].concat();
        b.add_set(&t(), &Set { flags: SetFlags::INTERVAL, ..Set::new("s1", key) });
    });
    case("add set ip t s2 { type mark; }", Same, &|b| b.add_set(&t(), &Set::new("s2", [DataType::Mark])));
    case("delete set ip t live", Same, &|b| b.delete_set(&t(), "live"));
    case("flush map ip t vips", Differ("order"), &|b| b.flush_set(&t(), "vips"));
    case("delete rule ip t f handle 11", Same, &|b| b.delete_rule(&t(), "f", 11));
    list
}

fn elements() -> Vec<(&'static str, Wire, NftBatch)> {
    let mut list = Vec::new();
    let mut case = |command, bytes, write: &dyn Fn(&mut NftBatch)| {
        let mut batch = NftBatch::new();
        write(&mut batch);
        list.push((command, bytes, batch));
    };
    let vips = Set::map("vips", VIP, [DataType::Verdict]);
    let (key, dns) = (vip(1, 6, 80), vip(2, 17, 53));
    let two = "add element ip t vips { 10.96.0.1 . tcp . 80 : goto pool-3, 10.96.0.2 . udp . 53 comment \"default/dns\" : drop }";
    case(two, SET_ID, &|b| {
        let dns = Element { comment: Some("default/dns"), ..Element::verdict(&dns, Verdict::Drop) };
        b.add_elements(&t(), &vips, [Element::verdict(&key, Verdict::goto("pool-3")), dns]);
    });
    let endpoint = Fields::new().addr([10, 244, 0, 5]).port(8080);
    case("add element ip t endpoints { 10.96.0.1 . tcp . 80 . 2 : 10.244.0.5 . 8080 }", SET_ID, &|b| {
        b.add_elements(&t(), &endpoints(), [Element::value(&key.mark(2), &endpoint)]);
    });
    case("add element ip t affinity { 10.96.0.1 . 80 timeout 1m : 10.244.0.5 . 8080 }", SET_ID, &|b| {
        let key = Fields::new().addr([10, 96, 0, 1]).port(80);
        let element = Element { timeout: Some(Duration::from_secs(60)), ..Element::value(&key, &endpoint) };
        b.add_elements(&t(), &Set::map("affinity", SOCKET, SOCKET), [element]);
    });
    let ranges = Set::new("ranges", [&VIP[..], &[DataType::Ipv4Addr]].concat());
    let ranges = Set { flags: SetFlags::INTERVAL, ..ranges };
    case("add element ip t ranges { 10.96.0.1 . tcp . 80 . 10.0.0.0-10.0.0.77 }", SET_ID, &|b| {
        let (from, to) = (key.addr([10, 0, 0, 0]), key.addr([10, 0, 0, 77]));
        b.add_elements(&t(), &ranges, [Element::range(&from, &to)]);
    });
    case("delete element ip t vips { 10.96.0.3 . tcp . 80 }", Same, &|b| {
        b.delete_elements(&t(), &vips, [Element::verdict(&vip(3, 6, 80), Verdict::Drop)]);
    });
    case("delete element ip t ranges { 10.96.0.3 . tcp . 80 . 10.0.0.0/24 }", Same, &|b| {
        let key = vip(3, 6, 80);
        b.delete_elements(&t(), &ranges, [Element::range(&key.addr([10, 0, 0, 0]), &key.addr([10, 0, 0, 255]))]);
    });
    list
}

fn rules() -> Vec<(&'static str, Wire, NftBatch)> {
    let network = |dreg, offset| Expr::Payload { dreg: r(dreg), base: PayloadBase::Network, offset, len: 4 };
    let transport = |dreg, offset| Expr::Payload { dreg: r(dreg), base: PayloadBase::Transport, offset, len: 2 };
    let cmp = |op, data: &[u8]| Expr::Cmp { sreg: r(8), op, data: data.into() };
    let host = |number: u32| number.to_ne_bytes();
    let bitwise =
        |mask: [u8; 4], xor: [u8; 4]| Expr::Bitwise { sreg: r(8), dreg: r(8), mask: mask.into(), xor: xor.into() };
    let load = |dreg, data: &[u8]| Expr::Immediate { dreg: r(dreg), data: data.into() };
    let meta = |key| Expr::Meta { dreg: r(8), key };
    let set_mark = Expr::MetaSet { sreg: r(8), key: MetaKey::Mark };
    let tcp = || vec![meta(MetaKey::L4proto), cmp(CmpOp::Eq, &[6])];
    let range = |op| Expr::Range { sreg: r(8), op, from: [0, 80].into(), to: [0, 90].into() };
    let fib = |flags, result| Expr::Fib { dreg: r(8), result, flags };
    let nat = |kind, addr_max, port, flags| Expr::Nat {
        kind,
        family: TableFamily::Ip,
        addr: Some(r(8)),
        addr_max,
        port,
        port_max: None,
        flags,
    };
    let dynset = |op, timeout| Expr::Dynset { set: "affinity".into(), op, key: r(8), data: Some(r(12)), timeout };
    let written = vec![network(8, 16), transport(9, 2), network(12, 12), transport(13, 0)];
    let accept = || Expr::Verdict(Verdict::Accept);
    let with = |mut exprs: Vec<Expr>, last: &[Expr]| {
        exprs.extend_from_slice(last);
        exprs
    };
    let live = |matches| Expr::Lookup { set: "live".into(), sreg: r(8), dreg: None, matches };
    let iif = FibFlags::DADDR | FibFlags::IIF;
    let lo = *b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

    let cases: Vec<(&'static str, Wire, Vec<Expr>)> = vec![
        (
            "c ip daddr . meta l4proto . th dport vmap @vips comment \"dispatch\"",
            SET_ID,
            with(load_vip(8), &[lookup("vips", 8, Some(Register::VERDICT))]),
        ),
        (
            "c dnat ip to ip daddr . meta l4proto . th dport map @single",
            SET_ID,
            with(load_vip(8), &[lookup("single", 8, Some(r(8))), dnat(8, 9)]),
        ),
        (
            "f meta mark set numgen random mod 3 offset 100",
            Same,
            vec![Expr::Numgen { dreg: r(8), kind: NumgenType::Random, modulus: 3, offset: 100 }, set_mark.clone()],
        ),
        (
            "c meta l4proto tcp dnat to 10.244.0.5:8080",
            Differ("flags that follow from the registers"),
            with(tcp(), &[load(8, &[10, 244, 0, 5]), load(12, &[0x1f, 0x90]), dnat(8, 12)]),
        ),
        (
            "f ip saddr 10.244.0.0/12 counter jump pool-3",
            Same,
            vec![
                network(8, 12),
                bitwise([255, 240, 0, 0], [0; 4]),
                cmp(CmpOp::Eq, &[10, 240, 0, 0]),
                Expr::Counter,
                Expr::Verdict(Verdict::jump("pool-3")),
            ],
        ),
        ("f ip saddr != 10.244.0.1 accept", Same, vec![network(8, 12), cmp(CmpOp::Neq, &[10, 244, 0, 1]), accept()]),
        (
            "f th dport 80-90 drop",
            Same,
            vec![transport(8, 2), cmp(CmpOp::Gte, &[0, 80]), cmp(CmpOp::Lte, &[0, 90]), Expr::Verdict(Verdict::Drop)],
        ),
        (
            "f th dport != 80-90 return",
            Same,
            vec![transport(8, 2), range(RangeOp::Neq), Expr::Verdict(Verdict::Return)],
        ),
        (
            "f th dport > 1000 continue",
            Same,
            vec![transport(8, 2), cmp(CmpOp::Gt, &1000u16.to_be_bytes()), Expr::Verdict(Verdict::Continue)],
        ),
        (
            "f ct state new goto pool-3",
            Same,
            vec![
                Expr::Ct { dreg: r(8), key: CtKey::State, direction: None },
                bitwise(host(CtKey::STATE_NEW), [0; 4]),
                cmp(CmpOp::Neq, &[0; 4]),
                Expr::Verdict(Verdict::goto("pool-3")),
            ],
        ),
        (
            "f meta l4proto tcp ct original proto-dst 80 accept",
            Same,
            with(
                tcp(),
                &[
                    Expr::Ct { dreg: r(8), key: CtKey::ProtoDst, direction: Some(CtDirection::Original) },
                    cmp(CmpOp::Eq, &[0, 80]),
                    accept(),
                ],
            ),
        ),
        (
            "f fib saddr type local accept",
            Same,
            vec![fib(FibFlags::SADDR, FibResult::AddrType), cmp(CmpOp::Eq, &host(2)), accept()],
        ),
        ("f fib daddr . iif oif lo accept", Same, vec![fib(iif, FibResult::Oif), cmp(CmpOp::Eq, &host(1)), accept()]),
        (
            "f meta mark set meta mark | 0x4000",
            Differ("the default operation, which nft names here and not elsewhere"),
            vec![meta(MetaKey::Mark), bitwise(host(!0x4000), host(0x4000)), set_mark],
        ),
        ("f iifname \"lo\" accept", Same, vec![meta(MetaKey::Iifname), cmp(CmpOp::Eq, &lo), accept()]),
        (
            "f ip daddr . th dport @live accept",
            SET_ID,
            vec![network(8, 16), transport(9, 2), live(LookupMatch::InSet), accept()],
        ),
        (
            "f ip daddr . th dport != @live drop",
            SET_ID,
            vec![network(8, 16), transport(9, 2), live(LookupMatch::NotInSet), Expr::Verdict(Verdict::Drop)],
        ),
        (
            "f update @affinity { ip daddr . th dport timeout 20s : ip saddr . th sport }",
            SET_ID,
            with(written.clone(), &[dynset(DynsetOp::Update, Some(Duration::from_secs(20)))]),
        ),
        (
            "f add @affinity { ip daddr . th dport : ip saddr . th sport }",
            SET_ID,
            with(written, &[dynset(DynsetOp::Add, None)]),
        ),
        ("f meta l4proto tcp reject with tcp reset", Same, with(tcp(), &[Expr::Reject(RejectWith::TcpReset)])),
        ("f reject with icmp port-unreachable", Same, vec![Expr::Reject(RejectWith::PORT_UNREACHABLE)]),
        ("p masquerade random", Same, vec![Expr::Masquerade { flags: NatFlags::RANDOM }]),
        ("p masquerade", Same, vec![Expr::Masquerade { flags: NatFlags::NONE }]),
        (
            "p meta l4proto tcp snat to 10.0.0.1-10.0.0.9 persistent",
            Same,
            with(
                tcp(),
                &[
                    load(8, &[10, 0, 0, 1]),
                    load(12, &[10, 0, 0, 9]),
                    nat(NatType::Snat, Some(r(12)), None, NatFlags::PERSISTENT),
                ],
            ),
        ),
        (
            "f notrack",
            Differ("nft leaves empty data out"),
            vec![Expr::Other { name: "notrack".into(), data: [].into() }],
        ),
    ];
    let batch = |command: &'static str, exprs: Vec<Expr>| {
        let rule = Rule { exprs, comment: command.contains("dispatch").then(|| "dispatch".into()) };
        let mut batch = NftBatch::new();
        batch.add_rule(&t(), &command[..1], &rule);
        batch
    };
    cases.into_iter().map(|(command, bytes, exprs)| (command, bytes, batch(command, exprs))).collect()
}

/// The messages captured for the command.
fn captured(command: &str) -> Vec<Vec<u8>> {
    let full = format!("> {command}");
    let lines = CAPTURED.lines().skip_while(|line| *line != full).skip(1).take_while(|line| !line.is_empty());
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    let messages: Vec<Vec<u8>> = lines.map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect();
    assert!(!messages.is_empty(), "{command:?} was not captured");
    messages
}

/// The object in a message, as debug output.
fn meaning(message: &[u8]) -> String {
    let message = messages(message).next().unwrap();
    let body = Body::new(message.payload).unwrap();
    let elements: Vec<Element<'_>> = body
        .get(abi::elements::LIST)
        .filter(|_| matches!(message.kind & 0xff, abi::msg::NEWSETELEM | abi::msg::DELSETELEM))
        .map(|list| list.nested().map(|element| Element::read(&element).unwrap()).collect())
        .unwrap_or_default();
    let object = match message.kind & 0xff {
        abi::msg::NEWTABLE | abi::msg::DELTABLE => format!("{:?}", decode::table(&body).unwrap()),
        abi::msg::NEWCHAIN | abi::msg::DELCHAIN => format!("{:?}", decode::chain(&body).unwrap()),
        abi::msg::NEWRULE | abi::msg::DELRULE => format!("{:?}", decode::rule(&body).unwrap()),
        abi::msg::NEWSET => format!("{:?}", decode::set(&body).unwrap()),
        abi::msg::DELSET | abi::msg::NEWSETELEM | abi::msg::DELSETELEM => {
            format!("{:?}", body.str(abi::set::NAME))
        }
        other => panic!("message {other}"),
    };
    format!("{} {} {:?} {object} {elements:?}", message.kind, body.family, body.table())
}

fn check(command: &str, expected: Wire, batch: &NftBatch) {
    let theirs = captured(command);
    let (ours, _) = batch.parts();
    // Skip BATCH_BEGIN.
    let ours = &ours[20..];
    let [theirs] = &theirs[..] else { panic!("{command}: {} messages", theirs.len()) };
    assert!(!meaning(ours).contains("None []") || !batch.to_string().contains('{'), "{command}: nothing was read");
    assert_eq!(meaning(ours), meaning(theirs), "{command}");
    let same = ours[16..] == theirs[16..];
    let found = if same { Same } else { Differ("bytes") };
    assert_eq!(same, expected == Same, "{command}: expected {expected:?}, found {found:?}\n{ours:02x?}\n{theirs:02x?}");
}

#[test]
fn objects_equal_those_of_nft() {
    objects().iter().for_each(|(command, bytes, batch)| check(command, *bytes, batch));
}

#[test]
fn elements_equal_those_of_nft() {
    elements().iter().for_each(|(command, bytes, batch)| check(command, *bytes, batch));
}

#[test]
fn rules_equal_those_of_nft() {
    for (command, bytes, batch) in rules() {
        check(&format!("add rule ip t {command}"), bytes, &batch);
    }
}

#[test]
fn all_captured_commands_are_compared() {
    let used = objects().len() + elements().len() + rules().len();
    assert_eq!(CAPTURED.lines().filter(|line| line.starts_with("> ")).count(), used);
}
