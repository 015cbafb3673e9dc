//! A snapshot as it is sent over the wire, in messages of the size that a frontend sends.

use backend::{
    NodeState,
    testing::{Stack, mk_state, operations_between, synthetic},
};
use proto::{
    encoded::{EncodedMessage, EncodedOperation},
    model::{Batch, NodeInfo, Revision, ServerMessage},
};

/// The number of operations in a message.
const OPERATIONS: usize = 2_000;

/// The messages of a snapshot of `services` with `each` endpoints.
pub(crate) fn encode(services: u32, each: u32) -> Vec<Vec<u8>> {
    let mut operations = operations_between(&empty_state(), &synthetic(services, each, Stack::V4));
    // The last in the snapshot; the backend must program it first.
    let kubernetes = mk_state().service("default/kubernetes", |api| {
        api.port(443).cluster_ip("10.200.0.1").endpoints(["10.0.0.1:6443", "10.0.0.2:6443"])
    });
    operations.extend(operations_between(&empty_state(), &kubernetes.build()));
    let parts = operations.chunks(OPERATIONS);
    let count = parts.len();
    let message = |(number, part): (usize, &[_])| {
        let (base, target) = (Revision(0), Revision(1));
        let commit = number + 1 == count;
        let batch = Batch { base, target, commit, ..Batch::default() };
        EncodedMessage::batch(&batch, part.iter().map(EncodedOperation::new)).to_bytes().to_vec()
    };
    parts.enumerate().map(message).collect()
}

/// The state of a backend that receives these messages.
pub(crate) fn decode(messages: &[Vec<u8>]) -> NodeState {
    let mut state = empty_state();
    for message in messages {
        let message = EncodedMessage::from_bytes(message.clone().into()).decode().unwrap();
        let ServerMessage::Batch(batch) = message.try_into().unwrap() else { panic!("not a batch") };
        assert!(state.apply(batch.operations).is_empty());
    }
    state
}

fn empty_state() -> NodeState {
    NodeState::new(NodeInfo::unknown(backend::testing::NODE_NAME))
}
