//! Outages: a server that stops listening, and starts again.

use std::{io, net::TcpListener, sync::PoisonError};

use tokio::{runtime::Handle, task::yield_now};

use super::ApiServer;
use crate::http::serve;

impl ApiServer {
    pub(super) fn listen(&self, listener: TcpListener, runtime: &Handle) -> io::Result<()> {
        let answering = self.clone();
        let serving = serve(listener, runtime, move |request| answering.clone().answer(request))?;
        *self.0.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving);
        Ok(())
    }

    /// Closes the listener and all connections; what is stored stays. [`Self::restart`] ends the outage.
    pub async fn stop(&self) {
        let serving = self.0.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(serving) = serving {
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
