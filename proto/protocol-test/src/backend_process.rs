//! The process of the backend under test, and the state command that prints what it has programmed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde::Deserialize;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// The time between SIGTERM and SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);

/// What a backend has programmed: endpoints by service port, `None` if the state command does not print them.
pub(crate) type ProgrammedState = BTreeMap<String, Option<BTreeSet<String>>>;

/// The backend under test. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct BackendProcess {
    command: Vec<String>,
    state_command: Option<String>,
    log: Option<PathBuf>,
    environment: [(&'static str, String); 2],
    running: Option<ProcessGroup>,
}

/// A process and its descendants.
#[derive(Debug)]
struct ProcessGroup {
    leader: Child,
    id: Option<Pid>,
}

/// One service port in the output of the state command.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ProgrammedServicePort {
    Key(String),
    WithEndpoints { service_port: String, endpoints: BTreeSet<String> },
}

impl BackendProcess {
    pub(crate) fn new(
        command: Vec<String>,
        state_command: Option<String>,
        log: Option<PathBuf>,
        address: &str,
        node: &str,
    ) -> Self {
        let expand = |text: String| text.replace("{address}", address).replace("{node}", node);
        Self {
            command: command.into_iter().map(expand).collect(),
            state_command: state_command.map(expand),
            log,
            environment: [("FAIRLEAD_ADDRESS", address.to_owned()), ("FAIRLEAD_NODE", node.to_owned())],
            running: None,
        }
    }

    /// Whether the backend is started here, not by the user.
    pub(crate) fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// Whether what it has programmed can be read.
    pub(crate) fn has_state_command(&self) -> bool {
        self.state_command.is_some()
    }

    /// Starts the backend, if there is a command.
    pub(crate) fn start(&mut self) -> Result<()> {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(()) };
        let output = || -> Result<Stdio> {
            let Some(path) = &self.log else { return Ok(Stdio::null()) };
            let file = File::options().create(true).append(true).open(path);
            Ok(file.with_context(|| format!("open the backend log {}", path.display()))?.into())
        };
        let leader = Command::new(program)
            .args(arguments)
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stdout(output()?)
            .stderr(output()?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start the backend {program:?}"))?;
        let id = leader.id().and_then(|pid| pid.try_into().ok()).map(Pid::from_raw);
        self.running = Some(ProcessGroup { leader, id });
        Ok(())
    }

    /// Stops the backend, if it is running.
    pub(crate) async fn stop(&mut self) {
        let Some(ProcessGroup { mut leader, id }) = self.running.take() else { return };
        // The kernel does not reuse the process group id before the leader has been waited for.
        let signal = |signal| id.map(|id| killpg(id, signal));
        signal(Signal::SIGTERM);
        if timeout(TERMINATION_GRACE, leader.wait()).await.is_err() {
            signal(Signal::SIGKILL);
            let _ = leader.wait().await;
        }
    }

    /// The exit status of the backend, if it has exited on its own.
    pub(crate) fn exit_status(&mut self) -> Option<String> {
        let status = self.running.as_mut()?.leader.try_wait().ok()??;
        Some(format!("the backend has exited: {status}"))
    }

    /// The output of the state command; `None` if there is no such command.
    pub(crate) async fn programmed(&self) -> Result<Option<ProgrammedState>> {
        let Some(command) = &self.state_command else { return Ok(None) };
        let shell = Command::new("/bin/sh")
            .args(["-c", command])
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = shell.await.context("run the state command")?;
        ensure!(output.status.success(), "the state command failed: {}", output.status);
        let programmed: Vec<ProgrammedServicePort> = serde_json::from_slice(&output.stdout)
            .context("the output of the state command is not a JSON list of service ports")?;
        let programmed = programmed.into_iter().map(|port| match port {
            ProgrammedServicePort::Key(key) => (key, None),
            ProgrammedServicePort::WithEndpoints { service_port, endpoints } => (service_port, Some(endpoints)),
        });
        Ok(Some(programmed.collect()))
    }
}
