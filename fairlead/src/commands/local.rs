//! `fairlead local`: frontend and agent in one process, joined by channels.

use agent::Attach;
use anyhow::Result;
use runtime::{Shutdown, Tasks};

use super::{SHUTDOWN_DEADLINE, backend, frontend};
use crate::cli::{BackendName, LocalArgs};

/// Runs until the shutdown. The kernel stays as it is then.
pub(crate) async fn run(args: LocalArgs, shutdown: Shutdown) -> Result<()> {
    args.iptables.check(args.backend)?;
    args.ipvs.check(args.backend)?;
    let mut tasks = Tasks::new();
    let frontend =
        frontend::spawn(&args.source, &args.cluster, ::frontend::Config::default(), &mut tasks).await?;
    let stop = shutdown.clone();
    let connect = Attach(move |hello| frontend.attach(hello, stop.clone()));
    let options = args.traffic.options()?;
    match args.backend {
        BackendName::Nft => {
            backend::spawn(&args.node, args.conntrack, backend::nft(options)?, connect, &mut tasks)?;
        }
        BackendName::Iptables => {
            let iptables = args.iptables.backend(options);
            backend::spawn(&args.node, args.conntrack, iptables, connect, &mut tasks)?;
        }
        BackendName::Ipvs => {
            let ipvs = backend::ipvs(args.ipvs.settings(options, &args.iptables.variant))?;
            backend::spawn(&args.node, args.conntrack, ipvs, connect, &mut tasks)?;
        }
    }
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}
