//! What the levels of several frontends mean together, for how long they are waited for, and answers over HTTP.

mod conditions;
mod http;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use anyhow::{Result, anyhow};
use futures::{FutureExt as _, StreamExt as _, future, future::BoxFuture};
use proto::{
    convert::pack_address,
    node_set::NodeSet,
    v1::{DrainLevel, DrainLevels, DrainState},
};
use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep},
};
use tokio_stream::wrappers::WatchStream;

use super::*;

const POD: &str = "10.0.0.1";
/// The nodes of the cluster.
const NODES: [&str; 3] = ["a", "b", "c"];

fn pod() -> IpAddr {
    POD.parse().unwrap()
}

fn frontend(name: &str) -> FrontendAddress {
    FrontendAddress { uri: name.to_owned(), server_name: None }
}

fn set(nodes: &[&str]) -> Option<NodeSet> {
    let mut set = NodeSet::default();
    nodes.iter().for_each(|node| set.insert(node));
    Some(set)
}

/// The level of the pod "uid" at version 7.
fn level(state: DrainState) -> DrainLevel {
    DrainLevel {
        address: pack_address(&pod()),
        pod_uid: "uid".to_owned(),
        state: state.into(),
        slices_version: 7,
        services: vec!["shop/web".to_owned()],
        behind: if state == DrainState::Behind { vec!["node-7".to_owned()] } else { Vec::new() },
        ..DrainLevel::default()
    }
}

/// A frontend at version 7 that speaks for these nodes.
fn message(nodes: &[&str], levels: Vec<DrainLevel>) -> DrainLevels {
    DrainLevels { levels, slices_version: 7, programmed: set(nodes), cluster: set(&NODES), ..DrainLevels::default() }
}

fn drained(nodes: &[&str]) -> DrainLevels {
    message(nodes, vec![level(DrainState::Drained)])
}

/// Frontends whose messages a test sets.
#[derive(Debug, Default)]
struct Frontends {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    own: Option<FrontendAddress>,
    messages: BTreeMap<FrontendAddress, watch::Sender<Option<DrainLevels>>>,
    /// Those that were opened, in order.
    opened: Vec<String>,
    resolved: usize,
    last_removed: Option<Instant>,
    /// Added when the addresses are resolved.
    unknown: Vec<(FrontendAddress, DrainLevels)>,
}

impl Frontends {
    /// The first one is the own one.
    fn new(frontends: impl IntoIterator<Item = (&'static str, DrainLevels)>) -> Arc<Self> {
        let frontends: Vec<_> = frontends.into_iter().collect();
        let own = frontends.first().map(|(name, _)| frontend(name));
        let messages =
            frontends.into_iter().map(|(name, message)| (frontend(name), watch::Sender::new(Some(message)))).collect();
        Arc::new(Self { state: Mutex::new(State { own, messages, ..State::default() }) })
    }

    fn set(&self, name: &str, message: Option<DrainLevels>) {
        self.state.lock().unwrap().messages[&frontend(name)].send_replace(message);
    }

    /// A frontend ends, and the addresses are resolved again.
    fn remove(&self, name: &str) {
        let mut state = self.state.lock().unwrap();
        state.messages.remove(&frontend(name));
        state.last_removed = Some(Instant::now());
    }

    fn opened(&self) -> Vec<String> {
        self.state.lock().unwrap().opened.clone()
    }
}

impl DrainStreams for Frontends {
    fn own(&self) -> Option<FrontendAddress> {
        self.state.lock().unwrap().own.clone()
    }

    fn addresses(&self) -> Vec<FrontendAddress> {
        self.state.lock().unwrap().messages.keys().cloned().collect()
    }

    fn last_removed(&self) -> Option<Instant> {
        self.state.lock().unwrap().last_removed
    }

    fn resolve(&self) -> BoxFuture<'static, Result<()>> {
        let mut state = self.state.lock().unwrap();
        state.resolved += 1;
        for (address, message) in std::mem::take(&mut state.unknown) {
            state.messages.insert(address, watch::Sender::new(Some(message)));
        }
        future::ready(Ok(())).boxed()
    }

    fn open(&self, address: &FrontendAddress) -> BoxFuture<'static, Result<LevelsStream>> {
        let mut state = self.state.lock().unwrap();
        state.opened.push(address.uri.clone());
        let Some(sender) = state.messages.get(address) else {
            return future::ready(Err(anyhow!("connection refused"))).boxed();
        };
        let messages = WatchStream::new(sender.subscribe());
        let levels = messages.take_while(|message| future::ready(message.is_some())).filter_map(future::ready).map(Ok);
        future::ready(Ok(levels.boxed())).boxed()
    }
}

/// What a waiter learns, and after how many tenths of a second.
async fn waited(frontends: &Arc<Frontends>, seconds: u64) -> (Drained, u128) {
    let begun = Instant::now();
    let drained = Follower::new(frontends.clone()).wait(pod(), Duration::from_secs(seconds)).await;
    (drained, begun.elapsed().as_millis() / 100)
}

#[tokio::test(start_paused = true)]
async fn others_are_asked_only_when_the_own_frontend_says_drained() {
    let frontends =
        Frontends::new([("one", message(&["a"], vec![level(DrainState::InUse)])), ("two", drained(&["b", "c"]))]);
    let follower = Follower::new(frontends.clone());
    let waiting = tokio::spawn(async move { follower.wait(pod(), Duration::from_secs(20)).await });
    sleep(Duration::from_secs(3)).await;
    assert_eq!(frontends.opened(), ["one"]);
    assert_eq!(frontends.state.lock().unwrap().resolved, 0);

    frontends.set("one", Some(drained(&["a"])));
    assert_eq!(waiting.await.unwrap(), Drained::Yes { absent: 0, silent: Vec::new() });
    assert_eq!(frontends.opened(), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn frontend_that_was_added_is_found_before_the_answer() {
    let frontends = Frontends::new([("one", drained(&["a", "b", "c"]))]);
    let added = message(&[], vec![level(DrainState::Behind)]);
    frontends.state.lock().unwrap().unknown.push((frontend("new"), added));
    let follower = Follower::new(frontends.clone());
    let waiting = tokio::spawn(async move { follower.wait(pod(), Duration::from_secs(20)).await });
    sleep(Duration::from_secs(8)).await;
    assert!(!waiting.is_finished());

    frontends.set("one", Some(drained(&["a", "b"])));
    frontends.set("new", Some(drained(&["c"])));
    assert_eq!(waiting.await.unwrap(), Drained::Yes { absent: 0, silent: Vec::new() });
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_frontend_that_ends_are_waited_for_until_they_follow_another_one() {
    let frontends = Frontends::new([("one", drained(&["a"])), ("two", message(&[], vec![level(DrainState::Behind)]))]);
    let follower = Follower::new(frontends.clone());
    let waiting = tokio::spawn(async move { follower.wait(pod(), Duration::from_secs(60)).await });
    sleep(Duration::from_secs(20)).await;
    frontends.remove("two");
    sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());

    frontends.set("one", Some(drained(&NODES)));
    assert_eq!(waiting.await.unwrap(), Drained::Yes { absent: 0, silent: Vec::new() });
}

/// Any number of waiters of one address, and of others.
#[tokio::test(start_paused = true)]
async fn waiters_share_streams_that_close_after_the_last() {
    let frontends = Frontends::new([("one", drained(&["a"])), ("two", drained(&["b", "c"]))]);
    let follower = Follower::new(frontends.clone());
    for _ in 0..3 {
        let waiting = (0..1_000).map(|_| follower.wait(pod(), Duration::from_secs(20)));
        for drained in future::join_all(waiting).await {
            assert_eq!(drained, Drained::Yes { absent: 0, silent: Vec::new() });
        }
        sleep(Duration::from_secs(4)).await;
    }
    assert_eq!(frontends.opened().len(), 2);

    let receivers =
        || frontends.state.lock().unwrap().messages.values().map(watch::Sender::receiver_count).sum::<usize>();
    assert_eq!(receivers(), 2);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(receivers(), 0);
    follower.wait(pod(), Duration::from_secs(20)).await;
    assert_eq!(frontends.opened().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn streams_to_others_close_while_a_pod_in_use_waits() {
    let mut in_use = level(DrainState::InUse);
    in_use.address = pack_address(&"10.0.0.2".parse().unwrap());
    let own = message(&["a"], vec![level(DrainState::Drained), in_use]);
    let frontends = Frontends::new([("one", own), ("two", drained(&["b", "c"]))]);
    let follower = Follower::new(frontends.clone());
    let other = follower.clone();
    tokio::spawn(async move { other.wait("10.0.0.2".parse().unwrap(), Duration::from_secs(300)).await });
    follower.wait(pod(), Duration::from_secs(20)).await;
    sleep(Duration::from_secs(7)).await;
    let open = frontends.state.lock().unwrap().messages.values().map(watch::Sender::receiver_count).sum::<usize>();
    assert_eq!(open, 1);
}

#[tokio::test(start_paused = true)]
async fn frontend_that_restarts_is_followed_again() {
    let frontends = Frontends::new([("one", message(&[], vec![level(DrainState::Behind)]))]);
    let follower = Follower::new(frontends.clone());
    let waiting = tokio::spawn(async move { follower.wait(pod(), Duration::from_secs(60)).await });
    sleep(Duration::from_secs(1)).await;
    frontends.set("one", None);
    sleep(Duration::from_secs(5)).await;
    assert!(frontends.opened().len() < 20, "{:?}", frontends.opened());
    frontends.set("one", Some(drained(&NODES)));
    assert_eq!(waiting.await.unwrap(), Drained::Yes { absent: 0, silent: Vec::new() });
}

#[tokio::test(start_paused = true)]
async fn no_frontend_then_one() {
    let frontends = Arc::new(Frontends::default());
    let (drained_by_none, tenths) = waited(&frontends, 3).await;
    assert!(matches!(drained_by_none, Drained::NoAnswer(_)), "{drained_by_none:?}");
    assert_eq!(tenths, 30);

    let follower = Follower::new(frontends.clone());
    let waiting = tokio::spawn(async move { follower.wait(pod(), Duration::from_secs(20)).await });
    sleep(Duration::from_secs(3)).await;
    let message = watch::Sender::new(Some(drained(&NODES)));
    frontends.state.lock().unwrap().messages.insert(frontend("one"), message);
    assert_eq!(waiting.await.unwrap(), Drained::Yes { absent: 0, silent: Vec::new() });
}

/// As with a name that has an address of each IP family. The frontend ends the older of two streams of a node.
#[tokio::test(start_paused = true)]
async fn frontend_with_two_addresses_counts_once() {
    let of_epoch = || DrainLevels { epoch: 5, ..drained(&NODES) };
    let frontends = Frontends::new([("one", of_epoch()), ("same", of_epoch())]);
    let (drained, tenths) = waited(&frontends, 20).await;
    assert_eq!((drained, tenths), (Drained::Yes { absent: 0, silent: Vec::new() }, 0));
    assert_eq!(frontends.opened().len(), 2);
}
