//! A backend follows a frontend through random changes, while streams are cut and both are restarted. After each step
//! the node has the state that a new node would receive, and a step without a change writes nothing.

mod cluster;
mod fixture;

use cluster::TestCluster;
use fixture::{Fixture, StopMode, Transport};

const STEPS: usize = 60;

async fn follow(transport: Transport, seed: u64) {
    println!("seed {seed}");
    let mut cluster = TestCluster::new(seed);
    let mut fixture = Fixture::start(transport, &cluster).await;
    fixture.update(cluster.change()).await;
    fixture.assert_in_sync(&cluster).await;
    for step in 0..STEPS {
        let writes = fixture.writes();
        let (what, messages, history) = (cluster.rng().u8(..8), cluster.rng().usize(..6), cluster.rng().usize(..4));
        println!("step {step}: {what}");
        match what {
            0 => fixture.cut(),
            1 => fixture.restart_frontend(&cluster, history).await,
            2 => fixture.restart_backend(StopMode::Graceful).await,
            3 => fixture.restart_backend(StopMode::Killed).await,
            _ => {
                if what == 4 {
                    fixture.cut_after(messages);
                }
                let updates = cluster.change();
                fixture.update(updates).await;
                if what == 5 {
                    fixture.cut();
                }
                if what == 6 {
                    fixture.restart_frontend(&cluster, history).await;
                }
            }
        }
        fixture.assert_in_sync(&cluster).await;
        if what < 4 {
            assert_eq!(fixture.writes(), writes, "nothing has changed");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backend_follows_over_a_unix_socket() {
    for seed in 0..3 {
        follow(Transport::Unix, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backend_follows_in_one_process() {
    for seed in 100..103 {
        follow(Transport::InProcess, seed).await;
    }
}
