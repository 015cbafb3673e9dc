//! A frontend that runs in the process of a test.

use fairlead_frontend::{Config, Frontend, Listener, object::SourceUpdate};
use runtime::{Ready, Shutdown, Trigger};
use tokio::{sync::mpsc, task::JoinHandle};

/// A frontend whose engine runs. Dropping the trigger ends it.
pub(crate) struct RunningFrontend {
    pub(crate) frontend: Frontend,
    pub(crate) updates: mpsc::Sender<SourceUpdate>,
    pub(crate) ready: Ready,
    pub(crate) trigger: Trigger,
    pub(crate) shutdown: Shutdown,
}

impl RunningFrontend {
    /// Starts the engine, without objects and listeners.
    pub(crate) fn start(config: Config) -> Self {
        let frontend = Frontend::new(config);
        let (trigger, shutdown) = Shutdown::channel();
        let (updates, receiver) = mpsc::channel(16);
        let ready = Ready::default();
        let guard = ready.guard("cluster");
        let (running, stop) = (frontend.clone(), shutdown.clone());
        tokio::spawn(async move { running.run(receiver, guard, stop).await });
        Self { frontend, updates, ready, trigger, shutdown }
    }

    /// Serves clients.
    pub(crate) fn serve(&self, listener: Listener) -> JoinHandle<anyhow::Result<()>> {
        let (frontend, shutdown) = (self.frontend.clone(), self.shutdown.clone());
        tokio::spawn(async move { frontend.serve(listener, shutdown).await })
    }

    /// Passes updates to the engine.
    pub(crate) async fn send(&self, updates: impl IntoIterator<Item = SourceUpdate>) {
        for update in updates {
            self.updates.send(update).await.unwrap();
        }
    }
}
