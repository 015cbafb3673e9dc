//! Parses networking.k8s.io/v1 ServiceCIDR into the ranges that cluster IPs are allocated from.

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;

use super::{FieldProblems, Resource, address, sorted};
use crate::object::{ClusterObject, ObjectKind, ObjectName, ServiceCidrObject};

impl Resource for ServiceCIDR {
    const KIND: ObjectKind = ObjectKind::ServiceCidr;

    /// One that is being deleted is used until its end: the API server keeps it as long as Services have addresses of
    /// it.
    fn parse(&self, name: ObjectName, problems: &mut FieldProblems) -> Option<ClusterObject> {
        let texts = self.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
        let cidrs = sorted(problems.valid("spec.cidrs", texts, service_cidr));
        Some(ClusterObject::ServiceCidr(ServiceCidrObject { name: name.name, cidrs }))
    }
}

/// Nodes drop packets to unused addresses of a service CIDR, so that it must not contain all addresses.
fn service_cidr(text: &str) -> Result<IpNet, String> {
    match address::cidr(text)? {
        cidr if cidr.prefix_len() == 0 => Err(format!("{cidr}: contains all addresses")),
        cidr => Ok(cidr),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::source::parse::from_json;

    #[track_caller]
    fn parse_valid(spec: Value) -> (Vec<String>, Vec<String>) {
        let parsed = from_json::<ServiceCIDR>(&json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": spec,
        }));
        assert_eq!((parsed.kind, parsed.name), (ObjectKind::ServiceCidr, ObjectName::new("", "kubernetes")));
        let problems = parsed.problems.iter().map(|problem| format!("{}: {}", problem.field, problem.message));
        match parsed.object {
            Some(ClusterObject::ServiceCidr(ServiceCidrObject { name, cidrs })) => {
                assert_eq!(&*name, "kubernetes");
                (cidrs.iter().map(IpNet::to_string).collect(), problems.collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_ip_families() {
        let (cidrs, problems) = parse_valid(json!({"cidrs": ["fd00:10:96::/112", "10.96.0.1/16"]}));
        assert_eq!(cidrs, ["10.96.0.0/16", "fd00:10:96::/112"]);
        assert!(problems.is_empty());
    }

    #[test]
    fn no_ranges() {
        assert_eq!(parse_valid(json!({})), (vec![], vec![]));
        assert_eq!(parse_valid(Value::Null), (vec![], vec![]));
    }

    #[test]
    fn invalid_ranges_are_reported() {
        let (cidrs, problems) = parse_valid(json!({"cidrs": ["10.96.0.0", "0.0.0.0/0", "10.97.0.0/16", "::/0"]}));
        assert_eq!(cidrs, ["10.97.0.0/16"]);
        assert_eq!(
            problems,
            [
                "spec.cidrs[0]: \"10.96.0.0\": not a CIDR; ignored",
                "spec.cidrs[1]: 0.0.0.0/0: contains all addresses; ignored",
                "spec.cidrs[3]: ::/0: contains all addresses; ignored",
            ]
        );
    }
}
