//! An endpoint of a service: its pod or node, conditions and topology hints.

use serde_json::{Value, json};

use crate::{
    cluster::{Node, Pod},
    plan::{DualStack, IpFamily},
};

/// An endpoint, as in an EndpointSlice.
#[derive(Clone, Debug)]
pub struct Endpoint {
    address: DualStack,
    node: String,
    zone: String,
    state: EndpointState,
    zone_hints: Vec<String>,
    node_hints: Vec<String>,
}

/// The three conditions of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointState {
    /// Ready and serving.
    Ready,
    /// Neither ready nor serving.
    NotReady,
    /// Terminating, and still serving.
    Draining,
    /// Terminating, and no longer serving.
    Terminating,
}

// === impl Endpoint ===

impl Endpoint {
    /// The endpoint of a pod, ready.
    pub fn of(pod: &Pod) -> Self {
        Self::new(pod.address, &pod.node, &pod.zone)
    }

    /// The endpoint of a server on a node's own address, ready.
    pub fn of_node(node: &Node) -> Self {
        Self::new(node.address, &node.name, &node.zone)
    }

    /// An endpoint on a node, whether anything has its address or not, ready.
    pub fn at(address: DualStack, node: &Node) -> Self {
        Self::new(address, &node.name, &node.zone)
    }

    fn new(address: DualStack, node: &str, zone: &str) -> Self {
        Self {
            address,
            node: node.to_owned(),
            zone: zone.to_owned(),
            state: EndpointState::Ready,
            zone_hints: Vec::new(),
            node_hints: Vec::new(),
        }
    }

    /// Sets its state.
    pub fn state(mut self, state: EndpointState) -> Self {
        self.state = state;
        self
    }

    /// Sets its zone hints.
    pub fn for_zones(mut self, zones: &[&str]) -> Self {
        self.zone_hints = zones.iter().map(|&zone| zone.to_owned()).collect();
        self
    }

    /// Sets its node hints.
    pub fn for_nodes(mut self, nodes: &[&str]) -> Self {
        self.node_hints = nodes.iter().map(|&node| node.to_owned()).collect();
        self
    }

    /// The entry in the EndpointSlice of one family.
    pub(super) fn object(&self, family: IpFamily) -> Value {
        let (ready, serving, terminating) = match self.state {
            EndpointState::Ready => (true, true, false),
            EndpointState::NotReady => (false, false, false),
            EndpointState::Draining => (false, true, true),
            EndpointState::Terminating => (false, false, true),
        };
        let mut object = json!({
            "addresses": [self.address.ip(family)],
            "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
            "nodeName": self.node,
            "zone": self.zone,
        });
        let named = |names: &[String]| names.iter().map(|name| json!({ "name": name })).collect::<Value>();
        if !self.zone_hints.is_empty() {
            object["hints"]["forZones"] = named(&self.zone_hints);
        }
        if !self.node_hints.is_empty() {
            object["hints"]["forNodes"] = named(&self.node_hints);
        }
        object
    }
}
