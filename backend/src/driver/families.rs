//! Which IP families the kernel of the node can program. A family that it cannot program does not keep the other one
//! from being programmed.

use std::time::Duration;

use anyhow::{Result, bail};
use proto::model::{IpFamily, PerFamily};
use tokio::time::Instant;
use tracing::debug;

/// The first delay before a family that cannot be programmed is tried again. The delay doubles with each attempt,
/// because an attempt reads the kernel, as after a restart.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(15);

/// The longest of these delays.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(600);

/// The longest delay before a family is tried again whose rules could not be read: shorter, because the reason may have
/// been a lack of memory, and rules of an earlier process may still be there.
const MAX_READ_DELAY: Duration = Duration::from_secs(30);

/// Which families are programmed.
#[derive(Clone, Debug, Default)]
pub struct UsableFamilies(PerFamily<FamilyUse>);

#[derive(Clone, Debug, Default)]
struct FamilyUse {
    failure: Option<FamilyFailure>,
    /// Whether the last attempt has failed, which may have been a lack of memory or another process.
    has_failed: bool,
    /// The delay before the last attempt that failed.
    delay: Duration,
    /// Whether it was programmed since the start of the process.
    was_programmed: bool,
}

#[derive(Clone, Debug)]
struct FamilyFailure {
    reason: String,
    retry_at: Instant,
    /// The longest time until the next attempt.
    max_delay: Duration,
}

// === impl UsableFamilies ===

impl UsableFamilies {
    /// The kernel is about to be read: families whose delay is over are tried again.
    pub fn retry_due(&mut self) {
        for family in self.due() {
            self.0[family].failure = None;
        }
    }

    /// Whether a family is to be programmed.
    #[must_use]
    pub fn contains(&self, family: IpFamily) -> bool {
        self.0[family].failure.is_none()
    }

    /// The families that are to be programmed.
    pub fn iter(&self) -> impl Iterator<Item = IpFamily> {
        IpFamily::ALL.into_iter().filter(|family| self.contains(*family))
    }

    /// All families that are to be programmed have been programmed.
    pub fn programmed(&mut self) {
        for family in IpFamily::ALL {
            let family = &mut self.0[family];
            if family.failure.is_none() {
                *family = FamilyUse { was_programmed: true, ..FamilyUse::default() };
            }
        }
    }

    /// The kernel rejects objects that a family needs. After the second rejection, the other family is programmed
    /// alone.
    ///
    /// # Errors
    /// If the other family cannot be programmed either, if this is the first failure, or if this family was programmed
    /// before: then the whole sync has failed, and is tried again within a second.
    pub fn failed(&mut self, family: IpFamily, reason: String) -> Result<()> {
        self.fails_again(family, &reason)?;
        self.unavailable(family, reason)
    }

    /// The rules of a family cannot be read. See [`Self::failed`].
    ///
    /// # Errors
    /// Those of [`Self::failed`].
    pub fn unreadable(&mut self, family: IpFamily, reason: String) -> Result<()> {
        self.fails_again(family, &reason)?;
        self.leave_out(family, reason, MAX_READ_DELAY)
    }

    fn fails_again(&mut self, family: IpFamily, reason: &str) -> Result<()> {
        let FamilyUse { was_programmed, has_failed, .. } = &mut self.0[family];
        if *was_programmed || !std::mem::replace(has_failed, true) {
            bail!("{family}: {reason}");
        }
        Ok(())
    }

    /// The programs that a family needs are not installed.
    ///
    /// # Errors
    /// If the other family cannot be programmed either.
    pub fn unavailable(&mut self, family: IpFamily, reason: String) -> Result<()> {
        self.leave_out(family, reason, MAX_RETRY_DELAY)
    }

    fn leave_out(&mut self, family: IpFamily, reason: String, max_delay: Duration) -> Result<()> {
        let FamilyUse { delay, .. } = self.0[family];
        let delay = (delay * 2).clamp(MIN_RETRY_DELAY, max_delay);
        debug!(%family, reason, retry_in_ms = delay.as_millis(), "cannot program an IP family");
        let failure = FamilyFailure { reason, retry_at: Instant::now() + delay, max_delay };
        self.0[family] = FamilyUse { failure: Some(failure), has_failed: true, delay, was_programmed: false };
        if self.iter().next().is_some() {
            return Ok(());
        }

        let reasons: Vec<_> = self.unusable().iter().map(|(of, reason)| format!("{of}: {reason}")).collect();
        *self = Self::default();
        bail!("no IP family can be programmed: {}", reasons.join("; "))
    }

    /// The families that cannot be programmed, and why.
    #[must_use]
    pub fn unusable(&self) -> Vec<(IpFamily, String)> {
        let families = self.0.iter();
        families.filter_map(|(family, of)| Some((family, of.failure.as_ref()?.reason.clone()))).collect()
    }

    /// The families whose delay is over.
    #[must_use]
    pub fn due(&self) -> Vec<IpFamily> {
        let now = Instant::now();
        let is_due = |of: &FamilyUse| of.failure.as_ref().is_some_and(|failure| failure.retry_at <= now);
        self.0.iter().filter(|(_, of)| is_due(of)).map(|(family, _)| family).collect()
    }

    /// A family that is due cannot be programmed yet.
    pub fn postpone(&mut self, family: IpFamily) {
        let FamilyUse { failure, delay, .. } = &mut self.0[family];
        if let Some(FamilyFailure { retry_at, max_delay, .. }) = failure {
            *delay = (*delay * 2).clamp(MIN_RETRY_DELAY, *max_delay);
            *retry_at = Instant::now() + *delay;
        }
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.0.iter().filter_map(|(_, of)| Some(of.failure.as_ref()?.retry_at)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(families: &mut UsableFamilies, family: IpFamily) -> Result<()> {
        families.failed(family, "no such table".to_owned())
    }

    /// At boot, other programs write rules too.
    #[tokio::test]
    async fn first_failure_fails_the_sync() {
        let mut families = UsableFamilies::default();
        failed(&mut families, IpFamily::V4).unwrap_err();
        assert_eq!(families.iter().count(), 2);
        families.programmed();
        failed(&mut families, IpFamily::V4).unwrap_err();
        assert!(families.unusable().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn family_that_fails_is_left_out_and_tried_again_later() {
        let mut families = UsableFamilies::default();
        failed(&mut families, IpFamily::V6).unwrap_err();
        failed(&mut families, IpFamily::V6).unwrap();
        families.programmed();
        assert_eq!(families.iter().collect::<Vec<_>>(), [IpFamily::V4]);
        assert_eq!(families.unusable(), [(IpFamily::V6, "no such table".to_owned())]);
        families.retry_due();
        assert!(!families.contains(IpFamily::V6), "too early");
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            let delay = families.retry_at().unwrap() - Instant::now();
            assert!(delay >= last && delay <= MAX_RETRY_DELAY);
            tokio::time::sleep(delay).await;
            families.retry_due();
            assert!(families.contains(IpFamily::V6) && families.unusable().is_empty());
            failed(&mut families, IpFamily::V6).unwrap();
            last = delay;
        }
        assert_eq!(last, MAX_RETRY_DELAY);
    }

    #[tokio::test]
    async fn without_any_family_the_sync_fails_and_both_are_tried_again() {
        let mut families = UsableFamilies::default();
        failed(&mut families, IpFamily::V6).unwrap_err();
        failed(&mut families, IpFamily::V4).unwrap_err();
        failed(&mut families, IpFamily::V6).unwrap();
        let error = failed(&mut families, IpFamily::V4).unwrap_err().to_string();
        assert!(error.contains("IPv4: no such table; IPv6: no such table"), "{error}");
        assert_eq!(families.iter().count(), 2);
    }

    /// Its rules are in the kernel, and another process or a lack of memory may be the reason.
    #[tokio::test]
    async fn family_that_was_programmed_fails_the_sync() {
        let mut families = UsableFamilies::default();
        families.programmed();
        failed(&mut families, IpFamily::V6).unwrap_err();
        assert_eq!(families.iter().count(), 2);
        families.unavailable(IpFamily::V6, "ip6tables is not installed".to_owned()).unwrap();
        assert_eq!(families.iter().collect::<Vec<_>>(), [IpFamily::V4]);
    }
}
