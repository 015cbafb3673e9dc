//! The documentation lists exactly the metrics that are exported, and each has a help text.

use std::collections::BTreeSet;

use prometheus_client::encoding::text;

use crate::{Config, Frontend, metrics::PREFIX};

use super::quantiles;

const PAGE: &str = include_str!("../../../docs/metrics.md");

/// The rest of each line of a scrape that begins with `start`.
fn scraped(start: &str) -> Vec<String> {
    let frontend = Frontend::new(Config::default());
    let mut body = String::new();
    text::encode(&mut body, &frontend.metrics()).unwrap();
    body.lines().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect()
}

/// The names of the samples: those of counters have a suffix that `# TYPE` lines lack.
fn names() -> BTreeSet<String> {
    let types = scraped("# TYPE ");
    let name = |line: &String| match line.rsplit_once(' ').unwrap() {
        (name, "counter") => format!("{name}_total"),
        (name, _) => name.to_owned(),
    };
    types.iter().map(name).collect()
}

#[test]
fn documentation_lists_every_metric_and_no_other() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `fairlead_frontend_"));
    let listed: BTreeSet<_> = rows.map(|row| format!("{PREFIX}_{}", row.split(['`', '{']).next().unwrap())).collect();
    assert_eq!(listed, names());
}

#[test]
fn every_metric_has_a_help_text() {
    let help = scraped("# HELP ");
    assert_eq!(help.len(), names().len());
    for line in help {
        let (name, text) = line.split_once(' ').unwrap();
        assert!(text.ends_with('.') && !text.ends_with(".."), "{name}: {text}");
        assert!(text.len() > 25, "{name}: {text}");
    }
}

#[test]
fn labelled_counters_start_at_zero() {
    let counters = scraped("fairlead_frontend_stream_starts_total");
    assert_eq!(counters.len(), 3);
    assert!(counters.iter().all(|line| line.ends_with(" 0")), "{counters:?}");
    assert_eq!(scraped("fairlead_frontend_rejections_total").len(), 4);
}

#[test]
fn quantiles_are_values_that_occur() {
    let values =
        |mut values: Vec<f64>| -> Vec<f64> { quantiles(&mut values).into_iter().map(|(_, value)| value).collect() };
    assert_eq!(values(Vec::new()), [0.0; 0]);
    assert_eq!(values(vec![3.0]), [3.0; 3]);
    assert_eq!(values((1..=200).rev().map(f64::from).collect()), [100.0, 198.0, 200.0]);
}
