//! Counts reports and tells the API, so many Events a second at most.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    fmt::Display,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::events::v1::Event, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use proto::model::ServicePortFailure;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, error::Elapsed, interval, timeout},
};
use tracing::{debug, warn};

use super::{
    BackendStart, NodeReport,
    series::{Key, Series},
    start::NAMESPACE,
};

/// How often what is due is told. What comes within one such time is told together.
const TICK: Duration = Duration::from_secs(1);
/// How many requests there are in that time at most.
const PER_TICK: usize = 5;
/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// How many reasons are remembered. Those beyond are not told until others are forgotten.
const MAX_SERIES: usize = 1024;
/// A reason that nobody has reported for so long is forgotten: as long as Kubernetes keeps Events by default.
const FORGET: Duration = Duration::from_secs(3600);
/// How many agents that have started are remembered until that is told. Those beyond are not told of.
const MAX_STARTS: usize = 1024;
/// How long nothing is told after the API has refused.
const REFUSED: Duration = Duration::from_secs(300);

/// Whether the API takes Events at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// Others at least, whatever became of this one.
    Others,
    /// We may not.
    Nothing,
}

/// Knows what has been reported, and what of it is told.
pub(super) struct EventRecorder {
    client: Client,
    instance: String,
    series: HashMap<Key, Series>,
    /// Not told yet.
    starts: VecDeque<BackendStart>,
    silent_until: Option<Instant>,
}

impl EventRecorder {
    pub(super) fn new(client: Client, instance: String) -> Self {
        Self { client, instance, series: HashMap::new(), starts: VecDeque::new(), silent_until: None }
    }

    /// Until nobody reports any more.
    pub(super) async fn run(mut self, mut reports: mpsc::Receiver<NodeReport>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                report = reports.recv() => match report {
                    Some(NodeReport::Failed(node, failure)) => self.count(node, failure),
                    Some(NodeReport::Started(start)) => self.keep(start),
                    None => return,
                },
                _ = ticks.tick() => self.tell().await,
            }
        }
    }

    fn count(&mut self, node: Arc<str>, failure: ServicePortFailure) {
        let (now, full) = (Timestamp::now(), self.series.len() >= MAX_SERIES);
        match self.series.entry(Key::of(failure)) {
            Entry::Occupied(known) => known.into_mut().add(now),
            Entry::Vacant(new) if !full => new.insert(Series::new(node, now)).add(now),
            Entry::Vacant(_) => {}
        }
    }

    fn keep(&mut self, start: BackendStart) {
        if self.starts.len() < MAX_STARTS && !self.starts.contains(&start) {
            self.starts.push_back(start);
        }
    }

    /// Tells what is due, as much as may be told at once.
    async fn tell(&mut self) {
        if self.silent_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.series.retain(|_, series| series.heard.elapsed() < FORGET);
        let mut left = PER_TICK;
        let due = self.series.iter_mut().filter(|(_, series)| series.is_due()).take(PER_TICK);
        for (key, series) in due {
            left -= 1;
            let told = timeout(DEADLINE, tell(&self.client, &self.instance, key, series)).await;
            // Also when it has failed: it is told with the next report, a minute later at the earliest.
            series.told();
            if taken(&key.port, told) == Taken::Nothing {
                self.silent_until = Some(Instant::now() + REFUSED);
                return;
            }
        }
        // What is wrong comes first. Of a start that cannot be told nobody hears.
        for _ in 0..left {
            let Some(start) = self.starts.pop_front() else { return };
            let told = timeout(DEADLINE, tell_start(&self.client, &self.instance, &start)).await;
            if taken(&start.node, told) == Taken::Nothing {
                self.silent_until = Some(Instant::now() + REFUSED);
                self.starts.clear();
                return;
            }
        }
    }
}

/// What became of a request, for who has more.
fn taken(about: impl Display, told: Result<kube::Result<()>, Elapsed>) -> Taken {
    match told {
        Ok(Ok(())) => {}
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
            warn!(error = %status.message, again_in = ?REFUSED, "the API server takes no events");
            return Taken::Nothing;
        }
        Ok(Err(error)) => debug!(%error, %about, "an event is not told"),
        Err(_) => debug!(%about, "an event is not told in time"),
    }
    Taken::Others
}

/// Makes the Event. One that is there was made by another replica, or for another session of the run.
async fn tell_start(client: &Client, instance: &str, start: &BackendStart) -> kube::Result<()> {
    let api: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    match api.create(&PostParams::default(), &start.event(instance)).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => created.map(drop),
    }
}

/// Makes the Event, or counts one that is there.
async fn tell(client: &Client, instance: &str, key: &Key, series: &Series) -> kube::Result<()> {
    let api: Api<Event> = Api::namespaced(client.clone(), &key.port.namespace);
    match api.create(&PostParams::default(), &series.event(key, instance)).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let patch = Patch::Merge(series.patch());
            api.patch(&key.name(), &PatchParams::default(), &patch).await.map(drop)
        }
        created => created.map(drop),
    }
}
