//! The limit for what one commit may remove. A frontend that lost its objects, or serves another cluster, must not
//! remove all Services from all nodes at once: a larger loss is applied only when a second snapshot confirms it.

use std::{fmt, str::FromStr};

use crate::NodeState;

/// Smaller losses, in service ports, are always applied, even if they are a large share of a small cluster.
const MIN_LOST: usize = 10;

/// The largest share of the service ports with endpoints that may lose all of them in one commit, in percent: 1 to 100,
/// and 100 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossLimit(u8);

/// A loss that exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The service ports that would have lost all their endpoints.
    pub lost: usize,
    /// The service ports that have endpoints.
    pub of: usize,
}

// === impl LossLimit ===

impl LossLimit {
    /// No limit.
    pub const NONE: Self = Self(100);

    /// Checks a number of service ports that would lose their endpoints. Inspects the whole state only if there are
    /// many.
    pub(super) fn check(self, lost: usize, state: &NodeState) -> Result<(), Loss> {
        if self == Self::NONE || lost < MIN_LOST {
            return Ok(());
        }
        let of = state.service_ports().values().filter(|service| service.has_endpoints()).count();
        if lost * 100 > of * usize::from(self.0) { Err(Loss { lost, of }) } else { Ok(()) }
    }
}

impl Default for LossLimit {
    /// 50%.
    fn default() -> Self {
        Self(50)
    }
}

impl FromStr for LossLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.trim().trim_end_matches('%').parse().ok();
        let number = number.filter(|number| (1..=100).contains(number));
        number.map(Self).ok_or_else(|| format!("{text:?} is not a percentage from 1 to 100"))
    }
}

impl fmt::Display for LossLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} service ports with endpoints would lose them all", self.lost, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_percentages() {
        assert_eq!("50".parse(), Ok(LossLimit::default()));
        assert_eq!("100%".parse(), Ok(LossLimit::NONE));
        assert_eq!(LossLimit(7).to_string().parse(), Ok(LossLimit(7)));
        for text in ["0", "101", "half", "", "0.5", "-1"] {
            assert!(text.parse::<LossLimit>().unwrap_err().contains("from 1 to 100"), "{text}");
        }
    }
}
