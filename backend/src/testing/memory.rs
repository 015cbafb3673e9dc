//! Kernels in memory under the real code of a backend, for simulations: time passes around each call, which may fail,
//! or during which the process may be killed.

use std::{
    collections::BTreeSet,
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use anyhow::Result;
use futures::future::BoxFuture;
use proto::model::IpFamily;
use tokio::sync::Notify;

use crate::{Backend, dataplane::Vip};

/// What happens before and after each call of a kernel. Clones share it.
#[derive(Clone)]
pub struct Gate {
    pass: Arc<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>,
    drift: Arc<Notify>,
}

/// Whether the errors of a kernel in memory name the objects that it rejects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorDetail {
    /// They do.
    #[default]
    Named,
    /// They do not.
    Unnamed,
}

/// A kernel in memory that makes the checks of the real one. Clones share its content, which outlives backends.
pub trait MemoryKernel: Clone + Default + Send + 'static {
    /// What programs it.
    type Backend: Backend;

    /// A backend as a new process has it.
    fn backend(&self, gate: Gate) -> Self::Backend;

    /// Everything in it, without what depends on the order of changes, sorted.
    fn content(&self) -> Vec<String>;

    /// The node restarts: it contains nothing.
    fn reboot(&self);

    /// It cannot program this IP family from now on.
    fn set_unsupported(&self, family: Option<IpFamily>);

    /// It rejects new objects of these VIPs from now on.
    fn reject(&self, vips: &BTreeSet<Vip>, detail: ErrorDetail);

    /// Another program removes an object, for example the one with this number. Whether there is one.
    fn remove_any(&self, number: usize) -> bool;
}

// === impl Gate ===

impl Gate {
    /// Calls `pass` before and after each call of the kernel; its error is that of the call. `drift`: another program
    /// has changed the kernel.
    pub fn new(pass: impl Fn() -> BoxFuture<'static, Result<()>> + Send + Sync + 'static, drift: Arc<Notify>) -> Self {
        Self { pass: Arc::new(pass), drift }
    }

    /// A gate that is always open.
    #[must_use]
    pub fn open() -> Self {
        Self::new(|| Box::pin(async { Ok(()) }), Arc::default())
    }

    /// Passes the gate.
    ///
    /// # Errors
    /// That of the call to the kernel.
    pub async fn pass(&self) -> Result<()> {
        (self.pass)().await
    }

    /// Passes the gate, makes a call that changes the kernel, and passes the gate again.
    ///
    /// # Errors
    /// Those of the gate.
    pub async fn write<T>(&self, call: impl Future<Output = T>) -> Result<T> {
        self.pass().await?;
        let mut call = pin!(call);
        let result = poll_fn(|context| poll_kernel_in_memory(call.as_mut(), context)).await;
        self.pass().await?;
        Ok(result)
    }

    /// Returns when another program has changed the kernel.
    pub async fn changed(&self) {
        self.drift.notified().await;
    }
}

/// A call of a kernel in memory. Never inlined, because a profile tells by its name what it costs apart from its
/// caller: kernels in memory copy their whole content for each transaction.
#[inline(never)]
fn poll_kernel_in_memory<F: Future>(call: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
    call.poll(context)
}

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Gate").finish_non_exhaustive()
    }
}
