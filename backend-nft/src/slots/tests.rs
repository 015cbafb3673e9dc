//! Places: nobody moves without need.

use std::{collections::HashSet, net::IpAddr, num::NonZeroU16};

use proptest::prelude::*;

use proto::model::Pool;

use super::*;

fn endpoint(n: u8) -> Endpoint {
    Endpoint::new(IpAddr::from([10, 244, 0, n]), NonZeroU16::MIN)
}

fn order(numbers: &[u8]) -> Vec<Option<Endpoint>> {
    numbers.iter().map(|&n| (n > 0).then(|| endpoint(n))).collect()
}

fn assigned(previous: &[u8], wanted: &[u8]) -> Vec<u8> {
    let pool: Pool = wanted.iter().map(|&n| endpoint(n)).collect();
    let places = assign(&order(previous), &pool);
    places
        .iter()
        .map(|endpoint| match endpoint.address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        })
        .collect()
}

#[test]
fn replacing_takes_the_place_over() {
    assert_eq!(assigned(&[4, 2, 9], &[2, 4, 7]), [4, 2, 7]);
}

#[test]
fn adding_appends() {
    assert_eq!(assigned(&[4, 2, 9], &[1, 2, 4, 9]), [4, 2, 9, 1]);
}

#[test]
fn removing_moves_the_last_into_the_hole() {
    assert_eq!(assigned(&[4, 2, 9, 1], &[1, 4, 9]), [4, 1, 9]);
    assert_eq!(assigned(&[4, 2, 9, 1], &[2, 4, 9]), [4, 2, 9]);
}

#[test]
fn holes_and_repetitions_in_what_was_found_are_filled() {
    assert_eq!(assigned(&[0, 2, 2, 3], &[1, 2, 3, 4]), [1, 2, 4, 3]);
    assert_eq!(assigned(&[], &[3, 1, 2]), [1, 2, 3]);
    assert_eq!(assigned(&[1, 2], &[]), [0u8; 0]);
}

proptest! {
    #[test]
    fn nobody_moves_without_need(
        previous in prop::collection::vec(0u8..20, 0..12),
        wanted in prop::collection::hash_set(1u8..20, 0..12),
    ) {
        let wanted: Vec<u8> = wanted.into_iter().collect();
        let places = assigned(&previous, &wanted);
        prop_assert_eq!(
            places.iter().copied().collect::<HashSet<_>>(),
            wanted.iter().copied().collect::<HashSet<_>>()
        );
        prop_assert_eq!(places.len(), wanted.len());
        let mut seen = HashSet::new();
        for (place, old) in previous.iter().enumerate().take(places.len()) {
            if wanted.contains(old) && seen.insert(*old) {
                prop_assert_eq!(places[place], *old);
            }
        }
    }
}
