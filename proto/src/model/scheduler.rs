//! The scheduler of IPVS, which `--ipvs-scheduler` selects.

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

/// The maximum length of an invalid text in errors, in characters.
const MAX_SHOWN: usize = 40;

impl IpvsScheduler {
    const ALL: [Self; 9] = {
        const NONE: SchedulerFlags = SchedulerFlags { fallback: false, port: false };
        use IpvsScheduler::{Dh, Lc, Mh, Nq, Rr, Sed, Sh, Wlc, Wrr};
        [Rr, Wrr, Lc, Wlc, Sh(NONE), Dh, Sed, Nq, Mh(NONE)]
    };

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
    pub fn flags(mut self) -> SchedulerFlags {
        self.flags_mut().copied().unwrap_or_default()
    }

    fn flags_mut(&mut self) -> Option<&mut SchedulerFlags> {
        match self {
            Self::Sh(flags) | Self::Mh(flags) => Some(flags),
            Self::Rr | Self::Wrr | Self::Lc | Self::Wlc | Self::Dh | Self::Sed | Self::Nq => None,
        }
    }
}

impl FromStr for IpvsScheduler {
    type Err = ParseSchedulerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(MAX_SHOWN).collect();
        let (name, flags) = text.split_once(':').unwrap_or((text, ""));
        let known = Self::ALL.into_iter().find(|scheduler| scheduler.name() == name);
        let mut scheduler = known.ok_or_else(|| ParseSchedulerError::Unknown(shown()))?;
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            match (flag, scheduler.flags_mut()) {
                ("fallback", Some(flags)) => flags.fallback = true,
                ("port", Some(flags)) => flags.port = true,
                _ => return Err(ParseSchedulerError::Flag(shown())),
            }
        }
        Ok(scheduler)
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
