//! Batches as text, and the limits of their messages.

use std::time::Duration;

use proptest::{collection::vec, option, prelude::*};

use super::*;
use crate::nft::{tests::fixtures::*, *};

/// Operations that only tests use.
impl NftBatch {
    /// `delete rule`. `handle`: that of a [`ListedRule`].
    pub(in crate::nft) fn delete_rule(&mut self, table: &Table, chain: &str, handle: u64) {
        self.operation(msg::DELRULE, 0, table, |buf| {
            buf.put_str(rule::CHAIN, chain);
            buf.put_u64(rule::HANDLE, handle);
        });
    }

    /// `flush set` or `flush map`: deletes the elements.
    pub(in crate::nft) fn flush_set(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELSETELEM, 0, table, |buf| buf.put_str(elements::SET, name));
    }
}

fn table() -> Table {
    Table::new(TableFamily::Ip, "fairlead")
}

#[test]
fn a_batch_is_printed_in_nft_syntax() {
    let mut batch = NftBatch::new();
    let table = table().comment("services");
    batch.add_table(&table);
    batch.add_chain(&table, &Chain::regular("pool-3"));
    batch.add_chain(&table, &Chain::base("nat", ChainType::Nat, Hook::Prerouting, priority::DSTNAT));
    all_sets().iter().for_each(|set| batch.add_set(&table, set));
    let key = Fields::new().addr([10, 96, 0, 1]).proto(6).port(80);
    let dns = Fields::new().addr([10, 96, 0, 2]).proto(17).port(53);
    let dns = Element { comment: Some("dns"), ..Element::verdict(&dns, Verdict::Drop) };
    batch.add_elements(&table, &vips(), [Element::verdict(&key, Verdict::goto("pool-3")), dns]);
    let (from, to) = (key.addr([10, 0, 0, 0]), key.addr([10, 0, 0, 255]));
    batch.delete_elements(&table, &source_ranges(), [Element::range(&from, &to)]);
    batch.delete_set(&table, "vips");
    batch.flush_chain(&table, "nat");
    batch.delete_chain(&table, "nat");
    batch.delete_table(&table);

    let expected = r#"add table ip fairlead { comment "services" ; }
add chain ip fairlead pool-3
add chain ip fairlead nat { type nat hook prerouting priority -100 ; policy accept ; }
add map ip fairlead vips { type ipv4_addr . inet_proto . inet_service : verdict ; comment "VIP to pool" ; }
add map ip fairlead endpoints { type ipv4_addr . inet_proto . inet_service . mark : ipv4_addr . inet_service ; }
add map ip fairlead affine-endpoints { type ipv4_addr . inet_proto . inet_service . mark : mark . ipv4_addr . inet_service ; }
add map ip fairlead affinity { type ipv4_addr . inet_proto . inet_service . ipv4_addr : mark . ipv4_addr . inet_service ; flags timeout,dynamic ; size 1000 ; }
add set ip fairlead live { type ipv4_addr . inet_service . ipv4_addr . inet_proto . inet_service ; }
add set ip fairlead source-ranges { type ipv4_addr . inet_proto . inet_service . ipv4_addr ; flags interval ; comment "who may connect" ; }
add map ip fairlead aliases { type ipv4_addr . inet_proto . inet_service : mark . ipv4_addr . inet_proto . inet_service ; }
add set ip fairlead allowed-sources { type ipv6_addr . inet_service . ipv4_addr ; }
add map ip fairlead buckets { type ipv4_addr . inet_proto . inet_service . mark : ipv4_addr . inet_service ; }
add map ip fairlead numbers { type mark : mark ; }
add element ip fairlead vips { 10.96.0.1 . tcp . 80 : goto pool-3 }
add element ip fairlead vips { 10.96.0.2 . udp . 53 comment "dns" : drop }
delete element ip fairlead source-ranges { 10.96.0.1 . tcp . 80 . 10.0.0.0-10.0.0.255 }
delete map ip fairlead vips
flush chain ip fairlead nat
delete chain ip fairlead nat
delete table ip fairlead
"#;
    assert_eq!(batch.to_string(), expected);
    assert_eq!(batch.len(), expected.lines().count() - 1, "two elements in one operation");
}

/// The text of the rule in a batch with these sets.
fn rule_text(rule: &Rule) -> String {
    let mut batch = NftBatch::new();
    all_sets().iter().for_each(|set| batch.add_set(&table(), set));
    batch.add_rule(&table(), "c", rule);
    let text = batch.to_string();
    text.lines().last().unwrap().strip_prefix("add rule ip fairlead c ").unwrap().to_owned()
}

#[test]
fn rules_are_printed_in_nft_syntax() {
    let pool =
        Rule::new([load_vip(8).as_slice(), &[random(11, 3), lookup("endpoints", 8, Some(r(8))), dnat(8, 9)]].concat());
    let expected = "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints";
    assert_eq!(rule_text(&pool), expected);
    assert_eq!(pool.to_string(), expected, "without knowing the map");

    let saddr = Expr::Payload { dreg: r(8), base: PayloadBase::Network, offset: 12, len: 4 };
    let mask = Expr::Bitwise { sreg: r(8), dreg: r(8), mask: [255, 255, 0, 0].into(), xor: [0; 4].into() };
    let cmp = Expr::Cmp { sreg: r(8), op: CmpOp::Neq, data: [10, 244, 0, 0].into() };
    let jump = Expr::Verdict(Verdict::jump("mark"));
    let local = Rule::new([saddr, mask, cmp, Expr::Counter, jump]).comment("from outside");
    assert_eq!(local.to_string(), "ip saddr != 10.244.0.0/16 counter jump mark comment \"from outside\"");

    let mark = |mask: u32, xor: u32| Expr::Bitwise {
        sreg: r(8),
        dreg: r(8),
        mask: mask.to_ne_bytes().into(),
        xor: xor.to_ne_bytes().into(),
    };
    let load = Expr::Meta { dreg: r(8), key: MetaKey::Mark };
    let store = Expr::MetaSet { sreg: r(8), key: MetaKey::Mark };
    let set = Rule::new([load.clone(), mark(!0x4000, 0x4000), store.clone()]);
    assert_eq!(set.to_string(), "meta mark set meta mark | 0x00004000");
    let cmp = Expr::Cmp { sreg: r(8), op: CmpOp::Neq, data: [0; 4].into() };
    let toggle = [load.clone(), mark(0x4000, 0), cmp, load, mark(!0, 0x4000), store];
    let masquerade = Rule::new([&toggle[..], &[Expr::Masquerade { flags: NatFlags::RANDOM }]].concat());
    let expected = "meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade random";
    assert_eq!(masquerade.to_string(), expected);
}

#[test]
fn constants_to_translate_to_are_addresses_and_ports() {
    let constant = |dreg, data: &[u8]| Expr::Immediate { dreg: r(dreg), data: data.into() };
    let to = |address: &[u8], nat| Rule::new([constant(8, address), constant(12, &8080u16.to_be_bytes()), nat]);
    assert_eq!(to(&[127, 0, 0, 1], dnat(8, 12)).to_string(), "dnat ip to 127.0.0.1:8080");
    let nat = |kind, addr, addr_max, port| Expr::Nat {
        kind,
        family: TableFamily::Ip6,
        addr: Some(r(addr)),
        addr_max,
        port,
        port_max: None,
        flags: NatFlags::NONE,
    };
    let loopback = std::net::Ipv6Addr::LOCALHOST.octets();
    let dnat = to(&loopback, nat(NatType::Dnat, 8, None, None));
    assert_eq!(dnat.to_string(), "dnat ip6 to ::1");
    let range = [constant(8, &[10, 0, 0, 1]), constant(9, &[10, 0, 0, 9]), nat(NatType::Snat, 8, Some(r(9)), None)];
    assert!(Rule::new(range).to_string().ends_with("to 10.0.0.1-10.0.0.9"));
}

/// Unlike nft's, the text has the lookups whose results later expressions read.
#[test]
fn affinity_rules_are_printed() {
    let [known, new] = [0, 1].map(|index| rule_text(&affine_rules()[index]));
    let vip = "ip daddr . meta l4proto . th dport";
    let expected = format!(
        "r8 = {vip} . ip saddr map @affinity r9 . r10 . {vip} @live \
         update @affinity {{ {vip} . ip saddr timeout 10s : 0x00000000 . r9 . r10 }} dnat ip to r9:r10 \
         comment \"a known client\""
    );
    assert_eq!(known, expected);
    let expected = format!(
        "r8 = {vip} . numgen random mod 3 map @affine-endpoints \
         delete @affinity {{ {vip} . ip saddr : 0x00000000 . r9 . r10 }} \
         update @affinity {{ {vip} . ip saddr timeout 10s : 0x00000000 . r9 . r10 }} dnat ip to r9:r10"
    );
    assert_eq!(new, expected);
}

#[test]
fn hashes_and_masked_addresses_in_keys_are_printed() {
    let vip = "ip daddr . meta l4proto . th dport";
    let expected = format!("dnat ip to {vip} . jhash ip saddr mod 16384 seed 0x5eed map @buckets");
    assert_eq!(rule_text(&bucket_rule()), expected);
    let allowed = rule_text(&allowed_rule());
    assert!(allowed.ends_with(" . 0x0018 . ip saddr & 255.255.255.0 @allowed-sources return"), "{allowed}");
}

#[test]
fn an_undescribed_map_invalidates_the_registers_behind_its_result() {
    let expected = "r8 = ip daddr . meta l4proto . th dport . ip saddr map @affinity r9 @live \
                    update @affinity { r11 timeout 10s : 0x00000000 } dnat ip to r9:r10 comment \"a known client\"";
    assert_eq!(affine_rules()[0].to_string(), expected);
}

#[test]
fn a_list_of_elements_is_split_before_its_length_overflows() {
    let keys: Vec<Fields> = (0..5000).map(|n| Fields::new().mark(n)).collect();
    let set = Set::new("numbers", [DataType::Mark]);
    let comment = "c".repeat(200);
    let elements = || keys.iter().map(|key| Element { comment: Some(&comment), ..Element::key(key) });
    let mut batch = NftBatch::new();
    batch.add_elements(&table(), &set, elements());
    assert!(batch.len() > 10, "{}", batch.len());
    let sizes: Vec<usize> = batch.starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(sizes.iter().all(|size| (64_000..65_200).contains(size)), "{sizes:?}");
    let read: Vec<Vec<u8>> = batch
        .operations()
        .flat_map(|operation| operation.elements().map(|e| e.key.to_vec()).collect::<Vec<_>>())
        .collect();
    assert_eq!(read.len(), keys.len());
    assert!(read.iter().zip(&keys).all(|(read, key)| read[..] == key[..]));
}

#[test]
fn an_empty_list_of_elements_is_no_operation() {
    let mut batch = NftBatch::new();
    batch.add_elements(&table(), &vips(), []);
    batch.delete_elements(&table(), &vips(), []);
    assert!(batch.is_empty());
    assert_eq!(batch.to_string(), "");
}

#[test]
fn only_the_first_and_the_last_operation_request_acknowledgements() {
    let mut batch = NftBatch::new();
    let acknowledged = |batch: &NftBatch| -> Vec<bool> {
        batch.starts.iter().map(|&at| batch.buf[at + 6] & flags::ACK as u8 != 0).collect()
    };
    batch.add_table(&table());
    assert_eq!(acknowledged(&batch), [true]);
    for _ in 0..3 {
        batch.delete_table(&table());
    }
    assert_eq!(acknowledged(&batch), [true, false, false, true]);
}

proptest! {
    #[test]
    fn decoded_elements_equal_the_encoded(
        list in vec((vec(any::<u8>(), 4..64), option::of(vec(any::<u8>(), 4..64)), 0..5u8, option::of(1..1u64 << 40)), 1..9),
        chain in "[a-z0-9-]{1,40}",
    ) {
        let data = |kind: u8, key: &'static [u8]| key.get(usize::from(kind)..).map(ElementData::Value);
        let element = |(key, key_end, kind, timeout): &'static (Vec<u8>, Option<Vec<u8>>, u8, Option<u64>)| Element {
            key,
            key_end: key_end.as_deref(),
            data: match kind {
                0 => ElementData::None,
                1 => ElementData::Verdict(Verdict::Drop),
                _ => data(*kind, key).unwrap_or_default(),
            },
            timeout: timeout.map(Duration::from_millis),
            comment: (*kind == 3).then_some("a comment"),
        };
        let list: &'static _ = Box::leak(Box::new(list));
        let mut elements: Vec<Element<'_>> = list.iter().map(element).collect();
        elements.push(Element::verdict(&[1, 2, 3, 4], Verdict::goto(chain)));
        let mut batch = NftBatch::new();
        batch.add_elements(&table(), &vips(), elements.clone());
        let read: Vec<Element<'_>> = batch.get(0).unwrap().elements().collect();
        prop_assert_eq!(read, elements);
        prop_assert!(!batch.to_string().is_empty());
    }
}
