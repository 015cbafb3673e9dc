//! Dispatches calls by their path. tonic implements gRPC, except for the response body of `Watch` (`watch_body`).

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{HeaderValue, header::CONTENT_TYPE};
use proto::{MAX_MESSAGE_BYTES, encoded::ServerCodec};
use tonic::{
    Request, Status, Streaming,
    body::Body,
    codec::Codec as _,
    metadata::GRPC_CONTENT_TYPE,
    server::{Grpc, NamedService},
};
use tonic_prost::ProstCodec;

use super::{FairleadService, watch_body::WatchBody};

const WATCH: &str = "/fairlead.v1.Fairlead/Watch";
const STATUS: &str = "/fairlead.v1.Fairlead/Status";
const ENDPOINTS: &str = "/fairlead.v1.Fairlead/Endpoints";
/// The header that names the compression of the client's messages, and its value for none.
const ENCODING: &str = "grpc-encoding";
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The gRPC service as a tower service.
#[derive(Clone, Debug)]
pub(super) struct CallRouter(Arc<FairleadService>);

impl CallRouter {
    pub(super) fn new(service: FairleadService) -> Self {
        Self(Arc::new(service))
    }
}

impl NamedService for CallRouter {
    const NAME: &'static str = "fairlead.v1.Fairlead";
}

impl tower::Service<http::Request<Body>> for CallRouter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                WATCH => watch(&service, request).await.unwrap_or_else(Status::into_http),
                STATUS => status(service, request).await,
                ENDPOINTS => endpoints(service, request).await,
                _ => Status::unimplemented("unknown method").into_http(),
            })
        })
    }
}

async fn watch(service: &FairleadService, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
    if request.headers().get(ENCODING).is_some_and(|encoding| encoding != IDENTITY) {
        return Err(Status::unimplemented("compressed messages are not supported: send them uncompressed"));
    }
    let decode = |body| Streaming::new_request(ServerCodec.decoder(), body, None, Some(MAX_MESSAGE_BYTES));
    let answers = service.watch(Request::from_http(request.map(decode))).await?;
    let mut response = http::Response::new(Body::new(WatchBody::new(answers)));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    Ok(response)
}

async fn status(service: Arc<FairleadService>, request: http::Request<Body>) -> http::Response<Body> {
    let answer = tower::service_fn(move |request| {
        let service = service.clone();
        async move { service.status(request).await }
    });
    let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.unary(answer, request).await
}

async fn endpoints(service: Arc<FairleadService>, request: http::Request<Body>) -> http::Response<Body> {
    let answer = tower::service_fn(move |request| {
        let service = service.clone();
        async move { service.endpoints(request).await }
    });
    let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.unary(answer, request).await
}
