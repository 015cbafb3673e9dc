//! Whether the digests of a client agree with the expected ones, and how a mismatch is repaired.
//!
//! ```text
//!              mismatch: compare buckets           mismatch: snapshot         mismatch
//!   Agreed ────────────────────────▶ Repaired ───────────────────▶ Resent ──────────────▶ Disabled
//!      ▲                                 │                            │                       │
//!      └─────────────────────────────────┴── the digests agree ───────┴───────────────────────┘
//! ```

use std::time::Duration;

use proto::digest::Digest;
use runtime::{Rate, TokenBucket};
use tokio::time::Instant;

/// How often digest mismatches of one stream are repaired. More of them have a cause that a repair does not remove,
/// such as an endpoint that comes and goes and that the backend ignores.
const MISMATCH_RATE: Rate = Rate { burst: 6, every: Duration::from_secs(600) };

/// The digest check of one stream.
#[derive(Debug)]
pub(super) struct DigestCheck {
    /// Whether the client computes digests at all.
    pub(super) is_supported: bool,
    trust: DigestTrust,
    mismatches: TokenBucket,
}

/// What has been tried since the digests last agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DigestTrust {
    Agreed,
    Repaired,
    /// A snapshot was sent. If digests still differ after it, the two sides compute them differently, and the stream
    /// goes on without the check: sending snapshots over and over would be worse for the node.
    Resent,
    Disabled,
}

/// A digest that differs from the expected one.
#[derive(Clone, Copy, Debug)]
pub(super) struct DigestMismatch {
    pub(super) digest: Digest,
    pub(super) expected: Digest,
    /// Whether it follows a snapshot, which was sent because of another mismatch.
    pub(super) is_after_snapshot: bool,
    pub(super) remedy: Remedy,
}

/// What is done about a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Nothing, because this stream had too many.
    Nothing,
    /// The digests of buckets are compared, and the buckets that differ are sent.
    Compare,
    /// Everything is sent.
    Snapshot,
    /// Digests are not checked any more.
    StopChecking,
}

impl DigestCheck {
    pub(super) fn new(is_supported: bool) -> Self {
        Self { is_supported, trust: DigestTrust::Agreed, mismatches: TokenBucket::full(Instant::now()) }
    }

    /// Compares the digest in an Ack with the expected one.
    pub(super) fn check(&mut self, digest: Option<Digest>, expected: Digest) -> Result<(), DigestMismatch> {
        let Some(digest) = digest else { return Ok(()) };
        if digest == expected {
            self.trust = DigestTrust::Agreed;
            return Ok(());
        }
        if self.trust == DigestTrust::Disabled {
            return Ok(());
        }

        let is_after_snapshot = self.trust == DigestTrust::Resent;
        let remedy = self.next_remedy();
        Err(DigestMismatch { digest, expected, is_after_snapshot, remedy })
    }

    fn next_remedy(&mut self) -> Remedy {
        if self.mismatches.take(MISMATCH_RATE, Instant::now()).is_err() {
            return Remedy::Nothing;
        }

        match self.trust {
            DigestTrust::Agreed => {
                self.trust = DigestTrust::Repaired;
                Remedy::Compare
            }
            DigestTrust::Repaired => {
                self.trust = DigestTrust::Resent;
                Remedy::Snapshot
            }
            DigestTrust::Resent | DigestTrust::Disabled => {
                self.trust = DigestTrust::Disabled;
                Remedy::StopChecking
            }
        }
    }
}
