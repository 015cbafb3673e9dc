//! Why an endpoint is used or not, asked over a real connection.

use std::num::NonZeroU16;

use fairlead_frontend::{
    Config,
    object::{ClusterObject, ObjectKind, ObjectName, ObjectProblem, ParsedObject, ServiceObjectPort, SourceUpdate},
};
use proto::{
    convert::unpack_address,
    model::NodeInfo,
    v1::{EndpointsRequest, EndpointsResponse, PoolMembership, ServicePortEndpoints, fairlead_client::FairleadClient},
};
use tonic::Code;

use super::{HOME, Server, Transport, cluster, service, slice};

async fn ask(server: &Server, name: &str, node: &str, port: &str) -> Result<EndpointsResponse, tonic::Status> {
    let mut client = FairleadClient::new(server.channel.clone());
    let [namespace, name, node, port] = ["ns", name, node, port].map(str::to_owned);
    let answer = client.endpoints(EndpointsRequest { namespace, name, node, port }).await;
    answer.map(tonic::Response::into_inner)
}

/// Of each endpoint: address, port, and the words for the two pools.
fn said(port: &ServicePortEndpoints) -> Vec<(String, u32, String, String)> {
    let one = port.endpoints.iter().map(|endpoint| {
        let address = unpack_address(&endpoint.address, "address").unwrap().to_string();
        let word = |verdict: &Option<PoolMembership>| verdict.clone().unwrap().reason;
        (address, endpoint.port, word(&endpoint.cluster), word(&endpoint.local))
    });
    one.collect()
}

/// A node in a zone, and a Service with two ports of which only one has endpoints: ready, not ready, and on no node.
fn updates() -> Vec<SourceUpdate> {
    let home = ParsedObject {
        kind: ObjectKind::Node,
        name: ObjectName::new("", HOME),
        object: Some(ClusterObject::Node(NodeInfo {
            zone: "zone-a".into(),
            eligible: true,
            ..NodeInfo::unknown(HOME)
        })),
        problems: Vec::new(),
    };
    let mut of_zero = service(0);
    let Some(ClusterObject::Service(web)) = &mut of_zero.object else { panic!() };
    let metrics =
        ServiceObjectPort { name: "metrics".into(), port: NonZeroU16::new(9090).unwrap(), ..web.ports[0].clone() };
    web.ports.push(metrics);
    let mut of_slice = slice(0, 3);
    let Some(ClusterObject::EndpointSlice(endpoints)) = &mut of_slice.object else { panic!() };
    endpoints.endpoints[1].ready = false;
    endpoints.endpoints[2].node = None;
    let field = "endpoints[3].addresses[0]".to_owned();
    of_slice.problems = vec![ObjectProblem { field, message: "no address".to_owned() }];
    let mut of_other = slice(1, 1);
    of_other.problems = of_slice.problems.clone();
    vec![
        SourceUpdate::Replace(ObjectKind::Node, vec![home]),
        SourceUpdate::Replace(ObjectKind::ServiceCidr, Vec::new()),
        SourceUpdate::Replace(ObjectKind::Service, vec![of_zero, service(1)]),
        SourceUpdate::Replace(ObjectKind::EndpointSlice, vec![of_slice, of_other]),
    ]
}

#[tokio::test]
async fn each_endpoint_is_told_with_the_reason() {
    let server = Server::start(Transport::Unix, Config::default(), updates()).await;
    while !server.status().await.ready {
        tokio::task::yield_now().await;
    }
    let answer = ask(&server, "s0", HOME, "").await.unwrap();
    assert!(answer.node_known);
    assert_eq!(answer.zone, "zone-a");
    assert_eq!(answer.revision, server.status().await.revision);
    let [web, metrics] = &answer.ports[..] else { panic!("{answer:?}") };
    let row =
        |last: u8, cluster: &str, local: &str| (format!("10.0.0.{last}"), 8080, cluster.to_owned(), local.to_owned());
    let expected = [row(0, "ready", "ready"), row(1, "not-ready", "not-ready"), row(2, "ready", "not-on-this-node")];
    assert_eq!(said(web), expected);
    assert!(said(metrics).iter().all(|(_, port, cluster, _)| *port == 0 && cluster == "no-such-port"));
    let [problem] = &answer.problems[..] else { panic!("those of others too: {:?}", answer.problems) };
    assert_eq!(problem.object, "EndpointSlice ns/s0");

    let elsewhere = ask(&server, "s0", "unheard-of", "80").await.unwrap();
    assert!(!elsewhere.node_known);
    let [web] = &elsewhere.ports[..] else { panic!("{elsewhere:?}") };
    assert!(said(web).iter().all(|(.., local)| matches!(&**local, "not-on-this-node" | "not-ready")));
    assert_eq!(ask(&server, "s0", HOME, "metrics").await.unwrap().ports.len(), 1);

    for (name, node, port, code) in
        [("s2", HOME, "", Code::NotFound), ("s0", HOME, "81", Code::NotFound), ("s0", "", "", Code::InvalidArgument)]
    {
        assert_eq!(ask(&server, name, node, port).await.unwrap_err().code(), code, "{name} {node} {port}");
    }
}

#[tokio::test]
async fn nothing_is_said_before_everything_is_known() {
    let server = Server::start(Transport::Unix, Config::default(), cluster(1)[..2].to_vec()).await;
    assert_eq!(ask(&server, "s0", HOME, "").await.unwrap_err().code(), Code::Unavailable);
}
