//! `fairlead plan`: what would change, and on which nodes, if the objects in files were applied.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use proto::v1::{LostEndpoints, NodeGroup, PlanRequest, PlanResponse, PlannedChange, Problem};
use serde_json::Value;

use crate::{cli::PlanArgs, exit_code::ExitCode, print, table::Table};

/// How long a frontend may take to connect and answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends the objects to a frontend, and prints its response.
pub(crate) async fn run(args: PlanArgs) -> Result<ExitCode> {
    let PlanArgs { files, node, frontend, output } = args;
    let request = PlanRequest { documents: documents(&files)?, node: node.unwrap_or_default() };
    let plan = frontend.grpc(None)?.plan(&request, RESPONSE_TIMEOUT).await?;
    print::value(output, &plan, || table(&plan))?;
    Ok(ExitCode::of_check(plan.losing_count == 0 && plan.conflict_count == 0))
}

/// The documents of all files as JSON.
fn documents(files: &[PathBuf]) -> Result<String> {
    let mut all = String::new();
    for file in files {
        let text = if file == Path::new("-") { io::read_to_string(io::stdin()) } else { fs::read_to_string(file) };
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        let documents = serde_saphyr::from_multiple::<Value>(&text);
        for document in documents.map_err(|error| anyhow!("{}: {error}", file.display()))? {
            // Writing to a String cannot fail.
            let _ = writeln!(all, "{document}");
        }
    }
    Ok(all)
}

fn table(plan: &PlanResponse) -> String {
    let mut text = String::new();
    for PlannedChange { service_port, summary, gained_vips, lost_vips, nodes, lost_endpoints } in &plan.changes {
        let count = nodes.as_ref().map_or(0, |nodes| nodes.count);
        let _ = writeln!(text, "{service_port}   {summary}; {count} nodes");
        for (sign, vips) in [('+', gained_vips), ('-', lost_vips)] {
            for vip in vips {
                let _ = writeln!(text, "  {sign} {vip}");
            }
        }
        for LostEndpoints { traffic, nodes } in lost_endpoints {
            let NodeGroup { count, names } = nodes.clone().unwrap_or_default();
            let more = if count > names.len() as u64 { ", ..." } else { "" };
            let _ = writeln!(text, "  {count} nodes lose all endpoints ({traffic}): {}{more}", names.join(", "));
        }
    }
    if !plan.problems.is_empty() {
        let mut table = Table::new(&["OBJECT", "FIELD", "PROBLEM"]);
        for Problem { object, field, message } in &plan.problems {
            table.row([object, field, message]);
        }
        let _ = writeln!(text, "\n{table}");
    }
    for ignored in &plan.ignored {
        let _ = writeln!(text, "not planned: {ignored}");
    }
    let PlanResponse { revision, change_count, losing_count, conflict_count, .. } = plan;
    let _ = writeln!(
        text,
        "{change_count} service ports would change at revision {revision}, {losing_count} would lose all endpoints on \
         a node, {conflict_count} claims would be in vain"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_documents_are_sent_as_json() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("objects.yaml");
        fs::write(&file, "# two\na: 1\n---\nb: [x]\n").unwrap();
        assert_eq!(documents(&[file.clone(), file]).unwrap(), "{\"a\":1}\n{\"b\":[\"x\"]}\n".repeat(2));
        assert!(documents(&[directory.path().join("none")]).unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn nodes_that_lose_endpoints_are_listed() {
        let group = |names: &[&str], count| {
            Some(NodeGroup { count, names: names.iter().map(|name| (*name).to_owned()).collect() })
        };
        let traffic = "internalTrafficPolicy Local, IPv4".to_owned();
        let change = PlannedChange {
            service_port: "default/web/tcp".to_owned(),
            summary: "internal_policy Cluster -> Local".to_owned(),
            gained_vips: Vec::new(),
            lost_vips: vec!["192.0.2.1:80".to_owned()],
            nodes: group(&[], 40),
            lost_endpoints: vec![LostEndpoints { traffic, nodes: group(&["a", "b"], 3) }],
        };
        let plan = PlanResponse { changes: vec![change], change_count: 1, losing_count: 1, ..PlanResponse::default() };
        let lines = table(&plan);
        for line in [
            "default/web/tcp   internal_policy Cluster -> Local; 40 nodes",
            "  - 192.0.2.1:80",
            "  3 nodes lose all endpoints (internalTrafficPolicy Local, IPv4): a, b, ...",
        ] {
            assert!(lines.lines().any(|found| found == line), "no {line:?} in {lines}");
        }
    }
}
