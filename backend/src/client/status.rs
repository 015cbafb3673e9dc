//! Asking frontends what they know of their nodes: all of them, each for itself.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future;
use proto::v1::{StatusRequest, StatusResponse, fairlead_client::FairleadClient};
use tokio::time::timeout;
use tonic::Request;

use super::{Ended, FrontendAddress, Grpc, advised, connect};

/// The largest answer that is taken: thousands of nodes, each with failures, and thousands of problems.
const ANSWER_LIMIT: usize = 64 << 20;

impl Grpc {
    /// Asks every frontend that is found, all at once, in the order of their addresses. Each may take so much longer than the request
    /// wants to wait.
    ///
    /// # Errors
    /// When none is found. That one does not answer is for itself.
    pub async fn status(
        &self,
        request: &StatusRequest,
        patience: Duration,
    ) -> Result<Vec<(String, Result<StatusResponse>)>> {
        self.look_up().await;
        let mut candidates = self.directory().order();
        candidates.sort();
        anyhow::ensure!(!candidates.is_empty(), "no frontend is known");
        let patience = patience + Duration::from_millis(request.wait_millis.into());
        let answers = candidates.into_iter().map(async |candidate| {
            let answer = timeout(patience, self.ask(&candidate, request.clone())).await;
            let answer = answer.with_context(|| format!("no answer within {patience:?}")).flatten();
            (candidate.address, answer)
        });
        Ok(future::join_all(answers).await)
    }

    async fn ask(&self, candidate: &FrontendAddress, request: StatusRequest) -> Result<StatusResponse> {
        let (channel, token) = connect(candidate, &self.credentials).await?;
        let mut request = Request::new(request);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token);
        }
        let mut client = FairleadClient::new(channel).max_decoding_message_size(ANSWER_LIMIT);
        let answer = client.status(request).await.map_err(|status| advised(Ended::from(status)))?;
        Ok(answer.into_inner())
    }
}
