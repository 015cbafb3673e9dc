//! Kubernetes Events about nodes. What one cannot do: on the Service that it concerns, one for each reason, whatever the number of nodes.
//! That its agent starts: on the Node.
//!
//! ```text
//!   session: an Ack with new failures ──try_send──▶ queue (bounded) ──▶ recorder ──▶ Series by Service and reason
//!            a Hello of a new run                                             └────▶ Start by Start
//!                                                                                   │ now and then, so many a second
//!                                                                                   ▼
//!                                                                 create; a Series there already: patch its count
//! ```
//!
//! A session never waits for this: what does not fit into the queue is not told. Replicas do not know of each other. The name of an Event is
//! computed from what it says, so the same one is made once, and counted by whoever saw it last.

mod recorder;
mod series;
mod start;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use proto::model::ServicePortFailure;
use runtime::Shutdown;
use tokio::sync::mpsc;
use tracing::debug;

use self::recorder::EventRecorder;
pub(crate) use self::start::BackendStart;
use crate::Frontend;

/// How many reports wait to be counted. More than that of one moment are not told.
const QUEUE: usize = 4096;

/// What a node has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeReport {
    /// The node cannot do something.
    Failed(Arc<str>, ServicePortFailure),
    /// Its agent has started.
    Started(BackendStart),
}

/// Where reports go, if anywhere.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(OnceLock<mpsc::Sender<NodeReport>>);

impl EventQueue {
    /// Takes all reports from now on; `None` when somebody does already.
    pub(crate) fn listen(&self) -> Option<mpsc::Receiver<NodeReport>> {
        let (sender, reports) = mpsc::channel(QUEUE);
        self.0.set(sender).is_ok().then_some(reports)
    }

    /// A node cannot do this, and has not said so before on its stream.
    pub(crate) fn failed(&self, node: &Arc<str>, failure: &ServicePortFailure) {
        self.report(|| NodeReport::Failed(node.clone(), failure.clone()));
    }

    /// An agent is here that began its run not long ago; maybe it was here, or elsewhere, before.
    pub(crate) fn started(&self, start: BackendStart) {
        if start.is_recent() {
            self.report(|| NodeReport::Started(start));
        }
    }

    fn report(&self, report: impl FnOnce() -> NodeReport) {
        let Some(reports) = self.0.get() else { return };
        if let Err(error) = reports.try_send(report()) {
            debug!(report = ?error.into_inner(), "no event: too much happens at once");
        }
    }
}

impl Frontend {
    /// Tells the API what nodes cannot do, and that they start, until the shutdown. `instance` is what this replica is called there.
    ///
    /// # Errors
    /// None so far; the type is that of a task.
    pub async fn record_events(
        &self,
        client: kube::Client,
        instance: String,
        mut shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        if let Some(reports) = self.sessions.events.listen() {
            tokio::select! {
                () = EventRecorder::new(client, instance).run(reports) => {}
                () = shutdown.recv() => {}
            }
        }
        shutdown.recv().await;
        Ok(())
    }
}
