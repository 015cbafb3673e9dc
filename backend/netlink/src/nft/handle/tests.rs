//! Tests with the kernel, each in a new network namespace: dumps equal the written objects, and nft lists them.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use super::*;
use crate::{
    nft::{tests::fixtures::*, *},
    testing::in_netns,
};

fn table() -> Table {
    Table::new(TableFamily::Ip, "fairlead").comment("services")
}

/// Rules with every kind of expression; the chain `nat` is a base chain of type nat at prerouting.
fn every_rule() -> Vec<(&'static str, Rule)> {
    let mark = 0x4000u32.to_ne_bytes();
    let load_mark = Expr::Meta { dreg: r(8), key: MetaKey::Mark };
    let clear = |xor: [u8; 4]| Expr::Bitwise {
        sreg: r(8),
        dreg: r(8),
        mask: (!0x4000u32).to_ne_bytes().into(),
        xor: xor.into(),
    };
    let saddr = Expr::Payload { dreg: r(8), base: PayloadBase::Network, offset: 12, len: 4 };
    let bits = |mask: [u8; 4]| Expr::Bitwise { sreg: r(8), dreg: r(8), mask: mask.into(), xor: [0; 4].into() };
    let cmp = |op, data: &[u8]| Expr::Cmp { sreg: r(8), op, data: data.into() };
    let fib = |flags, result| Expr::Fib { dreg: r(8), result, flags };
    let vip = |last: &[Expr]| [load_vip(8).as_slice(), last].concat();

    vec![
        ("nat", Rule::new(vip(&[lookup("vips", 8, Some(Register::VERDICT))])).comment("dispatch")),
        ("pool-3", Rule::new(vip(&[random(11, 3), lookup("endpoints", 8, Some(r(8))), dnat(8, 9)]))),
        ("pool-3", alias_rule()),
        ("pool-3", bucket_rule()),
        ("pool-3", Rule::new([Expr::Verdict(Verdict::Drop)])),
        ("affine", affine_rules().remove(0)),
        ("affine", affine_rules().remove(1)),
        ("affine", Rule::new([Expr::Verdict(Verdict::goto("pool-3"))])),
        (
            "local",
            Rule::new([
                saddr.clone(),
                bits([255, 255, 0, 0]),
                cmp(CmpOp::Neq, &[10, 244, 0, 0]),
                Expr::Counter,
                Expr::Verdict(Verdict::jump("mark")),
            ]),
        ),
        ("local", Rule::new([fib(FibFlags::SADDR, FibResult::AddrType), cmp(CmpOp::Eq, &2u32.to_ne_bytes())])),
        (
            "local",
            Rule::new([fib(FibFlags::DADDR | FibFlags::IIF, FibResult::Oif), cmp(CmpOp::Eq, &1u32.to_ne_bytes())]),
        ),
        ("mark", Rule::new([load_mark.clone(), clear(mark), Expr::MetaSet { sreg: r(8), key: MetaKey::Mark }])),
        (
            "check",
            Rule::new(
                [
                    &[Expr::Ct { dreg: r(8), key: CtKey::State, direction: None }][..],
                    &[bits(CtKey::STATE_NEW.to_ne_bytes()), cmp(CmpOp::Neq, &[0; 4])],
                    &load_vip(8),
                    &[
                        Expr::Payload { dreg: r(11), base: PayloadBase::Network, offset: 12, len: 4 },
                        Expr::Lookup {
                            set: "source-ranges".into(),
                            sreg: r(8),
                            dreg: None,
                            matches: LookupMatch::NotInSet,
                        },
                        Expr::Verdict(Verdict::Return),
                    ],
                ]
                .concat(),
            ),
        ),
        ("check", allowed_rule()),
        ("post", Rule::new([load_mark, cmp(CmpOp::Eq, &mark), Expr::Masquerade { flags: NatFlags::RANDOM }])),
        ("post", Rule::new([Expr::Masquerade { flags: NatFlags::NONE }])),
        (
            "reject",
            Rule::new([
                Expr::Meta { dreg: r(8), key: MetaKey::L4proto },
                cmp(CmpOp::Eq, &[6]),
                Expr::Reject(RejectWith::TcpReset),
            ]),
        ),
        ("reject", Rule::new([Expr::Reject(RejectWith::PORT_UNREACHABLE)])),
        (
            "reject",
            Rule::new([
                Expr::Payload { dreg: r(8), base: PayloadBase::Transport, offset: 2, len: 2 },
                Expr::Range { sreg: r(8), op: RangeOp::Neq, from: [0, 80].into(), to: [0, 90].into() },
                Expr::Verdict(Verdict::Accept),
            ]),
        ),
        ("reject", Rule::new([Expr::Other { name: "notrack".into(), data: [].into() }])),
    ]
}

fn every_chain() -> Vec<Chain> {
    let names = ["pool-3", "affine", "local", "mark", "check", "reject"];
    let mut chains = vec![
        Chain::base("nat", ChainType::Nat, Hook::Prerouting, priority::DSTNAT).comment("of new connections"),
        Chain::base("post", ChainType::Nat, Hook::Postrouting, priority::SRCNAT),
        Chain::base("raw", ChainType::Filter, Hook::Output, priority::FILTER - 10),
    ];
    chains[2].base.as_mut().unwrap().policy = Policy::Drop;
    chains.extend(names.map(Chain::regular));
    chains
}

/// A batch that adds everything.
fn load() -> NftBatch {
    let mut batch = NftBatch::new();
    batch.add_table(&table());
    every_chain().iter().for_each(|chain| batch.add_chain(&table(), chain));
    all_sets().iter().for_each(|set| batch.add_set(&table(), set));
    let vip = Fields::new().addr([10, 96, 0, 1]).proto(6).port(80);
    batch.add_elements(&table(), &vips(), [Element::verdict(&vip, Verdict::goto("pool-3"))]);
    for (chain, rule) in every_rule() {
        batch.add_rule(&table(), chain, &rule);
    }
    batch
}

/// The rules sorted by chain: the kernel does not guarantee the order of chains.
fn listed(handle: &mut NftHandle) -> Vec<(String, Rule)> {
    let mut rules: Vec<_> = handle.rules(&table()).unwrap().into_iter().map(|rule| (rule.chain, rule.rule)).collect();
    rules.sort_by(|a, b| a.0.cmp(&b.0));
    rules
}

#[test]
fn written_objects_are_dumped_unchanged() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        // The kernel allows notrack in chains of raw priority only, and does not validate unreachable chains.
        handle.commit(&load()).unwrap();

        assert_eq!(handle.tables(TableFamily::Ip).unwrap(), [table()]);
        assert_eq!(handle.tables(TableFamily::Ip6).unwrap(), []);
        let mut chains = handle.chains(&table()).unwrap();
        let mut expected = every_chain();
        chains.sort_by(|a, b| a.name.cmp(&b.name));
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(chains, expected);
        let mut sets = handle.sets(&table()).unwrap();
        let mut expected = all_sets();
        sets.sort_by(|a, b| a.name.cmp(&b.name));
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(sets, expected);
        let mut expected: Vec<_> = every_rule().into_iter().map(|(chain, rule)| (chain.to_owned(), rule)).collect();
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(listed(&mut handle), expected);
    });
}

#[test]
fn nft_lists_the_written_objects() {
    in_netns(|| {
        NftHandle::open().unwrap().commit(&load()).unwrap();
        let listing = nft(&["list", "table", "ip", "fairlead"]);
        for line in [
            "comment \"services\"",
            "type nat hook prerouting priority dstnat; policy accept;",
            "comment \"VIP to pool\"",
            "type ipv4_addr . inet_proto . inet_service . mark : ipv4_addr . inet_service",
            "elements = { 10.96.0.1 . tcp . 80 : goto pool-3 }",
            "ip daddr . meta l4proto . th dport vmap @vips comment \"dispatch\"",
            "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints",
            "ip saddr != 10.244.0.0/16 counter packets 0 bytes 0 jump mark",
            "fib saddr type local",
            "meta mark set meta mark | 0x00004000",
            "ct state new ip daddr . meta l4proto . th dport . ip saddr != @source-ranges return",
            "meta mark 0x00004000 masquerade random",
            "\t\treject with tcp reset\n\t\treject\n",
            "th dport != 80-90 accept",
            "type mark : mark",
            "flags interval",
            // Before it, nft 1.0 does not know the types of the constants.
            " . ip saddr & 255.255.255.0 @allowed-sources return",
            "ip daddr . meta l4proto . th dport . jhash ip saddr mod 16384 seed 0x5eed map @buckets",
        ] {
            assert!(listing.contains(line), "no {line:?} in\n{listing}");
        }
        let json: serde_json::Value = serde_json::from_str(&nft(&["-j", "list", "table", "ip", "fairlead"])).unwrap();
        assert!(json["nftables"].as_array().unwrap().len() > every_rule().len());
    });
}

#[test]
fn committing_a_batch_again_only_appends_its_rules() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&load()).unwrap();
        handle.commit(&load()).unwrap();
        assert_eq!(handle.sets(&table()).unwrap().len(), all_sets().len());
        assert_eq!(handle.rules(&table()).unwrap().len(), 2 * every_rule().len(), "rules are appended");
    });
}

/// The elements of a set as text.
fn elements(handle: &mut NftHandle, set: &Set) -> Vec<String> {
    let mut list = handle
        .elements(&table(), &set.name, Vec::new, |list, element| {
            let mut batch = NftBatch::new();
            batch.add_elements(&table(), set, [element]);
            list.push(batch.to_string());
        })
        .unwrap();
    list.sort();
    list
}

#[test]
fn dumped_elements_equal_the_written() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&load()).unwrap();
        let vip = Fields::new().addr([10, 96, 0, 1]).proto(17).port(53);
        let mut batch = NftBatch::new();
        let commented = Element { comment: Some("default/dns"), ..Element::verdict(&vip, Verdict::Drop) };
        batch.add_elements(&table(), &vips(), [commented]);
        let data = Fields::new().addr([10, 244, 0, 5]).port(5353);
        batch.add_elements(&table(), &endpoints(), [Element::value(&vip.mark(7), &data)]);
        let (client, sticky) = (vip.addr([10, 244, 0, 9]), Fields::new().mark(0).addr([10, 244, 0, 5]).port(5353));
        let affine = Element { timeout: Some(Duration::from_secs(60)), ..Element::value(&client, &sticky) };
        batch.add_elements(&table(), &affinity(), [affine]);
        let (from, to) = (vip.addr([10, 0, 0, 0]), vip.addr([10, 0, 0, 255]));
        batch.add_elements(&table(), &source_ranges(), [Element::range(&from, &to)]);
        batch.add_elements(&table(), &numbers(), [Element::value(&102u32.to_ne_bytes(), &7u32.to_ne_bytes())]);
        handle.commit(&batch).unwrap();

        let line = |set: &str, text: &str| format!("add element ip fairlead {set} {{ {text} }}\n");
        let found = elements(&mut handle, &vips());
        let expected = [
            line("vips", "10.96.0.1 . tcp . 80 : goto pool-3"),
            line("vips", "10.96.0.1 . udp . 53 comment \"default/dns\" : drop"),
        ];
        assert_eq!(found, expected);
        let expected = line("endpoints", "10.96.0.1 . udp . 53 . 0x00000007 : 10.244.0.5 . 5353");
        assert_eq!(elements(&mut handle, &endpoints()), [expected]);
        let text = "10.96.0.1 . udp . 53 . 10.244.0.9 timeout 60s : 0x00000000 . 10.244.0.5 . 5353";
        assert_eq!(elements(&mut handle, &affinity()), [line("affinity", text)]);
        let expected = line("source-ranges", "10.96.0.1 . udp . 53 . 10.0.0.0-10.0.0.255");
        assert_eq!(elements(&mut handle, &source_ranges()), [expected]);
        let listing = nft(&["list", "table", "ip", "fairlead"]);
        for text in ["10.0.0.0/24", "0x00000066 : 0x00000007", "timeout 1m", "comment \"default/dns\""] {
            assert!(listing.contains(text), "no {text:?} in\n{listing}");
        }

        let mut batch = NftBatch::new();
        batch.delete_elements(&table(), &source_ranges(), [Element::range(&from, &to)]);
        batch.delete_elements(&table(), &vips(), [Element::key(&vip)]);
        batch.flush_set(&table(), "endpoints");
        handle.commit(&batch).unwrap();
        assert_eq!(elements(&mut handle, &source_ranges()), [""; 0]);
        assert_eq!(elements(&mut handle, &endpoints()), [""; 0]);
        assert_eq!(elements(&mut handle, &vips()).len(), 1);
    });
}

#[test]
fn objects_are_deleted() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&load()).unwrap();
        let rules = handle.rules(&table()).unwrap();
        let dropped = rules.iter().find(|rule| rule.rule.exprs == [Expr::Verdict(Verdict::Drop)]).unwrap();
        let mut batch = NftBatch::new();
        batch.delete_rule(&table(), &dropped.chain, dropped.handle);
        batch.flush_chain(&table(), "affine");
        batch.delete_chain(&table(), "affine");
        batch.flush_chain(&table(), "check");
        batch.delete_set(&table(), "source-ranges");
        handle.commit(&batch).unwrap();
        assert_eq!(handle.rules(&table()).unwrap().len(), rules.len() - 6);
        assert_eq!(handle.chains(&table()).unwrap().len(), every_chain().len() - 1);
        assert_eq!(handle.sets(&table()).unwrap().len(), all_sets().len() - 1);

        for _ in 0..2 {
            let mut batch = NftBatch::new();
            batch.add_table(&table());
            batch.delete_table(&table());
            handle.commit(&batch).unwrap();
            assert_eq!(handle.tables(TableFamily::Ip).unwrap(), []);
        }
    });
}

#[test]
fn listing_a_missing_table_returns_nothing() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        assert_eq!(handle.chains(&table()).unwrap(), []);
        assert_eq!(handle.sets(&table()).unwrap(), []);
        assert_eq!(handle.rules(&table()).unwrap(), []);
        let missing = handle.elements(&table(), "vips", || (), |(), _| ()).unwrap_err();
        assert!(missing.is_not_found(), "{missing}");
        assert_eq!(missing.to_string(), "list elements ip fairlead vips: No such file or directory (ENOENT)");
    });
}

#[test]
fn each_transaction_increments_the_generation() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let before = handle.generation().unwrap();
        handle.commit(&NftBatch::new()).unwrap();
        assert_eq!(handle.generation().unwrap(), before, "an empty batch is not sent");
        handle.commit(&load()).unwrap();
        assert_eq!(handle.generation().unwrap(), before + 1);
    });
}

#[test]
fn adding_a_dormant_table_clears_the_flag() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&load()).unwrap();
        nft(&["add table ip fairlead { flags dormant; }"]);
        assert_eq!(handle.tables(TableFamily::Ip).unwrap()[0].flags, 1);
        let mut batch = NftBatch::new();
        batch.add_table(&table());
        handle.commit(&batch).unwrap();
        assert_eq!(handle.tables(TableFamily::Ip).unwrap(), [table()]);
    });
}

#[test]
fn the_element_for_other_keys_is_listed_and_found() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&load()).unwrap();
        nft(&["add", "element", "ip", "fairlead", "vips", "{ * : drop }"]);
        let found = elements(&mut handle, &vips());
        assert!(found.iter().any(|element| element.contains("{ * : drop }")), "{found:?}");
        let mut drops = false;
        let visit = |element: Element<'_>| drops = element.data == ElementData::Verdict(Verdict::Drop);
        handle.get_elements(&table(), "vips", [&b""[..]], visit).unwrap();
        assert!(drops);
        let mut batch = NftBatch::new();
        batch.delete_elements(&table(), &vips(), [Element::key(&[])]);
        handle.commit(&batch).unwrap();
        assert_eq!(elements(&mut handle, &vips()).len(), 1);
        let error = handle.get_elements(&table(), "vips", [&b""[..]], |_| ()).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    });
}

#[test]
fn ipv6_and_inet_tables_are_written_and_listed() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let table = Table::new(TableFamily::Ip6, "fairlead");
        let set =
            Set::map("vips", [DataType::Ipv6Addr, DataType::InetProto, DataType::InetService], [DataType::Verdict]);
        let rule = Rule::new([
            Expr::Payload { dreg: r(8), base: PayloadBase::Network, offset: 24, len: 16 },
            Expr::Meta { dreg: r(12), key: MetaKey::L4proto },
            Expr::Payload { dreg: r(13), base: PayloadBase::Transport, offset: 2, len: 2 },
            lookup("vips", 8, Some(Register::VERDICT)),
        ]);
        let key = Fields::new().addr("fd00::1".parse::<std::net::Ipv6Addr>().unwrap()).proto(6).port(80);
        let mut batch = NftBatch::new();
        batch.add_table(&table);
        batch.add_chain(&table, &Chain::base("nat", ChainType::Nat, Hook::Output, priority::DSTNAT));
        batch.add_set(&table, &set);
        batch.add_elements(&table, &set, [Element::verdict(&key, Verdict::Drop)]);
        batch.add_rule(&table, "nat", &rule);
        batch.add_table(&Table::new(TableFamily::Inet, "other"));
        handle.commit(&batch).unwrap();
        assert_eq!(handle.rules(&table).unwrap()[0].rule, rule);
        assert_eq!(handle.tables(TableFamily::Inet).unwrap(), [Table::new(TableFamily::Inet, "other")]);
        assert_eq!(handle.tables(TableFamily::Ip6).unwrap(), [table]);
        let listing = nft(&["list", "table", "ip6", "fairlead"]);
        assert!(listing.contains("fd00::1 . tcp . 80 : drop"), "{listing}");
        assert!(listing.contains("ip6 daddr . meta l4proto . th dport vmap @vips"), "{listing}");
    });
}

fn vip_number(n: u32) -> Fields {
    Fields::new().addr(n.to_be_bytes()).proto(6).port(80)
}

/// A thread replaces all elements of a set by one of two lists again and again: each dump equals one of the lists.
#[test]
fn a_dump_contains_one_generation() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&load()).unwrap();
        let lists = [0, 1].map(|list| (0..3000u32).map(|n| vip_number(2 * n + list)).collect::<Vec<_>>());
        let mut batch = NftBatch::new();
        batch.flush_set(&table(), "vips");
        batch.add_elements(&table(), &vips(), lists[0].iter().map(|key| Element::verdict(key, Verdict::Drop)));
        handle.commit(&batch).unwrap();

        let (stop, mut attempts) = (AtomicBool::new(false), 0);
        let mut start = || {
            attempts += 1;
            Vec::new()
        };
        let dumps: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut handle = NftHandle::open().unwrap();
                for round in (0..).take_while(|_| !stop.load(Relaxed)) {
                    let [old, new] = [round % 2, 1 - round % 2].map(|list| lists[list].iter());
                    let mut batch = NftBatch::new();
                    batch.delete_elements(&table(), &vips(), old.map(|key| Element::key(key)));
                    batch.add_elements(&table(), &vips(), new.map(|key| Element::verdict(key, Verdict::Drop)));
                    handle.commit(&batch).unwrap();
                }
            });
            let collect = |list: &mut Vec<Vec<u8>>, element: Element<'_>| list.push(element.key.to_vec());
            let dumps = (0..100).map(|_| handle.elements(&table(), "vips", &mut start, collect)).collect();
            stop.store(true, Relaxed);
            dumps
        });
        for dump in dumps {
            match dump {
                Ok(mut keys) => {
                    keys.sort();
                    let equals = |list: &Vec<Fields>| list.iter().map(|key| &key[..]).eq(&keys);
                    assert!(lists.iter().any(equals), "a mixture of the lists, or a part of one");
                }
                Err(error) => assert!(error.is_interrupted(), "{error}"),
            }
        }
        assert!(attempts > 100, "no dump was restarted");
    });
}

/// More elements than one message requests, returned in the order of the keys.
#[test]
fn elements_are_found_by_their_keys() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&load()).unwrap();
        let keys: Vec<_> = (0..2_500u32).map(vip_number).collect();
        let mut batch = NftBatch::new();
        batch.flush_set(&table(), "vips");
        batch.add_elements(&table(), &vips(), keys.iter().map(|key| Element::verdict(key, Verdict::Drop)));
        handle.commit(&batch).unwrap();
        let count = handle.count(&table(), "vips").unwrap();
        assert!(count.is_none_or(|count| count == 2_500), "{count:?}");

        let mut found = Vec::new();
        let visit = |element: Element<'_>| {
            found.push((element.key.to_vec(), element.data == ElementData::Verdict(Verdict::Drop)))
        };
        handle.get_elements(&table(), "vips", keys.iter().copied(), visit).unwrap();
        assert!(found.iter().map(|(key, drop)| (&key[..], *drop)).eq(keys.iter().map(|key| (&key[..], true))));

        let missing = [keys[0], vip_number(2_500), keys[1]];
        let error = handle.get_elements(&table(), "vips", missing, |_| ()).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert!(handle.count(&table(), "nothing").unwrap_err().is_not_found());
        assert_eq!(handle.get_elements(&table(), "vips", [keys[0]], |_| ()), Ok(()), "no replies are left over");
    });
}
