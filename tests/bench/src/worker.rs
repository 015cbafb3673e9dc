//! A thread in a network namespace with an asynchronous runtime.

use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use e2e::Netns;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// The thread. Dropping this ends it and its tasks.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(netns: &Netns) -> Result<Self> {
        let (started, starting) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let netns = netns.clone();
        let thread = thread::spawn(move || {
            netns.run(|| {
                let runtime = Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => {
                        // Fails only if `start` was abandoned.
                        let _ = started.send(Ok(runtime.handle().clone()));
                        // An error means the same: the owner was dropped.
                        let _ = runtime.block_on(stopped);
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        });
        let handle = starting.recv().context("the thread has panicked")??;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic of the thread, if any, has been printed.
            let _ = thread.join();
        }
    }
}
