//! The places of endpoints in their pool. An endpoint keeps its place while it can, so that a change of the pool is a
//! change of as few map elements as possible. The kernel holds the places, so they outlive the agent.
//!
//! ```text
//!   0 1 2 3       b replaced by x   a x c d      one element
//!   a b c d  -->  e added           a b c d e    one element
//!                 b removed         a d c        two elements: d takes the place of b, place 3 is gone
//! ```

#[cfg(test)]
mod tests;

use proto::model::{Endpoint, Pool};

/// Gives each endpoint of `wanted` a place. `previous` holds who had which place, with holes where that is unknown.
///
/// Those whose place still exists keep it; new ones, and those from places beyond the end, fill the holes.
pub(crate) fn assign(previous: &[Option<Endpoint>], wanted: &Pool) -> Vec<Endpoint> {
    let mut homeless = vec![true; wanted.len()];
    let mut places: Vec<Option<usize>> = vec![None; wanted.len()];
    for (place, endpoint) in places.iter_mut().zip(previous) {
        let Some(endpoint) = endpoint else { continue };
        // A kernel that somebody else changed may name one endpoint twice.
        if let Ok(at) = wanted.binary_search_by_key(&endpoint.identity(), Endpoint::identity)
            && homeless[at]
        {
            homeless[at] = false;
            *place = Some(at);
        }
    }
    let mut rest = (0..wanted.len()).filter(|&at| homeless[at]);
    let filled = places.into_iter().filter_map(|place| place.or_else(|| rest.next()));
    filled.map(|at| Endpoint::new(wanted[at].address, wanted[at].port)).collect()
}
