//! The order of a plan's operations.

use netlink::ipvs::Scheduling;

use super::*;

fn server() -> VirtualServerKey {
    VirtualServerKey::Address(Protocol::Tcp, "10.96.0.1:80".parse().unwrap())
}

fn scheduling(scheduler: &str) -> Value {
    Value::Scheduling(Scheduling { scheduler: scheduler.into(), flags: 0, timeout: 0 })
}

fn entry(content: SetContent) -> Object {
    let set = SetId { content, family: IpFamily::V4 };
    let ip = "10.96.0.1".parse().unwrap();
    Object::SetEntry(
        set,
        if content == SetContent::Addresses { set::address(ip) } else { set::socket(ip, Protocol::Tcp, 80) },
    )
}

/// The objects of a Service with a cluster IP and one endpoint.
fn objects() -> Objects {
    Objects::from([
        (entry(SetContent::Addresses), Value::Mark(Mark::REJECT)),
        (entry(SetContent::Vips), Value::Mark(Mark::CLUSTER_IP)),
        (Object::Address("10.96.0.1".parse().unwrap()), Value::Plain),
        (Object::Server(server()), scheduling("rr")),
        (Object::Destination(server(), "10.244.1.1:80".parse().unwrap()), Value::Weight(Weight::Of(1))),
    ])
}

fn diff(observed: &Objects, desired: &Objects, until: Option<u32>) -> Vec<Operation> {
    let touched = observed.keys().chain(desired.keys()).copied().collect();
    plan(observed, |object| desired.get(object), &touched, Drain { until, idle: &HashSet::new() })
}

fn names(operations: &[Operation]) -> Vec<String> {
    let verb = |operation: &Operation| match operation {
        Operation::Add(..) => "add",
        Operation::Change(..) => "change",
        Operation::Remove(_) => "remove",
    };
    operations.iter().map(|operation| format!("{} {}", verb(operation), operation.object())).collect()
}

#[test]
fn marking_entries_are_added_after_their_targets_and_before_the_address() {
    let expected = [
        "add virtual server tcp 10.96.0.1:80",
        "add destination 10.244.1.1:80 of tcp 10.96.0.1:80",
        "add FAIRLEAD-VIPS 10.96.0.1 80",
        "add FAIRLEAD-ADDRESSES 10.96.0.1",
        "add address 10.96.0.1",
    ];
    assert_eq!(names(&diff(&Objects::new(), &objects(), None)), expected);
}

#[test]
fn marking_entries_are_removed_before_their_targets() {
    let expected = [
        "remove FAIRLEAD-VIPS 10.96.0.1 80",
        "remove destination 10.244.1.1:80 of tcp 10.96.0.1:80",
        "remove virtual server tcp 10.96.0.1:80",
        "remove address 10.96.0.1",
        "remove FAIRLEAD-ADDRESSES 10.96.0.1",
    ];
    assert_eq!(names(&diff(&objects(), &Objects::new(), None)), expected);
}

#[test]
fn a_drained_destination_keeps_its_virtual_server_and_gets_no_new_connections() {
    let expected = [
        "change FAIRLEAD-ADDRESSES 10.96.0.1",
        "remove FAIRLEAD-VIPS 10.96.0.1 80",
        "change destination 10.244.1.1:80 of tcp 10.96.0.1:80",
    ];
    assert_eq!(names(&diff(&objects(), &Objects::new(), Some(9))), expected);
}

#[test]
fn destination_for_established_flows_is_kept_and_not_created() {
    let established = |weight: Option<u32>| {
        let one = Object::Destination(server(), "10.244.1.2:80".parse().unwrap());
        let mut objects = objects();
        objects.extend(weight.map(|weight| (one, Value::Weight(Weight::Of(weight)))));
        objects
    };
    assert_eq!(
        names(&diff(&established(Some(1)), &established(Some(0)), None)),
        ["change destination 10.244.1.2:80 of tcp 10.96.0.1:80"]
    );
    assert_eq!(diff(&established(None), &established(Some(0)), None), [], "it has no flows");
    assert_eq!(diff(&established(Some(0)), &established(Some(0)), None), []);
    assert_eq!(
        names(&diff(&established(Some(0)), &established(None), None)),
        ["remove destination 10.244.1.2:80 of tcp 10.96.0.1:80"]
    );
}

#[test]
fn equal_state_needs_no_operation() {
    assert_eq!(diff(&objects(), &objects(), None), []);
    let mut other = objects();
    other.insert(Object::Server(server()), scheduling("mh"));
    assert_eq!(diff(&objects(), &other, None), [Operation::Change(Object::Server(server()), scheduling("mh"))]);
}
