//! The name of a network interface, or a prefix of it.

use std::{fmt, str::FromStr};

/// `IFNAMSIZ` of `linux/if.h`: the size of a name with its terminating zero, in bytes.
pub const IFNAMSIZ: usize = 16;

/// A valid name of an interface, or a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName(Box<str>);

/// Why a text is not the name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInterfaceName {
    /// Empty, or longer than the kernel allows.
    #[error("{0:?}: the name of an interface has 1 to 15 bytes")]
    Length(String),
    /// A character that the kernel rejects, or that suggests a pattern.
    #[error("{0:?}: not the name of an interface; write a prefix without `*` or `+`")]
    Character(String),
}

impl InterfaceName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = InvalidInterfaceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |char: char| char.is_whitespace() || char.is_control() || "/:*+\"\\".contains(char);
        if text.is_empty() || text.len() >= IFNAMSIZ {
            Err(InvalidInterfaceName::Length(text.to_owned()))
        } else if text.contains(invalid) || matches!(text, "." | "..") {
            Err(InvalidInterfaceName::Character(text.to_owned()))
        } else {
            Ok(Self(text.into()))
        }
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_are_checked() {
        for name in ["cbr0", "veth", "eth0.100", "abcdefghijklmno"] {
            assert_eq!(name.parse::<InterfaceName>().map(|name| name.to_string()).as_deref(), Ok(name));
        }
        for name in ["", "abcdefghijklmnop"] {
            assert_eq!(name.parse::<InterfaceName>(), Err(InvalidInterfaceName::Length(name.to_owned())));
        }
        for name in ["veth*", "veth+", "a b", "a/b", "a:b", ".", "..", "a\n", "\""] {
            assert_eq!(
                name.parse::<InterfaceName>(),
                Err(InvalidInterfaceName::Character(name.to_owned())),
                "{name:?}"
            );
        }
    }
}
