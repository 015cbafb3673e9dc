//! Real signals to a real process: the test runs its own binary as the process under test, and reads its log.

use std::io::{self, BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, Command, Stdio};

use fairlead_runtime::{LogFormat, Shutdown, log};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// In the environment of the process under test: the exit code after the second signal.
const CHILD: &str = "FAIRLEAD_TEST_SIGNALLED";

struct Signalled {
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Signalled {
    fn start(test: &str, exit_code: i32) -> io::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, exit_code.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = process.stderr.take().ok_or_else(|| io::Error::other("no stderr"))?;
        Ok(Self { process, log: BufReader::new(stderr).lines() })
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(Pid::from_raw(self.process.id().cast_signed()), signal)?)
    }

    /// Reads the log up to a line that contains `text`; fails if the process ends without one.
    fn read_until(&mut self, text: &str) -> io::Result<String> {
        for line in self.log.by_ref() {
            let line = line?;
            if line.contains(text) {
                return Ok(line);
            }
        }
        Err(io::Error::other(format!("the log ended without {text:?}")))
    }
}

impl Drop for Signalled {
    fn drop(&mut self) {
        // Both fail if the process has exited, as in a test that passes.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process under test: it receives the shutdown and hangs.
async fn ignore_shutdown(exit_code: i32) -> anyhow::Result<()> {
    log::init(LogFormat::Text, "info")?;
    let mut shutdown = Shutdown::on_signals_with(exit_code)?;
    tracing::info!("waiting for a signal");
    shutdown.recv().await;
    tracing::info!("shutdown received");
    std::future::pending().await
}

#[tokio::test]
async fn first_signal_shuts_down_second_exits() -> anyhow::Result<()> {
    if let Ok(exit_code) = std::env::var(CHILD) {
        return ignore_shutdown(exit_code.parse()?).await;
    }
    for (first, second, exit_code) in [(Signal::SIGTERM, Signal::SIGINT, 1), (Signal::SIGINT, Signal::SIGTERM, 2)] {
        let mut signalled = Signalled::start("first_signal_shuts_down_second_exits", exit_code)?;
        signalled.read_until("waiting for a signal")?;
        signalled.send(first)?;
        signalled.read_until("shutdown received")?;
        assert!(signalled.process.try_wait()?.is_none(), "the first signal must not end the process");
        signalled.send(second)?;
        let line = signalled.read_until("second signal")?;
        assert!(line.contains(second.as_str()), "{line}");
        assert_eq!(signalled.process.wait()?.code(), Some(exit_code));
    }
    Ok(())
}
