//! A group of named tasks that end together. The group observes how each of them ended.
//!
//! ```text
//! spawn("watch", ..) ──┐                     ┌ one ends (Ok, Err or panic)        ┐
//! spawn("server", ..) ─┴─> run: wait until ──┤                                    ├─> Shutdown ─> deadline ─> abort
//!                                            └ the outer Shutdown is triggered    ┘
//! ```

use std::{any::Any, collections::BTreeMap, future::Future, io, thread, time::Duration};

use anyhow::{Context, Error, Result, anyhow};
use tokio::{
    runtime::{Builder, Runtime},
    task::{Id, JoinError, JoinSet},
    time::timeout,
};
use tracing::{Instrument, debug, error, error_span, info};

use crate::shutdown::{Shutdown, Trigger};

/// The most worker threads of a runtime. A thread has a stack and a heap of its own, so that with one for each CPU a
/// process would need more memory the larger its node is, while the busiest frontend uses two.
const MAX_WORKERS: usize = 4;

/// Starts the threads of a runtime with timers and IO: one for each CPU, at most [`MAX_WORKERS`].
///
/// # Errors
/// The threads cannot be started.
pub fn multi_thread_runtime(thread_name: &str) -> io::Result<Runtime> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread().worker_threads(cpus.min(MAX_WORKERS)).thread_name(thread_name).enable_all().build()
}

/// Tasks that are shut down together. Dropping the group aborts those that still run.
#[derive(Debug)]
pub struct Tasks {
    running: JoinSet<Result<()>>,
    names: BTreeMap<Id, &'static str>,
    trigger: Trigger,
    shutdown: Shutdown,
}

/// A runtime that may be dropped within another runtime: it shuts down in the background.
struct OwnThreads(Option<Runtime>);

impl Drop for OwnThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Default for Tasks {
    fn default() -> Self {
        let (trigger, shutdown) = Shutdown::channel();
        Self { running: JoinSet::new(), names: BTreeMap::new(), trigger, shutdown }
    }
}

impl Tasks {
    /// Starts a task in a span of that name. It must end soon after its shutdown has been triggered.
    ///
    /// Do what can fail early, such as binding a port, before this call, so that the caller sees the error.
    pub fn spawn<F>(&mut self, name: &'static str, task: impl FnOnce(Shutdown) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        // At level ERROR, so that no filter removes the task's name from its log lines.
        let span = error_span!("task", task = name);
        let handle = self.running.spawn(task(self.shutdown.clone()).instrument(span));
        self.names.insert(handle.id(), name);
    }

    /// As [`Self::spawn`], for a task that cannot fail.
    pub fn spawn_infallible<F>(&mut self, name: &'static str, task: impl FnOnce(Shutdown) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(name, |shutdown| {
            let running = task(shutdown);
            async move {
                running.await;
                Ok(())
            }
        });
    }

    /// As [`Self::spawn`], on a runtime of its own: the kernel's scheduler then shares the CPUs fairly between this
    /// task, with all that it spawns, and the others.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn spawn_on_own_threads<F>(&mut self, name: &'static str, task: impl FnOnce(Shutdown) -> F) -> io::Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let runtime = multi_thread_runtime(name)?;
        let span = error_span!("task", task = name);
        let running = runtime.spawn(task(self.shutdown.clone()).instrument(span));
        let own_threads = OwnThreads(Some(runtime));
        self.spawn(name, |_| async move {
            // Dropped when the task ends or is aborted.
            let _own_threads = own_threads;
            running.await?
        });
        Ok(())
    }

    /// Runs until any task ends or `shutdown` is triggered; then gives the others `deadline` to end, and aborts the
    /// rest.
    ///
    /// # Errors
    /// The first error or panic of a task, with its name, or the names of the aborted tasks. A task that returns `Ok`
    /// ends the group without an error.
    pub async fn run(mut self, mut shutdown: Shutdown, deadline: Duration) -> Result<()> {
        let mut result = tokio::select! {
            ended = self.join_next() => match ended {
                Some((name, result)) => {
                    info!(task = name, "task ended, shutting down the others");
                    result
                }
                None => Ok(()),
            },
            () = shutdown.recv() => {
                info!(tasks = ?self.names.values(), "shutting down tasks");
                Ok(())
            }
        };
        self.trigger.fire();

        let rest = async {
            while let Some((name, ended)) = self.join_next().await {
                debug!(task = name, "task ended");
                keep_first(&mut result, ended);
            }
        };
        if timeout(deadline, rest).await.is_err() {
            let names = Vec::from_iter(self.names.values().copied()).join(", ");
            keep_first(&mut result, Err(anyhow!("tasks still running {deadline:?} after the shutdown: {names}")));
            // Not awaited: a task that blocks its thread never observes the abort.
            self.running.abort_all();
        }
        result
    }

    /// The name and the result of the next task that ends; the error names the task.
    async fn join_next(&mut self) -> Option<(&'static str, Result<()>)> {
        let (id, result) = match self.running.join_next_with_id().await? {
            Ok((id, result)) => (id, result),
            Err(failed) => (failed.id(), Err(describe(failed))),
        };
        let name = self.names.remove(&id).unwrap_or("unnamed");
        Some((name, result.with_context(|| format!("task {name}"))))
    }
}

/// Keeps the first error, which is usually the cause of the later errors; logs the later ones.
fn keep_first(first: &mut Result<()>, next: Result<()>) {
    match next {
        Err(error) if first.is_err() => error!(error = format!("{error:#}"), "task failed during the shutdown"),
        Err(error) => *first = Err(error),
        Ok(()) => {}
    }
}

fn describe(failed: JoinError) -> Error {
    match failed.try_into_panic() {
        Ok(payload) => anyhow!("panicked: {}", panic_message(payload.as_ref())),
        Err(cancelled) => Error::new(cancelled),
    }
}

/// The payload of `panic!` is a `&str` for a literal, and a `String` with arguments.
fn panic_message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&str>() {
        Some(literal) => literal,
        None => payload.downcast_ref::<String>().map_or("no message", String::as_str),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use tokio::{
        sync::oneshot,
        time::{Instant, sleep},
    };

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    async fn until_shutdown(mut shutdown: Shutdown) -> Result<()> {
        shutdown.recv().await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn outer_shutdown_stops_all() {
        let (trigger, shutdown) = Shutdown::channel();
        let mut tasks = Tasks::default();
        tasks.spawn("watch", until_shutdown);
        tasks.spawn("server", until_shutdown);
        let running = tokio::spawn(tasks.run(shutdown, DEADLINE));
        trigger.fire();
        running.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn task_that_blocks_its_own_threads_does_not_block_others() {
        let (trigger, shutdown) = Shutdown::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel();
        let mut tasks = Tasks::default();
        let blocked = |shutdown| async move {
            goes_on.recv()?;
            until_shutdown(shutdown).await
        };
        tasks.spawn_on_own_threads("server", blocked).unwrap();
        tasks.spawn("engine", |shutdown| async move {
            go_on.send(())?;
            until_shutdown(shutdown).await
        });
        let running = tokio::spawn(tasks.run(shutdown, DEADLINE));
        trigger.fire();
        running.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn failure_on_own_threads_is_named() {
        let (_trigger, shutdown) = Shutdown::channel();
        let mut tasks = Tasks::default();
        tasks.spawn("engine", until_shutdown);
        tasks.spawn_on_own_threads("server", |_| async { Err(anyhow!("out of memory")) }).unwrap();
        let error = tasks.run(shutdown, DEADLINE).await.unwrap_err();
        assert!(format!("{error:#}").contains("server"), "{error:#}");
    }

    #[tokio::test(start_paused = true)]
    async fn failing_task_is_named_and_stops_the_others() {
        let (_trigger, shutdown) = Shutdown::channel();
        let drained = Arc::new(AtomicBool::new(false));
        let mut tasks = Tasks::default();
        tasks.spawn("server", |_| async { Err(anyhow!("address in use").context("bind")) });
        tasks.spawn("watch", {
            let drained = drained.clone();
            async move |shutdown| {
                until_shutdown(shutdown).await?;
                sleep(DEADLINE / 2).await;
                drained.store(true, Ordering::Relaxed);
                Err(anyhow!("an effect of the first"))
            }
        });
        let error = tasks.run(shutdown, DEADLINE).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "task server: bind: address in use");
        assert!(drained.load(Ordering::Relaxed), "the other task must be given time to end");
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_ends_well_ends_the_group() {
        let (_trigger, shutdown) = Shutdown::channel();
        let mut tasks = Tasks::default();
        tasks.spawn("once", |_| async { Ok(()) });
        tasks.spawn("server", until_shutdown);
        tasks.run(shutdown, DEADLINE).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn panic_is_an_error_with_the_name() {
        for (number, expected) in [(None, "task watch: panicked: plain"), (Some(7), "task watch: panicked: number 7")] {
            let (_trigger, shutdown) = Shutdown::channel();
            let mut tasks = Tasks::default();
            tasks.spawn("watch", async move |_| match number {
                None => panic!("plain"),
                Some(number) => panic!("number {number}"),
            });
            let error = tasks.run(shutdown, DEADLINE).await.unwrap_err();
            assert_eq!(format!("{error:#}"), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn error_during_the_shutdown_is_returned() {
        let (trigger, shutdown) = Shutdown::channel();
        let mut tasks = Tasks::default();
        tasks.spawn("state file", async |shutdown| {
            until_shutdown(shutdown).await?;
            Err(anyhow!("disk full"))
        });
        trigger.fire();
        let error = tasks.run(shutdown, DEADLINE).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "task state file: disk full");
    }

    #[tokio::test(start_paused = true)]
    async fn task_past_the_deadline_is_aborted_and_named() {
        let (trigger, shutdown) = Shutdown::channel();
        let (kept_by_task, dropped) = oneshot::channel::<()>();
        let mut tasks = Tasks::default();
        tasks.spawn("stuck", async move |_| {
            let _kept = kept_by_task;
            pending().await
        });
        tasks.spawn("server", until_shutdown);
        trigger.fire();
        let start = Instant::now();
        let error = tasks.run(shutdown, DEADLINE).await.unwrap_err();
        assert_eq!(start.elapsed(), DEADLINE);
        assert_eq!(error.to_string(), "tasks still running 10s after the shutdown: stuck");
        assert!(dropped.await.is_err(), "the task must have been aborted");
    }
}
