//! Counts reports and tells the API, so many Events a second at most.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use k8s_openapi::{api::events::v1::Event, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tracing::{debug, warn};

use super::{
    Report,
    series::{Key, Series},
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
/// How long nothing is told after the API has refused.
const REFUSED: Duration = Duration::from_secs(300);

/// Knows what has been reported, and what of it is told.
pub(super) struct Recorder {
    client: Client,
    instance: String,
    series: HashMap<Key, Series>,
    silent_until: Option<Instant>,
}

impl Recorder {
    pub(super) fn new(client: Client, instance: String) -> Self {
        Self { client, instance, series: HashMap::new(), silent_until: None }
    }

    /// Until nobody reports any more.
    pub(super) async fn run(mut self, mut reports: mpsc::Receiver<Report>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                report = reports.recv() => match report {
                    Some(report) => self.count(report),
                    None => return,
                },
                _ = ticks.tick() => self.tell().await,
            }
        }
    }

    fn count(&mut self, Report { node, failure }: Report) {
        let (now, full) = (Timestamp::now(), self.series.len() >= MAX_SERIES);
        match self.series.entry(Key::of(failure)) {
            Entry::Occupied(known) => known.into_mut().add(now),
            Entry::Vacant(new) if !full => new.insert(Series::new(node, now)).add(now),
            Entry::Vacant(_) => {}
        }
    }

    /// Tells what is due, as much as may be told at once.
    async fn tell(&mut self) {
        if self.silent_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.series.retain(|_, series| series.heard.elapsed() < FORGET);
        let due = self.series.iter_mut().filter(|(_, series)| series.is_due()).take(PER_TICK);
        for (key, series) in due {
            let told = timeout(DEADLINE, tell(&self.client, &self.instance, key, series)).await;
            // Also when it has failed: it is told with the next report, a minute later at the earliest.
            series.told();
            match told {
                Ok(Ok(())) => {}
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                    warn!(error = %status.message, again_in = ?REFUSED, "the API server takes no events");
                    self.silent_until = Some(Instant::now() + REFUSED);
                    return;
                }
                Ok(Err(error)) => debug!(%error, service = %key.port, "an event is not told"),
                Err(_) => debug!(service = %key.port, "an event is not told in time"),
            }
        }
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
