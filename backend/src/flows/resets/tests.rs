//! Which connections are due to be reset and when, and the rules as nft and iptables list them.

use std::{
    mem,
    net::SocketAddr,
    num::NonZeroU16,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use iptables::{Tools, Variant, block_on};
use netlink::{
    conntrack::{ConntrackZone, Flow, Tuple},
    nft::NftHandle,
    testing::in_netns,
};
use proto::model::{Endpoint, IpFamily, Protocol};

use super::{
    Due, chain,
    departed::{Departed, PASS_DELAYS, RESET_DELAY},
    rejecter::{FamilyRules, MAX_REMOVAL_DELAY, Rejected, Rejecter, TIMEOUT},
    remove_reset_rules, reset, table,
};
use crate::{
    Changes, DepartedEndpoints, Nat, NodeState,
    testing::{mk_key, mk_state, operations_between},
};

const GONE: &str = "10.244.1.3:8080";
const VIP: &str = "10.96.0.1:80";

fn flow(to: &str, answered_by: &str) -> Flow {
    let (to, answered_by): (SocketAddr, SocketAddr) = (to.parse().unwrap(), answered_by.parse().unwrap());
    let client = SocketAddr::new(if to.is_ipv4() { [10, 9, 9, 9].into() } else { "fd00:9::9".parse().unwrap() }, 4000);
    Flow {
        protocol: Protocol::Tcp,
        original: Tuple { source: client, destination: to },
        reply: Tuple { source: answered_by, destination: client },
        id: 1,
        zone: ConntrackZone::Both(0),
        is_established: true,
        is_half_open: false,
    }
}

fn endpoint(text: &str) -> Endpoint {
    let address: SocketAddr = text.parse().unwrap();
    Endpoint::new(address.ip(), NonZeroU16::new(address.port()).unwrap())
}

/// A service with these endpoints and one that only keeps connections, on a node with an address.
fn web(endpoints: &[&str], gone: &[&str]) -> NodeState {
    let state = mk_state().service("default/web", |web| {
        let web = web.port(80).cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").node_port(30080);
        let web = web.endpoints(endpoints.iter().copied()).gone_endpoints(gone.to_vec());
        if endpoints.is_empty() { web } else { web.established_endpoints(["10.244.1.2:8080"]) }
    });
    state.node_addresses(["172.16.0.1"]).build()
}

const ONE: [&str; 2] = ["10.244.1.1:8080", "[fd00:244::1]:8080"];
const BOTH: [&str; 3] = ["10.244.1.1:8080", "[fd00:244::1]:8080", GONE];

/// The commits that a node receives, and the time.
struct Fixture {
    departed: Departed,
    state: NodeState,
    now: Instant,
}

impl Fixture {
    /// Begins with a baseline.
    fn new(state: NodeState) -> Self {
        let mut departed = Departed::default();
        let now = Instant::now();
        departed.committed(None, &Changes::default(), &state, now);
        Self { departed, state, now }
    }

    /// A commit of the same session.
    fn commit(&mut self, state: &NodeState) {
        let departed = self.apply(state);
        self.departed.committed(Some(departed.1), &departed.0, &self.state, self.now);
    }

    /// The first commit of another session.
    fn baseline(&mut self, state: &NodeState) {
        let changes = self.apply(state).0;
        self.departed.committed(None, &changes, &self.state, self.now);
    }

    fn apply(&mut self, state: &NodeState) -> (Changes, DepartedEndpoints) {
        let before = self.state.clone();
        assert_eq!(self.state.apply(operations_between(&before, state)), []);
        assert_eq!(self.state, *state);
        (Changes::between(&before, state), before.diff(state).filter_map(|change| change.departed()).collect())
    }

    fn is_revoked(&mut self) -> bool {
        !mem::take(&mut self.departed.revoked).is_empty()
    }

    fn is_due(&mut self, flow: &Flow) -> bool {
        self.departed.due(&self.state, |_| true, self.now).count(flow).is_some()
    }

    fn is_gone(&mut self, to: &str, answered_by: &str) -> bool {
        self.is_due(&flow(to, answered_by))
    }

    /// A pass that finds this number of connections to the endpoint. Returns how many are new.
    fn pass(&mut self, open: usize) -> usize {
        let mut due = self.departed.due(&self.state, |_| true, self.now);
        let gone = endpoint(GONE);
        for port in due.ports.iter_mut().filter(|port| port.open.contains_key(&gone)) {
            port.open.insert(gone, open);
        }
        self.departed.passed(&due, self.now)
    }
}

/// The endpoint that is gone has departed long enough ago.
fn departed(after: &NodeState) -> Fixture {
    let mut fixture = Fixture::new(web(&BOTH, &[]));
    fixture.commit(after);
    fixture.now += RESET_DELAY;
    fixture
}

#[test]
fn listed_endpoints_are_gone_at_each_vip() {
    assert!(!departed(&web(&ONE, &[])).is_gone(VIP, GONE), "not said to be gone");
    let mut fixture = departed(&web(&ONE, &[GONE]));
    for to in [VIP, "172.16.0.1:30080"] {
        assert!(fixture.is_gone(to, GONE), "{to}");
        for other in ["10.244.1.3:8081", "10.244.1.1:8080", "10.244.1.2:8080", "10.244.1.4:8080"] {
            assert!(!fixture.is_gone(to, other), "{to}, {other}");
        }
    }
    for to in ["10.96.0.1:81", "10.96.0.2:80", "172.16.0.2:30080", "[fd00:96::1]:80"] {
        let endpoint = if to.starts_with('[') { "[fd00:244::3]:8080" } else { GONE };
        assert!(!fixture.is_gone(to, endpoint), "{to}");
    }
}

/// The VIP of another Service has the number of the node port, and is at an interface: of IPVS, or because another
/// program has put it there.
#[test]
fn vips_of_other_services_are_no_addresses_of_a_node_port() {
    let with_other = |state: &NodeState| {
        let other = mk_state().service("other/api", |api| {
            let api = api.port(30080).cluster_ip("10.96.0.2").load_balancer_ip("192.0.2.2");
            api.endpoints([GONE])
        });
        let mut state = state.clone();
        let key = mk_key("other/api");
        state.set_service_port(&key, other.build().service_port(&key).cloned());
        state
    };
    let mut fixture = Fixture::new(with_other(&web(&BOTH, &[])));
    fixture.commit(&with_other(&web(&ONE, &[GONE])));
    fixture.now += RESET_DELAY;
    let mut due = fixture.departed.due(&fixture.state, |_| true, fixture.now);
    let addresses = ["10.96.0.2", "192.0.2.2", "192.0.2.3"].map(|address| address.parse().unwrap());
    due.add_addresses(IpFamily::V4, &addresses.into());
    for (to, is_due) in
        [("172.16.0.1:30080", true), ("192.0.2.3:30080", true), ("10.96.0.2:30080", false), ("192.0.2.2:30080", false)]
    {
        assert_eq!(due.count(&flow(to, GONE)).is_some(), is_due, "{to}");
    }
}

#[test]
fn all_other_addresses_may_be_gone() {
    let mut fixture = departed(&web(&ONE, &["0.0.0.0:1"]));
    assert!(fixture.is_gone(VIP, GONE));
    // Another port of an endpoint that exists, one that only keeps connections, one that was never an endpoint, such as
    // that of a host port, and one of the other family.
    for known in ["10.244.1.1:9090", "10.244.1.2:8080", "10.244.1.9:8080"] {
        assert!(!fixture.is_gone(VIP, known), "{known}");
    }
    assert!(!fixture.is_gone("[fd00:96::1]:80", "[fd00:244::3]:8080"));
    // Older than the VIP.
    assert!(!fixture.is_gone(VIP, VIP));
    // Not answered yet, or closed by one side.
    assert!(!fixture.is_due(&Flow { is_established: false, ..flow(VIP, GONE) }));
    // The endpoint serves at another port.
    fixture.commit(&web(&["10.244.1.1:8080", "10.244.1.3:9090"], &["0.0.0.0:1"]));
    assert!(!fixture.is_gone(VIP, GONE));
}

#[test]
fn only_endpoints_that_this_process_saw_depart_are_gone() {
    let after = web(&ONE, &[GONE, "10.244.1.4:8080"]);
    let mut fixture = Fixture::new(after.clone());
    fixture.now += RESET_DELAY;
    assert!(!fixture.is_gone(VIP, GONE), "the baseline");
    fixture = Fixture::new(web(&BOTH, &[]));
    fixture.baseline(&after);
    fixture.now += RESET_DELAY;
    assert!(!fixture.is_gone(VIP, GONE), "a difference to another frontend");
    fixture = departed(&after);
    assert!(fixture.is_gone(VIP, GONE) && !fixture.is_gone(VIP, "10.244.1.4:8080"));
    fixture.baseline(&after);
    assert!(!fixture.is_gone(VIP, GONE) && fixture.is_revoked());
}

#[test]
fn an_endpoint_is_due_after_an_absence_without_interruption() {
    let mut fixture = departed(&web(&ONE, &[GONE]));
    fixture.now -= Duration::from_millis(1);
    assert!(!fixture.is_gone(VIP, GONE));
    // In a slice again, whatever its condition.
    fixture.commit(&web(&ONE, &[]));
    assert!(fixture.is_revoked() && !fixture.is_revoked());
    fixture.commit(&web(&ONE, &[GONE]));
    fixture.now += RESET_DELAY - Duration::from_millis(1);
    assert!(!fixture.is_gone(VIP, GONE));
    fixture.now += Duration::from_millis(1);
    assert!(fixture.is_gone(VIP, GONE));
    // It serves again.
    fixture.commit(&web(&BOTH, &[]));
    assert!(!fixture.is_gone(VIP, GONE) && fixture.is_revoked());
    assert_eq!(fixture.departed.next_due(|_| true), None);
}

#[test]
fn an_endpoint_whose_connections_cannot_be_reset_is_forgotten() {
    let mut fixture = departed(&web(&ONE, &[GONE]));
    fixture.now += Duration::from_secs(299);
    assert!(fixture.is_gone(VIP, GONE));
    fixture.now += Duration::from_secs(1);
    assert!(!fixture.is_gone(VIP, GONE));
    assert_eq!(fixture.departed.next_due(|_| true), None);
    // Also one that the frontend does not call gone.
    fixture = departed(&web(&ONE, &[]));
    fixture.now += Duration::from_secs(300);
    assert!(!fixture.is_gone(VIP, GONE));
    fixture.commit(&web(&ONE, &[GONE]));
    assert_eq!(fixture.departed.next_due(|_| true), None);
}

/// A Service whose slices are replaced by others, one after the other.
#[test]
fn nothing_is_gone_while_no_endpoint_can_serve() {
    let all = ["0.0.0.0:1"];
    let mut fixture = departed(&web(&[], &all));
    fixture.now += Duration::from_secs(60);
    assert!(!fixture.is_gone(VIP, GONE));
    fixture.commit(&web(&["10.244.1.8:8080"], &all));
    assert!(!fixture.is_gone(VIP, GONE), "others may follow");
    fixture.now += RESET_DELAY;
    assert!(fixture.is_gone(VIP, GONE) && fixture.is_gone(VIP, "10.244.1.1:8080"));
}

#[test]
fn a_service_port_that_is_recreated_or_renamed_has_no_endpoints_that_departed() {
    let mut fixture = departed(&web(&ONE, &["0.0.0.0:1"]));
    fixture.commit(&mk_state().node_addresses(["172.16.0.1"]).build());
    assert!(fixture.is_revoked());
    fixture.commit(&web(&["10.244.1.8:8080"], &["0.0.0.0:1"]));
    fixture.now += RESET_DELAY;
    for endpoint in BOTH.into_iter().filter(|endpoint| endpoint.starts_with("10.")) {
        assert!(!fixture.is_gone(VIP, endpoint), "{endpoint}");
    }
}

#[test]
fn passes_pause_longer_and_longer_and_end() {
    let mut fixture = departed(&web(&ONE, &[GONE]));
    assert_eq!(fixture.pass(10), 10);
    for (pause, open) in PASS_DELAYS.into_iter().zip([7, 7, 5, 5]) {
        assert_eq!(fixture.departed.next_due(|_| true), Some(fixture.now + pause));
        // Another change does not bring it forward.
        fixture.commit(&web(&ONE[..1], &[GONE]));
        fixture.commit(&web(&ONE, &[GONE]));
        assert_eq!(fixture.pass(9), 0);
        fixture.now += pause;
        assert_eq!(fixture.pass(open), 0);
    }
    assert_eq!(fixture.departed.next_due(|_| true), None, "forgotten, although connections are open");
    // Also if there is none.
    fixture = departed(&web(&ONE, &[GONE]));
    assert_eq!((fixture.pass(0), fixture.departed.next_due(|_| true)), (0, None));
}

/// They are counted before it is known that it returns.
#[test]
fn connections_to_an_endpoint_that_flaps_count_each_time() {
    let mut fixture = departed(&web(&ONE, &[GONE]));
    for _ in 0..2 {
        assert_eq!(fixture.pass(4), 4);
        fixture.commit(&web(&ONE, &[]));
        fixture.commit(&web(&ONE, &[GONE]));
        fixture.now += RESET_DELAY;
    }
}

#[test]
fn endpoints_that_departed_are_bounded() {
    let addresses = |service: u32| (0..300).map(move |n| format!("10.{service}.{}.{}:80", n / 200, n % 200 + 1));
    // How many endpoints are remembered of each of 40 Services.
    let remembered = |namespace_of: fn(u32) -> u32| -> Vec<usize> {
        let state = |is_before: bool| {
            let services = (0..40).fold(mk_state(), |state, service| {
                state.service(&format!("tenant-{}/s{service}", namespace_of(service)), |one| {
                    let gone: Vec<_> = addresses(service).collect();
                    let gone: Vec<_> = gone.iter().map(String::as_str).collect();
                    let one = one.port(80).cluster_ip(&format!("10.96.1.{service}")).endpoints(["10.244.1.1:80"]);
                    if is_before { one.endpoints(gone) } else { one.gone_endpoints(gone) }
                })
            });
            services.build()
        };
        let mut fixture = Fixture::new(state(true));
        fixture.commit(&state(false));
        fixture.now += RESET_DELAY;
        let mut due = fixture.departed.due(&fixture.state, |_| true, fixture.now);
        let of_service = |service: u32| {
            let mut flows = addresses(service).map(|endpoint| flow(&format!("10.96.1.{service}:80"), &endpoint));
            flows.by_ref().filter(|flow| due.count(flow).is_some()).count()
        };
        (0..40).map(of_service).collect()
    };
    assert_eq!(remembered(|service| service % 10).iter().sum::<usize>(), 8192);
    // One tenant does not take the places of another one.
    let of_two = remembered(|service| u32::from(service == 39));
    assert_eq!((of_two[..39].iter().sum::<usize>(), of_two[39]), (8192 - 300, 300));
}

/// It may return, and clients would then be reset that it serves.
#[test]
fn rules_of_forgotten_endpoints_are_removed() {
    let mut fixture = departed(&web(&ONE, &[GONE]));
    assert_eq!(fixture.pass(1), 1);
    assert!(!fixture.is_revoked());

    // They need all the room that there is, and none of them is due.
    let address = |n: u32| endpoint(&format!("10.1.{}.{}:80", n / 200, n % 200 + 1));
    let others = [(mk_key("default/web-2"), (0..8192).map(address).collect())].into();
    fixture.departed.committed(Some(others), &Changes::default(), &fixture.state, fixture.now);
    assert!(fixture.is_revoked());
    assert_eq!(fixture.departed.next_due(|_| true), None);
}

/// The table of a family as `nft` lists it; empty without one.
fn list(family: &str) -> String {
    let output = Command::new("nft").args(["list", "table", family, table::NAME]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn rules_of_one_family_do_not_stay_for_those_of_the_other() {
    in_netns(|| {
        let mut rejecter = Rejecter::new(Nat::Netfilter);
        rejecter.remove(None);
        assert_eq!(rejecter.until(), None);
        let v4 = Rejected::of(&flow(VIP, GONE));
        rejecter.reject(IpFamily::V4, [(v4, "default".into())].into()).unwrap();
        let first = rejecter.until().unwrap();
        let v6 = Rejected::of(&flow("[fd00:96::1]:80", "[fd00:244::3]:8080"));
        rejecter.reject(IpFamily::V6, [(v6, "default".into())].into()).unwrap();
        assert_eq!(rejecter.until(), Some(first));
        rejecter.remove(Some(first));
        assert!(rejecter.until().is_some_and(|until| until > first));
        assert!(list("ip").is_empty() && !list("ip6").is_empty());
        rejecter.remove(None);
        assert_eq!((rejecter.until(), list("ip6")), (None, String::new()));
    });
}

#[test]
fn rules_of_other_namespaces_stay() {
    in_netns(|| {
        let mut rejecter = Rejecter::new(Nat::Netfilter);
        // Those of a process that was killed may be of any namespace.
        let leftover = [Rejected::of(&flow(VIP, GONE))].into();
        table::reject(&mut NftHandle::open().unwrap(), IpFamily::V4, &leftover).unwrap();
        rejecter.revoke(&["other".into()].into());
        assert_eq!((rejecter.until(), list("ip")), (None, String::new()));
        let of = |vip: &str, namespace: &str| (Rejected::of(&flow(vip, GONE)), Arc::<str>::from(namespace));
        rejecter.reject(IpFamily::V4, [of(VIP, "default"), of("10.96.0.2:80", "other")].into()).unwrap();
        let until = rejecter.until();
        for _ in 0..2 {
            rejecter.revoke(&["other".into()].into());
            let rules = list("ip");
            assert!(rules.contains("10.96.0.1 . 80") && !rules.contains("10.96.0.2 . 80"), "{rules}");
            assert_eq!(rejecter.until(), until);
        }
        rejecter.revoke(&["default".into()].into());
        assert_eq!((rejecter.until(), list("ip")), (None, String::new()));
    });
}

/// An endpoint of another namespace returns while connections are listed.
#[test]
fn a_pass_resets_what_is_still_due() {
    let services = [("default/web", "10.96.0.1", "10.244.1.3:8080"), ("other/web", "10.96.0.2", "10.244.1.4:8080")];
    let state = move |gone: [bool; 2]| {
        let services = services.into_iter().zip(gone);
        let state = services.fold(mk_state(), |state, ((key, vip, endpoint), is_gone)| {
            state.service(key, |web| {
                let web = web.port(80).cluster_ip(vip);
                if is_gone {
                    web.endpoints(["10.244.1.1:8080"]).gone_endpoints([endpoint])
                } else {
                    web.endpoints(["10.244.1.1:8080", endpoint])
                }
            })
        });
        state.build()
    };
    in_netns(move || {
        for (_, vip, endpoint) in services {
            let endpoint = endpoint.trim_end_matches(":8080");
            let args = format!(
                "-I -p tcp -s 10.9.9.9 -d {vip} --sport 4000 --dport 80 --timeout 600 -r {endpoint} -q 10.9.9.9 \
                 --reply-port-src 8080 --reply-port-dst 4000 --state ESTABLISHED -u SEEN_REPLY,ASSURED"
            );
            let output = Command::new("conntrack").args(args.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let mut fixture = Fixture::new(state([false, false]));
        fixture.commit(&state([true, true]));
        fixture.now += RESET_DELAY;
        let mut due = fixture.departed.due(&fixture.state, |_| true, fixture.now);
        let mut rejecter = Rejecter::new(Nat::Netfilter);
        let listed = |due: &mut Due| {
            fixture.commit(&state([true, false]));
            fixture.departed.retain_due(due);
        };
        reset(&mut rejecter, &mut due, listed).unwrap();
        let open: Vec<_> = due.ports.iter().map(|port| port.open.values().sum::<usize>()).collect();
        assert_eq!(open, [1, 0]);
        for _ in 0..2 {
            let rules = list("ip");
            assert!(rules.contains("10.96.0.1 . 80 . 10.244.1.3") && !rules.contains("10.244.1.4"), "{rules}");
            rejecter.revoke(&mem::take(&mut fixture.departed.revoked));
        }
        assert_eq!(fixture.departed.passed(&due, fixture.now), 1);
        assert_eq!(
            fixture.departed.next_due(|_| true),
            Some(fixture.now + PASS_DELAYS[0]),
            "found one, and passes again"
        );
    });
}

#[test]
fn removal_that_fails_is_retried_less_and_less_often() {
    let mut rules = FamilyRules::unknown();
    let mut failed = || {
        rules.removed(Err(anyhow!("no memory")));
        rules.until.take().unwrap().duration_since(Instant::now())
    };
    let first = failed();
    assert!(TIMEOUT / 2 < first && first <= 2 * TIMEOUT, "{first:?}");
    // Delays are random: one of so many is long.
    let longest = (0..40).map(|_| failed()).max().unwrap();
    assert!(10 * TIMEOUT < longest && longest <= MAX_REMOVAL_DELAY, "{longest:?}");
    rules.removed(Ok(()));
    assert_eq!(rules.until, None);
    rules.removed(Err(anyhow!("no memory")));
    assert!(rules.until.unwrap() <= Instant::now() + 2 * TIMEOUT, "short again");
}

#[test]
fn removal_of_revoked_rules_that_fails_is_retried_every_five_seconds() {
    let mut rules = FamilyRules::unknown();
    rules.is_revoked = true;
    for _ in 0..40 {
        rules.removed(Err(anyhow!("no memory")));
        assert!(rules.until.unwrap() <= Instant::now() + TIMEOUT);
    }
    rules.removed(Ok(()));
    assert!(!rules.is_revoked);
}

#[test]
fn rules_are_listed_and_removed() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let routes = [flow("10.96.0.1:80", "10.244.1.3:8080"), flow("10.96.0.2:80", "10.244.1.3:8080")];
        for routes in [&routes[..1], &routes[..]] {
            let routes = routes.iter().map(Rejected::of).collect();
            table::reject(&mut handle, IpFamily::V4, &routes).unwrap();
        }
        let v6 = Rejected::of(&flow("[fd00:96::1]:80", "[fd00:244::3]:8080"));
        table::reject(&mut handle, IpFamily::V6, &[v6].into()).unwrap();
        let (v4, v6) = (list("ip"), list("ip6"));
        let rule = "ct state established ct direction original ct original ip saddr . ct original proto-src . \
                    ct original ip daddr . ct original proto-dst . ip daddr @gone reject with tcp reset";
        assert_eq!(v4.matches(rule).count(), 2, "{v4}");
        for element in [
            "10.9.9.9 . 4000 . 10.96.0.1 . 80 . 10.244.1.3 timeout 5s",
            "10.9.9.9 . 4000 . 10.96.0.2 . 80 . 10.244.1.3 timeout 5s",
        ] {
            assert_eq!(v4.matches(element).count(), 1, "{v4}");
        }
        assert!(v6.contains("fd00:9::9 . 4000 . fd00:96::1 . 80 . fd00:244::3 timeout 5s"), "{v6}");
        for (dry_run, found) in [(true, 2), (false, 2), (false, 0)] {
            let objects = block_on(remove_reset_rules(false, dry_run)).unwrap();
            assert_eq!(objects.len(), found, "{objects:?}");
        }
        for _ in 0..2 {
            IpFamily::ALL.into_iter().for_each(|family| table::remove(&mut handle, family).unwrap());
            assert_eq!(list("ip") + &list("ip6"), "");
        }
    });
}

#[test]
fn iptables_lists_and_removes_the_chain() {
    for variant in Variant::ALL {
        in_netns(move || {
            let mut tools = Tools::new(Some(variant));
            let mut save = |family| block_on(async { Ok(tools.save(family).await?.unwrap_or_default()) }).unwrap();
            let mut tools = Tools::new(Some(variant));
            let v4 = [flow("10.96.0.1:80", "10.244.1.3:8080"), flow("10.96.0.2:80", "10.244.1.3:8080")];
            let v6 = [flow("[fd00:96::1]:80", "[fd00:244::3]:8080")];
            let routes = |flows: &[Flow]| flows.iter().map(Rejected::of).collect();
            chain::reject(&mut tools, IpFamily::V4, &routes(&v4[..1])).unwrap();
            chain::reject(&mut tools, IpFamily::V4, &routes(&v4)).unwrap();
            chain::reject(&mut tools, IpFamily::V6, &routes(&v6)).unwrap();
            let saved = [save(IpFamily::V4), save(IpFamily::V6)].concat();
            for rule in [
                "-d 10.244.1.3/32 -p tcp -m tcp --dport 8080 -m conntrack --ctstate ESTABLISHED \
                 --ctorigsrc 10.9.9.9 --ctorigdst 10.96.0.1 --ctorigsrcport 4000 --ctorigdstport 80 --ctdir ORIGINAL -j",
                "-d 10.244.1.3/32 -p tcp -m tcp --dport 8080 -m conntrack --ctstate ESTABLISHED \
                 --ctorigsrc 10.9.9.9 --ctorigdst 10.96.0.2 --ctorigsrcport 4000 --ctorigdstport 80 --ctdir ORIGINAL -j",
                "-d fd00:244::3/128 -p tcp -m tcp --dport 8080 -m conntrack --ctstate ESTABLISHED \
                 --ctorigsrc fd00:9::9 --ctorigdst fd00:96::1 --ctorigsrcport 4000 --ctorigdstport 80 --ctdir ORIGINAL -j",
            ] {
                let rule = format!("-A {} {rule} REJECT --reject-with tcp-reset\n", chain::NAME);
                assert_eq!(saved.matches(&rule).count(), 1, "{variant}: {rule}: {saved}");
            }
            assert_eq!(saved.matches(&format!("-j {}\n", chain::NAME)).count(), 4, "{saved}");
            let found = block_on(remove_reset_rules(true, true)).unwrap();
            let found: Vec<_> = found.iter().map(|object| &*object.kind).collect();
            assert_eq!(found, [format!("chain {}", chain::NAME), format!("chain {}", chain::NAME)], "{variant}");
            for family in IpFamily::ALL.into_iter().chain(IpFamily::ALL) {
                chain::remove(&mut tools, family).unwrap();
                assert!(!save(family).contains(chain::NAME), "{variant}");
            }
        });
    }
}
