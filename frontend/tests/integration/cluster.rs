//! A cluster of Services with many endpoints each, all of them on one node.

use std::num::NonZeroU16;

use fairlead_frontend::object::{
    ClusterObject, ObjectKind, ObjectName, Origin, ParsedObject, ServiceObject, ServiceObjectPort, SliceEndpoint,
    SliceObject, SlicePort, SourceUpdate,
};
use proto::{
    model::{IpFamily, PerFamily, Protocol},
    v1::{Ack, Batch, Hello, server_message::Message},
};

/// A Service without endpoints.
pub(crate) fn service(number: u8) -> ParsedObject {
    let name = ObjectName::new("ns", format!("s{number}"));
    let service = ServiceObject {
        name: name.clone(),
        cluster_ips: PerFamily { v4: Some([10, 96, 0, number].into()), v6: None },
        ports: vec![ServiceObjectPort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: NonZeroU16::new(80).unwrap(),
            node_port: None,
        }],
        ..ServiceObject::default()
    };
    ParsedObject {
        kind: ObjectKind::Service,
        name,
        object: Some(ClusterObject::Service(service)),
        problems: Vec::new(),
        origin: Origin::default(),
    }
}

/// A slice with endpoints of that Service on a node.
pub(crate) fn slice_on(node: &str, number: u8, endpoints: u16) -> ParsedObject {
    let name = ObjectName::new("ns", format!("s{number}"));
    let endpoint = |at: u16| SliceEndpoint {
        address: [10, number, at.to_be_bytes()[0], at.to_be_bytes()[1]].into(),
        node: Some(node.into()),
        ready: true,
        serving: true,
        terminating: false,
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
        pod: None,
    };
    let port = NonZeroU16::new(8080).unwrap();
    let slice = SliceObject {
        created: None,
        service: name.name.clone(),
        family: IpFamily::V4,
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, port }],
        endpoints: (0..endpoints).map(endpoint).collect(),
        trigger: None,
        name: name.clone(),
    };
    ParsedObject {
        kind: ObjectKind::EndpointSlice,
        name,
        object: Some(ClusterObject::EndpointSlice(slice)),
        problems: Vec::new(),
        origin: Origin::default(),
    }
}

/// Services with 1,000 endpoints each, which take 6 KB each in a snapshot.
pub(crate) fn cluster_on(node: &str, services: u8) -> Vec<SourceUpdate> {
    let slices = (0..services).map(|number| slice_on(node, number, 1000));
    vec![
        SourceUpdate::Replace(ObjectKind::Node, Vec::new()),
        SourceUpdate::Replace(ObjectKind::ServiceCidr, Vec::new()),
        SourceUpdate::Replace(ObjectKind::Service, (0..services).map(service).collect()),
        SourceUpdate::Replace(ObjectKind::EndpointSlice, slices.collect()),
    ]
}

/// The Hello of a backend without state that computes no digests.
pub(crate) fn hello(node: &str) -> Hello {
    Hello { protocol_version: 1, node: node.to_owned(), backend: "nftables".to_owned(), ..Hello::default() }
}

/// The Ack of a backend that has programmed the commits and bookmarks up to this number.
pub(crate) fn ack(number: u64) -> Ack {
    Ack { received_number: number, programmed_number: number, ..Ack::default() }
}

/// Whether it is a commit or a bookmark, which clients count.
pub(crate) fn is_numbered(message: &Message) -> bool {
    matches!(message, Message::Batch(Batch { commit: true, .. }) | Message::Bookmark(_))
}
