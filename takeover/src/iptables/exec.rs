//! The one place that starts processes: `iptables-save` and `iptables-restore`, once for each family and variant. The older iptables
//! has no other interface.

use std::{
    fmt,
    io::{ErrorKind, Write as _},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::Family;

/// The tools of one family and variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) family: Family,
    variant: Variant,
}

/// Both can hold rules at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Keeps its rules in nf_tables.
    Nft,
    /// Keeps its rules in ip_tables.
    Legacy,
    /// The only one, where there are no two to choose from.
    Only,
}

/// What every iptables that is installed has saved. Empty where none is.
pub(crate) fn save_all() -> Result<Vec<(Program, String)>> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        let of = |variant| Program { family, variant };
        let mut found = Vec::new();
        for program in [Variant::Nft, Variant::Legacy].map(of) {
            found.extend(program.save()?.map(|saved| (program, saved)));
        }
        if found.is_empty() {
            let program = of(Variant::Only);
            found.extend(program.save()?.map(|saved| (program, saved)));
        }
        all.append(&mut found);
    }
    Ok(all)
}

// === impl Program ===

impl Program {
    #[cfg(test)]
    pub(super) fn of_v4() -> Self {
        Self { family: Family::V4, variant: Variant::Nft }
    }

    /// `None` when it is not installed.
    fn save(self) -> Result<Option<String>> {
        let name = format!("{self}-save");
        let output = match Command::new(&name).stdin(Stdio::null()).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            output => output.with_context(|| format!("start {name}"))?,
        };
        if !output.status.success() {
            bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        String::from_utf8(output.stdout).map(Some).with_context(|| format!("{name} prints no UTF-8"))
    }

    /// Executes the script table by table; waits for others who change rules.
    pub(super) fn restore(self, script: &str) -> Result<()> {
        let name = format!("{self}-restore");
        let mut command = Command::new(&name);
        command.args(["--noflush", "--wait", "5"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {name}"))?;
        // It reads to the end before it says anything but an error, which is short.
        let fed = child.stdin.take().map(|mut stdin| stdin.write_all(script.as_bytes()));
        let output = child.wait_with_output().with_context(|| format!("wait for {name}"))?;
        if !output.status.success() {
            bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        fed.transpose().map(drop).with_context(|| format!("write to {name}"))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let variant = match self.variant {
            Variant::Nft => "-nft",
            Variant::Legacy => "-legacy",
            Variant::Only => "",
        };
        write!(f, "{family}{variant}")
    }
}
