//! The report of `fairlead diff`: what a backend would write.

use std::{collections::BTreeMap, fmt::Write as _};

use backend::{Difference, DifferenceKind, PreviewReport};
use serde::Serialize;

/// The differences between the kernel and the desired state.
#[derive(Debug, Serialize)]
pub(crate) struct DiffReport {
    backend: &'static str,
    node: String,
    differences: Vec<Difference>,
    /// Service ports that cannot be programmed.
    failures: Vec<Failure>,
}

#[derive(Debug, Serialize)]
struct Failure {
    service: String,
    reason: String,
}

impl DiffReport {
    pub(crate) fn new(backend: &'static str, node: &str, previewed: PreviewReport) -> Self {
        let mut failures = Vec::new();
        for failure in previewed.failures {
            failures.push(Failure { service: failure.key.to_string(), reason: failure.reason });
        }
        Self { backend, node: node.to_owned(), differences: previewed.differences, failures }
    }

    /// Whether there are no differences.
    pub(crate) fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    /// Lines with `+`, `~` or `-`, grouped by service port; objects that belong to no service port come first.
    pub(crate) fn text(&self) -> String {
        let Self { backend, node, differences, failures } = self;
        let mut by_service = BTreeMap::<Option<String>, Vec<&Difference>>::new();
        for difference in differences {
            let service = difference.service_port.as_ref().map(ToString::to_string);
            by_service.entry(service).or_default().push(difference);
        }

        let mut text = String::new();
        for (service, differences) in by_service {
            let service = service.as_deref().unwrap_or("no service port");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{service}");
            for Difference { kind, subsystem, object, .. } in differences {
                let _ = writeln!(text, "  {kind} {subsystem}: {object}");
            }
        }
        for Failure { service, reason } in failures {
            let _ = writeln!(text, "not programmed: {service}: {reason}");
        }
        text + &if differences.is_empty() {
            format!("The kernel matches the desired state: backend {backend} would write nothing for {node}.\n")
        } else {
            format!("Backend {backend} would write for {node}: {}.\n", summary(differences))
        }
    }
}

/// `3 added, 1 changed, 0 removed`.
pub(crate) fn summary(differences: &[Difference]) -> String {
    let count = |kind| differences.iter().filter(|difference| difference.kind == kind).count();
    let [added, changed, removed] = [DifferenceKind::Add, DifferenceKind::Change, DifferenceKind::Remove].map(count);
    format!("{added} added, {changed} changed, {removed} removed")
}

#[cfg(test)]
mod tests {
    use proto::model::{Protocol, ServicePortKey};

    use super::*;

    #[test]
    fn differences_are_grouped_by_service_port() {
        let key = ServicePortKey::new("default", "web", "http", Protocol::Tcp);
        let table = "table ip fairlead1";
        let of_web = Difference::new(DifferenceKind::Change, table, "vips 10.96.0.1:80/tcp: pool-2 -> pool-3");
        let differences =
            vec![of_web.of(Some(&key)), Difference::new(DifferenceKind::Remove, table, "cluster-ips 10.96.0.3")];
        let report = DiffReport::new("nftables", "node-a", PreviewReport { differences, failures: Vec::new() });
        let expected = "\
no service port
  - table ip fairlead1: cluster-ips 10.96.0.3
default/web:http/tcp
  ~ table ip fairlead1: vips 10.96.0.1:80/tcp: pool-2 -> pool-3
Backend nftables would write for node-a: 0 added, 1 changed, 1 removed.
";
        assert_eq!(report.text(), expected);
        assert!(!report.is_empty());
        let same = DiffReport::new("nftables", "node-a", PreviewReport::default());
        assert_eq!(
            same.text(),
            "The kernel matches the desired state: backend nftables would write nothing for node-a.\n"
        );
    }
}
