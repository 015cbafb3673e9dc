//! Rejections by the kernel are attributed to the right operation and element.

use std::{collections::HashMap, time::Instant};

use nix::libc;

use super::*;
use crate::{
    nft::{tests::fixtures::*, *},
    testing::in_netns,
};

fn table() -> Table {
    Table::new(TableFamily::Ip, "fairlead")
}

fn start() -> NftBatch {
    let mut batch = NftBatch::new();
    batch.add_table(&table());
    batch.add_chain(&table(), &Chain::regular("pool-1"));
    batch.add_set(&table(), &vips());
    batch
}

fn vip(n: u16) -> Fields {
    Fields::new().addr([10, 96, (n >> 8) as u8, n as u8]).proto(6).port(80)
}

fn rejections(handle: &mut NftHandle, batch: &NftBatch) -> Vec<RejectedOperation> {
    match handle.commit(batch) {
        Err(Error::Rejected { operations, is_complete: true }) => operations,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rejected_operation_in_the_middle_is_reported() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let mut batch = start();
        batch.delete_chain(&table(), "nowhere");
        batch.add_chain(&table(), &Chain::regular("pool-2"));
        let rejected = rejections(&mut handle, &batch);
        let expected = RejectedOperation {
            errno: Errno(libc::ENOENT),
            operation: Some(3),
            label: "delete chain ip fairlead nowhere".into(),
            element: None,
            message: None,
        };
        assert_eq!(rejected, [expected]);
        assert_eq!(handle.tables(TableFamily::Ip).unwrap(), [], "nothing is applied");
    });
}

#[test]
fn rejections_of_the_first_and_the_last_operation_are_reported() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&start()).unwrap();
        let mut batch = NftBatch::new();
        batch.delete_set(&table(), "first");
        batch.add_chain(&table(), &Chain::regular("pool-2"));
        batch.delete_chain(&table(), "last");
        let rejected = rejections(&mut handle, &batch);
        let found: Vec<_> = rejected.iter().map(|rejection| (rejection.operation, &*rejection.label)).collect();
        assert_eq!(found, [(Some(0), "delete set ip fairlead first"), (Some(2), "delete chain ip fairlead last")]);
        let error = handle.commit(&batch).unwrap_err();
        assert!(error.is_not_found());
        assert!(error.to_string().starts_with("delete set ip fairlead first: No such file"), "{error}");
    });
}

#[test]
fn the_rejected_element_of_several_is_reported() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&start()).unwrap();
        let keys: Vec<Fields> = (0..5).map(vip).collect();
        let mut batch = NftBatch::new();
        let verdict = |n| if n == 3 { Verdict::goto("nowhere") } else { Verdict::goto("pool-1") };
        let elements = keys.iter().enumerate().map(|(n, key)| Element::verdict(key, verdict(n)));
        batch.add_elements(&table(), &vips(), elements);
        let rejected = rejections(&mut handle, &batch);
        assert_eq!(rejected.len(), 1);
        assert_eq!((rejected[0].operation, rejected[0].element), (Some(0), Some(3)));
        assert_eq!(rejected[0].label, "add element ip fairlead vips { 10.96.0.3 . tcp . 80 : goto nowhere }");
        assert_eq!(rejected[0].errno, Errno(libc::ENOENT));

        let mut batch = NftBatch::new();
        batch.add_elements(&table(), &vips(), [Element::verdict(&vip(2), Verdict::Drop)]);
        handle.commit(&batch).unwrap();
        let mut batch = NftBatch::new();
        batch.add_elements(&table(), &vips(), keys.iter().map(|key| Element::verdict(key, Verdict::Accept)));
        let rejected = rejections(&mut handle, &batch);
        assert_eq!((rejected[0].errno, rejected[0].element), (Errno(libc::EEXIST), Some(2)));
        let mut batch = NftBatch::new();
        batch.delete_elements(&table(), &vips(), [Element::key(&vip(2)), Element::key(&vip(4))]);
        let rejected = rejections(&mut handle, &batch);
        assert_eq!(rejected[0].errno, Errno(libc::ENOENT));
        assert_eq!(rejected[0].label, "delete element ip fairlead vips { 10.96.0.4 . tcp . 80 }");
    });
}

#[test]
fn a_rejected_element_in_the_second_message_is_reported() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&start()).unwrap();
        let keys: Vec<Fields> = (0..1500).map(vip).collect();
        let verdict = |n| if n == 1400 { Verdict::goto("nowhere") } else { Verdict::goto("pool-1") };
        let mut batch = NftBatch::new();
        let elements = keys.iter().enumerate().map(|(n, key)| Element::verdict(key, verdict(n)));
        batch.add_elements(&table(), &vips(), elements);
        assert!(batch.len() > 1);
        let rejected = rejections(&mut handle, &batch);
        assert_eq!(rejected.len(), 1);
        let expected = "add element ip fairlead vips { 10.96.5.120 . tcp . 80 : goto nowhere }";
        assert_eq!(rejected[0].label, expected);
    });
}

#[test]
fn a_chain_in_use_cannot_be_deleted() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let mut batch = start();
        batch.add_elements(&table(), &vips(), [Element::verdict(&vip(1), Verdict::goto("pool-1"))]);
        handle.commit(&batch).unwrap();
        let mut batch = NftBatch::new();
        batch.delete_chain(&table(), "pool-1");
        assert_eq!(handle.commit(&batch).unwrap_err().errno(), Some(Errno(libc::EBUSY)));
        let mut batch = NftBatch::new();
        batch.delete_elements(&table(), &vips(), [Element::key(&vip(1))]);
        batch.delete_chain(&table(), "pool-1");
        handle.commit(&batch).unwrap();
    });
}

#[test]
fn a_rule_with_a_missing_set_is_rejected() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let mut batch = start();
        let rule = Rule::new([load_vip(8).as_slice(), &[lookup("missing", 8, None)]].concat());
        batch.add_rule(&table(), "pool-1", &rule);
        let rejected = rejections(&mut handle, &batch);
        assert_eq!((rejected[0].operation, &*rejected[0].label), (Some(3), "add rule ip fairlead pool-1"));
    });
}

/// The kernel reports the operation that completed the invalid graph, but not the attribute.
#[test]
fn an_element_that_makes_masquerade_reachable_from_prerouting_is_rejected() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let mut batch = start();
        let dispatch = Rule::new([load_vip(8).as_slice(), &[lookup("vips", 8, Some(Register::VERDICT))]].concat());
        batch.add_chain(&table(), &Chain::base("nat", ChainType::Nat, Hook::Prerouting, priority::DSTNAT));
        batch.add_rule(&table(), "nat", &dispatch);
        batch.add_rule(&table(), "pool-1", &Rule::new([Expr::Masquerade { flags: NatFlags::NONE }]));
        batch.add_elements(&table(), &vips(), [Element::verdict(&vip(1), Verdict::goto("pool-1"))]);
        let rejected = rejections(&mut handle, &batch);
        assert_eq!((rejected[0].operation, rejected[0].element), (Some(6), Some(0)));
        assert_eq!(rejected[0].label, "add element ip fairlead vips { 10.96.0.1 . tcp . 80 : goto pool-1 }");
    });
}

/// No test can make the kernel's commit fail; the replies are taken from its source.
#[test]
fn a_failure_at_the_commit_is_not_attributed_to_an_operation() {
    let reply = |errno| ErrorReply { errno, offset: None, message: None };
    let mut replies = Replies::default();
    replies.add(1, reply(0), 3);
    replies.add(1, reply(libc::ERESTART), 3);
    let error = replies.into_result(&start()).unwrap_err();
    assert!(error.is_interrupted());
    let Error::Rejected { operations, .. } = error else { panic!("{error}") };
    assert_eq!((operations[0].operation, &*operations[0].label), (None, "a transaction of 3 operations"));
}

#[test]
fn missing_replies_leave_the_outcome_unknown() {
    let complete = Replies { is_first_acknowledged: true, is_last_acknowledged: true, ..Replies::default() };
    assert_eq!(complete.into_result(&start()), Ok(()));
    let dropped = Replies { is_overrun: true, is_last_acknowledged: true, ..Replies::default() };
    assert_eq!(dropped.into_result(&start()), Err(Error::OutcomeUnknown));
    let silent = Replies { is_first_acknowledged: true, ..Replies::default() };
    assert_eq!(silent.into_result(&start()), Err(Error::OutcomeUnknown));
}

#[test]
fn an_overrun_of_the_receive_buffer_makes_the_rejections_incomplete() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        handle.commit(&start()).unwrap();
        let mut batch = NftBatch::new();
        for n in 0..20_000 {
            batch.delete_chain(&table(), &format!("nowhere-{n}"));
        }
        let error = handle.commit(&batch).unwrap_err();
        let Error::Rejected { operations, is_complete: false } = &error else { panic!("{error}") };
        assert!(operations.len() > 200, "{}", operations.len());
        assert_eq!(operations[100].label, "delete chain ip fairlead nowhere-100");
        assert!(error.to_string().contains("at least"), "{error}");

        let mut batch = NftBatch::new();
        batch.add_chain(&table(), &Chain::regular("pool-2"));
        handle.commit(&batch).unwrap();
        assert_eq!(handle.chains(&table()).unwrap().len(), 2, "the socket is still usable");
    });
}

#[test]
fn many_elements_are_written_and_dumped() {
    in_netns(|| write_and_dump_many(None));
}

/// More than 18 MB in one call.
#[test]
fn many_elements_with_comments_are_written_and_dumped() {
    in_netns(|| write_and_dump_many(Some(&"c".repeat(128))));
}

fn write_and_dump_many(comment: Option<&str>) {
    let mut handle = NftHandle::open().unwrap();
    handle.commit(&start()).unwrap();
    let count = 110_000u32;
    let mut batch = NftBatch::new();
    batch.add_set(&table(), &endpoints());
    let addr = |n: u32| (0x0af4_0000 + n).to_be_bytes();
    let pair = |n: u32| (vip((n / 10) as u16).mark(n % 10), Fields::new().addr(addr(n)).port(8080));
    let fields: Vec<(Fields, Fields)> = (0..count).map(pair).collect();
    let elements = || fields.iter().map(|(key, data)| Element { comment, ..Element::value(key, data) });

    let start = Instant::now();
    batch.add_elements(&table(), &endpoints(), elements());
    let written = start.elapsed();
    handle.commit(&batch).unwrap();
    let committed = start.elapsed() - written;
    let mut expected: HashMap<&[u8], ElementData<'_>> = elements().map(|element| (element.key, element.data)).collect();
    let start = Instant::now();
    let found = handle.elements(&table(), "endpoints", || 0, |found, _| *found += 1).unwrap();
    let dumped = start.elapsed();
    eprintln!("{} bytes: written in {written:?}, committed in {committed:?}, dumped in {dumped:?}", batch.bytes());
    assert_eq!(found, count);
    let check = |(): &mut (), element: Element<'_>| {
        assert_eq!(expected.remove(element.key), Some(element.data.clone()));
        assert_eq!(element.comment, comment);
    };
    handle.elements(&table(), "endpoints", || (), check).unwrap();

    let mut batch = NftBatch::new();
    batch.delete_elements(&table(), &endpoints(), elements());
    handle.commit(&batch).unwrap();
    assert_eq!(handle.elements(&table(), "endpoints", || 0, |found, _| *found += 1).unwrap(), 0);
}

/// Set in the child process of this test in a user namespace, where buffers cannot be forced beyond their limit.
const IN_USER_NAMESPACE: &str = "FAIRLEAD_TEST_IN_USER_NAMESPACE";

#[test]
fn without_privileges_a_large_batch_is_an_error() {
    if std::env::var_os(IN_USER_NAMESPACE).is_none() {
        let name = "nft::commit::tests::without_privileges_a_large_batch_is_an_error";
        let mut command = std::process::Command::new("unshare");
        command
            .args(["-Urn", "--"])
            .arg(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(IN_USER_NAMESPACE, "1");
        let output = command.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
        return;
    }
    let mut handle = NftHandle::open().unwrap();
    handle.commit(&start()).unwrap();
    // The kernel doubles the requested size, and limits it.
    let limit: usize = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap().trim().parse().unwrap();
    let keys: Vec<Fields> = (0..20_000).map(vip).collect();
    let mut batch = NftBatch::new();
    while batch.bytes() < 2 * limit {
        batch.add_elements(&table(), &vips(), keys.iter().map(|key| Element::verdict(key, Verdict::Drop)));
    }
    let error = handle.commit(&batch).unwrap_err();
    assert_eq!(error, Error::TooLarge { bytes: batch.bytes() + 20 });
    for chunk in keys.chunks(2000) {
        let mut batch = NftBatch::new();
        batch.add_elements(&table(), &vips(), chunk.iter().map(|key| Element::verdict(key, Verdict::Drop)));
        handle.commit(&batch).unwrap();
    }
    assert_eq!(handle.elements(&table(), "vips", || 0, |found, _| *found += 1).unwrap(), keys.len());
}
