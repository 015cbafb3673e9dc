//! The real kernel, by the tools of one variant.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use backend::{Drift, iptables::Variant};
use proto::model::IpFamily;
use tracing::{debug, info, warn};

use super::{
    Kernel, Localnet, RestoreError, Suspicion, blame,
    exec::{self, Ended},
    localnet, lock,
    watch::Watch,
};
use crate::plan::Script;

/// `-w`: how many seconds a tool waits for others who change rules.
const WAIT: &str = "5";
/// With each line `iptables-nft-restore` walks through a sorted list of all chains that a part has named so far; and with each part the
/// kernel looks at all chains of the table. Measured: 430,000 lines at once take more than 200 s.
const NFT_AT_ONCE: usize = 1_000;
/// How often it is tried when others do not come to an end.
const TRIES: u32 = 3;
/// Before the next try, in milliseconds: any of these.
const PAUSE: std::ops::Range<u64> = 50..250;
/// `RESOURCE_PROBLEM` of `iptables/include/xtables.h`: the lock is held, or others were faster.
const RESOURCE_PROBLEM: i32 = 4;
/// At least so long between two looks, where changes are not announced.
const LOOK: Duration = Duration::from_millis(500);
/// A look may take one part in so many of the time: 2 % of a core.
const SHARE: u32 = 50;

/// The iptables of the network namespace of whoever calls.
#[derive(Debug)]
pub(crate) struct Tools {
    /// What was asked for; `None`: what is in use.
    wanted: Option<Variant>,
    found: Option<Found>,
    /// How long a [`Kernel::save`] takes. Less is believed at once, more by and by: it may be the machine that is busy.
    took: Duration,
    /// Which family is looked at next.
    next: IpFamily,
    /// When that is. It stays when nobody waits for it.
    due: Option<Instant>,
    /// See [`Kernel::waited`].
    waited: Duration,
}

#[derive(Debug)]
struct Found {
    /// The names of the tools begin with it, by family.
    programs: [String; 2],
    /// Where changes are announced.
    watch: Option<Watch>,
    /// What the variant was told by: it need not be saved again.
    saved: Option<String>,
}

// === impl Tools ===

impl Tools {
    pub(crate) fn new(wanted: Option<Variant>) -> Self {
        Self { wanted, found: None, took: Duration::ZERO, next: IpFamily::V4, due: None, waited: Duration::ZERO }
    }

    /// Whether there is any iptables.
    pub(crate) async fn is_installed(&self) -> Result<bool> {
        Ok(exec::run("iptables", &["--version"], "").await?.is_some())
    }

    /// As a person would call it: `iptables-nft`.
    pub(crate) async fn program(&mut self, family: IpFamily) -> Result<String> {
        Ok(self.found().await?.program(family).to_owned())
    }

    async fn found(&mut self) -> Result<&mut Found> {
        let found = match self.found.take() {
            Some(found) => found,
            None => find(self.wanted).await?,
        };
        Ok(self.found.insert(found))
    }
}

impl Kernel for Tools {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        let found = self.found().await?;
        if family == IpFamily::V4 {
            if let Some(saved) = found.saved.take() {
                return Ok(Some(saved));
            }
            if let Some(watch) = &mut found.watch {
                // What was announced until now counts no more: it is in what is about to be saved.
                watch.forget()?;
            }
        }
        let begun = Instant::now();
        let saved = save(found.program(family)).await?;
        let took = begun.elapsed();
        self.took = if took < self.took { took } else { (self.took * 3 + took) / 4 };
        Ok(saved)
    }

    fn at_once(&self) -> usize {
        match &self.found {
            Some(Found { watch: Some(_), .. }) => NFT_AT_ONCE,
            // Each part is a copy of the whole table.
            _ => usize::MAX,
        }
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        let mut waited = Duration::ZERO;
        let found = self.found().await.map_err(RestoreError::Failed)?;
        let program = format!("{}-restore", found.program(family));
        let result = match &mut found.watch {
            // There is no lock.
            Some(watch) => {
                let before = watch.begin().map_err(RestoreError::Failed)?;
                let result = restore(&program, script, &mut waited).await;
                watch.end(before, script.parts()).map_err(RestoreError::Failed)?;
                result
            }
            None => {
                waited += lock::wait(&lock::path()).await;
                restore(&program, script, &mut waited).await
            }
        };
        self.waited += waited;
        result
    }

    fn route_localnet(&mut self, localnet: Localnet) -> Result<()> {
        localnet::set(localnet)
    }

    fn waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    async fn suspect(&mut self) -> Suspicion {
        let (took, next) = (self.took, self.next);
        let due = *self.due.get_or_insert_with(|| Instant::now() + LOOK.max(took * SHARE));
        let watch = match &mut self.found {
            Some(Found { watch, .. }) => watch,
            // There is nothing yet that could be changed.
            None => return std::future::pending().await,
        };
        match watch {
            Some(watch) => Suspicion::Drift(watch.drift().await.unwrap_or_else(|error| {
                warn!(error = format!("{error:#}"), "cannot tell who changes the tables");
                Drift::Possible
            })),
            None => {
                tokio::time::sleep_until(due.into()).await;
                self.due = None;
                self.next = match next {
                    IpFamily::V4 => IpFamily::V6,
                    IpFamily::V6 => IpFamily::V4,
                };
                Suspicion::Look(next)
            }
        }
    }
}

// === impl Found ===

impl Found {
    fn program(&self, family: IpFamily) -> &str {
        &self.programs[family as usize]
    }
}

async fn find(wanted: Option<Variant>) -> Result<Found> {
    // It listens before anything is looked at.
    let watch = Watch::open();
    let mut saved = Vec::new();
    let version = exec::run("iptables", &["--version"], "").await?;
    let default = version.as_ref().map(|ended| Variant::from_version(&ended.output));
    let variant = match (wanted, default) {
        (Some(wanted), _) => wanted,
        (None, Some(default)) => {
            for variant in Variant::ALL {
                saved.extend(save(variant.program(IpFamily::V4)).await?.map(|saved| (variant, saved)));
            }
            Variant::choose(&saved, default)
        }
        (None, None) => bail!("iptables is not installed"),
    };
    let mut programs = IpFamily::ALL.map(|family| variant.program(family).to_owned());
    if exec::run(&programs[0], &["--version"], "").await?.is_none() {
        if default != Some(variant) {
            bail!("{} is not installed", programs[0]);
        }
        programs = ["iptables", "ip6tables"].map(str::to_owned);
    }
    let watch = match variant {
        Variant::Nft => Some(watch?),
        Variant::Legacy => None,
    };
    let saved = saved.into_iter().find_map(|(of, saved)| (of == variant).then_some(saved));
    info!(%variant, program = programs[0], "iptables");
    Ok(Found { programs, watch, saved })
}

/// `None` when it is not installed.
pub(super) async fn save(program: &str) -> Result<Option<String>> {
    let program = format!("{program}-save");
    let Some(Ended { code, output, complaint }) = exec::run(&program, &[], "").await? else {
        return Ok(None);
    };
    if code != Some(0) {
        bail!("{program}: {}", blame::reason(&complaint));
    }
    Ok(Some(output))
}

/// `waited`: grows by what was lost to others.
async fn restore(program: &str, script: &Script, waited: &mut Duration) -> Result<(), RestoreError> {
    let failed = |reason: anyhow::Error| RestoreError::Failed(reason.context(format!("run {program}")));
    for attempt in 1.. {
        let begun = Instant::now();
        let ended = exec::run(program, &["--noflush", "--wait", WAIT], script.text()).await.map_err(failed)?;
        let Ended { code, complaint, .. } = ended.context("it is not installed").map_err(failed)?;
        let took_us = begun.elapsed().as_micros() as u64;
        debug!(program, lines = script.writes(), bytes = script.text().len(), took_us, code, "restored");
        let reason = blame::reason(&complaint);
        match code {
            Some(0) => return Ok(()),
            // Of several parts some may be in force: then what is there must be looked at first.
            Some(RESOURCE_PROBLEM) if is_busy(&complaint) && attempt < TRIES && script.parts() == 1 => {
                debug!(reason, "others change rules at the same time: again in a moment");
                tokio::time::sleep(Duration::from_millis(fastrand::u64(PAUSE))).await;
                *waited += begun.elapsed();
            }
            Some(RESOURCE_PROBLEM) if is_busy(&complaint) => return Err(failed(anyhow::Error::msg(reason))),
            Some(_) => return Err(RestoreError::Refused { lines: blame::lines(&complaint), reason }),
            None => return Err(failed(anyhow::Error::msg("a signal has ended it"))),
        }
    }
    Ok(())
}

/// The lock, or a change of others that came in between.
fn is_busy(complaint: &str) -> bool {
    ["xtables lock", "temporarily unavailable"].iter().any(|words| complaint.contains(words))
}
