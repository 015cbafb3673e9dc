//! Readiness gates: each part of the process that must finish something first holds a guard and drops it when done.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};
use tracing::info;

/// How often [`Ready::wait`] logs the pending gates.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Ready when every guard has been dropped. Take all guards before the first task starts.
#[derive(Clone, Debug, Default)]
pub struct Ready {
    /// Names of the guards that have not been dropped, oldest first. Names may repeat.
    pending: Arc<watch::Sender<Vec<&'static str>>>,
}

/// Delays readiness until it is dropped.
#[must_use = "a guard that is dropped at once delays nothing"]
#[derive(Debug)]
pub struct ReadyGuard {
    name: &'static str,
    ready: Ready,
}

impl Ready {
    /// Adds a gate. `name` names it in log lines, as in "kubernetes list".
    pub fn guard(&self, name: &'static str) -> ReadyGuard {
        self.pending.send_modify(|pending| pending.push(name));
        ReadyGuard { name, ready: self.clone() }
    }

    /// Names of the gates that have not passed, oldest first.
    pub fn pending(&self) -> Vec<&'static str> {
        self.pending.borrow().clone()
    }

    /// Whether all guards have been dropped.
    pub fn is_ready(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// Returns once all guards have been dropped. Logs the pending gates every ten seconds.
    pub async fn wait(&self) {
        let mut pending = self.pending.subscribe();
        while timeout(REPORT_INTERVAL, pending.wait_for(Vec::is_empty)).await.is_err() {
            info!(pending = ?self.pending(), "not ready");
        }
    }
}

impl ReadyGuard {
    /// Ends the guard without passing the gate: the process fails before it is ready.
    pub fn fail(self) {
        std::mem::forget(self);
    }
}

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        self.ready.pending.send_modify(|pending| {
            if let Some(at) = pending.iter().position(|name| *name == self.name) {
                pending.remove(at);
            }
        });
        info!(gate = self.name, pending = ?self.ready.pending(), "readiness gate passed");
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn ready_when_the_last_guard_is_dropped() {
        let ready = Ready::default();
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
    async fn failed_gate_does_not_pass() {
        let ready = Ready::default();
        ready.guard("lock").fail();
        assert!(!ready.is_ready());
    }

    #[tokio::test]
    async fn guards_of_the_same_name_count_separately() {
        let ready = Ready::default();
        let (first, second) = (ready.guard("list"), ready.guard("list"));
        drop(first);
        assert!(!ready.is_ready());
        drop(second);
        assert!(ready.is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_continues_after_each_log_line() {
        let ready = Ready::default();
        let guard = ready.guard("kubernetes list");
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(5 * REPORT_INTERVAL / 2).await;
            drop(guard);
        });
        ready.wait().await;
        assert_eq!(start.elapsed(), 5 * REPORT_INTERVAL / 2);
    }

    #[tokio::test]
    async fn ready_without_guards() {
        Ready::default().wait().await;
    }
}
