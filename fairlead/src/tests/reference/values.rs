//! docs/reference/values.md: the chart's values, from the comments of values.yaml and the types of values.schema.json.

use serde_json::Value;

use super::{code, header, row, source};

const INTRO: &str = "# Values of the chart

Generated from [values.yaml](../../charts/fairlead/values.yaml) and its schema by `make generate`. The
[README of the chart](../../charts/fairlead/README.md) explains how to use them.

";

/// The page.
pub(super) fn page() -> String {
    let text = source("charts/fairlead/values.yaml");
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    let schema: Value = serde_json::from_str(&source("charts/fairlead/values.schema.json")).unwrap();
    let mut page = INTRO.to_owned();
    page.push_str(&header(&["value", "type", "default", ""]));
    let documented = documented(&text);
    assert!(documented.len() > 50, "only {} values are documented", documented.len());
    for (path, about) in documented {
        let default = path.iter().fold(&values, |value, name| &value[name]);
        let schema_node = path.iter().fold(&schema, |node, name| &resolved(&schema, node)["properties"][name]);
        page.push_str(&row(&[
            &code(&path.join(".")),
            &type_name(&schema, schema_node),
            &code(&default.to_string()),
            &about,
        ]));
    }
    page
}

/// The path of each value that has a comment `# -- ...`, and the comment.
fn documented(text: &str) -> Vec<(Vec<String>, String)> {
    let (mut documented, mut path, mut about) = (Vec::new(), Vec::<(usize, String)>::new(), None::<String>);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if let Some(comment) = line.strip_prefix("# -- ") {
            about = Some(comment.to_owned());
        } else if let (Some(more), Some(about)) = (line.strip_prefix("# "), &mut about) {
            about.push(' ');
            about.push_str(more);
        } else if let Some((name, _)) = line.split_once(':').filter(|_| !line.starts_with(['#', '-'])) {
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, name.to_owned()));
            let names = path.iter().map(|(_, name)| name.clone()).collect();
            documented.extend(about.take().map(|about| (names, about)));
        } else {
            about = None;
        }
    }
    documented
}

/// The node that a `$ref` points to, or the node itself.
fn resolved<'a>(schema: &'a Value, node: &'a Value) -> &'a Value {
    let reference = node["$ref"].as_str().map(|reference| reference.trim_start_matches('#'));
    reference.and_then(|reference| schema.pointer(reference)).unwrap_or(node)
}

/// The types or values that a value may have.
fn type_name(schema: &Value, node: &Value) -> String {
    let node = resolved(schema, node);
    if let Some(values) = node["enum"].as_array() {
        return values.iter().map(|value| code(&value.to_string())).collect::<Vec<_>>().join(", ");
    }
    if let Some(alternatives) = ["anyOf", "allOf", "oneOf"].into_iter().find_map(|name| node[name].as_array()) {
        let names = alternatives.iter().map(|node| type_name(schema, node)).filter(|name| !name.is_empty());
        let mut names: Vec<_> = names.collect();
        names.dedup();
        return names.join(" or ");
    }
    match &node["type"] {
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => String::new(),
    }
}
