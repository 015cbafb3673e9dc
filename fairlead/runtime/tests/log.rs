//! The stderr of a real process: the test runs its own binary as the process that logs.

use std::{
    env,
    fs::File,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fairlead_runtime::{LogFormat, log};

/// Set in the environment of the process that logs.
const CHILD: &str = "FAIRLEAD_TEST_LOGGING";

fn child(test: &str, how: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--exact", test, "--nocapture"]).env(CHILD, how).stdout(Stdio::null());
    Ok(command)
}

#[test]
fn stderr_that_cannot_be_written_does_not_end_the_process() -> anyhow::Result<()> {
    if let Some(how) = env::var_os(CHILD) {
        let init = if how == "queued" { log::init_queued } else { log::init };
        init(LogFormat::Text, "info")?;
        for _ in 0..2 {
            tracing::info!("not written");
            log::write_line("not written either");
            log::flush();
        }
        return Ok(());
    }
    for how in ["queued", "direct"] {
        let full = File::options().write(true).open("/dev/full")?;
        let status = child("stderr_that_cannot_be_written_does_not_end_the_process", how)?.stderr(full).status()?;
        assert!(status.success(), "{how}: {status}");
    }
    Ok(())
}

#[test]
fn panic_ends_the_process_while_stderr_hangs() -> anyhow::Result<()> {
    if env::var_os(CHILD).is_some() {
        log::init_queued(LogFormat::Text, "info")?;
        for _ in 0..1000 {
            tracing::info!("more lines than a pipe holds: {}", "x".repeat(1000));
        }
        panic!("this message is not printed");
    }
    let mut child = child("panic_ends_the_process_while_stderr_hangs", "queued")?.stderr(Stdio::piped()).spawn()?;
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > Duration::from_secs(20) {
            child.kill()?;
            anyhow::bail!("the process has not ended");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn queued_lines_are_written_before_the_process_ends() -> anyhow::Result<()> {
    if env::var_os(CHILD).is_some() {
        log::init_queued(LogFormat::Text, "info")?;
        for number in 0..1000 {
            tracing::info!(number, "line");
        }
        log::write_line("the last line");
        log::flush();
        std::process::exit(0);
    }
    let output = child("queued_lines_are_written_before_the_process_ends", "queued")?.output()?;
    let text = String::from_utf8(output.stderr)?;
    assert_eq!(text.lines().count(), 1001, "{text}");
    assert!(text.ends_with("\nthe last line\n"), "{text}");
    Ok(())
}
