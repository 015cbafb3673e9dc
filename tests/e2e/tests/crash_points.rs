//! A backend is killed, or a call fails, at every write to the kernel of a cold start, a change, a takeover and a
//! cleanup. Meanwhile no packet goes to a wrong place, and a restart, or the next attempt, completes the operation.

mod services;

use std::{collections::BTreeMap, env, fmt, time::Duration};

use e2e::{Backend, Cluster, Deployment, Fault, FaultPoint, Netns, eventually, uml, utc_now};
use nix::sys::signal::Signal;
use services::{State, check, check_between, check_incomplete, check_now, start_traffic};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of all points of an operation in a guest.
const GUEST_TIMEOUT: Duration = Duration::from_secs(55 * 60);
/// More writes than any of the operations has.
const MAX_WRITES: u32 = 1000;
/// The distance of the netlink messages at which `make test` tries faults. It has no divisor in common with the number
/// of errors of a kind, so that each error has its turn.
const STEP: u32 = 23;
/// The errors of the kernel, in turn: the write with number n fails with one of them.
const ERRORS: [&str; 5] = ["ENOBUFS", "EBUSY", "ENOMEM", "EPERM", "EINTR"];
/// What a `recv` of netlink returns besides.
const RECEIVE_ERRORS: [&str; 2] = ["ENOBUFS", "EINTR"];
/// How `iptables-restore` reports the same.
const RESTORE_ERRORS: [&str; 3] =
    ["Device or resource busy", "Cannot allocate memory", "Resource temporarily unavailable"];

/// The kinds of faults, each of which is tried at each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    KilledBeforeMessage,
    MessageFails,
    AnswerFails,
    KilledBeforeRestore,
    KilledHalfway,
    KilledAfterRestore,
    RestoreKilled,
    RestoreFails,
}

/// Faults of netlink messages.
const MESSAGES: [Kind; 3] = [Kind::KilledBeforeMessage, Kind::MessageFails, Kind::AnswerFails];
/// Faults of runs of `iptables-restore`, of which an operation has few: all are tried.
const RESTORE: [Kind; 5] =
    [Kind::KilledBeforeRestore, Kind::KilledHalfway, Kind::KilledAfterRestore, Kind::RestoreKilled, Kind::RestoreFails];

/// The number of points that were reached, of each kind.
#[derive(Debug, Default)]
struct Reached(BTreeMap<String, u32>);

// === impl Kind ===

impl Kind {
    fn at(self, number: u32) -> FaultPoint {
        let nth = |messages: &[&'static str]| messages[number as usize % messages.len()];
        let fault = match self {
            Self::KilledBeforeMessage => Fault::KilledBeforeMessage,
            Self::MessageFails => Fault::MessageFails(nth(&ERRORS)),
            Self::AnswerFails => Fault::AnswerFails(nth(&RECEIVE_ERRORS)),
            Self::KilledBeforeRestore => Fault::KilledBeforeRestore,
            Self::KilledHalfway => Fault::KilledHalfway,
            Self::KilledAfterRestore => Fault::KilledAfterRestore,
            Self::RestoreKilled => Fault::RestoreKilled,
            Self::RestoreFails => Fault::RestoreFails(nth(&RESTORE_ERRORS)),
        };
        FaultPoint { fault, number }
    }
}

// === impl Reached ===

impl Reached {
    /// Calls `operation` with points of each kind, until it does not reach one; each of the `expected` kinds has to be
    /// reached. Of netlink messages every 23rd is tried, with `FAULTS` in the environment the others too: `all`, or
    /// `2/3` for the second of three parts. With `FAULT=KilledHalfway:3` only that point is tried.
    fn all(expected: &[Kind], mut operation: impl FnMut(FaultPoint) -> bool) {
        if let Ok(point) = env::var("FAULT") {
            let (name, number) = point.split_once(':').expect("a kind and a number");
            let kind =
                MESSAGES.into_iter().chain(RESTORE).find(|kind| format!("{kind:?}") == name).expect("a kind of fault");
            assert!(operation(kind.at(number.parse().expect("a number"))), "{point} was not reached");
            return;
        }
        let selection = env::var("FAULTS").ok();
        let mut reached = Self::default();
        let mut missing = Vec::new();
        for kind in MESSAGES.into_iter().chain(RESTORE) {
            let (first, step) = points(selection.as_deref(), kind);
            let mut is_reached = |number: &u32| {
                println!("{} FAULT={kind:?}:{number}", utc_now());
                operation(kind.at(*number))
            };
            let points = (first..MAX_WRITES).step_by(step as usize).take_while(|number| is_reached(number)).count();
            assert!(points * (step as usize) < MAX_WRITES as usize - 1, "{kind:?}: more writes than expected");
            reached.0.insert(format!("{kind:?}"), u32::try_from(points).unwrap_or(u32::MAX));
            // Of a part that begins later, an operation may have no point.
            if points == 0 && first == 1 && expected.contains(&kind) {
                missing.push(kind);
            }
        }
        println!("points: {reached}");
        assert!(missing.is_empty(), "no point of {missing:?} was reached: {reached}");
    }
}

/// The first of the numbers of a kind's points that are tried, and the distance between them.
fn points(selection: Option<&str>, kind: Kind) -> (u32, u32) {
    match selection {
        None if RESTORE.contains(&kind) => (1, 1),
        None => (1, STEP),
        Some("all") => (1, 1),
        Some(part) => {
            let numbers = part.split_once('/').map(|(first, parts)| (first.parse(), parts.parse()));
            match numbers {
                Some((Ok(first), Ok(parts))) if (1..=parts).contains(&first) => (first, parts),
                _ => panic!("FAULTS={part}: expected `all`, or a part such as 2/3"),
            }
        }
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.0.iter().map(|(kind, points)| format!("{kind} {points}"));
        f.write_str(&kinds.collect::<Vec<_>>().join(", "))
    }
}

/// The kinds of writes that each operation of a backend consists of.
fn kinds(backend: Backend) -> &'static [Kind] {
    match backend {
        Backend::Nft | Backend::Ipvs => &MESSAGES,
        Backend::IptablesNft | Backend::IptablesLegacy => &RESTORE,
    }
}

// === the operations ===

fn start(backend: Backend) -> Deployment {
    let mut deployment = Deployment::builder(backend).cluster(Cluster::builder().nodes(1)).start(|_| Vec::new());
    State::First.write(&deployment);
    deployment.wait_until_programmed();
    check(deployment.cluster(), State::First, &"without a fault");
    deployment
}

/// What the node has in its kernel, without the fence and what packets write. Elements of sets are one each.
fn rules(backend: Backend, deployment: &Deployment) -> Vec<String> {
    let lines = backend.rules(&deployment.cluster().node('a').netns);
    // nft lists several elements of a set in one line.
    let elements = |line: &String| match backend {
        Backend::Nft => line.split(',').map(str::to_owned).collect(),
        _ => vec![line.replace(',', " ")],
    };
    let parts = lines.iter().flat_map(elements);
    let parts = parts.map(|part| part.trim().trim_start_matches("elements = { ").trim_end_matches(" }").to_owned());
    let is_of_a_state = |part: &String| {
        !part.is_empty()
            && !part.contains(" timeout ")
            && !part.contains(" scope link ")
            && !Deployment::is_fence(&format!("{part} "))
    };
    let mut parts: Vec<_> = parts.filter(is_of_a_state).collect();
    parts.sort();
    parts
}

#[track_caller]
fn assert_same(expected: &[String], rules: &[String], point: FaultPoint) {
    let missing = || expected.iter().filter(|rule| !rules.contains(rule)).collect::<Vec<_>>();
    let unexpected = || rules.iter().filter(|rule| !expected.contains(rule)).collect::<Vec<_>>();
    assert!(expected == rules, "{point:?}: missing {:#?}, unexpected {:#?}", missing(), unexpected());
}

fn cleanup(backend: Backend, deployment: &Deployment) -> Vec<String> {
    let state = deployment.state(deployment.cluster().node('a'));
    ["cleanup", "--backend", backend.name(), "--state-dir", state.to_str().expect("a path in UTF-8")]
        .map(str::to_owned)
        .to_vec()
}

/// Runs `fairlead` on a node, without a fault.
#[track_caller]
fn run_undisturbed(node: &Netns, arguments: &[&str]) {
    let program = e2e::fairlead();
    node.output(program.get_program().to_str().expect("a path in UTF-8"), arguments);
}

/// A change of several Services, while others have traffic.
fn change(backend: Backend) {
    let mut deployment = start(backend);
    let traffic = start_traffic(deployment.cluster());
    let mut state = State::First;
    let mut listed = BTreeMap::new();
    for _ in 0..2 {
        state = state.other();
        state.write(&deployment);
        deployment.wait_until_programmed();
        listed.insert(format!("{state:?}"), rules(backend, &deployment));
    }
    Reached::all(kinds(backend), |point| {
        let next = state.other();
        let is_reached = deployment.change_with(point, |deployment| next.write(deployment));
        if !deployment.backend_runs() {
            check_between(backend, deployment.cluster(), &point);
            deployment.start_backends();
            deployment.wait_until_programmed();
        }
        check(deployment.cluster(), next, &point);
        assert_same(&listed[&format!("{next:?}")], &rules(backend, &deployment), point);
        state = next;
        is_reached
    });
    traffic.wait(20, TIMEOUT);
    traffic.finish();
}

/// The first start on a node without rules.
fn cold_start(backend: Backend) {
    let mut deployment = start(backend);
    let programmed = rules(backend, &deployment);
    let node = deployment.cluster().node('a').netns.clone();
    Reached::all(kinds(backend), |point| {
        deployment.stop_backends(Signal::SIGKILL);
        let cleanup = cleanup(backend, &deployment);
        run_undisturbed(&node, &cleanup.iter().map(String::as_str).collect::<Vec<_>>());
        let is_reached = deployment.start_backend_with(point);
        if !deployment.backend_runs() {
            check_incomplete(deployment.cluster(), State::First, &point);
            deployment.start_backends();
        }
        deployment.wait_until_programmed();
        check(deployment.cluster(), State::First, &point);
        assert_same(&programmed, &rules(backend, &deployment), point);
        is_reached
    });
}

/// The start of another mode, which takes over from this one.
fn takeover(old: Backend, new: Backend) {
    let mut deployment = start(old);
    let node = deployment.cluster().node('a').netns.clone();
    let traffic = start_traffic(deployment.cluster());
    Reached::all(kinds(new), |point| {
        deployment.stop_backends(Signal::SIGTERM);
        deployment.set_mode(new);
        let is_reached = deployment.start_backend_with(point);
        if !deployment.backend_runs() {
            check_now(deployment.cluster(), State::First, &point);
            deployment.start_backends();
        }
        eventually("nothing of the old mode is left", TIMEOUT, || old.installed(&node).is_empty().then_some(()));
        check(deployment.cluster(), State::First, &point);
        deployment.change_mode(old);
        eventually("nothing of the new mode is left", TIMEOUT, || new.installed(&node).is_empty().then_some(()));
        is_reached
    });
    traffic.wait(20, TIMEOUT);
    traffic.finish();
}

/// `fairlead cleanup` on a node whose backend has ended.
fn clean(backend: Backend) {
    let mut deployment = start(backend);
    let node = deployment.cluster().node('a').netns.clone();
    Reached::all(kinds(backend), |point| {
        deployment.stop_backends(Signal::SIGTERM);
        let arguments = cleanup(backend, &deployment);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (is_reached, status) = deployment.run_with(point, &arguments);
        check_incomplete(deployment.cluster(), State::First, &point);
        if !status.success() {
            assert!(is_reached, "{status} without a fault");
            run_undisturbed(&node, &arguments);
        }
        assert_eq!(backend.installed(&node), [""; 0], "{point:?}");
        deployment.start_backends();
        deployment.wait_until_programmed();
        check(deployment.cluster(), State::First, &point);
        is_reached
    });
}

fn in_guest(operation: fn(Backend)) {
    uml::load(&[]);
    operation(Backend::Ipvs);
}

#[test]
fn nftables_change() {
    change(Backend::Nft);
}

#[test]
fn nftables_cold_start() {
    cold_start(Backend::Nft);
}

#[test]
fn nftables_cleanup() {
    clean(Backend::Nft);
}

#[test]
fn nftables_takes_over_from_iptables() {
    takeover(Backend::IptablesLegacy, Backend::Nft);
}

#[test]
fn iptables_nft_change() {
    change(Backend::IptablesNft);
}

#[test]
fn iptables_nft_cold_start() {
    cold_start(Backend::IptablesNft);
}

#[test]
fn iptables_nft_cleanup() {
    clean(Backend::IptablesNft);
}

#[test]
fn iptables_takes_over_from_nftables() {
    takeover(Backend::Nft, Backend::IptablesNft);
}

#[test]
#[ignore = "the same code as with iptables-nft: `make nightly` runs it"]
fn iptables_legacy_change() {
    change(Backend::IptablesLegacy);
}

#[test]
#[ignore = "the same code as with iptables-nft: `make nightly` runs it"]
fn iptables_legacy_cold_start() {
    cold_start(Backend::IptablesLegacy);
}

#[test]
#[ignore = "the same code as with iptables-nft: `make nightly` runs it"]
fn iptables_legacy_cleanup() {
    clean(Backend::IptablesLegacy);
}

#[test]
#[ignore = "takes minutes in a guest; `make nightly` runs it"]
fn ipvs_change() {
    uml::inside_for(GUEST_TIMEOUT, || in_guest(change));
}

#[test]
#[ignore = "takes minutes in a guest; `make nightly` runs it"]
fn ipvs_cold_start() {
    uml::inside_for(GUEST_TIMEOUT, || in_guest(cold_start));
}

#[test]
#[ignore = "takes minutes in a guest; `make nightly` runs it"]
fn ipvs_cleanup() {
    uml::inside_for(GUEST_TIMEOUT, || in_guest(clean));
}
