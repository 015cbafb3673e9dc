//! The iptables that this node uses: its variant is detected once, when it is first needed.

use std::time::Duration;

use anyhow::{Result, bail};
use proto::model::IpFamily;
use tracing::info;

use crate::{Program, RestoreError, Script, Variant, program::installed_variant};

/// The iptables of the network namespace of the calling thread.
#[derive(Debug)]
pub struct Tools {
    /// The variant that the operator asked for; `None`: detect it.
    wanted: Option<Variant>,
    detected: Option<Detected>,
    lock_wait: Duration,
}

#[derive(Debug)]
struct Detected {
    programs: [Program; 2],
    /// What was saved of IPv4 to detect the variant, so that the first [`Tools::save`] need not run again.
    saved: Option<String>,
}

// === impl Tools ===

impl Tools {
    /// Does not run any program yet.
    #[must_use]
    pub const fn new(wanted: Option<Variant>) -> Self {
        Self { wanted, detected: None, lock_wait: Duration::ZERO }
    }

    /// Whether there is any iptables.
    ///
    /// # Errors
    /// When `iptables` cannot be started.
    pub async fn is_installed(&self) -> Result<bool> {
        Ok(installed_variant("iptables").await?.is_some())
    }

    /// The variant in use, if it has been detected.
    #[must_use]
    pub fn detected(&self) -> Option<Variant> {
        self.detected.as_ref().map(|detected| detected.programs[0].variant)
    }

    /// The program of a family.
    ///
    /// # Errors
    /// When the wanted variant, or any, is not installed.
    pub async fn program(&mut self, family: IpFamily) -> Result<Program> {
        Ok(self.detect().await?.programs[family as usize])
    }

    /// Whether the next [`Self::save`] returns what was read to detect the variant.
    #[must_use]
    pub fn has_saved(&self, family: IpFamily) -> bool {
        family == IpFamily::V4 && self.detected.as_ref().is_some_and(|detected| detected.saved.is_some())
    }

    /// All rules of a family, as `iptables-save` prints them; `None` when there is no iptables for it.
    ///
    /// # Errors
    /// When the program fails.
    pub async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        let detected = self.detect().await?;
        if family == IpFamily::V4
            && let Some(saved) = detected.saved.take()
        {
            return Ok(Some(saved));
        }
        detected.programs[family as usize].save().await
    }

    /// As [`Program::restore`].
    ///
    /// # Errors
    /// When the program rejects a line, or cannot run.
    pub async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        let program = self.program(family).await.map_err(RestoreError::Failed)?;
        program.restore_measuring(script, &mut self.lock_wait).await
    }

    /// How long restores have waited for other processes since the last call.
    pub fn take_lock_wait(&mut self) -> Duration {
        std::mem::take(&mut self.lock_wait)
    }

    async fn detect(&mut self) -> Result<&mut Detected> {
        let detected = match self.detected.take() {
            Some(detected) => detected,
            None => detect(self.wanted).await?,
        };
        Ok(self.detected.insert(detected))
    }
}

async fn detect(wanted: Option<Variant>) -> Result<Detected> {
    let mut saved = Vec::new();
    let default = installed_variant("iptables").await?;
    let variant = match (wanted, default) {
        (Some(wanted), _) => wanted,
        (None, Some(default)) => {
            for variant in Variant::ALL {
                saved.extend(Program::new(IpFamily::V4, variant).save().await?.map(|saved| (variant, saved)));
            }
            Variant::choose(&saved, default)
        }
        (None, None) => bail!("iptables is not installed"),
    };
    let mut programs = IpFamily::ALL.map(|family| Program::new(family, variant));
    if installed_variant(programs[0].name).await?.is_none() {
        if default != Some(variant) {
            bail!("{} is not installed", programs[0]);
        }
        programs = IpFamily::ALL.map(|family| Program::plain(family, variant));
    }
    let saved = saved.into_iter().find_map(|(of, saved)| (of == variant).then_some(saved));
    info!(%variant, program = programs[0].name, "iptables variant detected");
    Ok(Detected { programs, saved })
}
