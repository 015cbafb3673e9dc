//! `fairlead watch`: prints the messages of a node's stream as they arrive.

use anyhow::Result;
use proto::model::{Bookmark, Operation, PoolId, Revision, ServerMessage};
use runtime::Shutdown;
use serde_json::json;

use super::{
    services::{self, join},
    view::NodeView,
};
use crate::{cli::ViewArgs, print};

/// Follows the stream until the shutdown.
pub(crate) async fn run(args: ViewArgs, mut shutdown: Shutdown) -> Result<()> {
    let mut view = NodeView::open(&args.frontend, &args.node_name()?).await?;
    while let Some(message) = shutdown.run_until_started(view.next()).await {
        let message = message?;
        let Some(json) = to_json(&message) else { continue };
        print::next_value(args.output, &json, || print_lines(&message))?;
    }
    Ok(())
}

/// One line per operation: revision, verb, object, detail.
fn print_lines(message: &ServerMessage) -> Result<()> {
    match message {
        ServerMessage::Welcome(welcome) => {
            print::line(format_args!("epoch {}: {}", welcome.epoch, welcome.mode.name()))
        }
        ServerMessage::Batch(batch) => {
            for operation in batch.operations.iter().filter(|operation| !is_reset(operation)) {
                print::line(line(batch.target, operation))?;
            }
            let resets = batch.operations.iter().filter(|operation| is_reset(operation)).count();
            if resets > 0 {
                print::line(format_args!(
                    "{:<8} {:<20} {resets}: service ports not listed above are removed",
                    batch.target.0, "reset buckets"
                ))?;
            }
            if batch.commit {
                print::line(format_args!("{:<8} commit", batch.target.0))?;
            }
            Ok(())
        }
        ServerMessage::Bookmark(Bookmark { revision, .. }) => print::line(format_args!("{:<8} up to date", revision.0)),
        ServerMessage::Drain(within) => print::line(format_args!("the frontend asks to reconnect within {within:?}")),
        ServerMessage::DigestRequest => Ok(()),
    }
}

/// Resets are counted instead of listed: a repair has many, and a bucket means nothing to an operator.
fn is_reset(operation: &Operation) -> bool {
    matches!(operation, Operation::ResetBucket(_))
}

fn line(revision: Revision, operation: &Operation) -> String {
    let (verb, object, detail) = match operation {
        Operation::PutServicePort(port) => ("put service port", port.key.to_string(), services::vips(port).join(" ")),
        Operation::RemoveServicePort(key) => ("remove service port", key.to_string(), String::new()),
        Operation::ChangePool { pool, add, remove } => {
            let added = add.iter().map(|endpoint| format!("+{endpoint}"));
            let removed = remove.iter().map(|endpoint| format!("-{endpoint}"));
            ("change pool", pool_name(pool), join(added.chain(removed)))
        }
        Operation::ReplacePool { pool, endpoints } => {
            ("replace pool", pool_name(pool), format!("[{}]", join(endpoints.iter())))
        }
        Operation::PutNode(node) => {
            let detail = format!("addresses [{}] zone {:?}", join(&node.addresses), node.zone);
            ("put node", node.name.to_string(), detail)
        }
        Operation::PutCluster(cluster) => {
            ("put cluster", String::new(), format!("service CIDRs [{}]", join(&cluster.service_cidrs)))
        }
        Operation::ResetBucket(bucket) => ("reset bucket", bucket.to_string(), String::new()),
    };
    format!("{:<8} {verb:<20} {object} {detail}", revision.0).trim_end().to_owned()
}

fn pool_name(pool: &PoolId) -> String {
    format!("{} {} {}", pool.key, pool.class, pool.family)
}

/// `None` for a request that concerns only the protocol.
fn to_json(message: &ServerMessage) -> Option<serde_json::Value> {
    Some(match message {
        ServerMessage::Welcome(welcome) => {
            json!({ "welcome": { "epoch": welcome.epoch.to_string(), "mode": welcome.mode.name() } })
        }
        ServerMessage::Batch(batch) => json!({ "batch": {
            "base": batch.base,
            "target": batch.target,
            "commit": batch.commit,
            "operations": batch.operations,
        } }),
        ServerMessage::Bookmark(Bookmark { revision, .. }) => json!({ "bookmark": { "revision": revision } }),
        ServerMessage::Drain(within) => json!({ "drain": { "max_delay_millis": within.as_millis() } }),
        ServerMessage::DigestRequest => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use proto::model::{Endpoint, IpFamily, PoolClass, Protocol, ServicePortKey};

    use super::*;

    #[test]
    fn an_operation_is_one_line() {
        let key = ServicePortKey::new("default", "web", "http", Protocol::Tcp);
        let endpoint = |last| Endpoint::new([10, 244, 1, last].into(), NonZeroU16::new(8080).unwrap());
        let pool = PoolId { key, class: PoolClass::Cluster, family: IpFamily::V4 };
        let change = Operation::ChangePool { pool, add: vec![endpoint(2)], remove: vec![endpoint(1)] };
        assert_eq!(
            line(Revision(7), &change),
            "7        change pool          default/web:http/tcp cluster IPv4 +10.244.1.2:8080 -10.244.1.1:8080"
        );
    }
}
