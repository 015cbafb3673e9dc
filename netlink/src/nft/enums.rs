//! Macros for the enums and flags of the kernel, with their numbers there and their names in nft.

/// A C enum with its numbers, and, if all variants have one, the names in nft.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$var_doc:meta])* $var:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$var_doc])* $var = $number,)* }

        impl $name {
            pub(crate) const fn number(self) -> u32 {
                self as u32
            }

            pub(crate) const fn from_number(number: u32) -> Option<Self> {
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
