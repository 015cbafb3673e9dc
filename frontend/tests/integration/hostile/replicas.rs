//! Clients that reconnect to another frontend of the cluster, or have lost state.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use fairlead_frontend::{Config, object::SourceUpdate};
use proto::{
    digest::KeyHash,
    model::{IpFamily, Operation, SyncMode},
};

use super::{
    client::Client,
    cluster::service,
    fixture::{Server, slice},
    transport::ReadRate,
};

#[tokio::test]
async fn reconnecting_to_another_replica_exchanges_digests_only() {
    let (first, second) = (Server::start(Config::default(), 100).await, Server::start(Config::default(), 100).await);
    let good = Client::join(&first, "node").await;
    let (channel, bytes) = second.throttled_channel(ReadRate::Full).await;
    let mut good = good.reconnect_over(channel).await;
    assert_eq!(good.mode, SyncMode::Repair);
    assert_eq!(good.change().await, 0, "operations");
    let bytes = bytes.load(Ordering::Relaxed);
    assert!((1000..4096).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn only_differing_buckets_are_repaired() {
    let (first, second) = (Server::start(Config::default(), 100).await, Server::start(Config::default(), 100).await);
    // One Service is new, and another has other endpoints.
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
    let mut good = Client::join(&first, "node").await.reconnect_to(&second).await;
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
async fn wrong_digest_is_repaired_and_counted() {
    let server = Server::start(Config::default(), 20).await;
    let mut good = Client::join(&server, "node").await;
    server.updates.send(SourceUpdate::Apply(slice(3, 8))).await.unwrap();
    good.commit().await;
    good.ack(4711).await;
    // The digests sent in answer to the request are correct.
    assert_eq!(good.change().await, 0);
    let status = server.status().await;
    assert_eq!(status.nodes[0].repairs, 1);
    server.updates.send(SourceUpdate::Apply(slice(3, 9))).await.unwrap();
    assert_eq!(good.change().await, 1);
}
