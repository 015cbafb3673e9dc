//! The commands, and the process around them. A module has the name of its command, except `changes` (`fairlead log`)
//! and `connectivity` (`fairlead test`); `dataplanes`, `shadow` and `view` are parts of several.

mod backend;
mod bundle;
mod changes;
mod check;
mod cleanup;
mod config;
mod connections;
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

use std::{ffi::OsString, path::Path, pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap_complete::{Shell, generate};
use runtime::{Shutdown, log, multi_thread_runtime};
use serde_json::json;
use tracing::{info, warn};

use crate::{
    cli::{self, Cli, Command, Effective, Parsed},
    exit_code::ExitCode,
    kubectl,
    print::{self, OutputArgs},
    running_backend::RunningBackend,
};

/// How long tasks may take to end after a signal. Longer than a frontend waits for clients to reconnect to another
/// replica.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(20);

const COULD_NOT_RUN: i32 = ExitCode::CouldNotRun as i32;

/// A command that is ready to run.
struct PreparedCommand {
    command: Command,
    /// Forwarded ports and files, which the command needs until it ends.
    connection: kubectl::KubectlConnection,
    /// The backend of this node, of which the command has taken settings.
    running: Option<RunningBackend>,
}

/// Runs a command.
pub(crate) fn run(parsed: Parsed) -> Result<ExitCode> {
    let Parsed { cli, arguments, effective, file, warnings } = parsed;
    let Cli { log_format, log_filter, command } = cli;
    let is_server = matches!(command, Command::Frontend(_) | Command::Backend(_) | Command::Local(_));

    let default_filter = if is_server { "info" } else { "warn" };
    // A server must not wait for stderr, and another command must not lose a line.
    let init = if is_server { log::init_queued } else { log::init };
    init(log_format, log_filter.as_deref().unwrap_or(default_filter))?;
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
        let shutdown = signals.context("cannot install signal handlers")?;
        let prepared = interruptible(prepare(command, &arguments, &effective), shutdown.clone()).await?;
        run_prepared(prepared, &effective, shutdown).await
    });
    // Name resolution, or a read from a disk that hangs, has no deadline.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Reaches the frontends and the backend of this node, as far as a command needs them.
async fn prepare(mut command: Command, arguments: &[OsString], effective: &Effective) -> Result<PreparedCommand> {
    let has_default_frontend = effective.is_default("frontend");
    let uses_kubectl = has_default_frontend && kubectl::is_plugin_process();
    let connection = if uses_kubectl { connect(&mut command).await? } else { kubectl::KubectlConnection::default() };

    let running = match command.running_backend() {
        Some(address) => RunningBackend::find(address).await,
        None => None,
    };
    if command.asks_a_frontend() && has_default_frontend && !uses_kubectl {
        require_listener(running.as_ref()).await?;
    }
    if let Some(running) = &running {
        let (cli, taken) = cli::with_settings_of(running, arguments)?;
        command = cli.command;
        running.describe(&taken).into_iter().for_each(print::error);
    }
    Ok(PreparedCommand { command, connection, running })
}

/// Reaches the frontends of a cluster through kubectl.
async fn connect(command: &mut Command) -> Result<kubectl::KubectlConnection> {
    if let Command::Endpoints(args) = command
        && args.view.node.is_none()
    {
        bail!("--node is required, because endpoints differ by node: set it to the name of a Node");
    }
    let Some(frontend) = command.frontend_of_cluster() else { return Ok(kubectl::KubectlConnection::default()) };
    let connection = kubectl::connect(frontend).await?;

    // `status` reports them itself.
    if !matches!(command, Command::Status(_)) {
        for (pod, error) in &connection.unreachable {
            print::error(format_args!("cannot reach the frontend in {pod}: {error:#}"));
        }
    }
    Ok(connection)
}

async fn run_prepared(prepared: PreparedCommand, effective: &Effective, shutdown: Shutdown) -> Result<ExitCode> {
    let PreparedCommand { command, connection, running } = prepared;
    match command {
        Command::Frontend(args) => frontend::run(args, shutdown).await.map(success),
        Command::Backend(backend) => backend::run(backend, effective, shutdown).await.map(success),
        Command::Local(args) => backend::run_local(args, effective, shutdown).await.map(success),
        Command::Cleanup(args) => cleanup::run(args, shutdown).await.map(success),

        Command::Status(args) => interruptible(status::run(args, connection.unreachable), shutdown).await,
        Command::Services(args) => interruptible(services::run(args), shutdown).await.map(success),
        Command::Endpoints(args) => interruptible(endpoints::run(args), shutdown).await.map(success),
        Command::Log(args) => interruptible(changes::run(args), shutdown).await.map(success),
        Command::Plan(args) => interruptible(plan::run(args), shutdown).await,
        Command::Watch(args) => watch::run(args, shutdown).await.map(success),

        Command::Check(args) => interruptible(check::run(args, running), shutdown).await,
        Command::Diff(args) => interruptible(diff::run(args, running), shutdown).await,
        Command::Connections(args) => interruptible(connections::run(args), shutdown).await,
        Command::Test(args) => interruptible(connectivity::run(args, running), shutdown).await,
        Command::Bundle(args) => interruptible(bundle::run(args, running), shutdown).await.map(success),
        Command::Trace(args) => interruptible(trace::run(args), shutdown).await.map(success),

        Command::Drained(args) => interruptible(drained::run(args), shutdown).await,
        Command::ProtocolTest(args) => interruptible(protocol_test::run(args), shutdown).await,
        Command::Config(command) => config::run(command),
        Command::Version(output) => version(output).map(success),
        Command::Completion { shell } => completion(shell).map(success),
    }
}

fn success((): ()) -> ExitCode {
    ExitCode::Success
}

/// Fails if nothing answers at the default address of a frontend because the `fairlead local` that runs here has no
/// `--listen`.
async fn require_listener(running: Option<&RunningBackend>) -> Result<()> {
    let socket = cli::DEFAULT_ADDRESS.trim_start_matches("unix:");
    if Path::new(socket).exists() {
        return Ok(());
    }

    let answers_none = match running {
        Some(running) => running.answers_no_commands(),
        None => {
            let found = RunningBackend::find(cli::DEFAULT_METRICS.parse()?).await;
            found.is_some_and(|found| found.answers_no_commands())
        }
    };
    if answers_none {
        bail!(
            "the running `fairlead local` does not listen for commands: restart it with --listen {}",
            cli::DEFAULT_ADDRESS
        );
    }
    Ok(())
}

/// Runs a command that a signal ends with an error.
async fn interruptible<T>(command: impl Future<Output = Result<T>>, mut shutdown: Shutdown) -> Result<T> {
    shutdown.run_until_started(command).await.context("interrupted")?
}

/// Raises the limit of open files of a server: each stream of a node and each health-check node port
/// needs a file descriptor.
fn raise_file_limit() {
    if let Err(error) = runtime::raise_file_limit() {
        warn!(%error, "cannot raise the limit of open files, leaving it unchanged");
    }
}

/// Runs a command that a signal does not end: it completes what it has begun.
async fn uninterrupted<T>(command: impl Future<Output = Result<T>>, mut shutdown: Shutdown) -> Result<T> {
    let mut command = pin!(command);
    if let Some(result) = shutdown.run_until_started(command.as_mut()).await {
        return result;
    }
    warn!("interrupted, completing the command first; a second signal exits at once");
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
