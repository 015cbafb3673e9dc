//! `fairlead log`: what changed, when, because of which object, and who wrote it.

use std::time::SystemTime;

use anyhow::Result;
use jiff::Timestamp;
use proto::{
    convert::unix_micros,
    state::ServiceName,
    v1::{Change, ChangesRequest, ChangesResponse},
};
use serde_json::json;

use super::view::RESPONSE_TIMEOUT;
use crate::{
    cli::{ChangesArgs, NamespaceArgs},
    print,
    table::TextTable,
};

/// Asks a frontend, and prints the changes.
pub(crate) async fn run(args: ChangesArgs) -> Result<()> {
    let ChangesArgs { service, namespace: NamespaceArgs { namespace, .. }, node, since, frontend, output } = args;
    let (namespace, name) = match service {
        Some(service) => {
            let ServiceName { namespace, name } = service.in_namespace(namespace.as_deref())?;
            (namespace.to_string(), name.to_string())
        }
        None => (namespace.unwrap_or_default(), String::new()),
    };
    let from = since.and_then(|since| SystemTime::now().checked_sub(since));
    let since_micros = from.map_or(0, unix_micros);

    let request = ChangesRequest { node: node.unwrap_or_default(), namespace, name, since_micros };
    let response = frontend.grpc()?.changes(&request, RESPONSE_TIMEOUT).await?;
    let ChangesResponse { complete_since_micros, changes } = response;

    let value = json!({ "complete_since_micros": complete_since_micros, "changes": changes });
    print::value(output, &value, || table(&changes))?;
    if since_micros < complete_since_micros {
        print::error(format_args!("earlier changes than {} may be missing", time_text(complete_since_micros)));
    }
    Ok(())
}

/// A Unix time in microseconds, in RFC 3339.
pub(super) fn time_text(micros: u64) -> String {
    let time = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    time.map_or_else(|| format!("{micros} us"), |time| format!("{time:.3}"))
}

fn table(changes: &[Change]) -> TextTable {
    let mut table = TextTable::new(&["TIME", "REVISION", "SERVICE PORT", "CHANGE", "OBJECT", "VERSION", "MANAGER"]);
    for Change { at_micros, revision, service_port, summary, object, version, manager } in changes {
        let version = if *version == 0 { String::new() } else { version.to_string() };
        let time = time_text(*at_micros);
        table.row([&time, &revision.to_string(), service_port, summary, object, &version, manager]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_times_and_leave_out_what_is_unknown() {
        let change = Change {
            at_micros: 1_767_225_600_123_456,
            revision: 7,
            service_port: "default/web/tcp".to_owned(),
            summary: "removed".to_owned(),
            object: "Service default/web".to_owned(),
            ..Change::default()
        };
        let table = table(&[change]).to_string();
        let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
        let expected =
            ["2026-01-01T00:00:00.123Z", "7", "default/web/tcp", "removed", "Service", "default/web", "-", "-"];
        assert_eq!(row, expected);
    }
}
