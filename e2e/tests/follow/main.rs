//! An agent follows a frontend through random histories, while streams are cut anywhere and both are restarted. After each
//! step the node has the state that a new node would be sent, and a step without a change has written nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

mod rig;
mod world;

use rig::{Ending, Rig, Way};
use world::World;

const STEPS: usize = 60;

async fn follow(way: Way, seed: u64) {
    println!("seed {seed}");
    let mut world = World::new(seed);
    let mut rig = Rig::start(way, &world).await;
    rig.update(world.change()).await;
    rig.agrees(&world).await;
    for step in 0..STEPS {
        let writes = rig.writes();
        let (what, messages, history) = (world.rng().u8(..8), world.rng().usize(..6), world.rng().usize(..4));
        println!("step {step}: {what}");
        match what {
            0 => rig.cut(),
            1 => rig.restart_frontend(&world, history).await,
            2 => rig.restart_agent(Ending::Asked).await,
            3 => rig.restart_agent(Ending::Killed).await,
            _ => {
                if what == 4 {
                    rig.cut_after(messages);
                }
                let updates = world.change();
                rig.update(updates).await;
                if what == 5 {
                    rig.cut();
                }
                if what == 6 {
                    rig.restart_frontend(&world, history).await;
                }
            }
        }
        rig.agrees(&world).await;
        if what < 4 {
            assert_eq!(rig.writes(), writes, "nothing has changed");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_unix_socket() {
    for seed in 0..3 {
        follow(Way::Unix, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_one_process() {
    for seed in 100..103 {
        follow(Way::Attach, seed).await;
    }
}
