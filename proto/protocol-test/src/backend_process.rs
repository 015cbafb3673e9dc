//! The process of the backend under test, and the state command that prints what it has programmed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    future::pending,
    os::unix::fs::FileExt as _,
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
/// How much of the output of a backend that has exited is shown.
const SHOWN_BYTES: usize = 1024;
const SHOWN_LINES: usize = 3;

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
    output: File,
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

    /// Whether its programmed state can be read.
    pub(crate) fn has_state_command(&self) -> bool {
        self.state_command.is_some()
    }

    /// Starts the backend, if there is a command.
    pub(crate) fn start(&mut self) -> Result<()> {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(()) };
        let output = match &self.log {
            Some(path) => {
                let file = File::options().create(true).append(true).open(path);
                file.with_context(|| format!("open the backend log {}", path.display()))?
            }
            None => tempfile::tempfile().context("create a temporary file for the output of the backend")?,
        };

        let copy = || output.try_clone().context("copy the file descriptor of the output");
        let leader = Command::new(program)
            .args(arguments)
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stdout(copy()?)
            .stderr(copy()?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start the backend {program:?}"))?;
        let id = leader.id().and_then(|pid| pid.try_into().ok()).map(Pid::from_raw);
        self.running = Some(ProcessGroup { leader, id, output });
        Ok(())
    }

    /// Stops the backend, if it is running.
    pub(crate) async fn stop(&mut self) {
        let Some(ProcessGroup { mut leader, id, .. }) = self.running.take() else { return };
        // The kernel does not reuse the id of a process group while the group has processes.
        let signal = |signal| id.map(|id| killpg(id, signal));

        signal(Signal::SIGTERM);
        if timeout(TERMINATION_GRACE, leader.wait()).await.is_err() {
            signal(Signal::SIGKILL);
            let _ = leader.wait().await;
        }
    }

    /// Returns when the command has failed. A command that exits with 0 may have started the backend in the background.
    /// Cancel safe.
    pub(crate) async fn failed(&mut self) {
        if let Some(ProcessGroup { leader, .. }) = &mut self.running
            && leader.wait().await.is_ok_and(|status| !status.success())
        {
            return;
        }
        pending().await
    }

    /// The exit status of the backend, if it has exited on its own, and where its output is or how it ends.
    pub(crate) fn exit_status(&mut self) -> Option<String> {
        let ProcessGroup { leader, output, .. } = self.running.as_mut()?;
        let status = leader.try_wait().ok()??;
        let shown = match &self.log {
            Some(path) => format!("its output is in {}", path.display()),
            None => last_lines(output),
        };
        Some(format!("the backend has exited: {status}, {shown}"))
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

        let service_ports: Vec<ProgrammedServicePort> = serde_json::from_slice(&output.stdout)
            .context("the output of the state command is not a JSON list of service ports")?;
        let mut programmed = ProgrammedState::new();
        for service_port in service_ports {
            match service_port {
                ProgrammedServicePort::Key(key) => programmed.insert(key, None),
                ProgrammedServicePort::WithEndpoints { service_port, endpoints } => {
                    programmed.insert(service_port, Some(endpoints))
                }
            };
        }
        Ok(Some(programmed))
    }
}

/// The end of the output of a backend, as a part of a line.
fn last_lines(output: &File) -> String {
    let size = output.metadata().map_or(0, |metadata| metadata.len());
    let mut end = [0; SHOWN_BYTES];
    let read = output.read_at(&mut end, size.saturating_sub(SHOWN_BYTES as u64)).unwrap_or(0);

    let text = String::from_utf8_lossy(&end[..read]);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
        [] => "without any output".to_owned(),
        last => format!("after the output \"{}\"", last.join(" / ")),
    }
}
