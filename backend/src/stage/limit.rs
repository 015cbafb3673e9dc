//! How much one change may take away before somebody has to say it twice: a frontend that has lost its objects, or is somebody else's,
//! must not take every Service from every node at once.

use std::{fmt, str::FromStr};

use crate::NodeState;

/// Below this a loss is no reason to doubt, whatever share of a small cluster it is. Service ports.
const MIN_LOST: usize = 10;

/// The largest share of the service ports with endpoints that may lose them all, or go, in one change. In percent, 1 to 100; 100 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossLimit(u8);

/// What a change would have taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Service ports that would have lost all their endpoints, or been gone.
    pub lost: usize,
    /// Service ports that have endpoints.
    pub of: usize,
}

// === impl LossLimit ===

impl LossLimit {
    /// Nothing is doubted.
    pub const NONE: Self = Self(100);

    /// Looks at the whole state only if many are lost.
    pub(super) fn check(self, lost: usize, state: &NodeState) -> Result<(), Loss> {
        if self == Self::NONE || lost < MIN_LOST {
            return Ok(());
        }
        let of = state.service_ports().values().filter(|service| service.has_endpoints()).count();
        if lost * 100 > of * usize::from(self.0) { Err(Loss { lost, of }) } else { Ok(()) }
    }
}

impl Default for LossLimit {
    /// Half of them.
    fn default() -> Self {
        Self(50)
    }
}

impl FromStr for LossLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.trim().trim_end_matches('%').parse().ok();
        let number = number.filter(|number| (1..=100).contains(number));
        number.map(Self).ok_or_else(|| format!("{text:?} is no share in percent, from 1 to 100"))
    }
}

impl fmt::Display for LossLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the {} service ports that have endpoints would lose them", self.lost, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_in_percent() {
        assert_eq!("50".parse(), Ok(LossLimit::default()));
        assert_eq!("100%".parse(), Ok(LossLimit::NONE));
        assert_eq!(LossLimit(7).to_string().parse(), Ok(LossLimit(7)));
        for text in ["0", "101", "half", "", "0.5", "-1"] {
            assert!(text.parse::<LossLimit>().unwrap_err().contains("from 1 to 100"), "{text}");
        }
    }
}
