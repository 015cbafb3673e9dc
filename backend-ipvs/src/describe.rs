//! Describes operations in a preview. Pure.

use std::collections::HashMap;

use backend::{Difference, DifferenceKind};
use netlink::ipvs::{PERSISTENT, Scheduling};
use proto::model::ServicePortKey;

use crate::{
    object::{Object, Value, Weight},
    plan::{Objects, Operation},
};

/// The differences that operations would make. `owners`: the service ports that need each object.
pub(crate) fn differences(
    operations: &[Operation],
    observed: &Objects,
    owners: &HashMap<Object, Vec<ServicePortKey>>,
) -> Vec<Difference> {
    let mut differences = Vec::with_capacity(operations.len());
    for operation in operations {
        let object = operation.object();
        // One of the service ports that share the object.
        let owner = owners.get(object).and_then(|keys| keys.first());
        differences.push(difference(operation, observed.get(object)).of(owner));
    }
    differences
}

/// The difference that an operation would make. `old`: the value of its object before.
fn difference(operation: &Operation, old: Option<&Value>) -> Difference {
    let object = operation.object();
    let subsystem = match object {
        Object::SetEntry(..) => "ipset",
        Object::Address(_) => "links",
        Object::Server(_) | Object::Destination(..) => "IPVS",
    };
    let (kind, value) = match operation {
        Operation::Add(_, value) => (DifferenceKind::Add, describe_value(value)),
        Operation::Change(_, value) => {
            let old = old.map(describe_value).unwrap_or_default();
            (DifferenceKind::Change, format!("{old} -> {}", describe_value(value)))
        }
        Operation::Remove(_) => (DifferenceKind::Remove, String::new()),
    };
    let text = if value.is_empty() { object.to_string() } else { format!("{object}: {value}") };
    Difference::new(kind, subsystem, text)
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::Plain => String::new(),
        Value::Mark(mark) => format!("mark {:#x}", mark.raw()),
        Value::Scheduling(Scheduling { scheduler, flags, timeout }) if flags & PERSISTENT != 0 => {
            format!("{scheduler}, persistent {timeout}s")
        }
        Value::Scheduling(Scheduling { scheduler, .. }) => scheduler.to_string(),
        Value::Weight(Weight::Of(weight)) => format!("weight {weight}"),
        Value::Weight(Weight::Draining(_)) => "weight 0, until its connections have ended".to_owned(),
    }
}
