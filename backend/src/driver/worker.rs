//! A thread for calls that block: the kernel executes netlink requests inside `sendmsg`, on the calling thread, which
//! must not be one that runs the tasks of the process.

use std::{sync::mpsc, thread};

use anyhow::{Context, Result, anyhow};
use tokio::sync::oneshot;

/// A thread that owns a value and runs closures on it, one after the other. It ends when this handle is dropped.
#[derive(Debug)]
pub struct WorkerThread<W> {
    jobs: mpsc::Sender<Job<W>>,
}

type Job<W> = Box<dyn FnOnce(&mut W) + Send>;

impl<W: Send + 'static> WorkerThread<W> {
    /// Starts a thread with this name.
    ///
    /// # Errors
    /// When the thread could not be started.
    pub fn spawn(name: &str, mut worker: W) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job<W>>();
        let run = move || queue.into_iter().for_each(|job| job(&mut worker));
        thread::Builder::new().name(name.to_owned()).spawn(run).with_context(|| format!("start thread {name}"))?;
        Ok(Self { jobs })
    }

    /// Runs a closure on the thread and returns its result. It runs to its end even if the caller stops waiting.
    ///
    /// # Errors
    /// When the thread has ended.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce(&mut W) -> T + Send + 'static) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = move |worker: &mut W| {
            // It fails only if the caller was cancelled.
            let _ = answer.send(job(worker));
        };
        self.jobs.send(Box::new(job)).map_err(|_| anyhow!("the worker thread has ended"))?;
        answered.await.context("the worker thread has ended")
    }
}
