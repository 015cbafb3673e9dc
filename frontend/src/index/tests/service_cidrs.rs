//! The service CIDRs that nodes get, after changes of ServiceCIDR objects and of another proxy's Services.

use super::*;

/// An index whose configuration has this service CIDR.
fn configured(cidr: &str) -> Index {
    let service_cidrs = service_cidr("", &[cidr]).cidrs;
    Index::new(UNIX_EPOCH, ClusterInfo { service_cidrs }, ServicePolicy::default())
}

/// The service CIDRs after an update, if nodes get them.
fn cidrs_after(index: &mut Index, update: Option<SourceUpdate>) -> Option<String> {
    update.into_iter().for_each(|update| index.apply(update));
    let cluster = index.take_changes().cluster?;
    Some(cluster.service_cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" "))
}

fn is(cidrs: &str) -> Option<String> {
    Some(cidrs.to_owned())
}

#[test]
fn service_cidrs_are_those_of_the_configuration_and_of_all_objects() {
    let mut index = configured("10.96.0.0/16");
    let mut after = |update| cidrs_after(&mut index, update);
    assert_eq!(after(None), is("10.96.0.0/16"));
    assert_eq!(after(Some(put(service("s", "10.96.0.1")))), None, "nothing about the cluster");
    let one = service_cidr("one", &["10.96.0.0/16", "fd00::/112"]);
    assert_eq!(after(Some(put(one))), is("10.96.0.0/16 fd00::/112"));
    let two = service_cidr("two", &["10.90.0.0/16"]);
    assert_eq!(after(Some(put(two.clone()))), is("10.90.0.0/16 10.96.0.0/16 fd00::/112"));
    let deletion = SourceUpdate::Delete(ObjectKind::ServiceCidr, ObjectName::new("", "one"));
    assert_eq!(after(Some(deletion)), is("10.90.0.0/16 10.96.0.0/16"));
    let other = service_cidr("two", &["10.91.0.0/16"]);
    assert_eq!(after(Some(put(other))), is("10.91.0.0/16 10.96.0.0/16"));
    assert_eq!(after(Some(SourceUpdate::Replace(ObjectKind::ServiceCidr, Vec::new()))), is("10.96.0.0/16"));
}

#[test]
fn cluster_ips_of_another_proxy_are_not_in_the_service_cidrs() {
    let mut index = configured("10.96.0.0/30");
    let mut after = |update| cidrs_after(&mut index, update);
    let ours = service("s", "10.96.0.1");
    let (name, v4) = (ours.name.clone(), ours.cluster_ips);
    let foreign = |cluster_ips| ParsedObject {
        kind: ObjectKind::Service,
        name: name.clone(),
        object: Some(ClusterObject::ForeignService(cluster_ips)),
        problems: Vec::new(),
        origin: Origin::default(),
    };
    assert_eq!(after(None), is("10.96.0.0/30"));
    assert_eq!(after(Some(put(ours.clone()))), None);
    let cut = "10.96.0.0/32 10.96.0.2/31";
    assert_eq!(after(Some(SourceUpdate::Apply(foreign(v4)))), is(cut), "it gets the label");
    assert_eq!(after(Some(SourceUpdate::Apply(foreign(v4)))), None);
    assert_eq!(after(Some(put(ours))), is("10.96.0.0/30"), "it loses the label");
    assert_eq!(after(Some(SourceUpdate::Apply(foreign(v4)))), is(cut));
    assert_eq!(after(Some(SourceUpdate::Replace(ObjectKind::Service, Vec::new()))), is("10.96.0.0/30"), "deleted");
}
