//! nf_tables: tables, chains, sets, maps, rules and elements, written in transactions and read back.
//!
//! - [`Table`], [`Chain`], [`Set`], [`Element`], [`Rule`] of [`Expr`]s: the objects. A dumped object equals (`==`) the
//!   written one, so that after a restart a caller finds no differences.
//! - [`NftBatch`]: a transaction, append-only; its `Display` is nft-like text.
//! - [`NftHandle`]: commits batches, dumps, generation.
//! - [`NftMonitor`]: notifications of changes.

mod abi;
mod batch;
mod chain;
mod commit;
mod decode;
mod element;
mod expr;
mod fields;
#[cfg(feature = "testing")]
pub(crate) mod fuzzing;
mod handle;
mod monitor;
mod set;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod userdata;

pub use batch::NftBatch;
pub use chain::{BaseChain, Chain, ChainType, Hook, Policy, priority};
pub use element::{Element, ElementData, Verdict};
pub use expr::{
    CmpOp, Constant, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, ListedRule, LookupMatch, MetaKey,
    NatFlags, NatType, NumgenType, PayloadBase, RangeOp, Register, RejectWith, Rule,
};
pub use fields::{FieldReader, Fields};
pub use handle::NftHandle;
pub use monitor::{NftEvent, NftMonitor};
pub use set::{DataType, Set, SetFlags, value_len};
pub use table::{Table, TableFamily};
pub use text::value_text;
