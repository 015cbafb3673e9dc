//! The typed model of what travels: service ports, their pools, the node, and the operations that change them.
//!
//! Values are parsed once, where they enter (from Kubernetes in `frontend`, from the wire in [`crate::convert`]), and
//! are right by construction afterwards: ports are not zero, lists of addresses are sorted and free of duplicates.

mod key;
mod node;
mod pool;
mod scheduler;
mod service_port;
mod session;
mod update;

pub use key::{ParseProtocolError, Protocol, ServicePortKey};
pub use node::{ClusterInfo, NodeInfo};
pub use pool::{Endpoint, IpFamily, PerFamily, Pool, PoolClass, PoolId};
pub use scheduler::{IpvsScheduler, ParseSchedulerError, SchedulerFlags};
pub use service_port::{ServicePort, TrafficPolicy};
pub use session::{Ack, ClientMessage, FailureKind, Hello, Role, ServerMessage, ServicePortFailure, SyncMode, Welcome};
pub use update::{Batch, Epoch, Operation, Revision, SourceVersion};
