//! Graceful shutdown: every long-running function takes a [`Shutdown`], one owner holds the [`Trigger`].
//!
//! The first SIGTERM or SIGINT starts the shutdown; the second one exits at once.

use std::io;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tracing::{error, info};

use crate::log;

/// Waits for the shutdown. Clones wait for the same one.
#[derive(Clone, Debug)]
pub struct Shutdown {
    triggered: watch::Receiver<bool>,
}

/// Starts the shutdown, also when it is dropped.
#[must_use = "dropping the trigger starts the shutdown"]
#[derive(Debug)]
pub struct Trigger {
    triggered: watch::Sender<bool>,
}

impl Shutdown {
    /// A shutdown that the [`Trigger`] starts.
    pub fn channel() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (Trigger { triggered: sender }, Self { triggered: receiver })
    }

    /// A shutdown that the first SIGTERM or SIGINT starts. The second one exits the process with code 1.
    ///
    /// Must be called within a tokio runtime, and replaces the default handlers of both signals.
    pub fn on_signals() -> io::Result<Self> {
        Self::on_signals_with(1)
    }

    /// As [`Self::on_signals`], but the second signal exits with this code.
    pub fn on_signals_with(exit_code: i32) -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut next = async move || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };

        let (trigger, shutdown) = Self::channel();
        tokio::spawn(async move {
            let first = next().await;
            info!(signal = first, "shutting down; a second signal exits at once");
            trigger.fire();

            let second = next().await;
            error!(signal = second, "second signal, exiting without waiting for tasks");
            log::flush();
            std::process::exit(exit_code);
        });
        Ok(shutdown)
    }

    /// Returns once the shutdown has started. Cancel safe.
    pub async fn recv(&mut self) {
        // An error means that the trigger was dropped, which starts the shutdown too.
        let _ = self.triggered.wait_for(|triggered| *triggered).await;
    }

    /// Runs a task until the shutdown starts, which drops it. `None` if the task has not ended before.
    pub async fn run_until_started<T>(&mut self, task: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            output = task => Some(output),
            () = self.recv() => None,
        }
    }

    /// Whether the shutdown has started.
    pub fn is_triggered(&self) -> bool {
        *self.triggered.borrow()
    }
}

impl Trigger {
    /// Starts the shutdown. Idempotent.
    pub fn fire(&self) {
        self.triggered.send_replace(true);
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        self.fire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_clones_see_the_shutdown() {
        let (trigger, mut first) = Shutdown::channel();
        let mut second = first.clone();
        assert!(!first.is_triggered());
        let waiting = tokio::spawn(async move { second.recv().await });
        trigger.fire();
        trigger.fire();
        waiting.await.unwrap();
        first.recv().await;
        first.recv().await;
        assert!(first.is_triggered());
    }

    #[tokio::test]
    async fn dropping_the_trigger_starts_the_shutdown() {
        let (trigger, mut shutdown) = Shutdown::channel();
        drop(trigger);
        assert!(shutdown.is_triggered());
        shutdown.recv().await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_shutdown_before_the_trigger() {
        let (_trigger, mut shutdown) = Shutdown::channel();
        let hour = std::time::Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, shutdown.recv()).await.is_err());
    }
}
