//! Tables, and their desired content.

use std::fmt;

/// A table of iptables. `Filter` comes before `Nat` in maps and scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Connection tracking exemptions.
    Raw,
    /// Marks and header fields.
    Mangle,
    /// Accept, drop, reject.
    Filter,
    /// Address translation.
    Nat,
    /// SELinux marks.
    Security,
}

/// The rules that a chain should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec {
    /// The table of the chain.
    pub table: Table,
    /// The name of the chain.
    pub name: String,
    /// Each as `iptables-save` prints it after `-A CHAIN`.
    pub rules: Vec<String>,
}

/// A rule in a built-in chain that jumps to a chain of the backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookRule {
    /// The table of the chain.
    pub table: Table,
    /// The built-in chain.
    pub chain: &'static str,
    /// The rule, as `iptables-save` prints it after `-A CHAIN`.
    pub rule: String,
}

// === impl Table ===

impl Table {
    /// All tables.
    pub const ALL: [Self; 5] = [Self::Raw, Self::Mangle, Self::Filter, Self::Nat, Self::Security];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Security => "security",
        }
    }

    /// The table of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
