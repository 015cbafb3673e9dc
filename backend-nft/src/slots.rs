//! The slots of endpoints in their pool. An endpoint keeps its slot while that exists, so that a change of the pool
//! changes as few map elements as possible. The kernel stores the slots, so they survive a restart.
//!
//! ```text
//!   0 1 2 3       b replaced by x   a x c d      one element
//!   a b c d  -->  e added           a b c d e    one element
//!                 b removed         a d c        two elements: d takes the slot of b, slot 3 is gone
//! ```

#[cfg(test)]
mod tests;

use proto::model::Endpoint;

/// Assigns a slot to each endpoint of `desired`, which is sorted. `previous`: the earlier endpoint of each slot,
/// with gaps.
///
/// Endpoints whose slot still exists keep it; new endpoints, and endpoints from slots beyond the end, fill the gaps.
pub(crate) fn assign(previous: &[Option<Endpoint>], desired: &[Endpoint]) -> Vec<Endpoint> {
    let mut is_unassigned = vec![true; desired.len()];
    let mut slots: Vec<Option<usize>> = vec![None; desired.len()];
    for (slot, endpoint) in slots.iter_mut().zip(previous) {
        let Some(endpoint) = endpoint else { continue };
        // If another process changed the kernel, it may contain an endpoint twice.
        if let Ok(at) = desired.binary_search_by_key(&endpoint.identity(), Endpoint::identity)
            && is_unassigned[at]
        {
            is_unassigned[at] = false;
            *slot = Some(at);
        }
    }
    let mut rest = (0..desired.len()).filter(|&at| is_unassigned[at]);
    let filled = slots.into_iter().filter_map(|slot| slot.or_else(|| rest.next()));
    filled.map(|at| Endpoint::new(desired[at].address, desired[at].port)).collect()
}
