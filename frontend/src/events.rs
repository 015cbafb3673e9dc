//! Kubernetes Events. A failure of nodes: on the Service, one for each reason, for all nodes together. A start of a
//! backend, and what does not work on a node: on the Node. Parts of a Service or EndpointSlice that are not used: on
//! the object.
//!
//! ```text
//!   session: Ack with new failures ──try_send──▶ queue (bounded) ──▶ EventRecorder ──▶ of a Service and a reason
//!            Hello of a new run                                             ├────────▶ of a start, a degraded node
//!   engine: ObjectNotice                                                    └────────▶ of problems of an object
//!                                                                                      │ rate-limited
//!                                                                                      ▼
//!                                                                        create, unless it exists
//! ```
//!
//! A session never waits for the recorder: reports that do not fit into the queue are dropped. Replicas do not know of
//! each other: the name of an Event is a hash of its content, so that they create one Event together.

mod event;
mod recorder;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use proto::model::ServicePortFailure;
use runtime::Shutdown;
use tokio::sync::mpsc;
use tracing::debug;

use self::recorder::EventRecorder;
pub(crate) use self::{event::BackendStart, recorder::MAX_FAILURES_OF_NODE};
use crate::{Frontend, index::ObjectNotice};

/// The most reports that wait. Further ones are dropped.
const QUEUE_LEN: usize = 4096;

/// What Events are created for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventReport {
    /// A node could not program a service port, or serve a health check; new on its stream.
    Failed(Arc<str>, ServicePortFailure),
    /// The backend of a node has started recently. It may have connected before, here or to another replica.
    Started(BackendStart),
    /// Something does not work on a node: what, and why.
    Degraded(Arc<str>, String),
    /// The problems of an object have changed. No Event tells of those of a Node, or that there are none.
    Problem(ObjectNotice),
}

/// The queue of reports. Without a receiver they are dropped.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(OnceLock<mpsc::Sender<EventReport>>);

impl EventQueue {
    /// The receiver of all reports from now on; `None` if there is one already.
    pub(crate) fn receiver(&self) -> Option<mpsc::Receiver<EventReport>> {
        let (sender, reports) = mpsc::channel(QUEUE_LEN);
        self.0.set(sender).is_ok().then_some(reports)
    }

    /// Never waits.
    pub(crate) fn report(&self, report: EventReport) {
        let Some(reports) = self.0.get() else { return };
        if let Err(error) = reports.try_send(report) {
            debug!(report = ?error.into_inner(), "event queue full, report dropped");
        }
    }
}

impl Frontend {
    /// Creates Events for what is reported, until the shutdown. `instance` is the `reportingInstance`.
    pub async fn record_events(&self, client: kube::Client, instance: String, mut shutdown: Shutdown) {
        if let Some(reports) = self.context.events.receiver() {
            shutdown.run_until_started(EventRecorder::new(client, instance).run(reports)).await;
        }
        shutdown.recv().await;
    }
}
