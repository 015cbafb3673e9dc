//! Renews the certificates that the chart has generated (`tls.mode: selfSigned`).
//!
//! ```text
//!   Secret NAME-ca, Secret NAME-tls, ConfigMap NAME-ca
//!      │ read                                  ▲ patch with resourceVersion: of several replicas one succeeds
//!      ▼                                       │
//!   contents ──▶ plan (pure) ──▶ one step ──▶ issue ──▶ read again, until nothing is due
//! ```
//!
//! Frontends and backends get the new files from the kubelet, and reload them. Certificates of another owner are not
//! touched: those of cert-manager, and those that a CA of another name has signed.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | which step is next |
//! | `objects` | the objects, and what they contain |
//! | `issue` | keys and certificates |

mod issue;
mod objects;
mod plan;
#[cfg(test)]
mod tests;

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use runtime::{
    Backoff, Shutdown,
    failure::{Recovery, Repeated},
};
use tokio::time::sleep;
use tracing::{info, warn};

use self::{
    issue::{CertificatePem, create_authority, issue},
    objects::{CertificateContents, CertificateObjects, CertificateOrigin, ObjectPatch, PatchResult, pem},
    plan::{CHECK_INTERVAL, RenewalPlan, RenewalStep, plan},
};
pub use self::{objects::CertificateObjectsName, plan::CertificateLifetimes};
use crate::{Frontend, metrics::Metrics, source::KubernetesApi};

/// The delay after the first failure, and the longest one.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10 * 60));
/// The most steps of one check. A complete change of the CA takes six, and each may meet a conflict.
const MAX_STEPS: usize = 24;
/// How far the clock of this host may differ from that of the API server: with a wrong clock certificates would be
/// renewed too early, and not be valid yet for backends.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5 * 60);
/// The shortest delay between two checks.
const MIN_DELAY: Duration = Duration::from_secs(1);
/// The most that a check is delayed so that replicas do not check at the same time; at most a tenth of the delay.
const MAX_JITTER: Duration = Duration::from_secs(5 * 60);

/// Which certificates are renewed, and for how long.
#[derive(Clone, Debug)]
pub struct RenewalOptions {
    /// The objects with the certificates.
    pub objects: CertificateObjectsName,
    /// The lifetimes of new certificates.
    pub lifetimes: CertificateLifetimes,
}

/// Renews the certificates of one release.
struct CertificateRenewal {
    objects: CertificateObjects,
    lifetimes: CertificateLifetimes,
    /// The delay after the first failure, and the longest one.
    retry: (Duration, Duration),
}

/// What a check has found.
#[derive(Debug, PartialEq, Eq)]
enum RenewalCheck {
    /// Nothing is due before this time, in seconds since 1970.
    Renewed(i64),
    /// The certificates have another owner, for this reason.
    Foreign(String),
}

impl Frontend {
    /// Renews certificates until the shutdown.
    ///
    /// # Errors
    /// When the kubeconfig is unusable. Later failures are retried.
    pub async fn renew_certificates(
        &self,
        kubeconfig: Option<&Path>,
        options: RenewalOptions,
        mut shutdown: Shutdown,
    ) -> Result<()> {
        let api = KubernetesApi::new(kubeconfig).await?;
        let renewal = CertificateRenewal::new(api, options);
        tokio::select! {
            () = renewal.run(&self.context.metrics) => {}
            () = shutdown.recv() => {}
        }
        Ok(())
    }
}

// === impl CertificateRenewal ===

impl CertificateRenewal {
    fn new(api: KubernetesApi, options: RenewalOptions) -> Self {
        Self { objects: CertificateObjects::new(api, options.objects), lifetimes: options.lifetimes, retry: RETRY }
    }

    async fn run(&self, metrics: &Metrics) {
        let (mut failures, mut backoff) = (Repeated::default(), Backoff::new(self.retry.0, self.retry.1));
        let mut foreign = None;
        loop {
            let delay = match self.check(SystemTime::now(), metrics).await {
                Ok(check) => {
                    metrics.certificate_renewal_failing.set(0);
                    if let Some(Recovery { count, duration }) = failures.recovered() {
                        info!(count, duration_ms = duration.as_millis(), "certificates are renewed again");
                    }
                    backoff.reset();
                    let reason = match &check {
                        RenewalCheck::Renewed(_) => None,
                        RenewalCheck::Foreign(reason) => Some(reason.clone()),
                    };
                    if let Some(reason) = reason.as_ref().filter(|_| reason != foreign) {
                        warn!(reason, "certificates that the chart has not generated are not renewed");
                    }
                    foreign = reason;
                    jittered(check.delay(SystemTime::now()))
                }
                Err(error) => {
                    metrics.certificate_renewal_failing.set(1);
                    let (error, retry) = (format!("{error:#}"), backoff.next_delay());
                    let occurrence = failures.failed(&error);
                    let retry_in_ms = retry.as_millis();
                    runtime::warn_if_news!(
                        occurrence,
                        error,
                        retry_in_ms,
                        "cannot renew certificates, keeping the previous ones"
                    );
                    retry
                }
            };
            sleep(delay).await;
        }
    }

    /// Takes all steps that are due at this time.
    async fn check(&self, now: SystemTime, metrics: &Metrics) -> Result<RenewalCheck> {
        for _ in 0..MAX_STEPS {
            let read = self.objects.read().await?;
            check_clock(read.server_time)?;
            let name = self.objects.authority_name();
            let contents = match read.contents(&name)? {
                CertificateOrigin::Generated(contents) => contents,
                CertificateOrigin::Foreign(reason) => return Ok(RenewalCheck::Foreign(reason)),
            };
            let now = i64::try_from(now.duration_since(UNIX_EPOCH)?.as_secs())?;
            if contents.authority.validity.not_before > now {
                let advice = contents.authority.validity.invalid_at(UNIX_EPOCH + Duration::from_secs(now as u64));
                bail!("the CA is not valid yet: {}", advice.unwrap_or_default());
            }
            let step = match plan(now, &self.lifetimes, &contents.state()?) {
                RenewalPlan::Step(step) => step,
                RenewalPlan::WaitUntil(time) => return Ok(RenewalCheck::Renewed(time)),
            };
            let patch = self.patch(step, &contents, now).with_context(|| step.to_string())?;
            match self.objects.patch(&read, patch).await.with_context(|| step.to_string())? {
                PatchResult::Changed => {
                    info!(step = %step, "renewed certificates");
                    if let Some(certificate) = step.created() {
                        metrics.certificate_renewed(certificate);
                    }
                }
                // Perhaps another replica has taken the step.
                PatchResult::Conflict => {}
            }
        }
        bail!("the certificates are still not renewed after {MAX_STEPS} steps: does another process change them?")
    }

    /// The change of a step.
    fn patch(&self, step: RenewalStep, contents: &CertificateContents, now: i64) -> Result<ObjectPatch> {
        let CertificateContents { authority, authority_key, next, previous, bundle, certificate, .. } = contents;
        let next_certificate = next.as_ref().map(|(next, _)| next);
        Ok(match step {
            RenewalStep::CreateAuthority => {
                let created = create_authority(&self.objects.authority_name(), self.lifetimes.new_authority(now))?;
                let mut data = vec![("next.crt", Some(created.certificate)), ("next.key", Some(created.key))];
                // One that has expired before it was used.
                if let Some(expired) = next_certificate {
                    data.push(("previous.crt", Some(pem(previous) + &expired.pem)));
                }
                ObjectPatch::authority(&data)
            }
            RenewalStep::TrustAuthorities => {
                let is_new = |authority: &&CertificatePem| {
                    bundle.iter().all(|trusted| trusted.fingerprint != authority.fingerprint)
                };
                let added = [Some(authority), next_certificate].into_iter().flatten().filter(is_new);
                ObjectPatch::bundle(&bundle.iter().chain(added).collect::<Vec<_>>(), Some(now))?
            }
            RenewalStep::UseNextAuthority => {
                let (next, key) = next.as_ref().context("there is no next CA")?;
                ObjectPatch::authority(&[
                    ("tls.crt", Some(next.pem.clone())),
                    ("tls.key", Some(key.clone())),
                    ("next.crt", None),
                    ("next.key", None),
                    ("previous.crt", Some(pem(previous) + &authority.pem)),
                ])
            }
            RenewalStep::IssueCertificate => {
                let validity = self.lifetimes.new_certificate(now, authority.validity);
                let issued = issue(authority, authority_key, certificate, validity)?;
                ObjectPatch::certificate(issued.certificate, issued.key)
            }
            RenewalStep::DistrustPrevious => {
                let is_used = |trusted: &&CertificatePem| {
                    let is = |other: &CertificatePem| other.fingerprint == trusted.fingerprint;
                    is(authority) || next_certificate.is_some_and(is) || !previous.iter().any(is)
                };
                ObjectPatch::bundle(&bundle.iter().filter(is_used).collect::<Vec<_>>(), None)?
            }
            RenewalStep::ForgetPrevious => ObjectPatch::authority(&[("previous.crt", None)]),
        })
    }
}

/// Fails if the clock of this host is wrong.
fn check_clock(server_time: Option<SystemTime>) -> Result<()> {
    let (Some(server), local) = (server_time, SystemTime::now()) else { return Ok(()) };
    let difference = server.duration_since(local).or_else(|_| local.duration_since(server))?;
    ensure!(
        difference <= MAX_CLOCK_DIFFERENCE,
        "the local clock differs from that of the API server by {}s: set the clock of this host",
        difference.as_secs()
    );
    Ok(())
}

fn jittered(delay: Duration) -> Duration {
    delay + (delay / 10).min(MAX_JITTER).mul_f64(fastrand::f64())
}

// === impl RenewalCheck ===

impl RenewalCheck {
    /// From now to the next check.
    fn delay(&self, now: SystemTime) -> Duration {
        match self {
            Self::Renewed(time) => {
                let time = UNIX_EPOCH + Duration::from_secs(u64::try_from(*time).unwrap_or_default());
                time.duration_since(now).unwrap_or_default().max(MIN_DELAY)
            }
            Self::Foreign(_) => Duration::from_secs(CHECK_INTERVAL as u64),
        }
    }
}
