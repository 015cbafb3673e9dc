//! Outages: a server that stops listening, and starts again.

use std::{io, net::TcpListener, sync::PoisonError};

use tokio::{runtime::Handle, task::yield_now};

use super::ApiServer;
use crate::http::serve;

impl ApiServer {
    /// Serves on a listener, which may be one of several: for example, in another network namespace.
    ///
    /// # Errors
    /// When the runtime cannot use the listener.
    pub fn listen(&self, listener: TcpListener, runtime: &Handle) -> io::Result<()> {
        let answering = self.clone();
        let serving = serve(listener, runtime, move |request| answering.clone().answer(request))?;
        self.0.serving.lock().unwrap_or_else(PoisonError::into_inner).push(serving);
        Ok(())
    }

    /// Closes all listeners and connections; what is stored stays. [`Self::restart`] ends the outage.
    pub async fn stop(&self) {
        let serving = std::mem::take(&mut *self.0.serving.lock().unwrap_or_else(PoisonError::into_inner));
        for serving in serving {
            serving.abort();
            while !serving.is_finished() {
                yield_now().await;
            }
        }
    }

    /// Listens again on the same address after [`Self::stop`], on the current runtime. The cache of a real server is
    /// new then, so that all older versions have expired: [`Self::compact`].
    ///
    /// # Errors
    /// When another process has taken the port.
    pub fn restart(&self) -> io::Result<()> {
        self.listen(TcpListener::bind(self.0.address)?, &Handle::current())
    }
}
