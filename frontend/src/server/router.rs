//! Dispatches calls by their path. tonic implements gRPC, except for the response body of `Watch` (`watch`).

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{HeaderValue, header::CONTENT_TYPE};
use proto::{MAX_MESSAGE_BYTES, encoded::ServerCodec};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::Codec,
    metadata::GRPC_CONTENT_TYPE,
    server::{Grpc, NamedService},
};
use tonic_prost::ProstCodec;

use super::FairleadService;

const WATCH: &str = "/fairlead.v1.Fairlead/Watch";
const STATUS: &str = "/fairlead.v1.Fairlead/Status";
const ENDPOINTS: &str = "/fairlead.v1.Fairlead/Endpoints";
/// The header that names the compression of the client's messages, and its value for none.
const ENCODING: &str = "grpc-encoding";
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

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
            Ok(match request.uri().path() {
                WATCH => watch(&service, request).await.unwrap_or_else(Status::into_http),
                STATUS => unary(request, |request| service.status(request)).await,
                ENDPOINTS => unary(request, |request| service.endpoints(request)).await,
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
    let messages = service.watch(Request::from_http(request.map(decode))).await?;
    let mut response = http::Response::new(Body::new(messages));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    Ok(response)
}

async fn unary<In, Out, F>(request: http::Request<Body>, answer: impl Fn(Request<In>) -> F) -> http::Response<Body>
where
    ProstCodec<Out, In>: Codec<Encode = Out, Decode = In> + Default,
    F: Future<Output = Result<Response<Out>, Status>>,
{
    let mut grpc = Grpc::new(ProstCodec::<Out, In>::default()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.unary(tower::service_fn(answer), request).await
}
