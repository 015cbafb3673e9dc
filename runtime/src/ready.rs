//! Readiness by dropping guards: whoever must have done something first holds a guard, and drops it when it is done.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::info;

/// How often [`Ready::wait`] says what it is still waiting for.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Ready when every guard has been dropped; so take all guards before anything is started.
#[derive(Clone, Debug, Default)]
pub struct Ready {
    /// Names of the guards that are held, oldest first. Two guards may have the same name.
    pending: Arc<watch::Sender<Vec<&'static str>>>,
}

/// Holds back readiness until it is dropped.
#[must_use = "a guard that is dropped at once holds nothing back"]
#[derive(Debug)]
pub struct ReadyGuard {
    name: &'static str,
    ready: Ready,
}

// === impl Ready ===

impl Ready {
    /// Nothing to wait for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for one more thing. `name` is what the log calls it, as in "kubernetes list".
    pub fn guard(&self, name: &'static str) -> ReadyGuard {
        self.pending.send_modify(|pending| pending.push(name));
        ReadyGuard { name, ready: self.clone() }
    }

    /// Names of what is still awaited, oldest first.
    pub fn pending(&self) -> Vec<&'static str> {
        self.pending.borrow().clone()
    }

    /// Whether all guards have been dropped.
    pub fn is_ready(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// Returns once all guards have been dropped, and logs now and then which ones are still held.
    pub async fn wait(&self) {
        let mut pending = self.pending.subscribe();
        while timeout(REPORT_EVERY, pending.wait_for(Vec::is_empty)).await.is_err() {
            info!(pending = ?self.pending(), "not ready yet");
        }
    }
}

// === impl ReadyGuard ===

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        self.ready.pending.send_modify(|pending| {
            if let Some(at) = pending.iter().position(|name| *name == self.name) {
                pending.remove(at);
            }
        });
        info!(done = self.name, pending = ?self.ready.pending(), "one step closer to ready");
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn ready_when_the_last_guard_is_dropped() {
        let ready = Ready::new();
        let list = ready.guard("kubernetes list");
        let bind = ready.guard("listener");
        let waiting = tokio::spawn({
            let ready = ready.clone();
            async move { ready.wait().await }
        });
        assert_eq!(ready.pending(), ["kubernetes list", "listener"]);
        drop(list);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        assert_eq!(ready.pending(), ["listener"]);
        drop(bind);
        waiting.await.unwrap();
        assert!(ready.is_ready());
    }

    #[tokio::test]
    async fn guards_of_one_name_count_each() {
        let ready = Ready::new();
        let (first, second) = (ready.guard("list"), ready.guard("list"));
        drop(first);
        assert!(!ready.is_ready());
        drop(second);
        assert!(ready.is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_outlasts_its_reports() {
        let ready = Ready::new();
        let guard = ready.guard("kubernetes list");
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(5 * REPORT_EVERY / 2).await;
            drop(guard);
        });
        ready.wait().await;
        assert_eq!(start.elapsed(), 5 * REPORT_EVERY / 2);
    }

    #[tokio::test]
    async fn without_guards_it_is_ready() {
        Ready::new().wait().await;
    }
}
