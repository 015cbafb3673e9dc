//! The name of a network interface, or a prefix of it.

use std::{fmt, str::FromStr};

/// `IFNAMSIZ` of `linux/if.h`: the size of a name with its terminating zero, in bytes.
pub const IFNAMSIZ: usize = 16;

/// A valid name of an interface, or a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName(Box<str>);

impl InterfaceName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Those that the kernel rejects, or that suggest a pattern.
        let invalid = |char: char| char.is_whitespace() || char.is_control() || "/:*+\"\\".contains(char);
        if text.is_empty() || text.len() >= IFNAMSIZ {
            Err(format!("{text:?}: the name of an interface has 1 to 15 bytes"))
        } else if text.contains(invalid) || matches!(text, "." | "..") {
            Err(format!("{text:?}: not the name of an interface; write a prefix without `*` or `+`"))
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
            let expected = format!("{name:?}: the name of an interface has 1 to 15 bytes");
            assert_eq!(name.parse::<InterfaceName>(), Err(expected));
        }
        for name in ["veth*", "veth+", "a b", "a/b", "a:b", ".", "..", "a\n", "\""] {
            let expected = format!("{name:?}: not the name of an interface; write a prefix without `*` or `+`");
            assert_eq!(name.parse::<InterfaceName>(), Err(expected));
        }
    }
}
