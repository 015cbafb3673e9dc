//! Dispatches calls by their path. tonic implements gRPC, except for the response body of `Watch` (`watch`).

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE, request::Parts};
use proto::{MAX_ANSWER_BYTES, MAX_MESSAGE_BYTES, encoded::ServerCodec, v1};
use tokio::time::timeout;
use tonic::{
    Request, Status, Streaming,
    body::Body,
    codec::Codec,
    metadata::GRPC_CONTENT_TYPE,
    server::{Grpc, NamedService},
};
use tonic_prost::ProstCodec;

use super::{Answer, Caller, FairleadService, connection::Peer, watch::WatchBody};
use crate::clients::AnswerPermit;

const WATCH: &str = "/fairlead.v1.Fairlead/Watch";
const STATUS: &str = "/fairlead.v1.Fairlead/Status";
const ENDPOINTS: &str = "/fairlead.v1.Fairlead/Endpoints";
const CHANGES: &str = "/fairlead.v1.Fairlead/Changes";
const PLAN: &str = "/fairlead.v1.Fairlead/Plan";
const DRAINS: &str = "/fairlead.v1.Fairlead/Drains";
/// The header that names the compression of the messages.
const ENCODING: &str = "grpc-encoding";
/// The header that lists the compressions that the client accepts.
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
/// No compression.
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const GZIP: HeaderValue = HeaderValue::from_static("gzip");
/// The maximum size of a unary request in bytes. Names in requests have at most 253 characters each.
const MAX_UNARY_BYTES: usize = 4 << 10;
/// How long a request for a plan may take to arrive, wait for other plans, and be answered.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);

impl NamedService for FairleadService {
    const NAME: &'static str = "fairlead.v1.Fairlead";
}

impl tower::Service<http::Request<Body>> for FairleadService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let (request, body) = request.into_parts();
            let answered = match request.uri.path() {
                WATCH => watch(&service, &request, body).await,
                STATUS => unary(&service, request, body, |caller, request| service.status(caller, request)).await,
                ENDPOINTS => unary(&service, request, body, |caller, request| service.endpoints(caller, request)).await,
                CHANGES => unary(&service, request, body, |caller, request| service.changes(caller, request)).await,
                PLAN => plan(&service, request, body).await,
                DRAINS => drains(&service, request, body).await,
                _ => Err(Status::unimplemented("unknown method")),
            };
            Ok(answered.unwrap_or_else(Status::into_http))
        })
    }
}

async fn watch(service: &FairleadService, request: &Parts, body: Body) -> Result<http::Response<Body>, Status> {
    if request.headers.get(ENCODING).is_some_and(|encoding| encoding != IDENTITY) {
        return Err(Status::unimplemented("compressed messages are not supported: send them uncompressed"));
    }
    let Caller { identity, .. } = service.identify(request).await?;

    let context = service.context.clone();
    let messages = Streaming::new_request(ServerCodec.decoder(), body, None, Some(MAX_MESSAGE_BYTES));
    let accepts_gzip = accepts_gzip(&request.headers);
    let call = request.extensions.get().map(Peer::start_call);
    let body = WatchBody::new(context, identity, messages, accepts_gzip, call, service.shutdown.clone());

    let mut response = http::Response::new(Body::new(body));
    if accepts_gzip {
        response.headers_mut().insert(ENCODING, GZIP);
    }
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    Ok(response)
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|encoding| encoding.trim() == "gzip")
}

/// Streams the levels of a node. The request is read and decoded only for clients with an identity.
async fn drains(service: &FairleadService, request: Parts, body: Body) -> Result<http::Response<Body>, Status> {
    let caller = service.identify(&request).await?;
    let peer: Option<Arc<Peer>> = request.extensions.get().cloned();
    let mut grpc = Grpc::new(ProstCodec::<v1::DrainLevels, v1::DrainsRequest>::default())
        .max_decoding_message_size(MAX_UNARY_BYTES)
        .max_encoding_message_size(MAX_ANSWER_BYTES);
    let answer = tower::service_fn(|request: Request<v1::DrainsRequest>| {
        let call = peer.as_ref().map(Peer::start_call);
        std::future::ready(service.drains(&caller, request.get_ref(), call))
    });
    Ok(grpc.server_streaming(answer, http::Request::from_parts(request, body)).await)
}

/// Answers a call about nodes. The request is read and decoded only for clients with an identity.
async fn unary<In, Out, F>(
    service: &FairleadService,
    request: Parts,
    body: Body,
    answer: impl Fn(Caller, In) -> F,
) -> Result<http::Response<Body>, Status>
where
    ProstCodec<Out, In>: Codec<Encode = Out, Decode = In> + Default,
    F: Future<Output = Answer<Out>>,
{
    let caller = service.identify(&request).await?;
    let answer = |request| answer(caller.clone(), request);
    Ok(respond(http::Request::from_parts(request, body), MAX_UNARY_BYTES, answer).await)
}

/// Answers what would change. The request may be large: it is read only for clients that may see all nodes, one at a
/// time for each of them.
async fn plan(service: &FairleadService, request: Parts, body: Body) -> Result<http::Response<Body>, Status> {
    let caller = service.identify(&request).await?;
    service.authorize(&caller, "")?;
    let _call = request.extensions.get().map(Peer::start_call);
    let permit = service.permit(&caller).await;

    let answer = |request: v1::PlanRequest| service.plan(request, permit.clone());
    let response = respond(http::Request::from_parts(request, body), MAX_MESSAGE_BYTES, answer);
    timeout(PLAN_TIMEOUT, response).await.map_err(|_| {
        let message = format!("no answer within {PLAN_TIMEOUT:?}: the request was late, or other plans take long");
        Status::deadline_exceeded(message)
    })
}

/// Reads a request of at most this size, and encodes the answer.
async fn respond<In, Out, F>(
    request: http::Request<Body>,
    max_bytes: usize,
    answer: impl Fn(In) -> F,
) -> http::Response<Body>
where
    ProstCodec<Out, In>: Codec<Encode = Out, Decode = In> + Default,
    F: Future<Output = Answer<Out>>,
{
    let _call = request.extensions().get().map(Peer::start_call);
    let mut grpc = Grpc::new(ProstCodec::<Out, In>::default())
        .max_decoding_message_size(max_bytes)
        .max_encoding_message_size(MAX_ANSWER_BYTES);
    let answer = tower::service_fn(|request: Request<In>| answer(request.into_inner()));

    let mut response = grpc.unary(answer, request).await;
    match response.extensions_mut().remove::<Arc<AnswerPermit>>() {
        Some(permit) => response.map(|body| permit.hold(body)),
        None => response,
    }
}
