//! Transitions between states, with the operations that a frontend would send.

use proto::model::{IpFamily, Operation, PoolClass, PoolId, ServicePortKey};

use crate::{Changes, NodeState, ServicePortState};

/// Commits operations to a state. Returns the changes.
///
/// # Panics
/// If an operation is rejected.
pub fn apply(state: &mut NodeState, operations: impl IntoIterator<Item = Operation>) -> Changes {
    let before = state.clone();
    assert_eq!(state.apply(operations), []);
    Changes::between(&before, state)
}

/// Makes `state` equal to `target`. Returns the changes.
pub fn transition(state: &mut NodeState, target: &NodeState) -> Changes {
    let operations = operations_between(state, target);
    let changes = apply(state, operations);
    assert_eq!(state, target);
    changes
}

/// The minimal operations that lead from one state to another.
#[must_use]
pub fn operations_between(from: &NodeState, to: &NodeState) -> Vec<Operation> {
    let mut operations = Vec::new();
    if from.node() != to.node() {
        operations.push(Operation::PutNode(to.node().clone()));
    }
    if from.cluster() != to.cluster() {
        operations.push(Operation::PutCluster(to.cluster().clone()));
    }
    let removed = from.service_ports().keys().filter(|key| to.service_port(key).is_none());
    operations.extend(removed.cloned().map(Operation::RemoveServicePort));
    for (key, service) in to.service_ports().iter() {
        put_service_port(&mut operations, key, from.service_port(key), service);
    }
    operations
}

fn put_service_port(
    operations: &mut Vec<Operation>,
    key: &ServicePortKey,
    from: Option<&ServicePortState>,
    to: &ServicePortState,
) {
    if from.is_none_or(|from| from.port != to.port) {
        operations.push(Operation::PutServicePort(to.port.clone()));
    }
    let new = ServicePortState::new(to.port.clone());
    let from = from.unwrap_or(&new);
    for class in PoolClass::ALL {
        for family in IpFamily::ALL {
            let (add, remove) = from.pool(class, family).diff(to.pool(class, family));
            if !add.is_empty() || !remove.is_empty() {
                let pool = PoolId { key: key.clone(), class, family };
                operations.push(Operation::ChangePool { pool, add, remove });
            }
        }
    }
}
