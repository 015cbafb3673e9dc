//! Two frontends of one cluster, and a client that goes from one to the other or has lost something.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use fairlead_frontend::{Config, object::SourceUpdate};
use proto::{
    digest::KeyHash,
    model::{IpFamily, Operation, SyncMode},
};

use crate::{
    client::Client,
    cluster::{service, slice},
    fixture::Server,
    transport::{self, Pace},
};

#[tokio::test]
async fn moving_to_another_replica_costs_the_digests() {
    let (first, second) = (Server::start(Config::default(), 100).await, Server::start(Config::default(), 100).await);
    let good = Client::join(&first, "node").await;
    let (channel, carried) = transport::channel(second.endpoint(), second.address, Pace::Full).await;
    let mut good = good.moves_over(channel).await;
    assert_eq!(good.mode, SyncMode::Repair);
    assert_eq!(good.change().await, 0, "operations");
    let carried = carried.load(Ordering::Relaxed);
    assert!((1000..4096).contains(&carried), "{carried} bytes");
}

#[tokio::test]
async fn another_state_is_repaired_where_it_differs() {
    let (first, second) = (Server::start(Config::default(), 100).await, Server::start(Config::default(), 100).await);
    // One Service is new, and one has other endpoints.
    second.updates.send(SourceUpdate::Apply(service(200))).await.unwrap();
    second.updates.send(SourceUpdate::Apply(slice(7, 10))).await.unwrap();
    let wanted = loop {
        let wanted = Client::join(&second, "other").await.state;
        let endpoints = |name: &str| {
            let service = wanted.services.iter().find(|(key, _)| &*key.name == name)?;
            Some(service.1.cluster[IpFamily::V4].len())
        };
        if endpoints("s200").is_some() && endpoints("s7") == Some(10) {
            break wanted;
        }
    };
    let mut good = Client::join(&first, "node").await.moves_to(&second).await;
    assert_eq!(good.mode, SyncMode::Repair);
    let operations = good.commit().await;
    assert_eq!(good.state.services, wanted.services);
    let buckets = ["s7", "s200"].map(|name| {
        let key = wanted.services.keys().find(|key| &*key.name == name).unwrap();
        KeyHash::of(key).bucket()
    });
    let reset = operations.iter().filter_map(|operation| match operation {
        Operation::ResetBucket(bucket) => Some(*bucket),
        _ => None,
    });
    assert_eq!(reset.collect::<BTreeSet<_>>(), buckets.into());
    let put = operations.iter().filter_map(|operation| match operation {
        Operation::PutServicePort(port) => Some(KeyHash::of(&port.key).bucket()),
        _ => None,
    });
    assert!(put.collect::<Vec<_>>().iter().all(|bucket| buckets.contains(bucket)));
}

#[tokio::test]
async fn a_wrong_digest_is_noticed_repaired_and_counted() {
    let server = Server::start(Config::default(), 20).await;
    let mut good = Client::join(&server, "node").await;
    server.updates.send(SourceUpdate::Apply(slice(3, 8))).await.unwrap();
    good.commit().await;
    good.ack(4711).await;
    // The request for the digests is answered on the way; they are right.
    assert_eq!(good.change().await, 0);
    let status = server.status().await;
    assert_eq!(status.nodes[0].repairs, 1);
    server.updates.send(SourceUpdate::Apply(slice(3, 9))).await.unwrap();
    assert_eq!(good.change().await, 1);
}
