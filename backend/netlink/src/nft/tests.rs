//! Batches compared with those of nft, and what the tests of nf_tables share.

mod captured;
pub(super) mod fixtures;
