//! Asks the same questions by packets: real connections to the VIPs, from the pods, the node and a client outside.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use e2e::{Client, Failure, Protocol, Server, plan};
use proto::model;

use crate::{
    cluster::{Cluster, NODES},
    question::{Answer, Outcome, Question, Source, VipKind},
};

/// The ports that endpoints may have.
const PORTS: [u16; 6] = [8080, 8081, 8082, 9090, 9091, 9092];
/// How long a request without an answer is waited for.
const SILENCE: Duration = Duration::from_millis(400);
/// Requests for each expected endpoint. Not to see one of four in 100 requests happens once in 10^12.
const REQUESTS: usize = 25;
/// Questions that are asked at the same time.
const THREADS: usize = 8;

/// Nodes and pods at all addresses that endpoints may have, each with a server.
#[derive(Debug)]
pub(crate) struct Peers {
    cluster: e2e::Cluster,
    _nodes: Vec<Server>,
    /// One SCTP question at a time: a raw socket gets the ICMP errors of all packets to its peer, whatever their ports.
    sctp: Mutex<()>,
}

// === impl Peers ===

impl Peers {
    pub(crate) fn start(pods: u8) -> Self {
        let cluster = e2e::Cluster::builder().nodes(NODES).pods_per_node(pods).ports(&PORTS).start();
        let serve = |node: &e2e::Node| Server::start(&node.netns, &node.name, &node.address.both(), &PORTS);
        let nodes = cluster.nodes().iter().map(serve).collect();
        Self { cluster, _nodes: nodes, sctp: Mutex::new(()) }
    }

    pub(crate) fn cluster(&self) -> &e2e::Cluster {
        &self.cluster
    }

    /// What happened to packets; `None`: a question that no packet can answer here.
    pub(crate) fn answers(
        &self,
        cluster: &Cluster,
        questions: &[Question],
        expected: &[Answer],
    ) -> Vec<Option<Answer>> {
        let pairs: Vec<_> = questions.iter().zip(expected).collect();
        let share = pairs.len().div_ceil(THREADS).max(1);
        thread::scope(|scope| {
            let ask = |pairs: &[(&Question, &Answer)]| -> Vec<_> {
                pairs.iter().map(|(question, expected)| self.answer(cluster, question, expected)).collect()
            };
            let threads: Vec<_> = pairs.chunks(share).map(|pairs| scope.spawn(move || ask(pairs))).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panicked| resume_unwind(panicked)))
                .collect()
        })
    }

    fn answer(&self, cluster: &Cluster, question: &Question, expected: &Answer) -> Option<Answer> {
        let wanted: BTreeSet<_> = expected.outcomes().map(|outcome| seen(question, outcome)).collect();
        // What is not translated has no destination here.
        if wanted.contains(&Outcome::Untranslated) || question.kind == VipKind::Loopback {
            return None;
        }
        let client = self.client(question)?;
        let is_sctp = question.protocol == model::Protocol::Sctp;
        let _alone = is_sctp.then(|| self.sctp.lock().unwrap_or_else(PoisonError::into_inner));
        let client = if wanted.contains(&Outcome::Dropped) { client.with_deadline(SILENCE) } else { client };
        let has_affinity = question.service.is_some_and(|service| cluster.services[service].affinity_seconds.is_some());
        let mut outcomes = BTreeSet::new();
        for _ in 0..REQUESTS * wanted.len() {
            outcomes.insert(outcome(question, &client));
            let is_enough = has_affinity || outcomes.len() >= wanted.len();
            if is_enough || !outcomes.is_subset(&wanted) {
                break;
            }
        }
        let is_expected = outcomes == wanted || (has_affinity && outcomes.is_subset(&wanted));
        Some(if is_expected { expected.clone() } else { Answer::one_of(outcomes) })
    }

    /// A client at the source; `None`: replies would not come back through the node, which has to translate them.
    fn client(&self, question: &Question) -> Option<Client> {
        let source = question.source_ip();
        match question.source {
            Source::Pod => Some(self.cluster.node('a').pod(2).client()),
            Source::Node => Some(self.cluster.node('a').client()),
            Source::Near | Source::Far => Some(self.cluster.client().with_source(source)),
            Source::RemotePod | Source::OtherNode => None,
        }
    }
}

fn outcome(question: &Question, client: &Client) -> Outcome {
    let protocol = match question.protocol {
        model::Protocol::Tcp => Protocol::Tcp,
        model::Protocol::Udp => Protocol::Udp,
        model::Protocol::Sctp => Protocol::Sctp,
    };
    match client.ask(protocol, question.destination) {
        Ok(reply) => {
            let is_masqueraded = reply.seen_source.ip() != question.source_ip();
            seen(question, Outcome::To { endpoint: reply.endpoint, is_masqueraded })
        }
        Err(Failure::Refused) => Outcome::Rejected,
        Err(Failure::TimedOut) => Outcome::Dropped,
        Err(_) => Outcome::Untranslated,
    }
}

/// What can be seen of an outcome: the node's own address is also that of packets that it masquerades.
fn seen(question: &Question, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::To { endpoint, .. } if question.source == Source::Node || is_own(endpoint) => {
            Outcome::To { endpoint, is_masqueraded: false }
        }
        outcome => outcome,
    }
}

fn is_own(endpoint: SocketAddr) -> bool {
    plan::node(1).both().contains(&endpoint.ip())
}
