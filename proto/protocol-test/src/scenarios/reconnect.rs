//! Scenarios about when a client ends a stream, and when it reconnects.

use std::time::Duration;

use tokio::time::Instant;

use crate::frontend::{Outcome, ScriptedFrontend, violation};

/// The delay in a Drain.
const DRAIN_DELAY: Duration = Duration::from_millis(1500);
/// The shortest delay before a client reconnects after an error.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
/// Tolerance for delays that are too short, because of coarse clocks.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(20);
/// Tolerance for delays that are too long, on a busy machine.
const LOAD_TOLERANCE: Duration = Duration::from_secs(5);
/// The number of streams that end with an error in a row.
const ERRORS: usize = 6;
/// Delays that differ by no more than this are the same: random ones practically never do.
const SAME_DELAY: Duration = Duration::from_millis(10);
/// A client must end a stream on which it has received nothing for this long.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn drain(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.send_drain(DRAIN_DELAY).await;
    let sent = Instant::now();
    frontend.expect_end(DRAIN_DELAY + LOAD_TOLERANCE, "after a Drain").await?;
    let first = reconnect_after_drain(frontend, sent).await?;

    // This time the frontend ends the stream at once.
    frontend.send_drain(DRAIN_DELAY).await;
    frontend.end_stream().await;
    let sent = Instant::now();
    let second = reconnect_after_drain(frontend, sent).await?;
    Ok(format!("reconnected after {first:.1?}, and after {second:.1?} when the frontend ended the stream"))
}

async fn reconnect_after_drain(frontend: &mut ScriptedFrontend<'_>, sent: Instant) -> Outcome<Duration> {
    let (hello, opened) = frontend.expect_stream().await?;
    let delay = opened - sent;
    if delay > DRAIN_DELAY + LOAD_TOLERANCE {
        return violation(format!("reconnected {delay:?} after a Drain with a maximum delay of {DRAIN_DELAY:?}"));
    }
    frontend.resync(&hello).await?;
    Ok(delay)
}

pub(super) async fn after_errors(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let mut delays = Vec::new();
    for _ in 0..ERRORS {
        let ended = frontend.end_stream().await;
        let (_, opened) = frontend.expect_stream().await?;
        let delay = opened.saturating_duration_since(ended);
        if delay + CLOCK_TOLERANCE < MIN_BACKOFF {
            return violation(format!("reconnected {delay:?} after an error: the minimum is {MIN_BACKOFF:?}"));
        }
        delays.push(delay);
    }

    let shown = delays.iter().map(|delay| format!("{delay:.1?}")).collect::<Vec<_>>().join(", ");

    // The first connection was used for more, and its end may take another time.
    if let (Some(shortest), Some(longest)) = (delays[1..].iter().min(), delays[1..].iter().max())
        && *longest - *shortest <= SAME_DELAY
    {
        return violation(format!("reconnected after {shown}: the delays must be random"));
    }

    frontend.end_stream().await;
    let hello = frontend.expect_hello().await?;
    frontend.resync(&hello).await?;
    Ok(format!("reconnected after {shown}"))
}

pub(super) async fn after_silence(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let started = Instant::now();
    frontend.expect_quiet(SILENCE_TIMEOUT - Duration::from_secs(3), "without a message to respond to").await?;
    frontend.expect_end(Duration::from_secs(3) + frontend.patience, "without having received a message").await?;

    let elapsed = started.elapsed();
    let hello = frontend.expect_hello().await?;
    frontend.resync(&hello).await?;
    Ok(format!("ended the stream after {elapsed:.1?}, and reconnected"))
}
