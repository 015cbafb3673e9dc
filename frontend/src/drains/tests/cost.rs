//! What pods that end cost a frontend while one node hangs, so that none of them is drained.
//!
//! `cargo test --release -p fairlead-frontend --lib -- --ignored --nocapture ending_pods_cost_little`

use std::{fs, time::Duration};

use futures::StreamExt as _;
use proto::model::SyncMode;
use runtime::Shutdown;
use tokio::time::{interval, sleep};

use super::*;
use crate::{
    server::drains::drains,
    streams::StreamGuard,
    testing::{hello, node},
};

const NODES: usize = 5_000;
const SERVICES: usize = 100;
const PODS_OF_SERVICE: usize = 100;
/// How often another Service changes, and for how long.
const CHANGE_INTERVAL: Duration = Duration::from_millis(50);
const CHANGES: u32 = 200;

fn name_of(node: usize) -> String {
    format!("node-{node}")
}

/// The pods of a Service, of which each is on another node.
fn pods_of(service: usize, terminating: bool) -> SourceUpdate {
    let endpoints = (0..PODS_OF_SERVICE).map(|pod| {
        let number = service * PODS_OF_SERVICE + pod;
        let address = format!("10.{}.{}.{}", 1 + number / 62_500, number / 250 % 250, 1 + number % 250);
        let of_pod = endpoint(&address, &name_of(number % NODES));
        SliceEndpoint { ready: !terminating, terminating, ..of_pod }
    });
    put(slice(&format!("slice-{service}"), &format!("service-{service}"), endpoints.collect()))
}

/// All nodes but the first one acknowledge a revision.
fn acknowledge(streams: &[StreamGuard], revision: Revision) {
    for stream in &streams[1..] {
        stream.update(|status| status.programmed = revision);
    }
}

/// The CPU time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}

/// Changes another Service again and again, and returns the share of a CPU.
async fn change(context: &FrontendContext, streams: &[StreamGuard]) -> f64 {
    let begun = Instant::now();
    let cpu = cpu_seconds();
    let mut ticks = interval(CHANGE_INTERVAL);
    for number in 0..CHANGES {
        ticks.tick().await;
        let address = format!("10.200.0.{}", 1 + number % 200);
        apply(context, put(slice("slice-other", "other", vec![endpoint(&address, &name_of(1))])));
        acknowledge(streams, commit(context));
    }
    (cpu_seconds() - cpu) / begun.elapsed().as_secs_f64()
}

#[ignore = "measures CPU time: see above"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_pods_cost_little() {
    let context = Arc::new(FrontendContext::new(Config::default()));
    let services = (0..SERVICES).map(|number| (format!("service-{number}"), format!("10.96.1.{}", number + 1)));
    let services = services.chain([("other".to_owned(), "10.96.0.1".to_owned())]);
    let nodes = (0..NODES).map(|number| ClusterObject::from(node(&name_of(number), "zone")));
    let services = services.map(|(name, ip)| ClusterObject::from(service(&name, &ip)));
    initial(services.chain(nodes)).into_iter().for_each(|update| apply(&context, update));
    (0..SERVICES).for_each(|number| apply(&context, pods_of(number, false)));
    let first = commit(&context);
    let streams: Vec<_> =
        (0..NODES).map(|number| context.streams.register(&hello(&name_of(number)), SyncMode::Snapshot)).collect();
    streams[0].update(|status| status.programmed = first);
    acknowledge(&streams, first);

    let without = change(&context, &streams).await;
    (0..SERVICES).for_each(|number| apply(&context, pods_of(number, true)));
    acknowledge(&streams, commit(&context));
    let ending = change(&context, &streams).await;
    let (_trigger, shutdown) = Shutdown::channel();
    for number in 0..NODES {
        let levels = drains(context.clone(), name_of(number).into(), (), shutdown.clone()).unwrap();
        tokio::spawn(levels.for_each(|_| std::future::ready(())));
    }
    sleep(Duration::from_secs(2)).await;
    let followed = change(&context, &streams).await;

    let fleet = context.streams.fleet();
    let undrained = context.cluster.ending_pods().undrained_count(&fleet);
    println!(
        "{undrained} pods; changes alone {without:.3} CPUs, with pods that end {ending:.3}, followed {followed:.3}"
    );
    assert!(followed - without < 0.1, "more than a tenth of a CPU");
}
