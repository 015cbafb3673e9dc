//! Endpoints keep their slots.

use std::{collections::HashSet, net::IpAddr, num::NonZeroU16};

use proptest::prelude::*;

use proto::model::Pool;

use super::*;

fn endpoint(n: u8) -> Endpoint {
    Endpoint::new(IpAddr::from([10, 244, 0, n]), NonZeroU16::MIN)
}

fn slots(numbers: &[u8]) -> Vec<Option<Endpoint>> {
    numbers.iter().map(|&n| (n > 0).then(|| endpoint(n))).collect()
}

fn assigned(previous: &[u8], desired: &[u8]) -> Vec<u8> {
    let pool: Pool = desired.iter().map(|&n| endpoint(n)).collect();
    let assigned = assign(&slots(previous), &pool);
    assigned
        .iter()
        .map(|endpoint| match endpoint.address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        })
        .collect()
}

#[test]
fn a_new_endpoint_takes_the_slot_of_a_removed_one() {
    assert_eq!(assigned(&[4, 2, 9], &[2, 4, 7]), [4, 2, 7]);
}

#[test]
fn an_added_endpoint_gets_a_new_slot() {
    assert_eq!(assigned(&[4, 2, 9], &[1, 2, 4, 9]), [4, 2, 9, 1]);
}

#[test]
fn the_last_endpoint_moves_to_the_slot_of_a_removed_one() {
    assert_eq!(assigned(&[4, 2, 9, 1], &[1, 4, 9]), [4, 1, 9]);
    assert_eq!(assigned(&[4, 2, 9, 1], &[2, 4, 9]), [4, 2, 9]);
}

#[test]
fn gaps_and_duplicates_are_filled() {
    assert_eq!(assigned(&[0, 2, 2, 3], &[1, 2, 3, 4]), [1, 2, 4, 3]);
    assert_eq!(assigned(&[], &[3, 1, 2]), [1, 2, 3]);
    assert_eq!(assigned(&[1, 2], &[]), [0u8; 0]);
}

proptest! {
    #[test]
    fn endpoints_keep_slots_that_exist(
        previous in prop::collection::vec(0u8..20, 0..12),
        desired in prop::collection::hash_set(1u8..20, 0..12),
    ) {
        let desired: Vec<u8> = desired.into_iter().collect();
        let slots = assigned(&previous, &desired);
        prop_assert_eq!(
            slots.iter().copied().collect::<HashSet<_>>(),
            desired.iter().copied().collect::<HashSet<_>>()
        );
        prop_assert_eq!(slots.len(), desired.len());
        let mut seen = HashSet::new();
        for (slot, old) in previous.iter().enumerate().take(slots.len()) {
            if desired.contains(old) && seen.insert(*old) {
                prop_assert_eq!(slots[slot], *old);
            }
        }
    }
}
