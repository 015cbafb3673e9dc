//! `fairlead local`: frontend and backend in one process, connected by channels.

use ::backend::InProcess;
use anyhow::Result;
use runtime::{Shutdown, Tasks};

use super::{SHUTDOWN_DEADLINE, backend, frontend};
use crate::cli::{Effective, LocalArgs};

/// Runs until the shutdown, which leaves the kernel unchanged.
pub(crate) async fn run(args: LocalArgs, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let LocalArgs { source, cluster, any, .. } = args;
    let mut tasks = Tasks::new();
    let frontend = frontend::spawn(&source, &cluster, ::frontend::Config::default(), &mut tasks).await?;
    let registries = vec![frontend.metrics()];
    let stop = shutdown.clone();
    let connect = InProcess(move |hello| frontend.attach(hello, stop.clone()));
    backend::spawn(any, config, registries, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}
