//! One table of what several benchmarks have written as JSON: the figures that have a goal.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// What a benchmark prints as its last line with `-o json`.
#[derive(Deserialize)]
struct Output {
    /// The backend, of the benchmarks in the crates of backends.
    backend: Option<String>,
    measurements: Vec<Figure>,
}

#[derive(Deserialize)]
struct Figure {
    what: String,
    value: f64,
    unit: String,
    /// The most that it should be, in the same unit.
    goal: Option<f64>,
    /// Which `iptables`, and how many Services: of the benchmarks of backends.
    variant: Option<String>,
    services: Option<u32>,
}

/// Prints the table, and how many goals are met.
pub(crate) fn print(files: &[&str]) -> Result<()> {
    println!("{:<72} {:>12} {:>12}  {:>6}", "FIGURE", "MEASURED", "GOAL", "RATIO");
    let mut all = 0;
    let mut met = 0;
    for file in files {
        let output = read(Path::new(file)).with_context(|| format!("read {file}"))?;
        for figure in &output.measurements {
            let Some(goal) = figure.goal else { continue };
            let is_met = figure.value <= goal;
            all += 1;
            met += usize::from(is_met);
            println!("{}", line(output.backend.as_deref(), figure, goal, is_met));
        }
    }
    println!("{met} of {all} goals are met.");
    Ok(())
}

fn read(file: &Path) -> Result<Output> {
    let text = fs::read_to_string(file)?;
    let last = text.lines().next_back().context("it is empty: did the benchmark fail?")?;
    Ok(serde_json::from_str(last)?)
}

fn line(backend: Option<&str>, figure: &Figure, goal: f64, is_met: bool) -> String {
    let Figure { what, value, unit, variant, services, .. } = figure;
    let size = services.filter(|services| *services > 1).map(|services| format!("{services} Services"));
    let context = [backend, variant.as_deref(), size.as_deref()];
    let context = context.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let separator = if context.is_empty() { "" } else { ": " };
    let name = format!("{context}{separator}{what}");

    let ratio = if goal > 0.0 { format!("{:.2}", value / goal) } else { "–".to_owned() };
    let verdict = if is_met { "met" } else { "missed" };
    format!("{name:<72} {:>12} {:>12}  {ratio:>6}  {verdict}", with_unit(*value, unit), with_unit(goal, unit))
}

fn with_unit(value: f64, unit: &str) -> String {
    let digits = if value.fract() == 0.0 { 0 } else { 2 };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_beside_its_goal() {
        let json =
            r#"{ "variant": "nft", "services": 100, "what": "cold load", "value": 1.5, "unit": "x", "goal": 1 }"#;
        let figure: Figure = serde_json::from_str(json).unwrap();
        let line = line(Some("iptables"), &figure, 1.0, false);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.join(" "), "iptables nft 100 Services: cold load 1.50 x 1 x 1.50 missed");
    }
}
