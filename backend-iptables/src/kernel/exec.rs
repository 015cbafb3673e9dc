//! The one place that starts processes: iptables, to save and to restore whole tables, never for a single rule. The older iptables has no
//! other interface.

use std::{io::ErrorKind, process::Stdio};

use anyhow::{Context as _, Result};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// How a program has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its exit status; `None` when a signal has ended it.
    pub(super) code: Option<i32>,
    pub(super) output: String,
    pub(super) complaint: String,
}

/// Runs a program to its end. `None` when it is not installed. When this is dropped, the program is ended.
pub(super) async fn run(program: &str, arguments: &[&str], input: &str) -> Result<Option<Ended>> {
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        child => child.with_context(|| format!("start {program}"))?,
    };
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // It may end before it has read everything; what it says then is what matters.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ((), output) = tokio::join!(feed, child.wait_with_output());
    let output = output.with_context(|| format!("wait for {program}"))?;
    Ok(Some(Ended {
        code: output.status.code(),
        output: String::from_utf8(output.stdout).with_context(|| format!("{program} prints no UTF-8"))?,
        complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
    }))
}
