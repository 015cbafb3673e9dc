//! The typed model of the stream: service ports, their pools, node info, and the operations that change them.
//!
//! Values are validated once, when they are parsed (from Kubernetes objects in `frontend`, from the wire in
//! [`crate::convert`]): ports are not zero, and lists of addresses are sorted and without duplicates.

mod pool;
mod scheduler;
mod service_port;
mod session;
mod update;

pub use pool::{Endpoint, IpFamily, PerFamily, Pool, PoolClass, PoolId};
pub(crate) use pool::{FLAG_TERMINATING, pack_endpoint};
pub use scheduler::{IpvsScheduler, ParseSchedulerError, SchedulerFlags};
pub use service_port::{Protocol, ServicePort, ServicePortKey, TrafficPolicy};
pub use session::{
    Ack, Bookmark, ClientMessage, FailureKind, Hello, Role, ServerMessage, ServicePortFailure, SyncMode, Welcome,
};
pub use update::{Batch, ClusterInfo, Epoch, KindVersions, NodeInfo, Operation, Revision, SourceVersion};
