//! The subcommands, and the process around them.

mod backend;
mod bundle;
mod check;
mod cleanup;
mod completion;
mod config;
mod conformance;
mod connectivity;
mod diff;
mod endpoints;
mod frontend;
mod local;
mod observe;
mod services;
mod shadow;
mod status;
mod trace;
mod view;
mod watch;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use runtime::{Shutdown, log};
use tracing::{info, warn};

use crate::{
    cli::{BackendCommand, Cli, Command},
    config::{Parsed, Warning},
};

/// How long tasks may take to end after a signal: longer than a frontend waits for its clients to go elsewhere.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(20);

/// Does what the command line asks for. What ends without an error may still have found something that is not as it should be.
pub(crate) fn run(parsed: Parsed) -> Result<ExitCode> {
    let Parsed { cli, effective, file, warnings } = parsed;
    let Cli { log_format, log_filter, command } = cli;
    let quiet = matches!(
        command,
        Command::Watch(_)
            | Command::Services(_)
            | Command::Endpoints(_)
            | Command::Diff(_)
            | Command::Status(_)
            | Command::Check(_)
            | Command::Trace(_)
            | Command::Conformance(_)
            | Command::Test(_)
            | Command::Bundle(_)
            | Command::Cleanup(_)
            | Command::Config(_)
            | Command::Completion(_)
    );
    let log_filter = log_filter.unwrap_or_else(|| if quiet { "warn" } else { "info" }.to_owned());
    log::init(log_format, &log_filter)?;
    if let Some(file) = file {
        info!(file = %file.display(), "configured by a file");
        for Warning { field, reason } in warnings {
            warn!(file = %file.display(), field, reason, "a field of the configuration does not do what it says");
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
        let done = match command {
            Command::Status(args) => return status::run(args, shutdown).await,
            Command::Diff(args) => return diff::run(args, shutdown).await,
            Command::Check(args) => return check::run(args).await,
            Command::Trace(args) => trace::run(args).await,
            Command::Conformance(args) => return conformance::run(args, shutdown).await,
            Command::Bundle(args) => bundle::run(args, shutdown).await,
            Command::Test(args) => return connectivity::run(args, shutdown).await,
            Command::Frontend(args) => frontend::run(args, shutdown).await,
            Command::Backend(args) => match args.backend {
                BackendCommand::Nft(args) => backend::run_nft(args, &effective, shutdown).await,
                BackendCommand::Iptables(args) => backend::run_iptables(args, &effective, shutdown).await,
                BackendCommand::Ipvs(args) => backend::run_ipvs(args, &effective, shutdown).await,
                BackendCommand::Configured(args) => backend::run_configured(args, &effective, shutdown).await,
            },
            Command::Local(args) => local::run(args, &effective, shutdown).await,
            Command::Watch(args) => watch::run(args, shutdown).await,
            Command::Services(args) => services::run(args, shutdown).await,
            Command::Endpoints(args) => endpoints::run(args, shutdown).await,
            Command::Cleanup(args) => cleanup::run(args).await,
            Command::Config(args) => config::run(args),
            Command::Completion(args) => completion::run(&args),
        };
        done.map(|()| ExitCode::SUCCESS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_time_to_go_before_the_deadline() {
        let config = ::frontend::Config::default();
        let slack = Duration::from_secs(2);
        assert!(config.drain_delay + config.drain_grace + slack < SHUTDOWN_DEADLINE);
    }
}
