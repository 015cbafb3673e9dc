//! Follows the frontend: applies what it sends to the replica, publishes what is to be programmed, and acks what is.

use std::{mem, sync::Arc, time::SystemTime};

use proto::model::{ClientMessage, IpFamily, NodeInfo, PerFamily, ServerMessage};
use runtime::Shutdown;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{error, info, warn};

use super::{
    MAX_IDLE, Position, Programmed, Target,
    acks::{Acks, Trigger},
};
use crate::{
    ChangeCounts, Changes, Connect, NodeState, Progress,
    dataplane::NodePortAddresses,
    flows::Flows,
    metrics::Metrics,
    progress::{ChangeProgress, NodeProgress},
    replica::{Committed, Reaction, Replica},
    stream::{StreamEvent, StreamFollower},
};

/// The half that follows the frontend.
pub(crate) struct Follower<C> {
    pub(crate) stream: StreamFollower<C>,
    pub(crate) replica: Replica,
    pub(crate) acks: Acks,
    pub(crate) target: watch::Sender<Target>,
    pub(crate) programmed: watch::Receiver<Programmed>,
    pub(crate) flows: Arc<Flows>,
    pub(crate) nodeport_addresses: NodePortAddresses,
    /// The families in which no address of the node serves node ports, as they were reported.
    pub(crate) without_node_ports: PerFamily<bool>,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) metrics: Arc<Metrics>,
}

impl<C: Connect> Follower<C> {
    /// Follows the frontend until `shutdown`.
    pub(crate) async fn run(mut self, mut shutdown: Shutdown) {
        self.report_node_ports();
        while !shutdown.is_triggered() {
            self.report();
            // The last ack is sent again when a large change is programmed, unless that fails.
            let is_unfinished = !self.programmed.borrow().backlog.is_empty();
            let is_programming = is_unfinished && self.progress.borrow().kernel.error.is_none();
            let may_be_idle = self.acks.is_waiting() || self.acks.may_be_repeated() && is_programming;
            let confirm_at = self.replica.confirm_at();
            let repeat_at = self.acks.repeat_at;
            let Self { stream, replica, programmed, .. } = &mut self;
            tokio::select! {
                () = shutdown.recv() => {}
                event = stream.next(may_be_idle, || replica.hello()) => self.handle(event),
                // Fails only at the end of the process.
                Ok(()) = programmed.changed() => self.send_acks(),
                () = runtime::sleep_until(repeat_at) => self.send_acks(),
                () = runtime::sleep_until(confirm_at) => {
                    info!("requesting a snapshot from another frontend to confirm the withheld loss");
                    replica.request_snapshot();
                    stream.change_frontend();
                    self.session_ended();
                }
                () = sleep(MAX_IDLE) => {}
            }
        }
        self.replica.finish().await;
    }

    fn handle(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Connected => self.session_begun(),
            StreamEvent::Lost => self.session_ended(),
            StreamEvent::Replaced => {
                self.session_ended();
                self.session_begun();
            }
            StreamEvent::Message(message) => self.handle_message(message),
        }
    }

    fn handle_message(&mut self, message: ServerMessage) {
        let reaction = self.replica.handle(message);
        self.progress.send_modify(|progress| {
            progress.stream.last_contact = Some(Instant::now());
            progress.committed = self.replica.committed();
            progress.protocol = self.replica.counters;
        });
        match reaction {
            Ok(Reaction::None) => {}
            Ok(Reaction::Reply(reply)) => self.stream.reply(reply),
            Ok(Reaction::Commit(committed)) => self.commit(committed),
            Err(violation) => {
                warn!(%violation, "the frontend violated the protocol");
                self.stream.end_session("protocol violation");
                self.session_ended();
            }
        }
    }

    /// Publishes what is to be programmed after a commit, or a bookmark.
    fn commit(&mut self, committed: Committed) {
        let Committed { epoch, revision, digest, trigger, counts, loss, departed } = committed;
        let at = Instant::now();
        let number = self.target.borrow().number + 1;
        self.acks.received(number, digest);

        let state = self.replica.state();
        let changes = Changes::between(&self.target.borrow().state, state);
        let is_changed = !changes.is_empty();
        self.flows.record(|pending| pending.committed(departed, &changes, state));

        let withheld = self.replica.losses.withheld_service_ports();
        if let Some(loss) = loss {
            error!(
                service_ports = withheld, %loss,
                "withholding a loss of endpoints that exceeds --max-loss or follows such a loss: the service ports \
                 keep their endpoints until a snapshot confirms the loss, all other changes are applied"
            );
        }
        self.progress.send_modify(|progress| {
            progress.service_ports = state.service_ports().len();
            progress.node.update(state);
            progress.changes.queued(counts, is_changed.then_some(at));
            progress.losses.rejected += u64::from(loss.is_some());
            progress.losses.withheld_service_ports = withheld;
            progress.losses.unconfirmed_service_ports = self.replica.losses.unconfirmed_service_ports();
        });

        if let Some(time) = trigger
            && is_changed
        {
            self.acks.triggered(Trigger { number, time, service_ports: changes.service_ports });
        }
        self.target.send_modify(|target| {
            target.state = state.clone();
            target.number = number;
            if withheld == 0 {
                target.complete = Position { number, epoch, revision };
            }
            target.committed = self.replica.committed();
            target.origin = self.replica.origin;
            target.received += counts;
            if is_changed {
                target.changed_at = at;
            }
        });
        self.report_node_ports();
    }

    /// Reports families of the node in which `--nodeport-addresses` has no CIDR.
    fn report_node_ports(&mut self) {
        let without = self.nodeport_addresses.families_without_range(self.replica.state().node());
        let reported = mem::replace(&mut self.without_node_ports, without);
        for family in IpFamily::ALL.into_iter().filter(|family| without[*family] && !reported[*family]) {
            warn!(%family, "node ports are not served: --nodeport-addresses has no CIDR of this IP family");
        }
    }

    fn session_begun(&self) {
        self.progress.send_modify(|progress| progress.stream.connected = true);
    }

    fn session_ended(&mut self) {
        self.replica.session_ended();
        self.acks.session_ended(self.target.borrow().number);
        self.progress.send_modify(|progress| progress.stream.connected = false);
    }

    /// Only what the backend has reached since the last time is acked: while it fails or hangs, nothing is.
    fn send_acks(&mut self) {
        let programmed = self.programmed.borrow_and_update();
        for trigger in self.acks.propagated(&programmed) {
            self.metrics.propagated(trigger, SystemTime::now());
        }
        if let Some(ack) = self.acks.due(&programmed) {
            self.stream.reply(ClientMessage::Ack(ack));
        }
    }

    /// Stores the committed state. Reports that this half runs, and why the file is out of date.
    fn report(&self) {
        let error = self.replica.flush();
        self.progress.send_if_modified(|progress| {
            progress.stream.last_iteration = Some(Instant::now());
            mem::replace(&mut progress.state_file_error, error.clone()) != error
        });
    }
}

impl NodeProgress {
    /// Takes over the Node object of a commit, and logs whether it has disappeared or returned.
    fn update(&mut self, state: &NodeState) {
        let before = mem::replace(self, Self::of(state));
        let NodeInfo { name: node, addresses, pod_cidrs, .. } = state.node();

        match (before.is_retained, self.is_retained) {
            (false, true) => {
                warn!(
                    %node, ?addresses, ?pod_cidrs,
                    "the Node object is gone, its last addresses and pod CIDRs are used"
                );
            }
            (true, false) => info!(%node, "the Node object exists again"),
            _ => {}
        }
        match (before.retains_addresses, self.retains_addresses) {
            (false, true) => warn!(%node, ?addresses, "the Node object has no addresses, its last ones are used"),
            (true, false) if !self.is_retained => info!(%node, ?addresses, "the Node object has addresses again"),
            _ => {}
        }
    }
}

impl ChangeProgress {
    /// Counts the operations of a commit, which changes the state at this time; `None`: it changes nothing.
    fn queued(&mut self, operations: ChangeCounts, changed_at: Option<Instant>) {
        self.received += operations;
        self.pending += operations;
        if let Some(changed_at) = changed_at {
            self.pending_since.get_or_insert(changed_at);
            self.last_queued = Some(SystemTime::now());
        }
    }
}
