//! `fairlead protocol-test`: runs the protocol test against a backend.

use std::fmt::{Display, Write as _};

use anyhow::Result;
use protocol_test::{SCENARIOS, ScenarioResult, Server, TestOptions, TestReport, Verdict};
use serde_json::json;

use crate::{
    cli::ProtocolTestArgs,
    exit_code::ExitCode,
    print::{self, OutputFormat},
    table::TextTable,
};

/// Runs the scenarios, and prints their results.
pub(crate) async fn run(args: ProtocolTestArgs) -> Result<ExitCode> {
    let ProtocolTestArgs { listen, node, scenario, list, timeout, state_command, backend_log, output, command } = args;
    if list {
        let mut scenarios = Vec::new();
        for scenario in SCENARIOS {
            scenarios.push(json!({ "scenario": scenario.name, "rule": scenario.rule, "link": scenario.link() }));
        }
        print::value(output, &scenarios, scenario_table)?;
        return Ok(ExitCode::Success);
    }

    let server = Server::listen(&listen).await?;
    if command.is_empty() {
        eprintln!("fairlead: start the backend for node {node} with the frontend address {}", server.address());
    }
    let options = TestOptions {
        node: node.into(),
        scenarios: scenario,
        patience: timeout,
        command,
        state_command,
        log: backend_log,
    };
    let print_result = |outcome: &ScenarioResult| {
        if output.format == OutputFormat::Table {
            eprintln!("{}  {}", outcome.verdict, outcome.scenario);
        }
    };
    let report = protocol_test::run(server, options, print_result).await?;
    print::value(output, &report, || render(&report))?;
    Ok(ExitCode::of_check(report.count(Verdict::Fail) == 0))
}

fn scenario_table() -> TextTable {
    let rows = SCENARIOS.iter().map(|it| [it.name.to_owned(), it.rule.to_owned(), it.link()]);
    TextTable::of(&["SCENARIO", "RULE", "LINK"], rows)
}

/// The table of results, the rules that were violated, and totals.
fn render(report: &TestReport) -> String {
    let mut table = TextTable::new(&["SCENARIO", "RESULT", "SECONDS", "SEEN"]);
    for ScenarioResult { scenario, verdict, observed, seconds, .. } in &report.results {
        table.row([scenario as &dyn Display, verdict, &format_args!("{seconds:.1}"), observed]);
    }
    let mut text = table.to_string();
    for outcome in report.results.iter().filter(|outcome| outcome.verdict == Verdict::Fail) {
        let ScenarioResult { scenario, observed, rule, link, .. } = outcome;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{scenario}: the backend {observed}.\n  {rule}\n  {link}");
    }
    let [passed, failed, skipped] = [Verdict::Pass, Verdict::Fail, Verdict::Skip].map(|verdict| report.count(verdict));
    let _ = writeln!(text, "\n{passed} passed, {failed} failed, {skipped} skipped");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_explained_and_results_counted() {
        let outcome = |scenario, verdict, observed: &str| ScenarioResult {
            scenario,
            verdict,
            observed: observed.to_owned(),
            rule: "One Ack each.",
            link: "docs/protocol.md#rule-6".to_owned(),
            seconds: 1.25,
        };
        let report = TestReport {
            results: vec![
                outcome("snapshot", Verdict::Pass, "acked"),
                outcome("bookmark", Verdict::Fail, "has not acked revision 7"),
                outcome("repair", Verdict::Skip, "the client sends no digests"),
            ],
        };
        let expected = "\
SCENARIO   RESULT   SECONDS   SEEN
snapshot   PASS     1.2       acked
bookmark   FAIL     1.2       has not acked revision 7
repair     SKIP     1.2       the client sends no digests

bookmark: the backend has not acked revision 7.
  One Ack each.
  docs/protocol.md#rule-6

1 passed, 1 failed, 1 skipped
";
        assert_eq!(render(&report), expected);
    }
}
