//! The targets. Each is a function of bytes; those with several inputs split them.

use std::{cell::OnceCell, str::from_utf8};

use iptables::{Ruleset, Table};
use proto::{model, v1};

use crate::{FuzzTarget, seeds};

mod cluster;

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    target("stream-server", server_messages, seeds::server_messages, 256),
    target("stream-client", cluster::client_messages, seeds::client_messages, 256),
    target("state-file", backend::fuzzing::state_file, seeds::state_files, 256),
    target("nf-tables", netlink::fuzzing::nf_tables, seeds::nf_tables, 64),
    target("ipset", netlink::fuzzing::ipset, seeds::ipset, 64),
    target("ipvs", netlink::fuzzing::ipvs, seeds::ipvs, 64),
    target("conntrack", netlink::fuzzing::conntrack, seeds::conntrack, 64),
    target("rtnetlink", netlink::fuzzing::rtnetlink, seeds::rtnetlink, 64),
    target("rules", rules, seeds::none, 64),
    target("manifests", cluster::manifests, seeds::manifests, 2048),
    target("configuration", configuration, seeds::none, 1024),
    target("certificates", cluster::certificates, seeds::none, 64),
    target("tokens", cluster::tokens, seeds::none, 64),
    target("http", cluster::http, seeds::none, 64),
];

const fn target(name: &'static str, parse: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>, memory_factor: usize) -> FuzzTarget {
    FuzzTarget { name, parse, seeds, memory_factor }
}

/// Messages, each after its length: two bytes, little-endian.
pub(crate) fn split(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = input.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let message;
        (message, input) = rest.split_at(length);
        Some(message)
    })
}

/// The inverse of [`split`].
pub(crate) fn join<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut joined = Vec::new();
    for message in messages {
        joined.extend(u16::try_from(message.len()).unwrap_or(u16::MAX).to_le_bytes());
        joined.extend_from_slice(message);
    }
    joined
}

/// What a backend receives. A valid message is the same after it is encoded and decoded again.
fn server_messages(input: &[u8]) {
    for message in split(input).filter_map(proto::fuzzing::server_message) {
        let encoded = v1::ServerMessage::from(&message);
        assert_eq!(model::ServerMessage::try_from(encoded), Ok(message));
    }
    backend::fuzzing::server_messages(split(input));
}

/// The output of `iptables-save`, and what is computed from it.
fn rules(input: &[u8]) {
    let Ok(text) = from_utf8(input) else { return };
    let Ok(ruleset) = Ruleset::parse(text) else { return };
    let printed = ruleset.to_string();
    let mut again = Ruleset::parse(&printed).unwrap_or_else(|error| panic!("{error:#}: {printed}"));
    // The table is printed, a remark that a table is incompatible is not.
    assert_eq!(again.to_string(), printed);
    for table in ruleset.tables() {
        for (chain, _) in ruleset.chains_of(table) {
            ruleset.parsed_rules(table, chain).for_each(drop);
        }
    }
    let _ = ruleset.ensure_readable(&Table::ALL);
    let script = ruleset.script_without(|chain| chain.starts_with("KUBE"));
    again.execute(script.text());
}

/// A configuration file, of ours or of kube-proxy.
fn configuration(input: &[u8]) {
    if let Ok(text) = from_utf8(input) {
        fairlead::fuzzing::configuration(text);
    }
}

thread_local! {
    /// The runtime of the targets that need one.
    static RUNTIME: OnceCell<tokio::runtime::Runtime> = const { OnceCell::new() };
}

/// Runs a future in a runtime with one thread, this one.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| {
        let build = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.get_or_init(|| build().unwrap_or_else(|error| panic!("start a runtime: {error}")));
        runtime.block_on(future)
    })
}
