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
            let is_programming = !self.programmed.borrow().backlog.is_empty() && self.progress.borrow().error.is_none();
            let may_be_idle = self.acks.is_waiting() || self.acks.may_be_repeated() && is_programming;
            let (confirm_at, repeat_at) = (self.replica.confirm_at(), self.acks.repeat_at);
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
            progress.last_contact = Some(Instant::now());
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
        self.flows.record(|pending| pending.committed(departed, &changes, state));
        let withheld = self.replica.losses.withheld_service_ports();
        if let Some(loss) = loss {
            error!(
                service_ports = withheld,
                "withholding a loss that exceeds --max-loss, or follows one that did: {loss}; these service ports keep \
                 their endpoints until a snapshot confirms the loss, everything else is applied"
            );
        }
        self.progress.send_modify(|progress| {
            progress.committed(state, &changes, counts, at);
            progress.rejected_losses += u64::from(loss.is_some());
            progress.withheld_service_ports = withheld;
            progress.unconfirmed_service_ports = self.replica.losses.unconfirmed_service_ports();
        });
        let is_changed = !changes.is_empty();
        if let Some(time) = trigger.filter(|_| is_changed) {
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
        self.progress.send_modify(|progress| progress.connected = true);
    }

    fn session_ended(&mut self) {
        self.replica.session_ended();
        self.acks.session_ended(self.target.borrow().number);
        self.progress.send_modify(|progress| progress.connected = false);
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
            progress.last_iteration = Some(Instant::now());
            mem::replace(&mut progress.state_file_error, error.clone()) != error
        });
    }
}

impl Progress {
    /// Records a commit, with its operations.
    fn committed(&mut self, state: &NodeState, changes: &Changes, counts: ChangeCounts, at: Instant) {
        let retained = mem::replace(&mut self.retains_node, state.retains_node());
        let NodeInfo { name: node, addresses, pod_cidrs, eligible, .. } = state.node();
        match (retained, self.retains_node) {
            (false, true) => {
                warn!(
                    %node, ?addresses, ?pod_cidrs,
                    "the Node object is gone, its last addresses and pod CIDRs are used"
                );
            }
            (true, false) => info!(%node, "the Node object exists again"),
            _ => {}
        }
        match (mem::replace(&mut self.retains_addresses, state.retains_addresses()), self.retains_addresses) {
            (false, true) => warn!(%node, ?addresses, "the Node object has no addresses, its last ones are used"),
            (true, false) if !self.retains_node => info!(%node, ?addresses, "the Node object has addresses again"),
            _ => {}
        }
        self.eligible = *eligible;
        self.service_ports = state.service_ports().len();
        self.received += counts;
        self.pending += counts;
        if !changes.is_empty() {
            self.pending_since.get_or_insert(at);
            self.last_queued = Some(SystemTime::now());
        }
    }
}
