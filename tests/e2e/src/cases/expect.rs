//! Expectations about a VIP, checked with requests: all expected pods answer, and no others.

mod traced;

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use crate::{
    client::Client,
    uml,
    wire::{Failure, Protocol},
};

pub(super) use traced::check_with_trace;

/// The most requests. One of eight endpoints, chosen at random, gets none of them once in 10^8 runs.
const REQUESTS: usize = 160;
/// The fewest requests to endpoints that are chosen at random, so that one that should not answer is found.
const FEW: usize = 10;
/// Timeout of a request that should be dropped.
const SILENCE: Duration = Duration::from_millis(250);
/// Timeout of a request that should be dropped or rejected.
const SHORT_SILENCE: Duration = Duration::from_millis(80);

/// The expected result of a client's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// These pods answer, each at least once, and each sees this source.
    Answers(BTreeSet<(String, IpAddr)>),
    /// The connection is rejected.
    Refused,
    /// No answer within the timeout.
    Dropped,
}

/// A client, the destination of its requests, and the expected result.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) what: String,
    pub(super) client: Client,
    pub(super) protocol: Protocol,
    pub(super) to: SocketAddr,
    pub(super) expected: Expected,
}

// === impl Expected ===

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::Dropped => f.write_str("dropped"),
            Self::Answers(answers) => {
                let answers = answers.iter().map(|(pod, seen)| format!("{pod} sees {seen}"));
                f.write_str(&answers.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

// === impl Check ===

impl Check {
    /// Sends the requests and returns the difference from the expectation, if any.
    fn run(&self) -> Option<String> {
        let seen = match &self.expected {
            Expected::Answers(expected) => self.answers(expected),
            Expected::Refused => seen_once(self.client.ask(self.protocol, self.to)),
            Expected::Dropped => seen_once(self.client.clone().with_deadline(SILENCE).ask(self.protocol, self.to)),
        };
        let is_expected = seen.as_ref().is_ok_and(|seen| *seen == self.expected);
        let seen = seen.map_or_else(|failure| failure.to_string(), |seen| seen.to_string());
        let Self { what, protocol, to, expected, .. } = self;
        (!is_expected).then(|| format!("{what}, {protocol} {to}:\n    expected {expected}\n    seen     {seen}"))
    }

    /// Sends requests until all expected pods have answered, or another one does.
    fn answers(&self, expected: &BTreeSet<(String, IpAddr)>) -> Result<Expected, Failure> {
        let few = fewest_requests(expected.len());
        let (mut seen, mut asked) = (BTreeSet::new(), 0);
        self.client.ask_until(self.protocol, self.to, |reply| {
            seen.insert((reply.pod, reply.seen_source.ip()));
            asked += 1;
            asked >= REQUESTS || seen.len() > expected.len() || (seen.len() == expected.len() && asked >= few)
        })?;
        Ok(Expected::Answers(seen))
    }
}

/// The fewest requests after which all pods that answer are known. The guests run the cases with IPVS, which takes the
/// endpoints in turn: one request more than there are expected pods reaches another one.
fn fewest_requests(expected: usize) -> usize {
    if uml::is_guest() { expected + 1 } else { FEW }
}

fn seen_once(answer: Result<crate::wire::Reply, Failure>) -> Result<Expected, Failure> {
    match answer {
        Ok(reply) => Ok(Expected::Answers([(reply.pod, reply.seen_source.ip())].into())),
        Err(Failure::Refused) => Ok(Expected::Refused),
        Err(Failure::TimedOut) => Ok(Expected::Dropped),
        Err(failure) => Err(failure),
    }
}

/// Runs all checks, those that wait for a timeout in parallel. Panics with all differences.
#[track_caller]
pub(super) fn check_all(checks: &[Check]) {
    let (drops, others) = checks.iter().partition::<Vec<_>, _>(|check| check.expected == Expected::Dropped);
    let mut wrong = others.iter().filter_map(|check| check.run()).collect::<Vec<_>>();
    thread::scope(|scope| {
        let drops = drops.iter().map(|check| scope.spawn(|| check.run())).collect::<Vec<_>>();
        wrong.extend(drops.into_iter().filter_map(|check| check.join().expect("a check does not panic")));
    });
    assert!(wrong.is_empty(), "{} of {} checks:\n{}", wrong.len(), checks.len(), wrong.join("\n"));
}

/// Sends requests to `to` and checks that all of `pods` answer, and no others.
#[track_caller]
pub(super) fn assert_pods(client: &Client, protocol: Protocol, to: SocketAddr, pods: &[&str]) {
    let expected = pods.iter().map(|&pod| pod.to_owned()).collect::<BTreeSet<_>>();
    let few = fewest_requests(expected.len());
    let (mut seen, mut asked) = (BTreeSet::new(), 0);
    let asking = client.ask_until(protocol, to, |reply| {
        seen.insert(reply.pod);
        asked += 1;
        // Some more requests, to find pods that should not answer.
        asked >= REQUESTS || !seen.is_subset(&expected) || (seen.len() == expected.len() && asked >= few)
    });
    asking.unwrap_or_else(|error| panic!("{protocol} {to}: {error}"));
    assert_eq!(seen, expected, "{protocol} {to}");
}

/// Checks that all of `pods` answer at each of these addresses over each protocol, and no others.
#[track_caller]
pub(super) fn assert_answers(client: &Client, to: impl IntoIterator<Item = SocketAddr>, pods: &[&str]) {
    for to in to {
        Protocol::ALL.into_iter().for_each(|protocol| assert_pods(client, protocol, to, pods));
    }
}

/// Checks that requests to these addresses are rejected or dropped, over each protocol.
#[track_caller]
pub(super) fn assert_closed(client: &Client, to: impl IntoIterator<Item = SocketAddr>) {
    let client = &client.clone().with_deadline(SHORT_SILENCE);
    let asked = thread::scope(|scope| {
        let ask = |to| Protocol::ALL.map(|protocol| scope.spawn(move || (protocol, to, client.ask(protocol, to))));
        let asking = to.into_iter().flat_map(ask).collect::<Vec<_>>();
        asking.into_iter().map(|asking| asking.join().expect("a client does not panic")).collect::<Vec<_>>()
    });
    for (protocol, to, answer) in asked {
        let is_closed = matches!(answer, Err(Failure::Refused | Failure::TimedOut | Failure::Unreachable));
        assert!(is_closed, "{protocol} {to}: {answer:?}");
    }
}
