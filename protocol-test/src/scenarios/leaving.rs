//! When a client leaves, and how soon it comes back.

use std::time::Duration;

use proto::model::SyncMode;
use tokio::time::Instant;

use crate::script::{Played, Script, broken};

/// The delay that a Drain asks for.
const DRAIN: Duration = Duration::from_millis(1500);
/// The shortest time before a client connects again after an error.
const SHORTEST_BACKOFF: Duration = Duration::from_millis(200);
/// What clocks and a busy machine may make of a time, one way and the other.
const COARSE: Duration = Duration::from_millis(20);
const BUSY: Duration = Duration::from_secs(5);
/// How often the stream is ended in a row.
const ENDS: usize = 4;
/// After so long without a word the connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) async fn drain(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    script.drain(DRAIN).await;
    let begun = Instant::now();
    script.ended(DRAIN + BUSY, "after a Drain").await?;
    let (hello, since) = script.connect_at().await?;
    let first = since - begun;
    in_time(first)?;
    follow(script, &hello).await?;
    // The frontend does not wait for the client this time.
    script.drain(DRAIN).await;
    script.end().await;
    let begun = Instant::now();
    let (hello, since) = script.connect_at().await?;
    let second = since - begun;
    in_time(second)?;
    follow(script, &hello).await?;
    Ok(format!("came again after {first:.1?} and, with the stream ended, {second:.1?}, of {DRAIN:?}"))
}

fn in_time(took: Duration) -> Played<()> {
    if took > DRAIN + BUSY {
        return broken(format!("came again {took:?} after a Drain that asked for {DRAIN:?} at the most"));
    }
    Ok(())
}

pub(super) async fn reconnect(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    let mut waited = Vec::new();
    for _ in 0..ENDS {
        let ended = script.end().await;
        let (_, since) = script.connect_at().await?;
        let gap = since.saturating_duration_since(ended);
        if gap + COARSE < SHORTEST_BACKOFF {
            return broken(format!("connected again {gap:?} after an error: {SHORTEST_BACKOFF:?} is the least"));
        }
        waited.push(format!("{gap:.1?}"));
    }
    script.end().await;
    let hello = script.connect().await?;
    follow(script, &hello).await?;
    Ok(format!("waited {}", waited.join(", ")))
}

pub(super) async fn silence(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    let begun = Instant::now();
    script.quiet(SILENCE - Duration::from_secs(3), "though it heard nothing").await?;
    script.ended(Duration::from_secs(3) + script.patience, "in which it heard nothing").await?;
    let took = begun.elapsed();
    let hello = script.connect().await?;
    follow(script, &hello).await?;
    Ok(format!("ended the stream after {took:.1?}, and connected again"))
}

/// Goes on with a client that has come back.
async fn follow(script: &mut Script<'_>, hello: &proto::model::Hello) -> Played<()> {
    if script.resumes(hello) {
        script.welcome(SyncMode::Resume).await;
        script.bookmark().await?;
    } else {
        let same = script.state.clone();
        script.rebuild(hello, same).await?;
    }
    Ok(())
}
