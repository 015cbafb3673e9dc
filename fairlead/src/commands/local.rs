//! `fairlead local`: frontend and agent in one process, joined by channels.

use ::backend::InProcess;
use anyhow::Result;
use runtime::{Shutdown, Tasks};

use super::{SHUTDOWN_DEADLINE, backend, frontend};
use crate::cli::{Effective, LocalArgs};

/// Runs until the shutdown. The kernel stays as it is then.
pub(crate) async fn run(args: LocalArgs, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let LocalArgs { source, cluster, any } = args;
    any.check()?;
    let mut tasks = Tasks::new();
    let frontend = frontend::spawn(&source, &cluster, ::frontend::Config::default(), &mut tasks).await?;
    let others = vec![frontend.metrics()];
    let stop = shutdown.clone();
    let connect = InProcess(move |hello| frontend.attach(hello, stop.clone()));
    backend::spawn_any(any, config, others, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}
