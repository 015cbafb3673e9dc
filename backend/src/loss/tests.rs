//! Which losses exceed the limit: a pure function of the losses of each namespace.

use super::*;

fn check(limit: u8, namespaces: &[(usize, usize)]) -> Result<(), Loss> {
    LossLimit(limit).check(namespaces.iter().map(|&(lost, of)| Loss { lost, of }).collect())
}

#[test]
fn limits_are_percentages() {
    assert_eq!("50".parse(), Ok(LossLimit::default()));
    assert_eq!("100%".parse(), Ok(LossLimit::NONE));
    assert_eq!(LossLimit(7).to_string().parse(), Ok(LossLimit(7)));
    for text in ["0", "101", "half", "", "0.5", "-1"] {
        assert!(text.parse::<LossLimit>().unwrap_err().contains("from 1 to 100"), "{text}");
    }
}

#[test]
fn only_namespace_may_exceed_the_limit() {
    assert_eq!(check(50, &[(10, 20)]), Ok(()));
    assert_eq!(check(50, &[(11, 20)]), Err(Loss { lost: 11, of: 20 }));
}

#[test]
fn one_namespace_among_others_never_exceeds_the_limit() {
    for limit in 1..100 {
        for others in [&[(0, 1)][..], &[(0, 1), (0, 500)], &[(0, 3); 40]] {
            let all = [&[(1000, 1000)], others].concat();
            assert_eq!(check(limit, &all), Ok(()), "{limit}% {others:?}");
        }
    }
}

#[test]
fn two_large_namespaces_do_not_exceed_the_limit_of_many() {
    assert_eq!(check(50, &[(400, 400), (300, 300), (0, 5), (0, 5), (0, 5)]), Ok(()));
}

#[test]
fn loss_of_everything_exceeds_every_limit() {
    for limit in 1..100 {
        for namespaces in [&[(1, 1), (2, 2), (20, 20)][..], &[(10, 10); 2], &[(1, 1); 30]] {
            assert!(check(limit, namespaces).is_err(), "{limit}% {namespaces:?}");
        }
    }
}
