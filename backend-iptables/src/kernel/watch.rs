//! Which nf_tables notifications are about rules of ours.

#[cfg(test)]
mod tests;

use backend::driver::Touched;
use netlink::nft::{NftChange, NftEvent, TableFamily};

use crate::{names, table::TABLES};

/// What a notification changes of ours.
pub(super) fn touched(event: &NftEvent) -> Option<Touched> {
    let NftEvent::Changed { family, table, object, chain, verb, port: _ } = event else { return None };
    let is_watched = matches!(family, Some(TableFamily::Ip | TableFamily::Ip6))
        && TABLES.iter().any(|watched| watched.name() == table);
    match chain {
        _ if !is_watched => None,
        Some(chain) if names::is_ours(chain) => Some(Touched::Ours(object)),
        // A deleted rule of a built-in chain may have been a jump of ours.
        _ => (*verb == NftChange::Delete).then_some(Touched::Perhaps),
    }
}
