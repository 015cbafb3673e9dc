//! Plans leave the index as it is.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn planned_index_equals_one_without_plans(
        history in vec((any_update(), any::<bool>()), 0..40),
        planned in vec(any_update(), 1..6),
        limited in any::<bool>(),
    ) {
        let new = if limited { limited_index } else { new_index };
        let (mut index, mut views) = (new(), Views::new());
        let (mut untouched, mut expected) = (new(), Views::new());
        let objects: Vec<_> = planned.into_iter().filter_map(|update| match update {
            SourceUpdate::Apply(parsed) if matches!(parsed.kind, ObjectKind::Service | ObjectKind::EndpointSlice) => {
                Some(parsed)
            }
            _ => None,
        }).collect();
        for (update, take_changes) in history {
            index.apply(update.clone());
            untouched.apply(update);
            index.plan(objects.clone(), None).unwrap();
            prop_assert_eq!(&index.dirty, &untouched.dirty);
            prop_assert_eq!(&index.claims, &untouched.claims);
            prop_assert_eq!(&index.limited, &untouched.limited);
            if take_changes {
                prop_assert_eq!(apply_changes(&mut index, &mut views), apply_changes(&mut untouched, &mut expected));
            }
        }
        apply_changes(&mut index, &mut views);
        apply_changes(&mut untouched, &mut expected);
        prop_assert_eq!(views, expected);
        prop_assert_eq!(problems(&index), problems(&untouched));
        prop_assert_eq!(&index.services, &untouched.services);
        prop_assert_eq!(&index.slices, &untouched.slices);
        prop_assert_eq!(&index.slice_services, &untouched.slice_services);
        prop_assert_eq!(index.addresses.len(), untouched.addresses.len());
    }

    #[test]
    fn plan_has_the_changes_that_follow(
        history in vec(any_update(), 0..30),
        service in any_service(),
    ) {
        let (mut index, mut views) = indexed(history);
        let before = views.clone();
        let created = index.services.get(&service.name).and_then(|service| service.created);
        let service = ServiceObject { created, ..service };
        let plan = index.plan(vec![crate::testing::parsed(service.clone())], None).unwrap();
        index.apply(put(service));
        apply_changes(&mut index, &mut views);
        let keys: BTreeSet<_> = before.keys().chain(views.keys()).collect();
        let changed = keys.into_iter().filter(|key| before.get(*key) != views.get(*key));
        let changed: Vec<_> = changed.map(ToString::to_string).collect();
        let planned: Vec<_> = plan.changes.iter().map(|change| change.service_port.clone()).collect();
        prop_assert_eq!(planned, changed);
    }
}
