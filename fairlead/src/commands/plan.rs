//! `fairlead plan`: what would change, and on which nodes, if the objects in files were applied.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Result, anyhow, bail, ensure};
use proto::{
    MAX_MESSAGE_BYTES,
    v1::{LostEndpoints, NodeGroup, PlanRequest, PlanResponse, PlannedChange},
};
use runtime::printable;
use serde_json::Value;

use super::view::RESPONSE_TIMEOUT;
use crate::{
    cli::PlanArgs,
    config::{Document, yaml_error},
    exit_code::ExitCode,
    print,
    table::TextTable,
};

/// The most bytes of objects in one request: the limit of a message, less the bytes around the objects.
const MAX_BYTES: usize = MAX_MESSAGE_BYTES - 16;

/// The objects in the files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Documents {
    /// Services and EndpointSlices as JSON, a line each.
    planned: String,
    /// Objects that are meant to be Services or EndpointSlices, and are not sent because their `apiVersion` and `kind`
    /// are not valid together; why.
    ignored: Vec<String>,
    /// The number of other objects, by kind. They are not sent, because they may be secret.
    skipped: BTreeMap<String, usize>,
}

/// Sends the Services and EndpointSlices to a frontend, and prints its response.
pub(crate) async fn run(args: PlanArgs) -> Result<ExitCode> {
    let PlanArgs { files, frontend, output } = args;
    let documents = Documents::read(&files)?;
    for (kind, count) in &documents.skipped {
        print::error(format_args!("not planned, and not sent to the frontend: {count} {kind}"));
    }
    documents.check(&files)?;

    let Documents { planned, ignored, .. } = documents;
    let request = PlanRequest { documents: planned };
    let mut plan = frontend.grpc()?.plan(&request, RESPONSE_TIMEOUT).await?;
    plan.ignored.extend(ignored);

    print::value(output, &plan, || table(&plan))?;
    Ok(ExitCode::of_check(plan.losing_count == 0 && plan.conflict_count == 0 && plan.ignored.is_empty()))
}

impl Documents {
    /// The documents of all files.
    fn read(files: &[PathBuf]) -> Result<Self> {
        let mut all = Self::default();
        for file in files {
            let documents = serde_saphyr::from_multiple::<Value>(&Document::read_text(file)?);
            for document in documents.map_err(|error| anyhow!("{}: {}", file.display(), yaml_error(&error)))? {
                all.add(document);
            }
        }
        Ok(all)
    }

    /// Adds an object, or those of a list.
    fn add(&mut self, mut document: Value) {
        let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
        let version = text("apiVersion");
        let kind = text("kind");
        match (version.as_str(), kind.as_str()) {
            ("v1", "List") => match document["items"].take() {
                Value::Array(items) => items.into_iter().for_each(|item| self.add(item)),
                _ => self.skip("List without items"),
            },
            ("v1", "Service") | ("discovery.k8s.io/v1", "EndpointSlice") => {
                // Writing to a String cannot fail.
                let _ = writeln!(self.planned, "{document}");
            }
            _ if document.is_null() => {}
            (_, "") => self.skip("document without kind"),
            (version, kind) if is_meant_for_plan(version, kind) => {
                let name = document["metadata"]["name"].as_str().unwrap_or("without a name");
                self.ignored.push(format!(
                    "{kind} {name}, apiVersion {version:?}: expected Service of v1, EndpointSlice of \
                     discovery.k8s.io/v1, or List of v1; ignored"
                ));
            }
            ("", kind) => self.skip(&format!("{kind} without apiVersion")),
            (version, kind) => self.skip(&format!("{kind} of {version}")),
        }
    }

    fn skip(&mut self, kind: &str) {
        *self.skipped.entry(printable(kind)).or_default() += 1;
    }

    /// Fails if there is nothing to plan, or too much for one request.
    fn check(&self, files: &[PathBuf]) -> Result<()> {
        if self.planned.is_empty() && self.ignored.is_empty() {
            let names: Vec<_> = files.iter().map(|file| file_name(file)).collect();
            bail!(
                "no Service or EndpointSlice in {}: nothing was planned; check the command that writes the objects, \
                 or name other files",
                names.join(", ")
            );
        }

        let size = self.planned.len();
        ensure!(
            size <= MAX_BYTES,
            "the Services and EndpointSlices have {size} bytes as JSON, more than {MAX_BYTES}: name fewer files at a \
             time, or leave out long annotations"
        );
        Ok(())
    }
}

fn file_name(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

/// Whether this is meant to be a Service, an EndpointSlice or a list of them, and not a kind of another API group.
fn is_meant_for_plan(version: &str, kind: &str) -> bool {
    let kind = kind.to_lowercase();
    let is_group = ["", "v1"].contains(&version) || version.starts_with("discovery.k8s.io/");
    is_group && ["service", "endpointslice"].contains(&kind.strip_suffix("list").unwrap_or(&kind))
}

/// For people: the changes, the problems, the objects that are not planned, and totals.
fn table(plan: &PlanResponse) -> String {
    let PlanResponse { revision, changes, problems, ignored, change_count, losing_count, conflict_count, .. } = plan;
    let mut text = String::new();
    for change in changes {
        for line in lines(change) {
            let _ = writeln!(text, "{}", printable(&line));
        }
    }
    if !problems.is_empty() {
        let _ = writeln!(text, "\n{}", TextTable::of_problems(problems));
    }
    for object in ignored {
        let _ = writeln!(text, "not planned: {}", printable(object));
    }

    let _ = write!(
        text,
        "{} would change at revision {revision}, {losing_count} would lose all endpoints on a node, {}",
        counted(*change_count, "service port", "service ports"),
        counted(*conflict_count, "new VIP conflict", "new VIP conflicts")
    );
    if !ignored.is_empty() {
        let _ = write!(text, ", {} not planned", counted(ignored.len() as u64, "object is", "objects are"));
    }
    text + "\n"
}

/// A change of a service port, its VIPs, and the nodes without endpoints.
fn lines(change: &PlannedChange) -> Vec<String> {
    let PlannedChange { service_port, summary, gained_vips, lost_vips, nodes, lost_endpoints } = change;
    let count = nodes.as_ref().map_or(0, |nodes| nodes.count);
    let mut lines = vec![format!("{service_port}   {summary}; {}", counted(count, "node", "nodes"))];
    lines.extend(gained_vips.iter().map(|vip| format!("  + {vip}")));
    lines.extend(lost_vips.iter().map(|vip| format!("  - {vip}")));

    for LostEndpoints { traffic, nodes } in lost_endpoints {
        let NodeGroup { count, names } = nodes.clone().unwrap_or_default();
        let lose = counted(count, "node loses", "nodes lose");
        let more = if count > names.len() as u64 { ", ..." } else { "" };
        lines.push(format!("  {lose} all endpoints ({traffic}): {}{more}", names.join(", ")));
    }
    lines
}

/// A count with its noun.
fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_what_is_planned_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("objects.yaml");
        let text = "\
# all
apiVersion: v1
kind: Service
metadata: { name: a }
---
apiVersion: v1
kind: Secret
stringData: { password: hidden }
---
apiVersion: v1
kind: List
items:
- { apiVersion: v1, kind: Secret, stringData: { password: hidden } }
- { apiVersion: discovery.k8s.io/v1, kind: EndpointSlice }
- { apiVersion: serving.knative.dev/v1, kind: Service }
---
---
password: hidden
";
        fs::write(&file, text).unwrap();
        let Documents { planned, ignored, skipped } = Documents::read(&[file.clone(), file]).unwrap();
        assert_eq!(ignored, Vec::<String>::new());
        let kinds: Vec<_> =
            planned.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].take()).collect();
        assert_eq!(kinds, ["Service", "EndpointSlice", "Service", "EndpointSlice"]);
        assert!(!planned.contains("hidden"), "{planned}");
        let skipped: Vec<_> = skipped.iter().map(|(kind, count)| (&**kind, *count)).collect();
        let expected = [("Secret of v1", 4), ("Service of serving.knative.dev/v1", 2), ("document without kind", 2)];
        assert_eq!(skipped, expected);
        assert!(Documents::read(&[directory.path().join("none")]).unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn files_without_objects_to_plan_are_an_error() {
        let check = |text: &str| {
            let mut documents = Documents::default();
            serde_saphyr::from_multiple::<Value>(text).unwrap().into_iter().for_each(|object| documents.add(object));
            documents.check(&["-".into(), "b.yaml".into()]).map_err(|error| error.to_string())
        };
        for text in
            ["", "# none\n", "---\n---\n", "apiVersion: v1\nkind: Secret\n", "apiVersion: v1\nkind: List\nitems: []\n"]
        {
            let error = check(text).unwrap_err();
            assert!(error.starts_with("no Service or EndpointSlice in standard input, b.yaml: "), "{error}");
        }
        assert_eq!(check("apiVersion: v1\nkind: Service\n"), Ok(()));
        let large = Documents { planned: "x".repeat(MAX_BYTES + 1), ..Documents::default() };
        let error = large.check(&[]).unwrap_err().to_string();
        assert!(error.contains("1048561 bytes as JSON, more than 1048560: name fewer files"), "{error}");
    }

    #[test]
    fn objects_without_a_valid_version_and_kind_are_counted() {
        let mut documents = Documents::default();
        let object = |version: &str, kind: &str| serde_json::json!({ "apiVersion": version, "kind": kind });
        for (version, kind) in [("", "Service"), ("v1", "service"), ("v1", "ServiceList")] {
            documents.add(object(version, kind));
        }
        documents.add(object("discovery.k8s.io/v1beta1", "EndpointSlice"));
        documents.add(object("", "Secret"));
        assert_eq!((documents.ignored.len(), documents.skipped.len()), (4, 1), "{documents:?}");
        assert!(documents.check(&[]).is_ok());
        let text = table(&PlanResponse { ignored: documents.ignored, ..PlanResponse::default() });
        let start = "not planned: Service without a name, apiVersion \"\": expected Service of v1";
        assert!(text.starts_with(start) && text.ends_with(" conflicts, 4 objects are not planned\n"), "{text}");
    }

    #[test]
    fn control_characters_are_not_printed() {
        let escape = "a\u{1b}[31mb".to_owned();
        let mut documents = Documents::default();
        documents.add(serde_json::json!({ "apiVersion": "v1", "kind": escape }));
        assert_eq!(documents.skipped.into_keys().collect::<Vec<_>>(), ["a [31mb of v1"]);
        let change = PlannedChange { service_port: escape.clone(), summary: escape.clone(), ..Default::default() };
        let plan = PlanResponse { changes: vec![change], ignored: vec![escape], ..PlanResponse::default() };
        let text = table(&plan);
        assert!(text.starts_with("a [31mb   a [31mb; 0 nodes\nnot planned: a [31mb\n"), "{text:?}");
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
            lost_endpoints: vec![
                LostEndpoints { traffic, nodes: group(&["a", "b"], 3) },
                LostEndpoints { traffic: "IPv6".to_owned(), nodes: group(&["a"], 1) },
            ],
        };
        let plan = PlanResponse {
            revision: 7,
            changes: vec![change],
            change_count: 1,
            losing_count: 1,
            conflict_count: 2,
            ..PlanResponse::default()
        };
        let lines = table(&plan);
        for line in [
            "default/web/tcp   internal_policy Cluster -> Local; 40 nodes",
            "  - 192.0.2.1:80",
            "  3 nodes lose all endpoints (internalTrafficPolicy Local, IPv4): a, b, ...",
            "  1 node loses all endpoints (IPv6): a",
            "1 service port would change at revision 7, 1 would lose all endpoints on a node, 2 new VIP conflicts",
        ] {
            assert!(lines.lines().any(|found| found == line), "no {line:?} in {lines}");
        }
    }
}
