//! The metrics agree with the page that documents them, and count correctly.

use std::{collections::BTreeSet, sync::Arc, time::UNIX_EPOCH};

use tokio::sync::watch;

use super::*;
use crate::{Observer, ObserverPages, Progress, backend::BackendIdentity, drained::DrainMetrics};

const PAGE: &str = include_str!("../../../docs/metrics.md");

/// The metrics that the program registers: it takes over from other modes, and counts connections.
const OF_THE_PROGRAM: [&str; 4] = [
    "fairlead_backend_stale_objects",
    "fairlead_backend_connections",
    "fairlead_backend_source_ports",
    "fairlead_backend_connections_pass_duration_seconds",
];

/// The lines with this prefix of one scrape of this backend, without the prefix.
fn scraped(backend: &'static str, metrics: &Arc<Metrics>, start: &str) -> Vec<String> {
    let mut progress = Progress::default();
    progress.stream.last_contact = Some(tokio::time::Instant::now());
    let progress = watch::Sender::new(progress);
    let (version, started) = ("1".to_owned(), SystemTime::now());
    let identity = BackendIdentity { node: "node".into(), backend, version, started };
    let observer = Observer { identity: identity.into(), progress: progress.subscribe(), metrics: metrics.clone() };
    let pages =
        ObserverPages::new(observer, String::new(), [runtime::metrics::process(), DrainMetrics::default().registry()]);
    let request = hyper::Request::get("/metrics").body(()).unwrap();
    let body = pages.answer(&request).into_body();
    body.lines().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect()
}

fn all_scraped(start: &str) -> BTreeSet<String> {
    let backends = ["nftables", "iptables", "ipvs"];
    backends.into_iter().flat_map(|backend| scraped(backend, &Arc::default(), start)).collect()
}

/// The names of the samples: a counter has a suffix that its description lacks.
fn names() -> BTreeSet<String> {
    let name = |line: &String| match line.rsplit_once(' ').unwrap() {
        (name, "counter") => format!("{name}_total"),
        (name, _) => name.to_owned(),
    };
    all_scraped("# TYPE ").iter().map(name).collect()
}

#[test]
fn page_lists_exactly_these_metrics() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.map(|row| row.split(['`', '{']).next().unwrap().to_owned());
    let prefixes = ["kubeproxy_", "fairlead_backend_", "process_"];
    let mut listed: BTreeSet<_> = rows.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))).collect();
    assert!(OF_THE_PROGRAM.iter().all(|name| listed.remove(*name)));
    assert_eq!(listed, names());
}

#[test]
fn every_metric_has_a_help_sentence() {
    let help = scraped("nftables", &Arc::default(), "# HELP ");
    assert!(help.len() > 40, "{}", help.len());
    for line in help {
        let (name, text) = line.split_once(' ').unwrap();
        assert!(text.ends_with('.') && !text.ends_with(".."), "{name}: {text}");
        assert!(text.len() > 15, "{name}: {text}");
    }
}

#[test]
fn programming_buckets_are_those_of_kube_proxy() {
    let buckets: Vec<_> = programming_buckets().collect();
    assert_eq!(buckets.len(), 2 + 59 + 12 + 7);
    assert_eq!((buckets[2], buckets[60], buckets[61], buckets[79]), (1.0, 59.0, 60.0, 300.0));
}

#[test]
fn sync_counts_under_each_family_and_by_kind() {
    let metrics = Arc::new(Metrics::default());
    metrics.synced(Work::Reconcile, Duration::from_millis(3), 12);
    metrics.synced(Work::Apply, Duration::from_millis(1), 1);
    metrics.failed(Work::Reconcile);
    let count = |name: &str| scraped("iptables", &metrics, name);
    for family in ["IPv4", "IPv6"] {
        let labels = format!("{{ip_family=\"{family}\"}}");
        assert_eq!(count(&format!("kubeproxy_sync_proxy_rules_duration_seconds_count{labels}")), [" 2"]);
        assert_eq!(count(&format!("kubeproxy_sync_full_proxy_rules_duration_seconds_count{labels}")), [" 1"]);
        let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";
        assert_eq!(count(&format!("{failures}{labels}")), [" 1"]);
        let partial = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total";
        assert_eq!(count(&format!("{partial}{labels}")), [" 0"]);
    }
    assert_eq!(count("fairlead_backend_sync_kernel_operations_sum"), [" 13.0"]);
}

#[test]
fn propagation_is_the_time_from_the_change_to_the_kernel() {
    let metrics = Arc::new(Metrics::default());
    let changed = UNIX_EPOCH + Duration::from_secs(100);
    metrics.propagated(changed, changed + Duration::from_millis(5));
    metrics.propagated(changed, changed - Duration::from_secs(1));
    let propagation = scraped("nftables", &metrics, "fairlead_backend_propagation_seconds_");
    assert!(propagation.contains(&"count 1".to_owned()), "a time in the future is ignored: {propagation:?}");
    assert!(propagation.contains(&"bucket{le=\"0.008\"} 1".to_owned()), "{propagation:?}");
    assert!(propagation.contains(&"bucket{le=\"0.004\"} 0".to_owned()), "{propagation:?}");
}
