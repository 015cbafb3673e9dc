//! Starts a program and collects its output.

use std::{io::ErrorKind, process::Stdio};

use anyhow::{Context as _, Result};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// The result of a program that has ended.
#[derive(Debug)]
pub(crate) struct Exit {
    /// The exit status; `None` when a signal terminated the program.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program until it ends. `None` when it is not installed. The program is killed when the future is dropped.
pub(crate) async fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<Option<Exit>> {
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        child => child.with_context(|| format!("start {program}"))?,
    };
    let pipe = child.stdin.take();
    let write = async {
        if let Some(mut pipe) = pipe {
            // A program that exits before it has read everything reports the reason on stderr.
            let _ = pipe.write_all(stdin.as_bytes()).await;
        }
    };
    let ((), output) = tokio::join!(write, child.wait_with_output());
    let output = output.with_context(|| format!("wait for {program}"))?;
    Ok(Some(Exit {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).with_context(|| format!("the output of {program} is not UTF-8"))?,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }))
}
