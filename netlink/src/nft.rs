//! nf_tables: tables, chains, sets, maps, rules and elements, written in transactions and read back.
//!
//! - [`Table`], [`Chain`], [`Set`], [`Element`], [`Rule`] of [`Expr`]s: the objects. What was written equals (`==`)
//!   what is dumped, so that a caller finds after a restart that nothing has to be done.
//! - [`Batch`]: a transaction, append-only; its `Display` is nft-like text.
//! - [`Handle`]: commits batches, dumps, generation.
//! - [`Monitor`]: who changed which table.

mod abi;
mod batch;
#[cfg(test)]
mod captured;
mod chain;
mod commit;
mod decode;
mod element;
mod expr;
mod fields;
#[cfg(test)]
mod fixtures;
mod handle;
mod monitor;
mod set;
mod table;
mod text;
mod userdata;

pub use batch::Batch;
pub use chain::{BaseChain, Chain, ChainKind, Hook, Policy, priority};
pub use element::{Data, Element, Verdict};
pub use expr::{
    Bytes, CmpOp, CtKey, Direction, DynsetOp, Expr, FibFlags, FibResult, ListedRule, Matches, MetaKey, NatFlags,
    NatKind, NumgenKind, PayloadBase, RangeOp, Register, RejectWith, Rule,
};
pub use fields::{FieldReader, Fields};
pub use handle::Handle;
pub use monitor::{Monitor, Notice, Verb};
pub use set::{DataType, Set, SetFlags};
pub use table::{Family, Table};
pub use userdata::Comment;
