//! Pages of the documentation that are generated from definitions of this crate.

mod reference;
