//! A macro for tables of the kernel's numbers.

/// Constants of one type: `constants! { u16: NEWTABLE = 0, GETTABLE = 1 }`.
macro_rules! constants {
    ($kind:ty: $($(#[$doc:meta])* $name:ident = $number:expr),* $(,)?) => {
        $($(#[$doc])* pub(crate) const $name: $kind = $number;)*
    };
}
