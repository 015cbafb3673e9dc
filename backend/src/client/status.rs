//! Asks all frontends for the status of their nodes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future;
use proto::v1::{StatusRequest, StatusResponse, fairlead_client::FairleadClient};
use tokio::time::timeout;

use super::{FrontendAddress, Grpc, StreamError, authorized, connect, explained};

/// The largest response: thousands of nodes, each with failures, and thousands of problems.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

impl Grpc {
    /// Asks all frontends at once and returns their responses in the order of their addresses. Each has `patience` to
    /// answer after the wait that the request itself asks for.
    ///
    /// # Errors
    /// When no frontend is known. A frontend that does not answer has an error of its own.
    pub async fn status(
        &self,
        request: &StatusRequest,
        patience: Duration,
    ) -> Result<Vec<(String, Result<StatusResponse>)>> {
        self.resolve().await;
        let mut addresses = self.addresses().in_order();
        addresses.sort();
        anyhow::ensure!(!addresses.is_empty(), "no address of a frontend is known");
        let patience = patience + Duration::from_millis(request.wait_millis.into());
        let responses = addresses.into_iter().map(async |address| {
            let response = timeout(patience, self.status_of(&address, request.clone())).await;
            let response = response.with_context(|| format!("no answer within {patience:?}")).flatten();
            (address.uri, response)
        });
        Ok(future::join_all(responses).await)
    }

    async fn status_of(&self, address: &FrontendAddress, request: StatusRequest) -> Result<StatusResponse> {
        let (channel, token) = connect(address, &self.credentials).await?;
        let mut client = FairleadClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
        let response = client.status(authorized(request, token)).await;
        Ok(response.map_err(|status| explained(&StreamError::from(status)))?.into_inner())
    }
}
