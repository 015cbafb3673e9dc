//! Questions to frontends: the status of their nodes, which endpoints of a Service a node uses, and why, and what would
//! change if objects were applied.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::future;
use proto::{
    MAX_ANSWER_BYTES,
    v1::{
        ChangesRequest, ChangesResponse, EndpointsRequest, EndpointsResponse, PlanRequest, PlanResponse, StatusRequest,
        StatusResponse, fairlead_client::FairleadClient,
    },
};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, transport::Channel};

use super::{Connection, Grpc, connect};

/// The next step when a frontend to which there is a connection does not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterFailure {
    AskNext,
    /// The request may be the cause.
    Stop,
}

impl Grpc {
    /// Asks all frontends at once for their status, and returns their responses in the order of their addresses. Each
    /// has `patience` to answer after the wait that the request itself asks for.
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
        ensure!(!addresses.is_empty(), "no address of a frontend is known");

        let patience = patience + Duration::from_millis(request.wait_millis.into());
        let responses = addresses.into_iter().map(async |address| {
            let response = async {
                let connection = connect(&address, &self.credentials).await?;
                let response = client(&connection).status(connection.request(request.clone())).await;
                Ok(response.map_err(|status| connection.error(status))?.into_inner())
            };
            (address.uri.clone(), within(patience, response).await)
        });
        Ok(future::join_all(responses).await)
    }

    /// Asks one frontend after the other for the endpoints of a Service until one answers. All of them watch the same
    /// cluster.
    ///
    /// # Errors
    /// When the Service does not exist, access is denied, or no frontend answers.
    pub async fn endpoints(&self, request: &EndpointsRequest, patience: Duration) -> Result<EndpointsResponse> {
        let ask = async |mut client: FairleadClient<Channel>, request: Request<EndpointsRequest>| {
            client.endpoints(request).await
        };
        self.ask_any(request, patience, AfterFailure::AskNext, ask).await
    }

    /// Asks the first frontend that accepts a connection what would change if objects were applied. If it does not
    /// answer, no other frontend is asked: the request may be the cause.
    ///
    /// # Errors
    /// When the objects are too many, access is denied, or the frontend does not answer.
    pub async fn plan(&self, request: &PlanRequest, patience: Duration) -> Result<PlanResponse> {
        let ask = async |mut client: FairleadClient<Channel>, request: Request<PlanRequest>| client.plan(request).await;
        self.ask_any(request, patience, AfterFailure::Stop, ask).await
    }

    /// Asks one frontend after the other for the last changes until one answers.
    ///
    /// # Errors
    /// When access is denied, or no frontend answers.
    pub async fn changes(&self, request: &ChangesRequest, patience: Duration) -> Result<ChangesResponse> {
        let ask =
            async |mut client: FairleadClient<Channel>, request: Request<ChangesRequest>| client.changes(request).await;
        self.ask_any(request, patience, AfterFailure::AskNext, ask).await
    }

    /// Asks one frontend after the other until one answers.
    async fn ask_any<Q: Clone, A>(
        &self,
        request: &Q,
        patience: Duration,
        after_failure: AfterFailure,
        ask: impl AsyncFn(FairleadClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A> {
        self.resolve().await;
        let mut last_error = None;
        let addresses = self.addresses().in_order();
        for address in addresses {
            let mut is_connected = false;
            let answer = within(patience, async {
                let connection = connect(&address, &self.credentials).await?;
                is_connected = true;
                let answer = ask(client(&connection), connection.request(request.clone())).await;
                Ok(answer.map(Response::into_inner).map_err(|status| (status.clone(), connection.error(status))))
            });

            match answer.await {
                Ok(Ok(response)) => return Ok(response),
                // Another frontend would answer the same.
                Ok(Err((status, _)))
                    if matches!(status.code(), Code::NotFound | Code::InvalidArgument | Code::OutOfRange) =>
                {
                    bail!("{}", status.message());
                }
                Ok(Err((_, error))) => last_error = Some(error),
                Err(error) => last_error = Some(error.context(address.uri)),
            }
            if is_connected && after_failure == AfterFailure::Stop {
                break;
            }
        }
        Err(last_error.unwrap_or_else(|| anyhow!("no address of a frontend is known")))
    }
}

pub(super) fn client(connection: &Connection) -> FairleadClient<Channel> {
    FairleadClient::new(connection.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
}

pub(super) async fn within<A>(patience: Duration, answer: impl Future<Output = Result<A>>) -> Result<A> {
    timeout(patience, answer).await.with_context(|| format!("no answer within {patience:?}")).flatten()
}
