//! Asks a frontend which endpoints of a Service a node uses, and why.

use std::time::Duration;

use anyhow::{Context as _, Result};
use proto::v1::{EndpointsRequest, EndpointsResponse, fairlead_client::FairleadClient};
use tokio::time::timeout;
use tonic::{Code, Response, Status};

use super::{FrontendAddress, Grpc, StreamError, authorized, connect, explained};

/// The largest response: tens of thousands of endpoints of one Service.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

impl Grpc {
    /// Asks one frontend after the other until one answers. All of them watch the same cluster.
    ///
    /// # Errors
    /// When the Service does not exist, access is denied, or no frontend answers.
    pub async fn endpoints(&self, request: &EndpointsRequest, patience: Duration) -> Result<EndpointsResponse> {
        self.resolve().await;
        let mut last_error = None;
        let addresses = self.addresses().in_order();
        for address in addresses {
            let response = timeout(patience, self.endpoints_of(&address, request.clone())).await;
            match response.with_context(|| format!("no answer within {patience:?}")).flatten() {
                Ok(Ok(response)) => return Ok(response),
                // Another frontend would answer the same.
                Ok(Err(status)) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => {
                    anyhow::bail!("{}", status.message());
                }
                Ok(Err(status)) => last_error = Some(explained(&StreamError::from(status))),
                Err(error) => last_error = Some(error.context(address.uri)),
            }
        }
        Err(last_error.unwrap_or_else(|| anyhow::anyhow!("no address of a frontend is known")))
    }

    async fn endpoints_of(
        &self,
        address: &FrontendAddress,
        request: EndpointsRequest,
    ) -> Result<Result<EndpointsResponse, Status>> {
        let (channel, token) = connect(address, &self.credentials).await?;
        let mut client = FairleadClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
        Ok(client.endpoints(authorized(request, token)).await.map(Response::into_inner))
    }
}
