//! Simulated years of renewals, with checks at random times and nodes that read files late.

use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;

fn fingerprint(number: u8) -> Fingerprint {
    Fingerprint([number; 32])
}

fn days(days: u64) -> Duration {
    Duration::from_secs(days * DAY as u64)
}

/// Those of the chart.
fn defaults() -> CertificateLifetimes {
    CertificateLifetimes { certificate: days(730), authority: days(3650), overlap: days(1) }
}

/// What Helm creates at time 0.
fn installed(lifetimes: &CertificateLifetimes) -> CertificateState {
    let authority = Validity { not_before: 0, not_after: seconds(lifetimes.authority) };
    let certificate = Validity { not_before: 0, not_after: seconds(lifetimes.certificate).min(authority.not_after) };
    CertificateState {
        authority: (fingerprint(1), authority),
        next: None,
        previous: BTreeSet::new(),
        bundle: [fingerprint(1)].into(),
        bundle_extended: None,
        certificate,
        issuer: fingerprint(1),
    }
}

/// The objects of a release, as the steps change them.
struct World {
    lifetimes: CertificateLifetimes,
    state: CertificateState,
    authorities: u8,
    now: i64,
    /// All states, each with the time from which it is in the objects.
    history: Vec<(i64, CertificateState)>,
    steps: Vec<RenewalStep>,
}

impl World {
    fn new(lifetimes: CertificateLifetimes, state: CertificateState) -> Self {
        let history = vec![(i64::MIN, state.clone())];
        Self { lifetimes, state, authorities: 100, now: 0, history, steps: Vec::new() }
    }

    fn take(&mut self, step: RenewalStep) {
        let Self { lifetimes, state, now, .. } = self;
        let used = [Some(state.authority.0), state.next.map(|next| next.0)];
        match step {
            RenewalStep::CreateAuthority => {
                self.authorities += 1;
                state.previous.extend(state.next.map(|(expired, _)| expired));
                state.next = Some((fingerprint(self.authorities), lifetimes.new_authority(*now)));
            }
            RenewalStep::TrustAuthorities => {
                state.bundle.extend(used.iter().flatten());
                state.bundle_extended = Some(*now);
            }
            RenewalStep::UseNextAuthority => {
                state.previous.insert(state.authority.0);
                state.authority = state.next.take().unwrap();
            }
            RenewalStep::IssueCertificate => {
                state.certificate = lifetimes.new_certificate(*now, state.authority.1);
                state.issuer = state.authority.0;
            }
            RenewalStep::DistrustPrevious => {
                let previous = state.previous.clone();
                state.bundle.retain(|trusted| used.contains(&Some(*trusted)) || !previous.contains(trusted));
            }
            RenewalStep::ForgetPrevious => state.previous.clear(),
        }
        self.steps.push(step);
        self.history.push((self.now, self.state.clone()));
    }

    /// A check at this time. Returns when the next one is due.
    fn check(&mut self, now: i64) -> i64 {
        self.now = now;
        for _ in 0..8 {
            match plan(now, &self.lifetimes, &self.state) {
                RenewalPlan::Step(step) => self.take(step),
                RenewalPlan::WaitUntil(time) => return time,
            }
        }
        panic!("no end of steps at {now}: {:?} {:?}", self.steps, self.state);
    }

    /// The state as a process sees it that reads changes so much later.
    fn seen(&self, lag: i64) -> &CertificateState {
        let seen = self.history.iter().rev().find(|(time, _)| *time <= self.now - lag);
        &seen.unwrap().1
    }
}

#[test]
fn certificate_is_renewed_after_two_thirds_of_its_lifetime() {
    let mut world = World::new(defaults(), installed(&defaults()));
    let due = 730 * DAY / 3 * 2;
    for time in (0..due).step_by(DAY as usize) {
        world.check(time);
    }
    assert_eq!(world.steps, []);
    assert_eq!(world.check(due - 60), due);
    world.check(due);
    assert_eq!(world.steps, [RenewalStep::IssueCertificate]);
    assert_eq!(world.state.certificate, Validity { not_before: due - 300, not_after: due + 730 * DAY });
}

#[test]
fn new_authority_is_trusted_for_the_overlap_before_it_signs_and_the_old_one_after_it() {
    use RenewalStep::*;
    let mut world = World::new(defaults(), installed(&defaults()));
    let due = 3650 * DAY / 3 * 2;
    world.state.certificate = Validity { not_before: due - DAY, not_after: due + 700 * DAY };
    world.check(due);
    assert_eq!(world.steps, [CreateAuthority, TrustAuthorities]);
    world.check(due + DAY - 1);
    assert_eq!(world.steps.len(), 2);
    assert_eq!(world.state.issuer, fingerprint(1));
    world.check(due + DAY);
    assert_eq!(world.steps[2..], [UseNextAuthority, IssueCertificate]);
    assert_eq!((world.state.issuer, world.state.bundle.len()), (fingerprint(101), 2));
    world.check(due + 2 * DAY);
    assert_eq!(world.steps.len(), 4);
    world.check(due + 2 * DAY + 1);
    assert_eq!(world.steps[4..], [DistrustPrevious, ForgetPrevious]);
    assert_eq!(world.state.bundle, [fingerprint(101)].into());
}

#[test]
fn expired_authority_is_replaced_at_once() {
    use RenewalStep::*;
    let mut world = World::new(defaults(), installed(&defaults()));
    world.check(4000 * DAY);
    assert_eq!(world.steps, [CreateAuthority, TrustAuthorities, UseNextAuthority, IssueCertificate]);
}

#[test]
fn authority_that_was_added_to_the_bundle_in_the_future_waits_from_now_on() {
    let mut world = World::new(defaults(), installed(&defaults()));
    let due = 3650 * DAY / 3 * 2;
    world.check(due);
    world.state.bundle_extended = Some(due + 1000 * DAY);
    world.check(due);
    assert_eq!(world.state.bundle_extended, Some(due));
}

fn lifetimes() -> impl Strategy<Value = CertificateLifetimes> {
    (60..10_000_000u64, 1..20u64, 1..100_000u64).prop_map(|(certificate, factor, overlap)| CertificateLifetimes {
        certificate: Duration::from_secs(certificate),
        authority: Duration::from_secs(certificate * factor),
        overlap: Duration::from_secs(overlap),
    })
}

fn validity() -> impl Strategy<Value = Validity> {
    (-1000..1000i64, 0..2000i64).prop_map(|(begin, length)| Validity { not_before: begin, not_after: begin + length })
}

fn some_state() -> impl Strategy<Value = CertificateState> {
    let ids = || proptest::collection::btree_set((1..4u8).prop_map(fingerprint), 0..3);
    let next = proptest::option::of(validity().prop_map(|validity| (fingerprint(2), validity)));
    let fields = (validity(), next, ids(), ids(), proptest::option::of(-2000..2000i64), validity(), 1..4u8);
    fields.prop_map(|(authority, next, previous, bundle, bundle_extended, certificate, issuer)| CertificateState {
        authority: (fingerprint(1), authority),
        next,
        // One of them has signed the certificate: all others are foreign.
        previous: previous.into_iter().chain([fingerprint(issuer)]).collect(),
        bundle,
        bundle_extended,
        certificate,
        issuer: fingerprint(issuer),
    })
}

proptest! {
    /// Frontends and backends read each change at any time within the overlap.
    #[test]
    fn every_backend_trusts_every_frontend_at_any_time(
        lifetimes in lifetimes(),
        gaps in proptest::collection::vec((0.0..1.0, 0.0..1.0, 0.0..1.0), 300),
    ) {
        let mut world = World::new(lifetimes, installed(&lifetimes));
        let (certificate, authority) = (seconds(lifetimes.certificate), seconds(lifetimes.authority));
        let most = (certificate / 15).min(authority / 40).max(1);
        let mut time = 0;
        for (gap, frontend, backend) in gaps {
            time += 1 + (most as f64 * gap) as i64;
            let steps = world.steps.len();
            world.check(time);
            prop_assert!(world.steps.len() - steps <= 6, "{:?}", world.steps);
            let lag = |part: f64| (lifetimes.overlap() as f64 * part) as i64;
            let (frontend, backend) = (world.seen(lag(frontend)), world.seen(lag(backend)));
            prop_assert!(backend.bundle.contains(&frontend.issuer), "{:?}\n{:?}", world.state, world.steps);
            let Validity { not_before, not_after } = frontend.certificate;
            prop_assert!((not_before..=not_after).contains(&time), "{time} {frontend:?} {:?}", world.steps);
        }
        let issued = world.steps.iter().filter(|step| **step == RenewalStep::IssueCertificate).count() as i64;
        prop_assert!(issued <= 2 * time / certificate.min(authority) * 2 + 2, "{issued} in {time}: {lifetimes:?}");
    }

    /// Also after `helm rollback`, manual changes, and years without a frontend.
    #[test]
    fn every_state_becomes_a_valid_one(lifetimes in lifetimes(), state in some_state(), time in 0..3000i64) {
        let mut world = World::new(lifetimes, state);
        let next = world.check(time);
        prop_assert!(next > time);
        let state = &world.state;
        prop_assert!(state.bundle.contains(&state.authority.0));
        prop_assert!(state.authority.1.not_after >= time);
        prop_assert!(state.certificate.not_after >= time, "{state:?} {:?}", world.steps);
        prop_assert!(state.issuer == state.authority.0 || Some(state.issuer) == state.next.map(|next| next.0));
    }

    /// So the delay until the next check misses nothing.
    #[test]
    fn nothing_is_due_before_the_next_check(
        lifetimes in lifetimes(),
        state in some_state(),
        time in 0..3000i64,
        part in 0.0..1.0,
    ) {
        let mut world = World::new(lifetimes, state);
        let next = world.check(time);
        let between = time + ((next - time) as f64 * part) as i64;
        if between < next {
            prop_assert!(matches!(plan(between, &lifetimes, &world.state), RenewalPlan::WaitUntil(_)));
        }
    }
}
