//! The iptables that this node uses: its variant is detected once, when it is first needed.

use std::{collections::BTreeMap, iter, time::Duration};

use anyhow::{Result, bail};
use proto::model::IpFamily;
use tracing::info;

use crate::{
    Program, RestoreError, SavedRules, Script, Variant, VariantSelection,
    program::{SaveResult, installed_variant},
    restore,
};

/// The iptables of the network namespace of the calling thread.
#[derive(Debug)]
pub struct Tools {
    selection: VariantSelection,
    detected: Option<Detected>,
    unsupported: Unsupported,
    lock_wait: Duration,
}

#[derive(Debug)]
struct Detected {
    programs: [Program; 2],
    /// The family by whose programs it was detected.
    family: IpFamily,
    /// The other variants that are installed, if the operator did not ask for a variant.
    others: Vec<Variant>,
    /// The rules of IPv4 that were read to detect the variant, so that the first [`Tools::save`] need not run again.
    saved: Option<String>,
}

// === impl Tools ===

impl Tools {
    /// Does not run any program yet.
    #[must_use]
    pub fn new(selection: impl Into<VariantSelection>) -> Self {
        Self {
            selection: selection.into(),
            detected: None,
            unsupported: Unsupported::default(),
            lock_wait: Duration::ZERO,
        }
    }

    /// Whether there is any iptables.
    ///
    /// # Errors
    /// When `iptables` cannot be started.
    pub async fn is_installed(&self) -> Result<bool> {
        Ok(default_variant().await?.is_some())
    }

    /// The variant in use, if it has been detected.
    #[must_use]
    pub fn detected(&self) -> Option<Variant> {
        self.detected.as_ref().map(|detected| detected.programs[0].variant)
    }

    /// The program of a family.
    ///
    /// # Errors
    /// When the wanted variant is not installed, or none is.
    pub async fn program(&mut self, family: IpFamily) -> Result<Program> {
        Ok(self.detect().await?.programs[family as usize])
    }

    /// Whether the next [`Self::save`] returns the rules that were read to detect the variant.
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

    /// As [`Program::restore`]. If the kernel does not support the variant, another one is detected next.
    ///
    /// # Errors
    /// When the program rejects a line, or cannot run.
    pub async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        let program = self.program(family).await.map_err(RestoreError::Failed)?;
        let result = program.restore_measuring(script, &mut self.lock_wait).await;
        let Err(RestoreError::Rejected { lines, reason, program: name }) = result else { return result };
        let Some(cause) = restore::unsupported(&reason).map(str::to_owned) else {
            return Err(RestoreError::Rejected { lines, reason, program: name });
        };

        // The other family may be the only one that the kernel lacks.
        let Some(detected) = self.detected.as_ref().filter(|detected| detected.family == family) else {
            return Err(RestoreError::Rejected { lines, reason: cause, program: name });
        };

        let is_untried = |variant: &Variant| !self.unsupported.reasons.contains_key(variant);
        let next = detected.others.iter().copied().find(is_untried);
        self.unsupported.add(program, cause);
        let error = self.unsupported.error(next);
        if next.is_none() {
            return Err(RestoreError::Rejected { lines, reason: error.to_string(), program: name });
        }

        self.detected = None;
        self.selection.use_variant(None);
        Err(RestoreError::Failed(error))
    }

    /// How long restores have waited for other processes since the last call.
    pub fn take_lock_wait(&mut self) -> Duration {
        std::mem::take(&mut self.lock_wait)
    }

    async fn detect(&mut self) -> Result<&mut Detected> {
        let detected = match self.detected.take() {
            Some(detected) => detected,
            None => {
                let detected = detect(self.selection.wanted(), &mut self.unsupported).await?;
                self.selection.use_variant(Some(detected.programs[0].variant));
                detected
            }
        };
        Ok(self.detected.insert(detected))
    }
}

// === detection ===

/// Chooses the variant that the operator asked for; otherwise the one that others use, if the kernel supports it.
async fn detect(wanted: Option<Variant>, unsupported: &mut Unsupported) -> Result<Detected> {
    let (family, default) = match (default_variant().await?, wanted) {
        (Some(found), _) => found,
        (None, Some(wanted)) => (IpFamily::V4, wanted),
        (None, None) => bail!("iptables is not installed"),
    };

    let mut saved = Vec::new();
    for variant in wanted.map_or(Variant::ALL.to_vec(), |wanted| vec![wanted]) {
        let plain = if variant == default { Some(Program::plain(family, variant)) } else { None };
        saved.extend(save_first(Program::new(family, variant), plain, unsupported).await?);
    }

    // The kernel has rejected a restore with the variant that was attempted last.
    let is_last = |saved: &SavedRules| Some(saved.program.variant) == unsupported.last;
    if !saved.iter().all(is_last) {
        saved.retain(|saved| !is_last(saved));
    }

    let Some(program) = Variant::choose(&saved, default).map(|chosen| chosen.program) else {
        if unsupported.reasons.is_empty() {
            bail!("{} is not installed", Program::new(family, wanted.unwrap_or(default)));
        }
        return Err(unsupported.error(None));
    };
    let variant = program.variant;
    info!(%variant, program = program.name, "iptables variant detected");

    let has_variants = program == Program::new(family, variant);
    let program_of = if has_variants { Program::new } else { Program::plain };
    let (chosen, others): (Vec<_>, Vec<_>) = saved.into_iter().partition(|saved| saved.program == program);
    let text = chosen.into_iter().next().map(|saved| saved.text);
    Ok(Detected {
        programs: IpFamily::ALL.map(|family| program_of(family, variant)),
        family,
        others: others.into_iter().map(|saved| saved.program.variant).collect(),
        saved: if family == IpFamily::V4 { text } else { None },
    })
}

/// The rules of the first of two programs that is installed; `None` if neither is, or the kernel does not support it.
async fn save_first(
    program: Program,
    plain: Option<Program>,
    unsupported: &mut Unsupported,
) -> Result<Option<SavedRules>> {
    for program in iter::once(program).chain(plain) {
        match program.try_save().await? {
            SaveResult::NotInstalled => {}
            SaveResult::Unsupported(reason) => {
                unsupported.add(program, reason);
                return Ok(None);
            }
            SaveResult::Rules(text) => return Ok(Some(SavedRules { program, text })),
        }
    }
    Ok(None)
}

/// The family by whose programs the variant is detected, and the variant of plain `iptables` or `ip6tables`.
async fn default_variant() -> Result<Option<(IpFamily, Variant)>> {
    for family in IpFamily::ALL {
        if let Some(variant) = installed_variant(Program::plain(family, Variant::Nft).name).await? {
            return Ok(Some((family, variant)));
        }
    }
    Ok(None)
}

/// The variants that the kernel does not support, although they are installed.
#[derive(Debug, Default)]
struct Unsupported {
    reasons: BTreeMap<Variant, (Program, String)>,
    /// The variant that was attempted last.
    last: Option<Variant>,
}

impl Unsupported {
    fn add(&mut self, program: Program, reason: String) {
        self.reasons.insert(program.variant, (program, reason));
        self.last = Some(program.variant);
    }

    /// The error that says what the operator can do. `next` is the variant that is used instead, if there is one.
    fn error(&self, next: Option<Variant>) -> anyhow::Error {
        let reasons: Vec<_> = self.reasons.values().map(|(program, reason)| format!("{program}: {reason}")).collect();
        let advice = match next {
            Some(next) => format!("using the variant {next} instead"),
            None => "load the kernel modules of nf_tables, or install iptables-legacy and load iptable_nat".to_owned(),
        };
        anyhow::anyhow!("the kernel does not support the installed iptables ({}): {advice}", reasons.join("; "))
    }
}
