//! The backend that is tried, as a program: started, ended, and asked by another program what it holds.

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

/// How long the program may take to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// The service ports, each with its endpoints where these are told.
pub(crate) type Holdings = BTreeMap<String, Option<BTreeSet<String>>>;

/// What is known of the backend besides its stream. Dropping it kills the program.
#[derive(Debug)]
pub(crate) struct Subject {
    command: Vec<String>,
    state_command: Option<String>,
    log: Option<PathBuf>,
    environment: [(&'static str, String); 2],
    running: Option<Running>,
}

/// A program and all that it has started, which are one process group.
#[derive(Debug)]
struct Running {
    child: Child,
    group: Option<Pid>,
}

/// One service port, as a state command prints it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Told {
    Key(String),
    Service { service_port: String, endpoints: BTreeSet<String> },
}

impl Subject {
    pub(crate) fn new(
        command: Vec<String>,
        state_command: Option<String>,
        log: Option<PathBuf>,
        address: &str,
        node: &str,
    ) -> Self {
        let fill = |text: String| text.replace("{address}", address).replace("{node}", node);
        Self {
            command: command.into_iter().map(fill).collect(),
            state_command: state_command.map(fill),
            log,
            environment: [("FAIRLEAD_ADDRESS", address.to_owned()), ("FAIRLEAD_NODE", node.to_owned())],
            running: None,
        }
    }

    /// Whether it is started here.
    pub(crate) fn is_ours(&self) -> bool {
        !self.command.is_empty()
    }

    /// Starts the program, if it is known.
    pub(crate) fn start(&mut self) -> Result<()> {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(()) };
        let output = || -> Result<Stdio> {
            let Some(path) = &self.log else { return Ok(Stdio::null()) };
            let file = File::options().create(true).append(true).open(path);
            Ok(file.with_context(|| format!("open {}", path.display()))?.into())
        };
        let child = Command::new(program)
            .args(arguments)
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stdout(output()?)
            .stderr(output()?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let group = child.id().and_then(|pid| pid.try_into().ok()).map(Pid::from_raw);
        self.running = Some(Running { child, group });
        Ok(())
    }

    /// Ends the program, if it runs.
    pub(crate) async fn stop(&mut self) {
        let Some(Running { mut child, group }) = self.running.take() else { return };
        // It leads its group, and its number is nobody else's before it has been waited for.
        let signal = |signal| group.map(|group| killpg(group, signal));
        signal(Signal::SIGTERM);
        if timeout(GRACE, child.wait()).await.is_err() {
            signal(Signal::SIGKILL);
            let _ = child.wait().await;
        }
    }

    /// Why there is nobody to be heard: how the program has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.running.as_mut()?.child.try_wait().ok()??;
        Some(format!("the backend has ended: {status}"))
    }

    /// What it has programmed; `None` when nobody can tell.
    pub(crate) async fn holdings(&self) -> Result<Option<Holdings>> {
        let Some(command) = &self.state_command else { return Ok(None) };
        let shell = Command::new("/bin/sh")
            .args(["-c", command])
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = shell.await.context("the state command")?;
        ensure!(output.status.success(), "the state command has failed: {}", output.status);
        let told: Vec<Told> = serde_json::from_slice(&output.stdout)
            .context("the state command has not printed a JSON list of service ports")?;
        let holdings = told.into_iter().map(|told| match told {
            Told::Key(key) => (key, None),
            Told::Service { service_port, endpoints } => (service_port, Some(endpoints)),
        });
        Ok(Some(holdings.collect()))
    }
}
