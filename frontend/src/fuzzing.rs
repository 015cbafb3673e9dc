//! For fuzz targets: credentials, manifests, and the messages of clients.

// A panic is how a fuzz target fails.
#![allow(clippy::missing_panics_doc)]

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
    time::UNIX_EPOCH,
};

use futures::StreamExt as _;
use http::Response;
use proto::{
    digest::Digest,
    model::{Ack, Batch, ClientMessage, ClusterInfo, Operation, ServerMessage},
};
use runtime::{Shutdown, lock};
use rustls::pki_types::CertificateDer;
use tokio::{sync::mpsc, task::yield_now};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    Frontend, HistoryLimits,
    identity::{
        Authenticator, AuthnOptions, Identity, TokenOptions, TokenSource,
        certificate::{self, Names},
    },
    index::{AllowedIps, Index, ServicePolicy},
    log::{ChangeLog, PreparedChanges},
    object::{ObjectKind, ParsedObject, SourceUpdate},
    session,
    source::{KubernetesApi, ManifestFormat, parse_manifests},
};

/// How often a session and its client may run until both wait.
const YIELDS: usize = 16;

/// Authenticates clients; the API server accepts every token, with the answer that the input contains.
#[derive(Debug)]
pub struct Credentials {
    authenticator: Authenticator,
    answer: Arc<Mutex<Vec<u8>>>,
}

impl Credentials {
    /// Accepts tokens of the backend of the chart, and certificates of nodes.
    #[must_use]
    pub fn new() -> Self {
        let answer = Arc::<Mutex<Vec<u8>>>::default();
        let answered = answer.clone();
        let api = KubernetesApi::in_process(move |_| {
            let body = lock(&answered).clone();
            async move { Response::new(http_body_util::Full::new(bytes::Bytes::from(body))) }
        });
        let tokens = TokenOptions {
            audience: "fairlead".to_owned(),
            backend_accounts: "kube-system/fairlead-backend".parse().into_iter().collect(),
            issuers: BTreeSet::new(),
        };
        let options =
            AuthnOptions { admins: ["system:admin".to_owned()].into(), tokens: Some(tokens), kubeconfig: None };
        Self { authenticator: Authenticator::with_client(options, Some(api.client())), answer }
    }

    /// A certificate in DER, which TLS would have verified. The name of a node in it is one that a Node can have.
    pub fn certificate(&self, der: &[u8]) {
        let der = CertificateDer::from(der);
        let _ = certificate::not_after(&der).map_err(|error| format!("{error:#}"));
        let Ok(names) = Names::read(&der) else { return };
        match self.authenticator.by_certificate(&names) {
            Ok(Identity::Node(name)) => {
                let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
                assert!(!name.is_empty() && name.len() <= 253 && name.bytes().all(is_valid), "{name:?}");
            }
            Ok(_) => {}
            Err(error) => drop(error.to_string()),
        }
    }

    /// A token, and what the API server answers when it is asked to review it.
    pub async fn token(&self, token: &str, answer: &[u8]) {
        *lock(&self.answer) = answer.to_vec();
        let source = TokenSource { address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), is_node: true };
        if let Err(error) = self.authenticator.identify(None, Some(token), source).await {
            let _ = error.to_string();
        }
    }
}

impl Default for Credentials {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads a manifest, decides what nodes must program, and returns the snapshot of a node with its digest. After all
/// objects are deleted, nothing is left.
#[must_use]
pub fn manifests(text: &str, node: &str) -> Option<(Vec<Operation>, Digest)> {
    let is_json = text.trim_start().starts_with('{');
    let format = if is_json { ManifestFormat::Json } else { ManifestFormat::Yaml };
    let objects = parse_manifests(text, format).ok()?;

    let policy = ServicePolicy { external_ips: AllowedIps::All, ..ServicePolicy::default() };
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo::default(), policy);
    let mut log = ChangeLog::new(HistoryLimits { entries: 16, bytes: 1 << 20 });
    for kind in ObjectKind::ALL {
        index.apply(SourceUpdate::Replace(kind, Vec::new()));
    }
    commit(&mut index, &mut log);
    let empty = log.digest(node);

    for kind in ObjectKind::ALL {
        let of_kind = objects.iter().filter(|parsed| parsed.kind == kind).cloned();
        index.apply(SourceUpdate::Replace(kind, of_kind.collect()));
    }
    commit(&mut index, &mut log);
    let update = log.snapshot(node);
    let operations = update.chunks.iter().flat_map(|chunk| chunk.operations()).cloned().collect();

    for ParsedObject { kind, name, .. } in objects {
        index.apply(SourceUpdate::Delete(kind, name));
    }
    commit(&mut index, &mut log);
    assert!(
        log.digest(node) == empty && log.service_ports == 0 && log.endpoints == 0,
        "deleted objects have an effect"
    );
    Some((operations, update.digest))
}

fn commit(index: &mut Index, log: &mut ChangeLog) {
    let changes = index.take_changes();
    let before = log.views_of(&changes);
    let zone_of = |node: &str| index.node(node).map_or("", |node| &*node.zone);
    log.commit(PreparedChanges::new(changes, &before, zone_of));
}

/// A frontend whose clients are the input.
#[derive(Debug)]
pub struct Sessions {
    frontend: Frontend,
    shutdown: Shutdown,
    updates: mpsc::Sender<SourceUpdate>,
    objects: Vec<ParsedObject>,
}

impl Sessions {
    /// Serves the objects of a manifest. The caller polls [`Frontend::run`] with the receiver.
    pub async fn new(frontend: Frontend, updates: mpsc::Sender<SourceUpdate>, shutdown: Shutdown, text: &str) -> Self {
        let objects = parse_manifests(text, ManifestFormat::Yaml).unwrap_or_default();
        for kind in ObjectKind::ALL {
            let of_kind = objects.iter().filter(|parsed| parsed.kind == kind).cloned();
            let _ = updates.send(SourceUpdate::Replace(kind, of_kind.collect())).await;
        }
        let _ = frontend.context.cluster.revisions().wait_for(Option::is_some).await;
        Self { frontend, shutdown, updates, objects }
    }

    /// One stream: messages of a client, and, where `None`, a change of the cluster.
    pub async fn stream(&self, messages: impl IntoIterator<Item = Option<ClientMessage>>) {
        let (to_session, from_client) = mpsc::channel(4);
        let (outgoing, mut from_session) = mpsc::channel(1);
        let context = self.frontend.context.clone();
        let input = ReceiverStream::new(from_client).map(Ok);
        let session = session::run(context.clone(), Identity::Trusted, input, outgoing, self.shutdown.clone());
        let mut session = tokio::spawn(session);

        let mut sent = 0;
        let mut node = None;
        for (number, message) in messages.into_iter().enumerate() {
            match message {
                None => self.change(number).await,
                Some(mut message) => {
                    match &mut message {
                        ClientMessage::Hello(hello) => node = Some(hello.node.clone()),
                        ClientMessage::Ack(ack) => self.correct(ack, sent, node.as_deref()),
                        ClientMessage::DigestResponse(..) => {}
                    }
                    if to_session.send(message).await.is_err() {
                        break;
                    }
                }
            }

            for _ in 0..YIELDS {
                yield_now().await;
                while let Ok(message) = from_session.try_recv() {
                    match message.into_message() {
                        ServerMessage::Batch(Batch { commit: true, .. }) | ServerMessage::Bookmark(_) => sent += 1,
                        _ => {}
                    }
                }
            }
        }

        drop((to_session, from_session));
        if let Ok(Err(error)) = (&mut session).await.inspect_err(|error| assert!(!error.is_panic(), "{error}")) {
            let _ = error.to_string();
        }
        assert_eq!(context.streams.count(), 0, "a stream that has ended is still registered");
    }

    /// Replaces an even number in an Ack by the last one that was sent, and an even digest by the expected one, because
    /// random ones would end each stream.
    fn correct(&self, ack: &mut Ack, sent: u64, node: Option<&str>) {
        if ack.received_number.is_multiple_of(2) {
            ack.received_number = sent;
        }
        ack.programmed_number = ack.programmed_number.min(ack.received_number);
        if let (Some(digest), Some(node)) = (&mut ack.digest, node)
            && digest.0 % 2 == 0
        {
            *digest = self.frontend.context.cluster.log().digest(node);
        }
    }

    /// Deletes an object, or adds it again.
    async fn change(&self, number: usize) {
        let Some(object) = self.objects.get(number % self.objects.len().max(1)) else { return };
        let update = if number.is_multiple_of(3) {
            SourceUpdate::Delete(object.kind, object.name.clone())
        } else {
            SourceUpdate::Apply(object.clone())
        };
        let _ = self.updates.send(update).await;
    }
}
