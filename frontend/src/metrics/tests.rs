//! What is told is what the page about it says, and every name follows the rules.

use std::collections::BTreeSet;

use prometheus_client::encoding::text;

use crate::{Config, Frontend};

use super::{Metrics, PREFIX};

const PAGE: &str = include_str!("../../../docs/metrics.md");

/// The lines of one scrape that begin with this.
fn scraped(start: &str) -> Vec<String> {
    let frontend = Frontend::new(Config::default());
    let mut body = String::new();
    text::encode(&mut body, &Metrics::registry(&frontend.shared)).unwrap();
    body.lines().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect()
}

/// The names as they are asked for: counters have a suffix that their description has not.
fn names() -> BTreeSet<String> {
    let types = scraped("# TYPE ");
    let name = |line: &String| match line.rsplit_once(' ').unwrap() {
        (name, "counter") => format!("{name}_total"),
        (name, _) => name.to_owned(),
    };
    types.iter().map(name).collect()
}

#[test]
fn the_page_lists_every_metric_and_no_other() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `fairlead_frontend_"));
    let listed: BTreeSet<_> = rows.map(|row| format!("{PREFIX}_{}", row.split(['`', '{']).next().unwrap())).collect();
    assert_eq!(listed, names());
}

#[test]
fn every_metric_is_explained_by_a_sentence() {
    let help = scraped("# HELP ");
    assert_eq!(help.len(), names().len());
    for line in help {
        let (name, text) = line.split_once(' ').unwrap();
        assert!(text.ends_with('.') && !text.ends_with(".."), "{name}: {text}");
        assert!(text.len() > 25, "{name}: {text}");
    }
}

#[test]
fn what_has_not_happened_yet_is_told_as_zero() {
    let counters = scraped("fairlead_frontend_stream_starts_total");
    assert_eq!(counters.len(), 3);
    assert!(counters.iter().all(|line| line.ends_with(" 0")), "{counters:?}");
    assert_eq!(scraped("fairlead_frontend_rejections_total").len(), 4);
}
