//! How IPVS chooses among the endpoints of a service port, where one does not want what all others get.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

/// A scheduler of IPVS that can be chosen. As text the kernel's name (`ip_vs_<name>`), with `:` and flags behind `sh` and `mh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpvsScheduler {
    /// `rr`: in turn.
    #[default]
    Rr,
    /// `wrr`: in turn, by weight.
    Wrr,
    /// `lc`: the one with the fewest connections.
    Lc,
    /// `wlc`: the same, by weight.
    Wlc,
    /// `sh`: by a hash of the source.
    Sh(SchedulerFlags),
    /// `dh`: by a hash of the destination.
    Dh,
    /// `sed`: where the delay is expected to be the shortest.
    Sed,
    /// `nq`: one that is idle, else as `sed`.
    Nq,
    /// `mh`: by a hash of the source that moves few clients when endpoints come and go.
    Mh(SchedulerFlags),
}

/// What can be said of the schedulers that hash the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchedulerFlags {
    /// `fallback`: go elsewhere while the endpoint gets no new connections.
    pub fallback: bool,
    /// `port`: hash the client's port too.
    pub port: bool,
}

/// Why a text is no scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSchedulerError {
    /// There is none of that name.
    #[error("{0:?}: expected one of rr, wrr, lc, wlc, sh, dh, sed, nq, mh")]
    Unknown(String),
    /// It has no such flag.
    #[error("{0:?}: sh and mh have the flags fallback and port, as in mh:fallback,port; others have none")]
    Flag(String),
}

/// So many characters of a text that is no scheduler are shown: an annotation may be of any length.
const SHOWN: usize = 40;

// === impl IpvsScheduler ===

impl IpvsScheduler {
    /// The kernel's name.
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

    /// Its flags; none where it can have none.
    #[must_use]
    pub fn flags(self) -> SchedulerFlags {
        match self {
            Self::Sh(flags) | Self::Mh(flags) => flags,
            Self::Rr | Self::Wrr | Self::Lc | Self::Wlc | Self::Dh | Self::Sed | Self::Nq => SchedulerFlags::default(),
        }
    }

    /// With one more flag, if it has it.
    fn with(self, flag: &str) -> Option<Self> {
        match self {
            Self::Sh(flags) => flags.with(flag).map(Self::Sh),
            Self::Mh(flags) => flags.with(flag).map(Self::Mh),
            Self::Rr | Self::Wrr | Self::Lc | Self::Wlc | Self::Dh | Self::Sed | Self::Nq => None,
        }
    }
}

impl FromStr for IpvsScheduler {
    type Err = ParseSchedulerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(SHOWN).collect();
        let (name, flags) = text.split_once(':').unwrap_or((text, ""));
        let plain = match name {
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
        flags.try_fold(plain, Self::with).ok_or_else(|| ParseSchedulerError::Flag(shown()))
    }
}

impl fmt::Display for IpvsScheduler {
    /// In one way only, whatever it was read from: digests are made of it.
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
    fn with(self, flag: &str) -> Option<Self> {
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

    /// The text of what a text is read as.
    fn read(text: &str) -> Result<String, ParseSchedulerError> {
        text.parse().map(|scheduler: IpvsScheduler| scheduler.to_string())
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in ["rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh", "sh:port", "mh:fallback,port"] {
            assert_eq!(read(text), Ok(text.to_owned()));
        }
        assert_eq!("sh:fallback".parse(), Ok(IpvsScheduler::Sh(SchedulerFlags { fallback: true, port: false })));
        assert_eq!(read("mh:port,fallback,port"), Ok("mh:fallback,port".to_owned()));
        assert_eq!(read("wlc:"), Ok("wlc".to_owned()));
    }

    #[test]
    fn what_is_no_scheduler_says_why() {
        for text in ["", "fo", "WLC", " rr", "fo:port"] {
            assert_eq!(read(text), Err(ParseSchedulerError::Unknown(text.to_owned())));
        }
        for text in ["wlc:port", "mh:sticky", "sh:fallback,Port"] {
            assert_eq!(read(text), Err(ParseSchedulerError::Flag(text.to_owned())));
        }
        assert_eq!(read(&"é".repeat(9_000)), Err(ParseSchedulerError::Unknown("é".repeat(40))));
    }
}
