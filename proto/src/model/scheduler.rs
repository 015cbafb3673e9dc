//! The IPVS scheduler of a service port, where it differs from the backend's default.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

/// An IPVS scheduler. Its text form is the kernel's name (`ip_vs_<name>`); `sh` and `mh` may be followed by `:` and
/// flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpvsScheduler {
    /// `rr`: round robin.
    #[default]
    Rr,
    /// `wrr`: weighted round robin.
    Wrr,
    /// `lc`: least connections.
    Lc,
    /// `wlc`: weighted least connections.
    Wlc,
    /// `sh`: source hashing.
    Sh(SchedulerFlags),
    /// `dh`: destination hashing.
    Dh,
    /// `sed`: shortest expected delay.
    Sed,
    /// `nq`: never queue.
    Nq,
    /// `mh`: Maglev hashing.
    Mh(SchedulerFlags),
}

/// The flags of `sh` and `mh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchedulerFlags {
    /// `fallback`: use another endpoint if the chosen one is unavailable.
    pub fallback: bool,
    /// `port`: include the source port in the hash.
    pub port: bool,
}

/// Why a text is not a valid scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSchedulerError {
    /// There is no scheduler with this name.
    #[error("{0:?}: expected one of rr, wrr, lc, wlc, sh, dh, sed, nq, mh")]
    Unknown(String),
    /// The scheduler does not have this flag.
    #[error("{0:?}: sh and mh have the flags fallback and port, as in mh:fallback,port; others have none")]
    Flag(String),
}

/// The maximum length of an invalid text in errors, in characters: an annotation may be of any length.
const MAX_SHOWN: usize = 40;

// === impl IpvsScheduler ===

impl IpvsScheduler {
    /// The name of the scheduler in the kernel.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Sh(_) => "sh",
            Self::Dh => "dh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Mh(_) => "mh",
        }
    }

    /// The flags; none for schedulers without flags.
    #[must_use]
    pub fn flags(self) -> SchedulerFlags {
        match self {
            Self::Sh(flags) | Self::Mh(flags) => flags,
            Self::Rr | Self::Wrr | Self::Lc | Self::Wlc | Self::Dh | Self::Sed | Self::Nq => SchedulerFlags::default(),
        }
    }

    /// Adds a flag, if the scheduler supports it.
    fn with_flag(self, flag: &str) -> Option<Self> {
        match self {
            Self::Sh(flags) => flags.with_flag(flag).map(Self::Sh),
            Self::Mh(flags) => flags.with_flag(flag).map(Self::Mh),
            Self::Rr | Self::Wrr | Self::Lc | Self::Wlc | Self::Dh | Self::Sed | Self::Nq => None,
        }
    }
}

impl FromStr for IpvsScheduler {
    type Err = ParseSchedulerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(MAX_SHOWN).collect();
        let (name, flags) = text.split_once(':').unwrap_or((text, ""));
        let scheduler = match name {
            "rr" => Self::Rr,
            "wrr" => Self::Wrr,
            "lc" => Self::Lc,
            "wlc" => Self::Wlc,
            "sh" => Self::Sh(SchedulerFlags::default()),
            "dh" => Self::Dh,
            "sed" => Self::Sed,
            "nq" => Self::Nq,
            "mh" => Self::Mh(SchedulerFlags::default()),
            _ => return Err(ParseSchedulerError::Unknown(shown())),
        };
        let mut flags = flags.split(',').filter(|flag| !flag.is_empty());
        flags.try_fold(scheduler, Self::with_flag).ok_or_else(|| ParseSchedulerError::Flag(shown()))
    }
}

impl fmt::Display for IpvsScheduler {
    /// The canonical form, regardless of the spelling that was parsed: digests depend on it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        f.write_str(match self.flags() {
            SchedulerFlags { fallback: false, port: false } => "",
            SchedulerFlags { fallback: true, port: false } => ":fallback",
            SchedulerFlags { fallback: false, port: true } => ":port",
            SchedulerFlags { fallback: true, port: true } => ":fallback,port",
        })
    }
}

impl Serialize for IpvsScheduler {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl HashFlags ===

impl SchedulerFlags {
    fn with_flag(self, flag: &str) -> Option<Self> {
        match flag {
            "fallback" => Some(Self { fallback: true, ..self }),
            "port" => Some(Self { port: true, ..self }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Result<String, ParseSchedulerError> {
        text.parse().map(|scheduler: IpvsScheduler| scheduler.to_string())
    }

    #[test]
    fn text_form_is_canonical() {
        for text in ["rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh", "sh:port", "mh:fallback,port"] {
            assert_eq!(canonical(text), Ok(text.to_owned()));
        }
        assert_eq!("sh:fallback".parse(), Ok(IpvsScheduler::Sh(SchedulerFlags { fallback: true, port: false })));
        assert_eq!(canonical("mh:port,fallback,port"), Ok("mh:fallback,port".to_owned()));
        assert_eq!(canonical("wlc:"), Ok("wlc".to_owned()));
    }

    #[test]
    fn invalid_schedulers_are_rejected_with_the_reason() {
        for text in ["", "fo", "WLC", " rr", "fo:port"] {
            assert_eq!(canonical(text), Err(ParseSchedulerError::Unknown(text.to_owned())));
        }
        for text in ["wlc:port", "mh:sticky", "sh:fallback,Port"] {
            assert_eq!(canonical(text), Err(ParseSchedulerError::Flag(text.to_owned())));
        }
        assert_eq!(canonical(&"é".repeat(9_000)), Err(ParseSchedulerError::Unknown("é".repeat(40))));
    }
}
