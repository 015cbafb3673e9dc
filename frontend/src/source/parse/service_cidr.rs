//! Parses networking.k8s.io/v1 ServiceCIDR into the ranges that cluster IPs are allocated from.

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{FieldProblems, Resource, address, items};
use crate::object::{ClusterObject, ObjectKind, ServiceCidrObject};

impl Resource for ServiceCIDR {
    const KIND: ObjectKind = ObjectKind::ServiceCidr;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// One that is being deleted is used until its end: the API server keeps it as long as Services have addresses of
    /// it.
    fn parse(&self, problems: &mut FieldProblems) -> Option<ClusterObject> {
        let texts = items(self.spec.as_ref().and_then(|spec| spec.cidrs.as_ref()));
        let mut cidrs: Vec<IpNet> = Vec::with_capacity(texts.len());
        for (n, text) in texts.iter().enumerate() {
            cidrs.extend(problems.ignored(format!("spec.cidrs[{n}]"), service_cidr(text)));
        }
        cidrs.sort_unstable();
        cidrs.dedup();
        Some(ClusterObject::ServiceCidr(ServiceCidrObject {
            name: self.metadata.name.as_deref().unwrap_or_default().into(),
            cidrs,
        }))
    }
}

/// Nodes drop packets to unused addresses of a service CIDR, so that it must not contain all addresses.
fn service_cidr(text: &str) -> Result<IpNet, String> {
    match address::cidr(text) {
        Ok(cidr) if cidr.prefix_len() == 0 => Err(format!("{cidr}: contains all addresses")),
        result => result.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::object::ObjectName;
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
