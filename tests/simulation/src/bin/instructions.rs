//! What each step of a change costs, in instructions, for `make bench-quick`: one endpoint of a Service is replaced, in
//! a cluster of 1,000 Services with 10 endpoints each. Callgrind counts what [`counted_region`] runs, without the
//! kernels in memory ([`Gate::write`]). Two runs of one build count the same, because random numbers are fixed.
//!
//! ```text
//!   instructions               the names of the steps
//!   instructions nftables 20   one step of 20 changes; prints what it has written
//!   valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted_region*' \
//!     --toggle-collect='*poll_kernel_in_memory*' target/release/instructions nftables 20
//! ```
//!
//! Outside of [`counted_region`] a kernel in memory begins the counting instead of ending it. So the result with 0
//! changes, which is what the set-up counts, must be subtracted.

// A panic is how a benchmark fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{env, hint::black_box, net::Ipv4Addr};

use backend::{
    Backend as _, Changes, NodeState,
    testing::{Gate, MemoryKernel, ProgramAll as _, Stack, apply, synthetic},
};
use bytes::Bytes;
use frontend::{
    object::{ObjectKind, ParsedObject},
    stages::{self, Stages},
};
use proto::{
    encoded::EncodedMessage,
    model::{Batch, Endpoint, IpFamily, Operation, PoolClass, PoolId, ServerMessage},
};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

const SERVICES: u32 = 1_000;
const ENDPOINTS: u32 = 10;
const NODE: &str = "node-1";
/// 10.64.0.0, 10.128.0.0 and 10.250.0.0.
const CLUSTER_IPS: u32 = 0x0a40_0000;
const PODS: u32 = 0x0a80_0000;
const NEW_PODS: u32 = 0x0afa_0000;

/// Makes so many changes, and returns what they write in all: bytes, or objects of the kernel.
type Step = fn(u32) -> usize;

/// The steps, in the order of a change.
const STEPS: [(&str, Step); 8] = [
    ("decode", decode),
    ("commit", commit),
    ("encode", encode),
    ("receive", receive),
    ("difference", difference),
    ("nftables", program::<backend_nft::Memory>),
    ("iptables", program::<backend_iptables::Memory>),
    ("ipvs", program::<backend_ipvs::Memory>),
];

fn main() {
    simulation::fix_random_numbers(1);
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [wanted, changes] = &arguments[..] else {
        STEPS.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let (_, step) = STEPS.iter().find(|(name, _)| name == wanted).expect("the name of a step");
    println!("{}", step(changes.parse().expect("a number of changes")));
}

/// Runs what is counted. Never inlined, because callgrind finds it by its name.
#[inline(never)]
fn counted_region<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

// === The frontend ===

/// From the line of a watch to a parsed EndpointSlice.
fn decode(changes: u32) -> usize {
    let lines: Vec<_> = (0..changes).map(changed_slice).collect();

    counted_region(|| lines.iter().for_each(|line| drop(black_box(parsed(ObjectKind::EndpointSlice, line)))));
    0
}

/// From a parsed EndpointSlice to a revision: index, views, log.
fn commit(changes: u32) -> usize {
    let mut cluster = cluster();
    let changed: Vec<_> = (0..changes).map(|n| parsed(ObjectKind::EndpointSlice, &changed_slice(n))).collect();

    counted_region(|| changed.into_iter().for_each(|slice| cluster.commit(slice)));
    0
}

/// From a revision to the bytes that a node is sent.
fn encode(changes: u32) -> usize {
    let mut cluster = cluster();
    let mut bytes = 0;
    for number in 0..changes {
        cluster.commit(parsed(ObjectKind::EndpointSlice, &changed_slice(number)));

        let frame = counted_region(|| cluster.encode()).expect("the node is at a revision of the history");
        bytes += frame.iter().map(Bytes::len).sum::<usize>();
    }
    bytes
}

/// A cluster that has all Services, and a node that has received them.
fn cluster() -> Stages {
    let services = (0..SERVICES).map(|number| parsed(ObjectKind::Service, &event(service(number))));
    let slices = (0..SERVICES).map(|number| parsed(ObjectKind::EndpointSlice, &event(slice(number, None))));
    Stages::new(&services.chain(slices).collect::<Vec<_>>(), NODE)
}

fn parsed(kind: ObjectKind, line: &[u8]) -> ParsedObject {
    stages::decode(kind, line).expect("an event with an object")
}

/// The event by which the last pod of a Service is replaced.
fn changed_slice(number: u32) -> Vec<u8> {
    event(slice(changed_service(number), Some(NEW_PODS + number)))
}

fn event(object: Value) -> Vec<u8> {
    json!({"type": "MODIFIED", "object": object}).to_string().into_bytes()
}

fn service(number: u32) -> Value {
    let address = Ipv4Addr::from(CLUSTER_IPS + number);
    json!({
        "metadata": metadata(&service_name(number), &service_name(number)),
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None", "selector": {"app": service_name(number)},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    })
}

fn slice(number: u32, last_pod: Option<u32>) -> Value {
    let first = PODS + number * ENDPOINTS;
    let pods = (first..first + ENDPOINTS - 1).chain([last_pod.unwrap_or(first + ENDPOINTS - 1)]);
    let endpoints = pods.map(|pod| {
        json!({
            "addresses": [Ipv4Addr::from(pod)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", pod % 100),
            "targetRef": {
                "kind": "Pod", "namespace": "bench", "name": format!("{}-7d4b9c6f5-{pod}", service_name(number)),
                "uid": format!("11111111-2222-3333-4444-{pod:012}"),
            },
            "zone": format!("zone-{}", pod % 3),
        })
    });
    json!({
        "metadata": metadata(&format!("{}-x7k2p", service_name(number)), &service_name(number)),
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

/// As an API server writes it, including fields that nothing reads.
fn metadata(name: &str, service: &str) -> Value {
    json!({
        "name": name, "namespace": "bench", "uid": format!("aaaaaaaa-2222-3333-4444-{name}"), "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3,
        "labels": {"app": service, "kubernetes.io/service-name": service},
        "managedFields": [{
            "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:endpoints": {}, "f:ports": {}},
        }],
    })
}

fn service_name(number: u32) -> String {
    format!("service-{number:04}")
}

/// The Service that a change concerns: up to 50 changes are spread over the state.
fn changed_service(number: u32) -> u32 {
    number * (SERVICES / 50)
}

// === The backend ===

/// From the bytes of a message to the next state of the node.
fn receive(changes: u32) -> usize {
    let state = synthetic(SERVICES, ENDPOINTS, Stack::V4);
    for number in 0..changes {
        let batch = Batch { operations: vec![change(&state, number)], commit: true, ..Batch::default() };
        let message = EncodedMessage::new(&ServerMessage::Batch(batch));

        let received = counted_region(|| received(&state, message));
        assert_ne!(received, state);
    }
    0
}

fn received(state: &NodeState, message: EncodedMessage) -> NodeState {
    let ServerMessage::Batch(batch) = message.try_into().expect("a valid message") else { panic!("no batch") };
    let mut state = state.clone();
    assert_eq!(state.apply(batch.operations), []);
    state
}

/// What differs between two states of the node.
fn difference(changes: u32) -> usize {
    let before = synthetic(SERVICES, ENDPOINTS, Stack::V4);
    for number in 0..changes {
        let mut after = before.clone();
        apply(&mut after, [change(&before, number)]);

        let differing = counted_region(|| Changes::between(&before, &after));
        assert_eq!(differing.service_ports.len(), 1);
    }
    0
}

/// From what differs to a transaction, which a kernel in memory executes.
fn program<K: MemoryKernel>(changes: u32) -> usize {
    let runtime = runtime();
    let mut state = synthetic(SERVICES, ENDPOINTS, Stack::V4);
    let mut backend = K::default().backend(Gate::open());
    let report = runtime.block_on(backend.reconcile_all(&state)).expect("a kernel that accepts everything");
    assert_eq!(report.failures, []);

    let mut writes = 0;
    for number in 0..changes {
        let operation = change(&state, number);
        let changed = apply(&mut state, [operation]);

        let report = counted_region(|| runtime.block_on(backend.apply(&state, &changed)));
        let report = report.expect("a kernel that accepts everything");
        assert!(report.failures.is_empty() && report.unfinished.is_none(), "{report:?}");
        writes += report.writes;
    }
    writes
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

/// Replaces the last endpoint of a service port.
fn change(state: &NodeState, number: u32) -> Operation {
    let (key, service) = state.service_ports().iter().nth(changed_service(number) as usize).expect("a service port");
    let pool = PoolId { key: key.clone(), class: PoolClass::Cluster, family: IpFamily::V4 };
    let old = *service.pool(PoolClass::Cluster, IpFamily::V4).iter().last().expect("an endpoint");
    let new = Endpoint::new(Ipv4Addr::from(NEW_PODS + number).into(), old.port);
    Operation::ChangePool { pool, add: vec![new], remove: vec![old] }
}
