//! Inputs to begin with, made from data that the repository has: captured datagrams, examples, a state file of an
//! earlier version. Other seeds are in `corpus.tar.gz`.

use backend::{
    NodeState,
    testing::{History, NODE_NAME, operations_between},
};
use proto::{
    digest::{Digest, DigestVector},
    encoded::{EncodedMessage, encode_client_message},
    model::{
        Ack, Batch, Bookmark, ClientMessage, Epoch, Hello, KindVersions, NodeInfo, Revision, Role, ServerMessage,
        SourceVersion, SyncMode, Welcome,
    },
};

use crate::targets::join;

/// The manifest of an example.
pub(crate) const WEB: &str = include_str!("../../../docs/examples/manifests/web.yaml");
const NODES: &str = include_str!("../../../docs/examples/manifests/nodes.yaml");
const LOCAL_ONLY: &str = include_str!("../../../docs/examples/manifests/local-only.yaml");

const NFT: &str = include_str!("../../../backend/netlink/src/nft/captured/nft-1.0.6.txt");
const IPSET: &str = include_str!("../../../backend/netlink/src/ipset/captured/ipset-7.17.txt");
const IPVSADM: &str = include_str!("../../../backend/netlink/src/ipvs/captured/ipvsadm-1.31.txt");
const CONNTRACK: &str = include_str!("../../../backend/netlink/src/conntrack/captured/conntrack-1.4.7.txt");
const STATE_FILE: &[u8] = include_bytes!("../../../backend/src/store/testdata/state-before-0.1");

/// How many histories, and how many commits each.
const HISTORIES: u64 = 6;
const COMMITS: u64 = 4;

/// The datagrams of a capture: lines of hexadecimal digits after `> ` (sent) or `< ` (read).
fn datagrams(capture: &str) -> Vec<Vec<u8>> {
    let lines = capture.lines().filter_map(|line| line.strip_prefix("> ").or_else(|| line.strip_prefix("< ")));
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    lines.filter_map(|hex| hex.as_bytes().chunks(2).map(byte).collect()).collect()
}

pub(crate) fn nf_tables() -> Vec<Vec<u8>> {
    datagrams(NFT)
}

pub(crate) fn ipset() -> Vec<Vec<u8>> {
    datagrams(IPSET)
}

pub(crate) fn ipvs() -> Vec<Vec<u8>> {
    datagrams(IPVSADM)
}

pub(crate) fn conntrack() -> Vec<Vec<u8>> {
    datagrams(CONNTRACK)
}

/// A link and an address, as `struct ifinfomsg` and `struct ifaddrmsg` with attributes.
pub(crate) fn rtnetlink() -> Vec<Vec<u8>> {
    let message = |kind: u16, header: &[u8], attributes: &[(u16, &[u8])]| {
        let mut body = header.to_vec();
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend_from_slice(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([2, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        message.extend(body);
        message
    };
    let link =
        message(16, &[0, 0, 1, 0, 2, 0, 0, 0, 0x43, 0, 0, 0, 0, 0, 0, 0], &[(3, b"eth0\0"), (4, &[220, 5, 0, 0])]);
    let address =
        message(20, &[2, 24, 0x80, 0, 2, 0, 0, 0], &[(1, &[10, 0, 0, 7]), (2, &[10, 0, 0, 7]), (3, b"eth0\0")]);
    let ipv6 = message(20, &[10, 64, 0x80, 253, 2, 0, 0, 0], &[(1, &[0xfe; 16]), (8, &[0x80, 0, 0, 0])]);
    vec![[link.clone(), address.clone()].concat(), link, address, ipv6]
}

/// The commits of random histories of a node.
pub(crate) fn server_messages() -> Vec<Vec<u8>> {
    (0..HISTORIES).map(|seed| join(history(seed).iter().map(Vec::as_slice))).collect()
}

fn history(seed: u64) -> Vec<Vec<u8>> {
    let mode = if seed.is_multiple_of(2) { SyncMode::Snapshot } else { SyncMode::Repair };
    let welcome = Welcome {
        epoch: Epoch(7),
        mode,
        source_version: SourceVersion(1000),
        kind_versions: KindVersions::default(),
        is_outdated: false,
    };
    let mut messages = vec![ServerMessage::Welcome(welcome)];
    let mut history = History::new(seed);
    let mut before = NodeState::new(NodeInfo::unknown(NODE_NAME));
    for number in 1..=COMMITS {
        history.jump();
        messages.push(ServerMessage::Batch(Batch {
            target: Revision(number),
            operations: operations_between(&before, history.state()),
            commit: true,
            ..Batch::default()
        }));
        before = history.state().clone();
        messages.push(ServerMessage::Bookmark(Bookmark::new(Revision(number), Digest(0))));
    }
    messages.push(ServerMessage::DigestRequest);
    messages.iter().map(|message| EncodedMessage::new(message).to_bytes().to_vec()).collect()
}

/// A file of an earlier version, and the messages of histories as chunks after a boot id. The target computes the
/// checksum.
pub(crate) fn state_files() -> Vec<Vec<u8>> {
    let histories = (0..HISTORIES).map(|seed| {
        let messages = history(seed);
        // Welcome, the first batch, and a bookmark, which ends the file.
        join([&b"a boot"[..]].into_iter().chain(messages[..3].iter().map(Vec::as_slice)))
    });
    [STATE_FILE.to_vec()].into_iter().chain(histories).collect()
}

/// Streams of clients that keep to the protocol, with changes of the cluster between their messages.
pub(crate) fn client_messages() -> Vec<Vec<u8>> {
    let hello = |resume, digests| {
        ClientMessage::Hello(Hello {
            version: proto::PROTOCOL_VERSION,
            node: "node-a".into(),
            role: Role::Backend,
            backend: "nftables".to_owned(),
            backend_version: "0.1.0".to_owned(),
            resume,
            digests,
            source_version: SourceVersion(0),
            kind_versions: KindVersions::default(),
            started: None,
        })
    };
    let ack = |digest| {
        let apply_time = std::time::Duration::from_micros(300);
        ClientMessage::Ack(Ack { apply_time, ..Ack::complete(0, digest) })
    };
    let digests = || Box::<DigestVector>::default();
    let streams = [
        vec![Some(hello(None, None)), Some(ack(None)), None, Some(ack(None)), None, Some(ack(None))],
        vec![Some(hello(None, Some(digests()))), Some(ack(Some(Digest(2)))), None, Some(ack(Some(Digest(2))))],
        vec![
            Some(hello(Some((Epoch(5), Revision(3))), Some(digests()))),
            Some(ack(Some(Digest(3)))),
            Some(ClientMessage::DigestResponse(Revision(0), digests())),
            Some(ack(Some(Digest(2)))),
        ],
    ];
    let encode = |stream: &Vec<Option<ClientMessage>>| {
        let messages: Vec<Vec<u8>> =
            stream.iter().map(|message| message.as_ref().map(encode_client_message).unwrap_or_default()).collect();
        join(messages.iter().map(Vec::as_slice))
    };
    streams.iter().map(encode).collect()
}

/// The examples.
pub(crate) fn manifests() -> Vec<Vec<u8>> {
    [WEB, NODES, LOCAL_ONLY].map(|text| text.as_bytes().to_vec()).into()
}

/// Only those of the corpus.
pub(crate) fn none() -> Vec<Vec<u8>> {
    Vec::new()
}
