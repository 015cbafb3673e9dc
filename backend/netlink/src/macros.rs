//! Macros for the kernel's numbers: constants, enums and flags, with their names in nft.

/// Constants of one type: `constants! { u16: NEWTABLE = 0, GETTABLE = 1 }`.
macro_rules! constants {
    ($kind:ty: $($(#[$doc:meta])* $name:ident = $number:expr),* $(,)?) => {
        $($(#[$doc])* pub(crate) const $name: $kind = $number;)*
    };
}

/// A C enum with its numbers, and, if all variants have one, the names in nft. With `or Other` it has a variant for all
/// other numbers.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$var_doc:meta])* $var:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$var_doc])* $var = $number,)* }

        impl $name {
            pub(crate) const fn number(self) -> u32 {
                self as u32
            }

            /// The variant of this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some($name::$var),)*
                    _ => None,
                }
            }
        }
    };
    ($(#[$doc:meta])* $name:ident { $($(#[$var_doc:meta])* $var:ident = $number:literal $text:literal,)* }) => {
        numbered! { $(#[$doc])* $name { $($(#[$var_doc])* $var = $number,)* } }

        impl $name {
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $($name::$var => $text,)*
                }
            }
        }
    };
    ($(#[$doc:meta])* $name:ident or Other {
        $($(#[$var_doc:meta])* $var:ident = $number:literal $text:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$var_doc])* $var,)*
            /// Any other number.
            Other(u32),
        }

        impl $name {
            pub(crate) const fn number(self) -> u32 {
                match self {
                    $($name::$var => $number,)*
                    $name::Other(number) => number,
                }
            }

            pub(crate) const fn from_number(number: u32) -> Self {
                match number {
                    $($number => $name::$var,)*
                    other => $name::Other(other),
                }
            }

            /// The name in nft.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$var => $text,)*
                    $name::Other(_) => "unknown",
                }
            }
        }
    };
}

/// A set of flags, some with a name in nft.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$flag_doc:meta])* $vis:vis $flag:ident = $number:literal $($text:literal)?,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            $($(#[$flag_doc])* $vis const $flag: $name = $name($number);)*

            /// Whether all of `flags` are set.
            pub const fn contains(self, flags: $name) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// The names of the flags that are set.
            pub(crate) fn names(self) -> Vec<&'static str> {
                let named = [$($(($name::$flag, $text),)?)*];
                named.into_iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| name).collect()
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                $name(self.0 | other.0)
            }
        }
    };
}
