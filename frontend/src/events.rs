//! Kubernetes Events about what nodes cannot program: on the Service that it concerns, one for each reason, whatever the number of nodes.
//!
//! ```text
//!   session: an Ack with new failures ──try_send──▶ queue (bounded) ──▶ recorder ──▶ Series by Service and reason
//!                                                                                   │ now and then, so many a second
//!                                                                                   ▼
//!                                                                 create; there already: patch its count
//! ```
//!
//! A session never waits for this: what does not fit into the queue is not told. Replicas do not know of each other. The name of an Event is
//! computed from what it says, so the same one is made once, and counted by whoever saw it last.

mod recorder;
mod series;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use proto::model::Failure;
use runtime::Shutdown;
use tokio::sync::mpsc;
use tracing::debug;

use self::recorder::Recorder;
use crate::Frontend;

/// How many reports wait to be counted. More than that of one moment are not told.
const QUEUE: usize = 4096;

/// A node has said that it cannot program something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) node: Arc<str>,
    pub(crate) failure: Failure,
}

/// Where reports go, if anywhere.
#[derive(Debug, Default)]
pub(crate) struct Events(OnceLock<mpsc::Sender<Report>>);

impl Events {
    /// Takes all reports from now on; `None` when somebody does already.
    pub(crate) fn listen(&self) -> Option<mpsc::Receiver<Report>> {
        let (sender, reports) = mpsc::channel(QUEUE);
        self.0.set(sender).is_ok().then_some(reports)
    }

    /// A node cannot program this, and has not said so before on its stream.
    pub(crate) fn failed(&self, node: &Arc<str>, failure: &Failure) {
        let Some(reports) = self.0.get() else { return };
        let report = Report { node: node.clone(), failure: failure.clone() };
        if reports.try_send(report).is_err() {
            debug!(%node, service = %failure.key, "no event: too much fails at once");
        }
    }
}

impl Frontend {
    /// Tells the API what nodes cannot program, until the shutdown. `instance` is what this replica is called there.
    ///
    /// # Errors
    /// None so far; the type is that of a task.
    pub async fn record_events(
        &self,
        client: kube::Client,
        instance: String,
        mut shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        if let Some(reports) = self.shared.events.listen() {
            tokio::select! {
                () = Recorder::new(client, instance).run(reports) => {}
                () = shutdown.recv() => {}
            }
        }
        shutdown.recv().await;
        Ok(())
    }
}
