//! The name of a network interface, or how it begins.

use std::{fmt, str::FromStr};

/// `IFNAMSIZ` of `linux/if.h`: the room for a name, with a zero at its end.
pub const IFNAMSIZ: usize = 16;

/// A name that an interface can have, also one that is only the beginning of some.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName(Box<str>);

/// Why a text is no name of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInterfaceName {
    /// Nothing, or more than the kernel has room for.
    #[error("{0:?}: an interface has a name of 1 to 15 bytes")]
    Length(String),
    /// The kernel takes no such name, or it was meant as a pattern.
    #[error("{0:?}: no name of an interface; a prefix is given as it is, without `*` or `+`")]
    Character(String),
}

impl InterfaceName {
    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = InvalidInterfaceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = |char: char| char.is_whitespace() || char.is_control() || "/:*+\"\\".contains(char);
        if text.is_empty() || text.len() >= IFNAMSIZ {
            Err(InvalidInterfaceName::Length(text.to_owned()))
        } else if text.contains(refused) || matches!(text, "." | "..") {
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
    fn names() {
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
