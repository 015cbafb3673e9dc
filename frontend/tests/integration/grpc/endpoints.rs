//! The call `Endpoints` over a real connection.

use std::num::NonZeroU16;

use fairlead_frontend::{
    Config,
    object::{
        ClusterObject, ObjectKind, ObjectName, ObjectProblem, Origin, ParsedObject, ServiceObjectPort, SourceUpdate,
    },
};
use proto::{
    convert::unpack_address,
    model::NodeInfo,
    v1::{EndpointsRequest, EndpointsResponse, PoolMembership, ServicePortEndpoints, fairlead_client::FairleadClient},
};
use tonic::Code;

use super::{ENDPOINT_NODE, Server, Transport, cluster, service, slice};

async fn ask(server: &Server, name: &str, node: &str, port: &str) -> Result<EndpointsResponse, tonic::Status> {
    let mut client = FairleadClient::new(server.channel.clone());
    let [namespace, name, node, port] = ["ns", name, node, port].map(str::to_owned);
    let answer = client.endpoints(EndpointsRequest { namespace, name, node, port }).await;
    answer.map(tonic::Response::into_inner)
}

/// Of each endpoint: address, port, and the reasons for the two pools.
fn reasons(port: &ServicePortEndpoints) -> Vec<(String, u32, String, String)> {
    let one = port.endpoints.iter().map(|endpoint| {
        let address = unpack_address(&endpoint.address, "address").unwrap().to_string();
        let reason = |verdict: &Option<PoolMembership>| verdict.clone().unwrap().reason;
        (address, endpoint.port, reason(&endpoint.cluster), reason(&endpoint.local))
    });
    one.collect()
}

/// A node in a zone, and a Service with two ports of which only one has endpoints: ready, not ready, and on no node.
fn updates() -> Vec<SourceUpdate> {
    let node = ParsedObject {
        kind: ObjectKind::Node,
        name: ObjectName::new("", ENDPOINT_NODE),
        object: Some(ClusterObject::Node(
            NodeInfo { zone: "zone-a".into(), eligible: true, ..NodeInfo::unknown(ENDPOINT_NODE) }.into(),
        )),
        problems: Vec::new(),
        origin: Origin::default(),
    };
    let mut first = service(0);
    let Some(ClusterObject::Service(web)) = &mut first.object else { panic!() };
    let metrics =
        ServiceObjectPort { name: "metrics".into(), port: NonZeroU16::new(9090).unwrap(), ..web.ports[0].clone() };
    web.ports.push(metrics);
    let mut invalid = service(2);
    invalid.name = ObjectName::new("ns", "invalid");
    let Some(ClusterObject::Service(without_ports)) = &mut invalid.object else { panic!() };
    without_ports.name = invalid.name.clone();
    without_ports.ports.clear();
    let mut first_slice = slice(0, 3);
    let Some(ClusterObject::EndpointSlice(endpoints)) = &mut first_slice.object else { panic!() };
    endpoints.endpoints[1].ready = false;
    endpoints.endpoints[2].node = None;
    let field = "endpoints[3].addresses[0]".to_owned();
    first_slice.problems = vec![ObjectProblem { field, message: "no address".to_owned() }];
    let mut second_slice = slice(1, 1);
    second_slice.problems = first_slice.problems.clone();
    vec![
        SourceUpdate::Replace(ObjectKind::Node, vec![node]),
        SourceUpdate::Replace(ObjectKind::ServiceCidr, Vec::new()),
        SourceUpdate::Replace(ObjectKind::Service, vec![first, service(1), invalid]),
        SourceUpdate::Replace(ObjectKind::EndpointSlice, vec![first_slice, second_slice]),
    ]
}

#[tokio::test]
async fn every_endpoint_has_a_reason() {
    let server = Server::start(Transport::Unix, Config::default(), updates()).await;
    while !server.status().await.ready {
        tokio::task::yield_now().await;
    }
    let answer = ask(&server, "s0", ENDPOINT_NODE, "").await.unwrap();
    assert!(answer.node_known);
    assert_eq!(answer.zone, "zone-a");
    assert_eq!(answer.revision, server.status().await.revision);
    let [web, metrics] = &answer.ports[..] else { panic!("{answer:?}") };
    let row =
        |last: u8, cluster: &str, local: &str| (format!("10.0.0.{last}"), 8080, cluster.to_owned(), local.to_owned());
    let expected = [row(0, "ready", "ready"), row(1, "not-ready", "not-ready"), row(2, "ready", "not-on-this-node")];
    assert_eq!(reasons(web), expected);
    assert!(reasons(metrics).iter().all(|(_, port, cluster, _)| *port == 0 && cluster == "no-such-port"));
    let [problem] = &answer.problems[..] else { panic!("problems of other Services: {:?}", answer.problems) };
    assert_eq!(problem.object, "EndpointSlice ns/s0");

    let elsewhere = ask(&server, "s0", "unknown", "80").await.unwrap();
    assert!(!elsewhere.node_known);
    let [web] = &elsewhere.ports[..] else { panic!("{elsewhere:?}") };
    assert!(reasons(web).iter().all(|(.., local)| matches!(&**local, "not-on-this-node" | "not-ready")));
    assert_eq!(ask(&server, "s0", ENDPOINT_NODE, "metrics").await.unwrap().ports.len(), 1);

    for (name, node, port, code, message) in [
        ("s2", ENDPOINT_NODE, "", Code::NotFound, "Service ns/s2 is not served"),
        ("s0", ENDPOINT_NODE, "81", Code::NotFound, "number 81, only 80 (\"\"), 9090 (\"metrics\")"),
        ("invalid", ENDPOINT_NODE, "", Code::NotFound, "Service ns/invalid has no valid port: correct spec.ports"),
        ("s0", "", "", Code::InvalidArgument, "node: is empty"),
    ] {
        let status = ask(&server, name, node, port).await.unwrap_err();
        assert_eq!(status.code(), code, "{name} {node} {port}");
        assert!(status.message().contains(message), "{status}");
    }
}

#[tokio::test]
async fn call_fails_before_every_kind_is_listed() {
    let server = Server::start(Transport::Unix, Config::default(), cluster(1)[..2].to_vec()).await;
    assert_eq!(ask(&server, "s0", ENDPOINT_NODE, "").await.unwrap_err().code(), Code::Unavailable);
}

/// A Service with 1,000 ports and slices that have none of them: a tenant may write it.
#[tokio::test]
async fn ports_times_endpoints_are_bounded() {
    let mut many = service(0);
    let Some(ClusterObject::Service(web)) = &mut many.object else { panic!() };
    let port = web.ports[0].clone();
    let number = |at: u16| NonZeroU16::new(1000 + at).unwrap();
    let ports =
        (0..1000).map(|at| ServiceObjectPort { name: format!("p{at:03}").into(), port: number(at), ..port.clone() });
    web.ports = ports.collect();
    let updates = vec![
        SourceUpdate::Replace(ObjectKind::Node, Vec::new()),
        SourceUpdate::Replace(ObjectKind::ServiceCidr, Vec::new()),
        SourceUpdate::Replace(ObjectKind::Service, vec![many]),
        SourceUpdate::Replace(ObjectKind::EndpointSlice, vec![slice(0, 10_000)]),
    ];
    let server = Server::start(Transport::Unix, Config::default(), updates).await;
    while !server.status().await.ready {
        tokio::task::yield_now().await;
    }
    let status = ask(&server, "s0", ENDPOINT_NODE, "").await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert!(status.message().contains("select one port by its name"), "{status}");
    let answer = ask(&server, "s0", ENDPOINT_NODE, "p007").await.unwrap();
    assert_eq!(answer.ports[0].endpoints.len(), 10_000);
}
