//! A sleep without an end, for `select!`.

use std::future;

use tokio::time::{self, Instant};

/// Sleeps until this time; `None`: forever.
pub async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => time::sleep_until(time).await,
        None => future::pending().await,
    }
}
