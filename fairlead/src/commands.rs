//! The commands, and the process around them. A module has the name of its command, except `changes` (`fairlead log`)
//! and `connectivity` (`fairlead test`); `dataplanes`, `shadow` and `view` are parts of several.

mod backend;
mod bundle;
mod changes;
mod check;
mod cleanup;
mod config;
mod connectivity;
mod dataplanes;
mod diff;
mod drained;
mod endpoints;
mod frontend;
mod plan;
mod protocol_test;
mod services;
mod shadow;
mod status;
mod trace;
mod view;
mod watch;

use std::{path::Path, pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap_complete::{Shell, generate};
use futures::FutureExt as _;
use runtime::{Shutdown, log, multi_thread_runtime};
use serde_json::json;
use tracing::{info, warn};

use crate::{
    cli::{self, Cli, Command, Parsed},
    exit_code::ExitCode,
    kubectl,
    print::{self, OutputArgs},
    running_backend::RunningBackend,
};

/// How long tasks may take to end after a signal. Longer than a frontend waits for clients to reconnect to another
/// replica.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(20);

const COULD_NOT_RUN: i32 = ExitCode::CouldNotRun as i32;

/// Runs a command.
pub(crate) fn run(parsed: Parsed) -> Result<ExitCode> {
    let Parsed { cli, arguments, effective, file, warnings } = parsed;
    let Cli { log_format, log_filter, mut command } = cli;
    let is_server = matches!(command, Command::Frontend(_) | Command::Backend(_) | Command::Local(_));
    let log_filter = log_filter.unwrap_or_else(|| if is_server { "info" } else { "warn" }.to_owned());
    // A server must not wait for stderr, and another command must not lose a line.
    let init = if is_server { log::init_queued } else { log::init };
    init(log_format, &log_filter)?;
    if let Some(file) = file {
        info!(file = %file.display(), "configuration file read");
        for warning in warnings {
            warn!(file = %file.display(), "{warning}");
        }
    }
    let runtime = multi_thread_runtime("worker").context("cannot start the async runtime")?;
    let result = runtime.block_on(async {
        // For a command, 1 says that it ran.
        let signals = if is_server { Shutdown::on_signals() } else { Shutdown::on_signals_with(COULD_NOT_RUN) };
        let mut shutdown = signals.context("cannot install signal handlers")?;
        let uses_kubectl =
            kubectl::is_plugin(std::env::args_os().next().as_deref()) && effective.is_default("frontend");
        if uses_kubectl
            && let Command::Endpoints(args) = &command
            && args.view.node.is_none()
        {
            bail!("set --node to the name of a Node: each node selects endpoints of its own");
        }
        let connection = match command.frontend_of_cluster().filter(|_| uses_kubectl) {
            Some(frontend) => interruptible(kubectl::connect(frontend), shutdown.clone()).await?,
            None => kubectl::Connection::default(),
        };
        if !matches!(command, Command::Status(_)) {
            for (pod, error) in &connection.unreachable {
                print::error(format_args!("cannot reach the frontend in {pod}: {error:#}"));
            }
        }
        let running = match command.running_backend() {
            Some(address) => interruptible(RunningBackend::find(address).map(Ok), shutdown.clone()).await?,
            None => None,
        };
        if command.asks_a_frontend() && !uses_kubectl && effective.is_default("frontend") {
            interruptible(require_listener(running.as_ref()), shutdown.clone()).await?;
        }
        if let Some(running) = &running {
            let (cli, taken) = cli::with_settings_of(running, &arguments)?;
            command = cli.command;
            running.describe(&taken).into_iter().for_each(print::error);
        }
        let result = match command {
            Command::Status(args) => {
                return interruptible(status::run(args, connection.unreachable), shutdown).await;
            }
            Command::Diff(args) => return interruptible(diff::run(args, running), shutdown).await,
            Command::Drained(args) => return interruptible(drained::run(args), shutdown).await,
            Command::Plan(args) => return interruptible(plan::run(args), shutdown).await,
            Command::Check(args) => return interruptible(check::run(args, running), shutdown).await,
            Command::ProtocolTest(args) => return interruptible(protocol_test::run(args), shutdown).await,
            Command::Test(args) => return interruptible(connectivity::run(args, running), shutdown).await,
            Command::Config(command) => return config::run(command),
            Command::Trace(args) => interruptible(trace::run(args), shutdown).await,
            Command::Bundle(args) => interruptible(bundle::run(args, running), shutdown).await,
            Command::Frontend(args) => frontend::run(args, shutdown).await,
            Command::Backend(backend) => backend::run(backend, &effective, shutdown).await,
            Command::Local(args) => backend::run_local(args, &effective, shutdown).await,
            Command::Watch(args) => watch::run(args, shutdown).await,
            Command::Services(args) => interruptible(services::run(args), shutdown).await,
            Command::Log(args) => interruptible(changes::run(args), shutdown).await,
            Command::Endpoints(args) => interruptible(endpoints::run(args), shutdown).await,
            Command::Cleanup(args) => {
                let keep_running = args.keep_running;
                let result = uninterrupted(cleanup::run(args), shutdown.clone()).await;
                if keep_running && result.is_ok() {
                    shutdown.recv().await;
                }
                result
            }
            Command::Version(output) => version(output),
            Command::Completion { shell } => completion(shell),
        };
        result.map(|()| ExitCode::Success)
    });
    // Name resolution, or a read from a disk that hangs, has no deadline.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Fails if nothing answers at the default address of a frontend because the `fairlead local` that runs here has no
/// `--listen`.
async fn require_listener(running: Option<&RunningBackend>) -> Result<()> {
    let socket = cli::DEFAULT_ADDRESS.trim_start_matches("unix:");
    if Path::new(socket).exists() {
        return Ok(());
    }
    let found = match running {
        Some(_) => None,
        None => RunningBackend::find(cli::DEFAULT_METRICS.parse()?).await,
    };
    if running.or(found.as_ref()).is_some_and(RunningBackend::answers_no_commands) {
        bail!(
            "the `fairlead local` that runs here answers no commands: restart it with --listen {}",
            cli::DEFAULT_ADDRESS
        );
    }
    Ok(())
}

/// Runs a command that a signal ends with an error.
async fn interruptible<T>(command: impl Future<Output = Result<T>>, mut shutdown: Shutdown) -> Result<T> {
    shutdown.run_until_started(command).await.context("interrupted")?
}

/// Raises the limit of open files of a server: each stream of a node and each health-check node port takes one.
fn raise_file_limit() {
    if let Err(error) = runtime::raise_file_limit() {
        warn!(%error, "cannot raise the limit of open files, leaving it unchanged");
    }
}

/// Runs a command that completes what it has begun after a signal.
async fn uninterrupted<T>(command: impl Future<Output = Result<T>>, mut shutdown: Shutdown) -> Result<T> {
    let mut command = pin!(command);
    if let Some(result) = shutdown.run_until_started(command.as_mut()).await {
        return result;
    }
    warn!("interrupted: what has begun is completed first; a second signal exits at once");
    command.await
}

/// Prints the version of this program.
fn version(output: OutputArgs) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    print::value(output, &json!({ "version": version }), || format!("fairlead {version}\n"))
}

/// Prints the completion script of a shell.
fn completion(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    generate(shell, &mut cli::command(), "fairlead", &mut script);
    print::document(String::from_utf8(script).context("the script is not UTF-8")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_ends_some_commands_and_others_complete() {
        let (trigger, shutdown) = Shutdown::channel();
        trigger.fire();
        let mut has_completed = false;
        let command = async {
            tokio::task::yield_now().await;
            has_completed = true;
            Ok(())
        };
        uninterrupted(command, shutdown.clone()).await.unwrap();
        assert!(has_completed);
        let hangs = std::future::pending::<Result<()>>();
        assert_eq!(interruptible(hangs, shutdown).await.unwrap_err().to_string(), "interrupted");
    }

    #[test]
    fn clients_can_reconnect_before_the_deadline() {
        let config = ::frontend::Config::default();
        let slack = Duration::from_secs(2);
        assert!(config.max_drain_delay + config.drain_grace + slack < SHUTDOWN_DEADLINE);
    }
}
