//! Runs `iptables-save` and `iptables-restore`, and reads and writes their text format. The only crate that starts
//! iptables programs.
//!
//! ```text
//!   Tools ──▶ Program ──▶ iptables-save ────▶ Ruleset ──▶ Rule      which variant is in use; text; rules as structs
//!                    └──▶ iptables-restore ◀── Script               one transaction per table
//! ```

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
pub use table::{ChainSpec, Hook, Table};
pub use tools::Tools;
pub use variant::{Variant, VariantSelection};

/// Runs a future of this crate on a thread that belongs to no async runtime, for example one that does blocking work.
///
/// # Errors
/// When the kernel does not provide what an async runtime needs.
pub fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}
