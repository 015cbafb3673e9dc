//! Runs `iptables-save` and `iptables-restore`, and reads and writes their text format. The only crate that starts
//! iptables programs.
//!
//! ```text
//!   Tools ──▶ Program ──┬──▶ iptables-save ─────▶ Ruleset ──▶ Rule
//!   (chooses            │                           │  script_to, script_without
//!    the variant)       └──▶ iptables-restore ◀── Script, one transaction per table
//! ```
//!
//! A backend opens [`Tools`], reads with [`Tools::save`] and [`Ruleset::parse`], and writes with [`Tools::restore`].
//! Rules stay text as `iptables-save` prints it, so that two rulesets can be compared; a [`Rule`] is the struct for
//! commands that evaluate rules.

mod lock;
mod program;
mod restore;
mod rule;
mod ruleset;
mod script;
mod table;
mod tools;
mod variant;

pub use program::{Program, SavedRules, save_all, save_variants};
pub use restore::RestoreError;
pub use rule::{Condition, MaskedMark, Match, Rule, Side, Target};
pub use ruleset::{Chain, HiddenTable, Policy, Ruleset, target};
pub use script::{Script, ScriptLine};
pub use table::{ChainSpec, HookRule, Table};
pub use tools::Tools;
pub use variant::{Variant, VariantSelection};

/// Runs a future of this crate on a thread that belongs to no async runtime, for example one that does blocking work.
///
/// # Errors
/// When the kernel does not provide the file descriptors of an async runtime.
pub fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}
