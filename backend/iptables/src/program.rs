//! The iptables programs of one IP family and variant.

use std::{
    fmt,
    io::ErrorKind,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use proto::model::IpFamily;
use tokio::{
    io::AsyncWriteExt as _,
    process::Command,
    time::{sleep, timeout},
};
use tracing::debug;

use crate::{RestoreError, Script, Variant, lock, restore};

/// The time for which `iptables-restore` waits for the xtables lock (`--wait`), in seconds.
const LOCK_TIMEOUT_S: &str = "5";
/// The number of attempts at a restore while another process changes rules at the same time.
const ATTEMPTS: u32 = 3;
/// How long a program may run: iptables-nft-save takes minutes with 10,000 Services on a busy machine.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(600);
/// The random delay before the next attempt, in milliseconds.
const RETRY_DELAY_MS: std::ops::Range<u64> = 50..250;
/// `RESOURCE_PROBLEM` of `iptables/include/xtables.h`: the lock is taken, or another process committed first.
const RESOURCE_PROBLEM: i32 = 4;

/// A pair of programs: `iptables-nft` stands for `iptables-nft-save` and `iptables-nft-restore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The IP family of the packets that its rules apply to.
    pub family: IpFamily,
    /// Where it keeps its rules.
    pub variant: Variant,
    /// The command that shows these rules: `ip6tables-legacy`.
    pub name: &'static str,
}

/// The result of `iptables-save`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SaveResult {
    NotInstalled,
    /// The kernel lacks a feature that the program needs.
    Unsupported(String),
    Rules(String),
}

/// The rules of one [`Program`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRules {
    /// The program that printed them.
    pub program: Program,
    /// The output of `iptables-save`.
    pub text: String,
}

/// The rules of every iptables that is installed: of both variants, or of plain `iptables` on a machine that does not
/// offer variants.
///
/// # Errors
/// When one of the programs fails.
pub async fn save_all() -> Result<Vec<SavedRules>> {
    save_variants(&Variant::ALL).await
}

/// As [`save_all`], of these variants only.
///
/// # Errors
/// When one of the programs fails.
pub async fn save_variants(variants: &[Variant]) -> Result<Vec<SavedRules>> {
    let mut all = Vec::new();
    for family in IpFamily::ALL {
        let before = all.len();
        for variant in variants {
            let program = Program::new(family, *variant);
            all.extend(program.save().await?.map(|text| SavedRules { program, text }));
        }

        if all.len() == before
            && let Some(variant) = installed_variant(plain_name(family)).await?
            && variants.contains(&variant)
        {
            let program = Program::plain(family, variant);
            all.extend(program.save().await?.map(|text| SavedRules { program, text }));
        }
    }
    Ok(all)
}

/// The variant of an installed program, by its `--version`.
pub(crate) async fn installed_variant(name: &str) -> Result<Option<Variant>> {
    let output = run(name, &["--version"], "").await?;
    Ok(output.map(|output| Variant::from_version(&String::from_utf8_lossy(&output.stdout))))
}

const fn plain_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    }
}

// === impl Program ===

impl Program {
    /// The program whose name contains the variant.
    #[must_use]
    pub const fn new(family: IpFamily, variant: Variant) -> Self {
        let name = match (variant, family) {
            (Variant::Nft, IpFamily::V4) => "iptables-nft",
            (Variant::Nft, IpFamily::V6) => "ip6tables-nft",
            (Variant::Legacy, IpFamily::V4) => "iptables-legacy",
            (Variant::Legacy, IpFamily::V6) => "ip6tables-legacy",
        };
        Self { family, variant, name }
    }

    /// `iptables` or `ip6tables`, known to be of this variant.
    pub(crate) const fn plain(family: IpFamily, variant: Variant) -> Self {
        Self { family, variant, name: plain_name(family) }
    }

    /// All rules, as `iptables-save` prints them; `None` when it is not installed, or the kernel does not support it.
    ///
    /// # Errors
    /// When the program fails otherwise.
    pub async fn save(self) -> Result<Option<String>> {
        Ok(match self.try_save().await? {
            SaveResult::Rules(saved) => Some(saved),
            SaveResult::NotInstalled | SaveResult::Unsupported(_) => None,
        })
    }

    pub(crate) async fn try_save(self) -> Result<SaveResult> {
        let name = format!("{}-save", self.name);
        let Some(Output { status, stdout, stderr }) = run(&name, &[], "").await? else {
            return Ok(SaveResult::NotInstalled);
        };
        if status.success() {
            // A comment of another program may be in another encoding.
            return Ok(SaveResult::Rules(String::from_utf8_lossy(&stdout).into_owned()));
        }

        let reason = restore::reason(&String::from_utf8_lossy(&stderr));
        match restore::unsupported(&reason) {
            Some(unsupported) => Ok(SaveResult::Unsupported(unsupported.to_owned())),
            None => Err(anyhow!("{name}: {reason}")),
        }
    }

    /// Executes a script; each table is changed completely or not at all.
    ///
    /// # Errors
    /// When the program rejects a line, or cannot run.
    pub async fn restore(self, script: &Script) -> Result<(), RestoreError> {
        self.restore_measuring(script, &mut Duration::default()).await
    }

    /// As [`Self::restore`]; `lock_wait` grows by the time spent waiting for other processes that change rules.
    pub(crate) async fn restore_measuring(self, script: &Script, lock_wait: &mut Duration) -> Result<(), RestoreError> {
        if self.variant == Variant::Legacy {
            *lock_wait += lock::wait(&lock::path()).await;
        }

        let program = format!("{}-restore", self.name);
        let arguments = ["--noflush", "--wait", LOCK_TIMEOUT_S];
        let failed = |reason: anyhow::Error| RestoreError::Failed(reason.context(format!("run {program}")));
        let mut attempt = 1;
        loop {
            let begun = Instant::now();
            let output = run(&program, &arguments, script.text()).await.map_err(failed)?;
            let Output { status, stderr, .. } = output.context("it is not installed").map_err(failed)?;
            let code = status.code();
            let took_us = begun.elapsed().as_micros() as u64;
            debug!(program, lines = script.commands(), bytes = script.text().len(), took_us, code, "restored");

            let stderr = String::from_utf8_lossy(&stderr);
            let reason = restore::reason(&stderr);
            match code {
                Some(0) => return Ok(()),
                Some(RESOURCE_PROBLEM) if is_busy(&stderr) => {}
                Some(_) => return Err(RestoreError::Rejected { lines: restore::lines(&stderr), reason, program }),
                None => return Err(failed(anyhow!("terminated by a signal"))),
            }

            // With several tables, some may have been committed: the caller has to read the rules first.
            if attempt == ATTEMPTS || script.tables() != 1 {
                return Err(failed(anyhow::Error::msg(reason)));
            }
            debug!(program, reason, "another process changes rules, retrying");
            sleep(Duration::from_millis(fastrand::u64(RETRY_DELAY_MS))).await;
            *lock_wait += begun.elapsed();
            attempt += 1;
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Whether another process holds the lock, or committed a change in between.
fn is_busy(stderr: &str) -> bool {
    ["xtables lock", "temporarily unavailable"].iter().any(|text| stderr.contains(text))
}

/// Runs a program until it ends. `None` when it is not installed. The program is killed at the deadline, and when the
/// future is dropped.
async fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<Option<Output>> {
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
    let both = timeout(PROGRAM_TIMEOUT, async { tokio::join!(write, child.wait_with_output()) }).await;

    let ((), output) = both.with_context(|| format!("{program} did not end within {} s", PROGRAM_TIMEOUT.as_secs()))?;
    output.map(Some).with_context(|| format!("wait for {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paused clock advances to the deadline.
    #[tokio::test(start_paused = true)]
    async fn a_program_that_does_not_end_is_an_error() {
        let error = run("sleep", &["3600"], "").await.unwrap_err();
        assert_eq!(error.to_string(), "sleep did not end within 600 s");
        assert!(run("no-such-program", &[], "").await.unwrap().is_none());
    }
}
