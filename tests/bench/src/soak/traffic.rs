//! Connections of all ages through the VIPs: some last for the whole run, some for a few samples, and new ones all the
//! time. None may break.

use std::{collections::VecDeque, fmt, time::Duration};

use anyhow::{Result, anyhow};
use e2e::{Churn, Protocol, Stream};

use super::stage::{self, Stage};

/// The time between two messages of a connection.
const MESSAGE_EVERY: Duration = Duration::from_millis(500);
/// New connections of each node in a second.
const NEW_PER_SECOND: u32 = 5;
/// How many samples a connection of middle age lasts.
const MIDDLE_AGE: usize = 8;
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(100 * 3600);

/// The connections.
#[derive(Debug)]
pub(super) struct Connections {
    old: Vec<Stream>,
    middle: VecDeque<Vec<Stream>>,
    new: Vec<Churn>,
    result: TrafficResult,
}

/// What has become of all connections.
#[derive(Clone, Debug, Default)]
pub(super) struct TrafficResult {
    long: usize,
    middle: usize,
    requests: u64,
    messages: u64,
    slowest: Duration,
    pub(super) broken: Vec<String>,
}

impl Connections {
    pub(super) fn open(stage: &Stage) -> Result<Self> {
        let clients = || stage.cluster().nodes().iter().map(|node| node.pod(2).client());
        let mut old = Vec::new();
        for client in clients() {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let opened = client.stream(protocol, stage::vip(1), MESSAGE_EVERY);
                old.push(opened.map_err(|failure| anyhow!("a connection of {protocol:?}: {failure:?}"))?);
            }
        }
        let churn = |(number, client): (usize, e2e::Client)| {
            let service = 2 + number as u8 % stage::CHANGING;
            client.churn(Protocol::Tcp, stage::vip(service), NEW_PER_SECOND, FOREVER)
        };
        let new = clients().enumerate().map(churn).collect();
        let result = TrafficResult { long: old.len(), ..TrafficResult::default() };
        Ok(Self { old, middle: VecDeque::new(), new, result })
    }

    /// Opens connections to Services whose endpoints change, and ends the oldest of these.
    pub(super) fn renew(&mut self, stage: &Stage) -> Result<()> {
        let mut opened = Vec::new();
        for (number, node) in stage.cluster().nodes().iter().enumerate() {
            let vip = stage::vip(2 + (number + self.result.middle) as u8 % stage::CHANGING);
            let stream = node.pod(2).client().stream(Protocol::Tcp, vip, MESSAGE_EVERY);
            opened.push(stream.map_err(|failure| anyhow!("a connection of {}: {failure:?}", node.name))?);
        }
        self.result.middle += opened.len();
        self.middle.push_back(opened);
        if self.middle.len() > MIDDLE_AGE {
            self.middle.pop_front().into_iter().flatten().for_each(|stream| self.result.add(stream));
        }
        Ok(())
    }

    /// Ends all connections.
    pub(super) fn finish(self) -> TrafficResult {
        let Self { old, middle, new, mut result } = self;
        old.into_iter().chain(middle.into_iter().flatten()).for_each(|stream| result.add(stream));
        for churn in new {
            let report = churn.finish();
            result.requests += report.attempts;
            result.slowest = result.slowest.max(report.slowest);
            let failures = report.failures.iter();
            result.broken.extend(failures.map(|(at, failure)| format!("a new connection after {at:?}: {failure:?}")));
        }
        result
    }
}

impl TrafficResult {
    fn add(&mut self, stream: Stream) {
        let report = stream.finish();
        self.messages += report.echoed;
        self.slowest = self.slowest.max(report.slowest);
        if !report.is_clean() || report.pods.len() > 1 {
            self.broken.push(format!("{report:?}"));
        }
    }
}

impl fmt::Display for TrafficResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { long, middle, requests, messages, slowest, broken } = self;
        write!(f, "{long} for the whole time, {middle} for a while, {requests} new; {messages} messages; ")?;
        write!(f, "slowest answer {} ms; {} broken", slowest.as_millis(), broken.len())
    }
}
