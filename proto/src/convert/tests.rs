//! Round trips of random values, and errors of invalid messages.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    time::{Duration, UNIX_EPOCH},
};

use ipnet::IpNet;
use proptest::{collection::vec, option, prelude::*};
use prost::Message as _;

use crate::{
    digest::{BUCKETS, Digest, DigestVector, KeyHash},
    encoded::{EncodedMessage, EncodedOperation},
    model::*,
    v1,
};

fn address(family: IpFamily) -> BoxedStrategy<IpAddr> {
    match family {
        IpFamily::V4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        IpFamily::V6 => any::<[u8; 16]>().prop_map(IpAddr::from).boxed(),
    }
}

fn family() -> impl Strategy<Value = IpFamily> {
    prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)]
}

fn sorted_addresses() -> impl Strategy<Value = Vec<IpAddr>> {
    vec(family().prop_flat_map(address), 0..4).prop_map(|mut addresses| {
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    })
}

fn cidr() -> impl Strategy<Value = IpNet> {
    (family().prop_flat_map(address), 0..=32u8)
        .prop_map(|(address, length)| IpNet::new(address, length).unwrap().trunc())
}

fn sorted_cidrs() -> impl Strategy<Value = Vec<IpNet>> {
    vec(cidr(), 0..4).prop_map(|mut cidrs| {
        cidrs.sort_unstable();
        cidrs.dedup();
        cidrs
    })
}

fn number() -> impl Strategy<Value = NonZeroU16> {
    (1..=u16::MAX).prop_map(|port| NonZeroU16::new(port).unwrap())
}

fn key() -> impl Strategy<Value = ServicePortKey> {
    ("[a-z]{1,9}", "[a-z]{1,9}", "[a-z]{0,4}", 0..3usize)
        .prop_map(|(ns, name, port, protocol)| ServicePortKey::new(ns, name, port, Protocol::ALL[protocol]))
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)]
}

prop_compose! {
    fn service_port()(
        key in key(),
        port in number(),
        (v4, v6) in (option::of(address(IpFamily::V4)), option::of(address(IpFamily::V6))),
        (node_port, health_check_node_port) in (option::of(number()), option::of(number())),
        (external_ips, load_balancer_ips) in (sorted_addresses(), sorted_addresses()),
        source_ranges in sorted_cidrs(),
        (internal_policy, external_policy) in (policy(), policy()),
        affinity_seconds in option::of(1..100_000u32),
        any_endpoints in any::<(bool, bool)>(),
    ) -> ServicePort {
        ServicePort {
            key,
            port,
            cluster_ips: PerFamily { v4, v6 },
            node_port,
            external_ips,
            load_balancer_ips,
            source_ranges,
            internal_policy,
            external_policy,
            affinity_seconds: affinity_seconds.and_then(NonZeroU32::new),
            health_check_node_port,
            any_endpoints: PerFamily { v4: any_endpoints.0, v6: any_endpoints.1 },
        }
    }
}

fn endpoints(class: PoolClass, family: IpFamily) -> impl Strategy<Value = Vec<Endpoint>> {
    vec((address(family), number(), any::<bool>()), 0..9).prop_map(move |entries| {
        let terminating = |flag| class == PoolClass::Local && flag;
        let endpoint = |(address, port, flag)| Endpoint { address, port, terminating: terminating(flag) };
        entries.into_iter().map(endpoint).collect()
    })
}

fn class() -> impl Strategy<Value = PoolClass> {
    prop_oneof![Just(PoolClass::Cluster), Just(PoolClass::Local)]
}

fn node() -> impl Strategy<Value = NodeInfo> {
    ("[a-z]{1,9}", vec(family().prop_flat_map(address), 0..3), vec(cidr(), 0..3), "[a-z]{0,3}", any::<bool>()).prop_map(
        |(name, addresses, pod_cidrs, zone, eligible)| NodeInfo {
            name: name.into(),
            addresses,
            pod_cidrs,
            zone: zone.into(),
            eligible,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let pool = || (key(), class(), family());
    prop_oneof![
        service_port().prop_map(Operation::PutServicePort),
        key().prop_map(Operation::RemoveServicePort),
        pool()
            .prop_flat_map(|(key, class, family)| {
                let pool = PoolId { key, class, family };
                (Just(pool), endpoints(class, family), endpoints(class, family))
            })
            .prop_map(|(pool, add, remove)| Operation::ChangePool { pool, add, remove }),
        pool()
            .prop_flat_map(|(key, class, family)| { (Just(PoolId { key, class, family }), endpoints(class, family)) })
            .prop_map(|(pool, endpoints)| Operation::ReplacePool { pool, endpoints: endpoints.into_iter().collect() }),
        node().prop_map(Operation::PutNode),
        sorted_cidrs().prop_map(|service_cidrs| Operation::PutCluster(ClusterInfo { service_cidrs })),
        (0..BUCKETS as u8).prop_map(Operation::ResetBucket),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    let trigger = option::of(1..u64::MAX / 2_000_000)
        .prop_map(|micros| micros.map(|micros| UNIX_EPOCH + Duration::from_micros(micros)));
    (any::<[u64; 3]>(), vec(operation(), 0..6), any::<bool>(), trigger, kind_versions()).prop_map(
        |([base, target, version], operations, commit, oldest_trigger, kind_versions)| Batch {
            base: Revision(base),
            target: Revision(target),
            operations,
            commit,
            oldest_trigger,
            source_version: SourceVersion(version),
            kind_versions,
        },
    )
}

fn kind_versions() -> impl Strategy<Value = KindVersions> {
    any::<[u64; 4]>().prop_map(|[services, endpoint_slices, nodes, service_cidrs]| KindVersions {
        services,
        endpoint_slices,
        nodes,
        service_cidrs,
    })
}

fn server_message() -> impl Strategy<Value = ServerMessage> {
    let mode = prop_oneof![Just(SyncMode::Resume), Just(SyncMode::Repair), Just(SyncMode::Snapshot)];
    prop_oneof![
        (1..u64::MAX, mode, any::<u64>(), kind_versions(), any::<bool>()).prop_map(
            |(epoch, mode, version, kind_versions, is_outdated)| {
                let (epoch, source_version) = (Epoch(epoch), SourceVersion(version));
                ServerMessage::Welcome(Welcome { epoch, mode, source_version, kind_versions, is_outdated })
            }
        ),
        batch().prop_map(ServerMessage::Batch),
        any::<(u64, u64, bool)>().prop_map(|(revision, sum, is_outdated)| {
            ServerMessage::Bookmark(Bookmark { revision: Revision(revision), digest: Digest(sum), is_outdated })
        }),
        any::<u32>().prop_map(|millis| ServerMessage::Drain(Duration::from_millis(millis.into()))),
        Just(ServerMessage::DigestRequest),
    ]
}

fn digests() -> impl Strategy<Value = Box<DigestVector>> {
    vec(any::<u64>(), BUCKETS + 1).prop_map(|entries| Box::new(DigestVector::from_slice(&entries).unwrap()))
}

fn client_message() -> impl Strategy<Value = ClientMessage> {
    let resume = option::of((1..u64::MAX, any::<u64>()));
    let roles = prop_oneof![Just(Role::Backend), Just(Role::Observer), Just(Role::Shadow)];
    let started = option::of(1..u64::MAX / 1_000_000);
    let hello = (any::<u32>(), "[a-z]{1,9}", roles, resume, option::of(digests()), any::<u64>(), started).prop_map(
        |(version, node, role, resume, digests, source_version, started)| {
            ClientMessage::Hello(Hello {
                version,
                node: node.into(),
                role,
                backend: "nftables".into(),
                backend_version: "1".into(),
                resume: resume.map(|(epoch, revision)| (Epoch(epoch), Revision(revision))),
                digests,
                source_version: SourceVersion(source_version),
                kind_versions: KindVersions { services: source_version, ..KindVersions::default() },
                started: started.map(|micros| UNIX_EPOCH + Duration::from_micros(micros)),
            })
        },
    );
    let kind = prop_oneof![Just(FailureKind::Program), Just(FailureKind::HealthCheck)];
    let failure = (key(), "[ -~]{0,20}", any::<bool>(), kind)
        .prop_map(|(key, reason, retryable, kind)| ServicePortFailure { key, reason, retryable, kind });
    let ack = (1..u64::MAX, any::<u64>(), option::of(1..u64::MAX), 0..u64::MAX / 1_000_000, vec(failure, 0..3))
        .prop_map(|(one, other, digest, micros, failures)| {
            ClientMessage::Ack(Ack {
                received_number: one.max(other),
                programmed_number: one.min(other),
                digest: digest.map(Digest),
                apply_time: Duration::from_micros(micros),
                failures,
                degraded: Vec::new(),
                unfinished_namespaces: ["shop".into()].into(),
            })
        });
    prop_oneof![
        hello,
        ack,
        (any::<u64>(), digests())
            .prop_map(|(revision, digests)| ClientMessage::DigestResponse(Revision(revision), digests)),
    ]
}

proptest! {
    #[test]
    fn server_messages_round_trip(message in server_message()) {
        let bytes = v1::ServerMessage::from(&message).encode_to_vec();
        let back = ServerMessage::try_from(v1::ServerMessage::decode(bytes.as_slice()).unwrap());
        prop_assert_eq!(back, Ok(message));
    }

    #[test]
    fn client_messages_round_trip(message in client_message()) {
        let bytes = v1::ClientMessage::from(&message).encode_to_vec();
        let back = ClientMessage::try_from(v1::ClientMessage::decode(bytes.as_slice()).unwrap());
        prop_assert_eq!(back, Ok(message));
    }

    /// A batch combined from encoded operations equals the batch encoded as a whole.
    #[test]
    fn encoded_operations_make_up_the_batch(batch in batch(), split in 0..6usize) {
        let header = Batch { operations: Vec::new(), ..batch.clone() };
        let (joined, single) = batch.operations.split_at(split.min(batch.operations.len()));
        let chunks = std::iter::once(EncodedOperation::all(joined)).chain(single.iter().map(EncodedOperation::new));
        let message = EncodedMessage::batch(&header, chunks);
        let event = ServerMessage::Batch(batch);
        prop_assert_eq!(message.size(), EncodedMessage::new(&event).size());
        prop_assert_eq!(ServerMessage::try_from(message.decode().unwrap()), Ok(event));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = v1::ServerMessage::decode(bytes.as_slice()).map(ServerMessage::try_from);
        let _ = v1::ClientMessage::decode(bytes.as_slice()).map(ClientMessage::try_from);
    }

    #[test]
    fn applying_a_pool_diff_gives_the_target(
        from in endpoints(PoolClass::Local, IpFamily::V4),
        to in endpoints(PoolClass::Local, IpFamily::V4),
    ) {
        let (mut from, to): (Pool, Pool) = (from.into_iter().collect(), to.into_iter().collect());
        let (add, remove) = from.diff(&to);
        for endpoint in &remove {
            prop_assert!(from.remove(endpoint).is_some());
        }
        for endpoint in add {
            prop_assert!(from.insert(endpoint), "an unchanged endpoint is not part of the difference");
        }
        prop_assert_eq!(from, to);
    }
}

fn mk_port() -> v1::ServicePort {
    let key = ServicePortKey::new("default", "web", "http", Protocol::Tcp);
    (&ServicePort::new(key, NonZeroU16::new(80).unwrap())).into()
}

fn put(port: v1::ServicePort) -> v1::ServerMessage {
    operation_message(v1::operation::Operation::PutServicePort(port))
}

fn operation_message(operation: v1::operation::Operation) -> v1::ServerMessage {
    let operations = vec![v1::Operation { operation: Some(operation) }];
    let batch = v1::Batch { operations, ..Default::default() };
    v1::ServerMessage { message: Some(v1::server_message::Message::Batch(batch)) }
}

/// The error of an invalid message.
fn error_of(message: v1::ServerMessage) -> String {
    ServerMessage::try_from(message).unwrap_err().to_string()
}

#[test]
fn errors_name_the_field() {
    assert_eq!(
        error_of(put(v1::ServicePort { port: 0, ..mk_port() })),
        "batch.operations[0].put_service_port.port: 0 is not a port (1 to 65535)"
    );
    assert_eq!(
        error_of(put(v1::ServicePort { external_ips: vec![vec![1, 2, 3].into()], ..mk_port() })),
        "batch.operations[0].put_service_port.external_ips[0]: 3 bytes are not an IP address"
    );
    let two = vec![vec![10, 0, 0, 1].into(), vec![10, 0, 0, 2].into()];
    assert_eq!(
        error_of(put(v1::ServicePort { cluster_ips: two, ..mk_port() })),
        "batch.operations[0].put_service_port.cluster_ips[1]: 10.0.0.2 is the second IPv4 address"
    );
    let long = vec![v1::Cidr { address: vec![10, 0, 0, 0].into(), prefix_length: 33 }];
    assert_eq!(
        error_of(put(v1::ServicePort { source_ranges: long, ..mk_port() })),
        "batch.operations[0].put_service_port.source_ranges[0].prefix_length: /33 is too long for 10.0.0.0"
    );
    assert_eq!(
        error_of(put(v1::ServicePort { key: None, ..mk_port() })),
        "batch.operations[0].put_service_port.key: is missing"
    );
    let bad_pool = v1::PoolReplacement {
        key: mk_port().key,
        class: v1::PoolClass::Local.into(),
        family: v1::IpFamily::V4.into(),
        endpoints: vec![0; 6].into(),
    };
    assert_eq!(
        error_of(operation_message(v1::operation::Operation::ReplacePool(bad_pool))),
        "batch.operations[0].replace_pool.endpoints: 6 bytes are not a multiple of 7"
    );
    assert_eq!(
        error_of(operation_message(v1::operation::Operation::ResetBucket(128))),
        "batch.operations[0].reset_bucket: 128 is not a bucket (0 to 127)"
    );
}

fn hello_from_wire(hello: v1::Hello) -> Result<Hello, String> {
    let message = v1::ClientMessage { message: Some(v1::client_message::Message::Hello(hello)) };
    match ClientMessage::try_from(message) {
        Ok(ClientMessage::Hello(hello)) => Ok(hello),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn other_versions_are_rejected_with_both_and_what_to_upgrade() {
    let checked = |version| {
        let hello = v1::Hello { protocol_version: version, node: "a".into(), ..Default::default() };
        hello_from_wire(hello).unwrap().check_version()
    };
    assert_eq!(checked(1), Ok(()));
    for (version, peer) in [(0, "client"), (2, "frontend")] {
        let expected = format!("the client supports version {version}, this frontend version 1; upgrade the {peer}");
        assert_eq!(checked(version), Err(expected));
    }
}

/// Peers of later versions announce optional parts of the protocol in field 2.
#[test]
fn the_field_for_features_is_ignored() {
    let features = [0x12, 2, 1, 2];
    let hello = v1::Hello { protocol_version: 1, node: "a".into(), ..Default::default() };
    let bytes = [hello.encode_to_vec(), features.to_vec()].concat();
    assert_eq!(v1::Hello::decode(&bytes[..]), Ok(hello));
    let welcome = v1::Welcome { protocol_version: 1, epoch: 1, ..Default::default() };
    let bytes = [welcome.encode_to_vec(), features.to_vec()].concat();
    assert_eq!(v1::Welcome::decode(&bytes[..]), Ok(welcome));
}

#[test]
fn a_welcome_with_an_unsupported_version_is_rejected() {
    let welcome = v1::Welcome { protocol_version: 9, epoch: 1, mode: 1, ..Default::default() };
    let error = Welcome::try_from(welcome).unwrap_err().to_string();
    assert_eq!(
        error,
        "protocol_version: the frontend chose version 9, this client supports version 1; upgrade the client"
    );
}

#[test]
fn an_ack_without_number_or_of_more_than_was_received_is_rejected() {
    for (received_number, programmed_number, expected) in [
        (5, 6, "ack.programmed_number: is 6, but only 5 is received"),
        (0, 0, "ack.received_number: is 0: count the commits and bookmarks of the stream, from 1"),
    ] {
        let ack = v1::Ack { received_number, programmed_number, ..Default::default() };
        let message = v1::ClientMessage { message: Some(v1::client_message::Message::Ack(ack)) };
        let error = ClientMessage::try_from(message).unwrap_err().to_string();
        assert_eq!(error, expected);
    }
}

#[test]
fn an_empty_node_is_rejected() {
    let hello = v1::Hello { protocol_version: 1, ..Default::default() };
    assert_eq!(hello_from_wire(hello).unwrap_err(), "hello.node: is empty: set the name of the node");
}

/// The definition in docs/protocol.md, evaluated by hand for one service port. A change makes peers of different
/// releases disagree and requires a new protocol version.
#[test]
fn the_digest_definition_is_fixed() {
    let key = ServicePortKey::new("default", "web", "http", Protocol::Tcp);
    let hash = KeyHash::of(&key);
    let by_hand = xxhash_rust::xxh64::xxh64(b"default\0web\0http\0\x06", 0);
    assert_eq!(hash.bucket(), (by_hand % 128) as u8);

    let endpoint =
        Endpoint { address: [10, 244, 1, 11].into(), port: NonZeroU16::new(8080).unwrap(), terminating: true };
    let mut bytes = by_hand.to_le_bytes().to_vec();
    bytes.extend([2, 10, 244, 1, 11, 0x1f, 0x90, 1]);
    assert_eq!(hash.endpoint(PoolClass::Local, &endpoint), Digest(xxhash_rust::xxh64::xxh64(&bytes, 2)));
    // Key: namespace, name, port name, protocol 6; port 80; both policies Cluster.
    let wire = b"\x0a\x16\x0a\x07default\x12\x03web\x1a\x04http\x20\x06\x10\x50\x40\x01\x48\x01";
    let mut port = ServicePort::new(key, NonZeroU16::new(80).unwrap());
    assert_eq!(Digest::of_service_port(&port), Digest(xxhash_rust::xxh64::xxh64(wire, 1)));
    // An unset field does not change the hash.
    port.any_endpoints.v6 = true;
    let wire = [wire.as_slice(), b"\x68\x01"].concat();
    assert_eq!(Digest::of_service_port(&port), Digest(xxhash_rust::xxh64::xxh64(&wire, 1)));
}
