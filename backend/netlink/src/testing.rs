//! For tests: a new network namespace, and tables of nf_tables with other names.

use std::{panic::resume_unwind, thread};

use nix::sched::{CloneFlags, unshare};
use tokio::runtime;

use crate::{
    Error,
    nft::{NftBatch, NftHandle, SetFlags, Table, TableFamily},
};

/// Gives a table another name, in the network namespace of the calling thread: a copy gets the hooks in the transaction
/// that deletes the table. The elements that rules have added are not copied.
///
/// # Errors
/// When the kernel rejects it.
pub fn rename_table(family: TableFamily, from: &str, to: &str) -> Result<(), Error> {
    let mut handle = NftHandle::open()?;
    let Some(table) = handle.tables(family)?.into_iter().find(|table| table.name == from) else { return Ok(()) };
    let chains = handle.chains(&table)?;
    let rules = handle.rules(&table)?;
    let sets = handle.sets(&table)?;

    let copy = Table { name: to.to_owned(), ..table.clone() };
    let mut first = NftBatch::new();
    let mut last = NftBatch::new();
    first.add_table(&copy);
    sets.iter().for_each(|set| first.add_set(&copy, set));
    let is_base = |name: &str| chains.iter().any(|chain| chain.name == name && chain.base.is_some());
    for chain in &chains {
        if is_base(&chain.name) { &mut last } else { &mut first }.add_chain(&copy, chain);
    }
    for listed in &rules {
        if is_base(&listed.chain) { &mut last } else { &mut first }.add_rule(&copy, &listed.chain, &listed.rule);
    }
    last.delete_table(&table);

    handle.commit(&first)?;
    for set in sets.iter().filter(|set| !set.flags.contains(SetFlags::EVAL)) {
        let elements = handle.elements(&table, &set.name, NftBatch::new, |batch, element| {
            batch.add_elements(&copy, set, [element]);
        })?;
        handle.commit(&elements)?;
    }
    handle.commit(&last)
}

/// Runs `test` on a new thread in a new, empty network namespace, which the kernel deletes after the thread and the
/// processes and sockets in it have ended. Requires root. Sockets and processes that `test` opens and starts are in
/// that namespace.
///
/// # Panics
/// When `test` panics, or the namespace cannot be created.
#[allow(clippy::expect_used)]
pub fn in_netns<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace: run as root");
        test()
    };
    let thread = thread::Builder::new().name("netns".into()).spawn(run).expect("a thread");
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// As [`in_netns`], for async code: blocks the new thread on what `test` returns.
///
/// # Panics
/// When `test` panics, or the namespace or a runtime cannot be created.
#[allow(clippy::expect_used)]
pub fn block_on_in_netns<F>(test: impl FnOnce() -> F + Send + 'static) -> F::Output
where
    F: Future<Output: Send + 'static>,
{
    in_netns(|| {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test())
    })
}
