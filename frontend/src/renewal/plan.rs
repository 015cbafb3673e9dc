//! Which step of the renewal is next. Pure: times are seconds since 1970.
//!
//! ```text
//!   certificate:  issued ─────── 2/3 ──▶ IssueCertificate
//!
//!   CA:  created ─── 2/3 ──▶ CreateAuthority ──▶ TrustAuthorities ── overlap ──▶ UseNextAuthority ──▶ IssueCertificate
//!                            next CA: a key      both in the bundle              the old key is gone        │ overlap
//!                                                                                                           ▼
//!                                                                       ForgetPrevious ◀── DistrustPrevious
//! ```
//!
//! During the overlap backends with either bundle trust the certificate in use: the old CA signs until every node has
//! the new one, and leaves the bundle when every frontend uses a certificate of the new one.

use std::{collections::BTreeSet, fmt, time::Duration};

use runtime::certificate::Validity;

/// How often the objects are read, in seconds, if nothing is due before.
pub(super) const CHECK_INTERVAL: i64 = 3600;
/// New certificates are valid from this time before they are issued, in seconds, or a tenth of their lifetime: clocks
/// of nodes differ.
const MAX_BACKDATE: i64 = 300;

/// How long renewed certificates are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateLifetimes {
    /// Of the frontend's certificate.
    pub certificate: Duration,
    /// Of its CA.
    pub authority: Duration,
    /// How long backends trust a new CA before it is used, and an old one afterwards. At most a quarter of the lifetime
    /// of a certificate and an eighth of that of a CA are used.
    pub overlap: Duration,
}

/// The SHA-256 hash of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fingerprint(pub(super) [u8; 32]);

/// The certificates of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateState {
    /// The CA that signs.
    pub(super) authority: (Fingerprint, Validity),
    /// The CA that will sign.
    pub(super) next: Option<(Fingerprint, Validity)>,
    /// The CAs that have signed before.
    pub(super) previous: BTreeSet<Fingerprint>,
    /// The CAs that backends trust.
    pub(super) bundle: BTreeSet<Fingerprint>,
    /// When a CA was last added to the bundle.
    pub(super) bundle_extended: Option<i64>,
    /// When the frontend's certificate is valid.
    pub(super) certificate: Validity,
    /// The CA that has signed it.
    pub(super) issuer: Fingerprint,
}

/// A change of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalStep {
    /// Create the next CA.
    CreateAuthority,
    /// Add all CAs that sign, or will, to the bundle.
    TrustAuthorities,
    /// Sign with the next CA from now on.
    UseNextAuthority,
    /// Sign a new certificate of the frontend.
    IssueCertificate,
    /// Remove previous CAs from the bundle.
    DistrustPrevious,
    /// Remove the record of previous CAs.
    ForgetPrevious,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalPlan {
    /// One step. The next one depends on its result.
    Step(RenewalStep),
    /// Nothing before this time.
    WaitUntil(i64),
}

/// The next step.
pub(super) fn plan(now: i64, lifetimes: &CertificateLifetimes, state: &CertificateState) -> RenewalPlan {
    let overlap = lifetimes.overlap();
    let (authority, authority_validity) = state.authority;
    let mut wait_until = now + CHECK_INTERVAL;
    let mut is_due = |time: i64| {
        if time > now {
            wait_until = wait_until.min(time);
        }
        time <= now
    };

    let next = state.next.filter(|(_, validity)| !is_due(validity.not_after));
    if next.is_none() && is_due(renewal_time(authority_validity)) {
        return RenewalPlan::Step(RenewalStep::CreateAuthority);
    }
    let used = [Some(authority), next.map(|(next, _)| next)];
    let is_trusted = used.iter().flatten().all(|used| state.bundle.contains(used));
    // A time in the future is that of a wrong clock.
    let extended = state.bundle_extended.filter(|extended| *extended <= now + MAX_BACKDATE);
    if !is_trusted || (next.is_some() && extended.is_none()) {
        return RenewalPlan::Step(RenewalStep::TrustAuthorities);
    }
    if let (Some(_), Some(extended)) = (next, extended) {
        // After the CA has expired, backends reject its certificates anyway.
        let overlap_end = (extended + overlap).min(authority_validity.not_after + 1);
        if is_due(overlap_end) {
            return RenewalPlan::Step(RenewalStep::UseNextAuthority);
        }
    }
    let is_of_previous = state.issuer != authority && state.previous.contains(&state.issuer);
    if is_of_previous || lifetimes.certificate_due(state.certificate, authority_validity).is_some_and(&mut is_due) {
        return RenewalPlan::Step(RenewalStep::IssueCertificate);
    }
    if state.previous.is_empty() {
        return RenewalPlan::WaitUntil(wait_until);
    }
    // The last frontend has read the certificate long before.
    if state.issuer == authority && is_due(latest_issue(state.certificate) + overlap + 1) {
        let is_obsolete =
            |previous: &&Fingerprint| **previous != authority && state.next.is_none_or(|(next, _)| next != **previous);
        let is_distrusted = !state.previous.iter().filter(is_obsolete).any(|old| state.bundle.contains(old));
        return RenewalPlan::Step(match is_distrusted {
            true => RenewalStep::ForgetPrevious,
            false => RenewalStep::DistrustPrevious,
        });
    }
    RenewalPlan::WaitUntil(wait_until)
}

// === impl RenewalStep ===

impl RenewalStep {
    /// The value of the label `certificate`, if the step creates one.
    pub(super) fn created(self) -> Option<&'static str> {
        match self {
            Self::CreateAuthority => Some("ca"),
            Self::IssueCertificate => Some("server"),
            _ => None,
        }
    }
}

impl fmt::Display for RenewalStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CreateAuthority => "create the next CA",
            Self::TrustAuthorities => "add CAs to the bundle",
            Self::UseNextAuthority => "sign with the next CA",
            Self::IssueCertificate => "issue the frontend's certificate",
            Self::DistrustPrevious => "remove previous CAs from the bundle",
            Self::ForgetPrevious => "forget previous CAs",
        })
    }
}

// === impl CertificateLifetimes ===

impl CertificateLifetimes {
    /// A certificate must not expire in a frontend that reads its successor this much later.
    fn overlap(&self) -> i64 {
        seconds(self.overlap.min(self.certificate / 4).min(self.authority / 8))
    }

    /// The validity of a CA that is created now.
    pub(super) fn new_authority(&self, now: i64) -> Validity {
        Validity { not_before: now - backdate(self.authority), not_after: now + seconds(self.authority) }
    }

    /// The validity of a certificate that this CA signs now.
    pub(super) fn new_certificate(&self, now: i64, authority: Validity) -> Validity {
        let not_before = now - backdate(self.certificate.min(self.authority));
        Validity { not_before: not_before.max(authority.not_before), not_after: self.certificate_end(now, authority) }
    }

    /// When a certificate is renewed: not before a new one is valid for longer. `None`: none of this CA is.
    fn certificate_due(&self, certificate: Validity, authority: Validity) -> Option<i64> {
        let extends_from = certificate.not_after - self.certificate_seconds() + 1;
        (authority.not_after > certificate.not_after).then(|| renewal_time(certificate).max(extends_from))
    }

    /// No certificate is valid for longer than its CA.
    fn certificate_seconds(&self) -> i64 {
        seconds(self.certificate.min(self.authority))
    }

    fn certificate_end(&self, now: i64, authority: Validity) -> i64 {
        (now + self.certificate_seconds()).min(authority.not_after)
    }
}

/// When two thirds of the lifetime have passed.
fn renewal_time(validity: Validity) -> i64 {
    let Validity { not_before, not_after } = validity;
    not_before + (not_after - not_before) / 3 * 2
}

/// The latest time at which a certificate with this validity was issued. An eighth is more than what certificates are
/// backdated by, also if they end with their CA.
fn latest_issue(Validity { not_before, not_after }: Validity) -> i64 {
    not_before + ((not_after - not_before) / 8).min(MAX_BACKDATE)
}

fn backdate(lifetime: Duration) -> i64 {
    (seconds(lifetime) / 10).min(MAX_BACKDATE)
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests;
