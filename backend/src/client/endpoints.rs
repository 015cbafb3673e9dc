//! Asking a frontend which endpoints of a Service a node is told to use, and why.

use std::time::Duration;

use anyhow::{Context as _, Result};
use proto::v1::{EndpointsRequest, EndpointsResponse, fairlead_client::FairleadClient};
use tokio::time::timeout;
use tonic::{Code, Request};

use super::{Ended, FrontendAddress, Grpc, advised, connect};

/// The largest answer that is taken: tens of thousands of endpoints of one Service.
const ANSWER_LIMIT: usize = 64 << 20;

impl Grpc {
    /// Asks the frontends one after the other until one knows. They all see the same cluster.
    ///
    /// # Errors
    /// When there is no such Service, none may be asked, or none answers.
    pub async fn endpoints(&self, request: &EndpointsRequest, patience: Duration) -> Result<EndpointsResponse> {
        self.look_up().await;
        let mut error = None;
        let candidates = self.directory().order();
        for candidate in candidates {
            let asked = timeout(patience, self.ask_for_endpoints(&candidate, request.clone())).await;
            match asked.with_context(|| format!("no answer within {patience:?}")).flatten() {
                Ok(Ok(response)) => return Ok(response),
                // The next one would say the same.
                Ok(Err(status)) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => {
                    anyhow::bail!("{}", status.message());
                }
                Ok(Err(status)) => error = Some(advised(Ended::from(status))),
                Err(failed) => error = Some(failed.context(candidate.address)),
            }
        }
        Err(error.unwrap_or_else(|| anyhow::anyhow!("no frontend is known")))
    }

    async fn ask_for_endpoints(
        &self,
        candidate: &FrontendAddress,
        request: EndpointsRequest,
    ) -> Result<Result<EndpointsResponse, tonic::Status>> {
        let (channel, token) = connect(candidate, &self.credentials).await?;
        let mut request = Request::new(request);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token);
        }
        let mut client = FairleadClient::new(channel).max_decoding_message_size(ANSWER_LIMIT);
        Ok(client.endpoints(request).await.map(tonic::Response::into_inner))
    }
}
