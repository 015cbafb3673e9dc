//! The call `Drains`: hands each stream that a client opens to the scripted frontend.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{self, Poll},
};

use futures::future::BoxFuture;
use proto::v1::{DrainLevels, DrainsRequest};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    server::{Grpc, NamedService, ServerStreamingService},
};
use tonic_prost::ProstCodec;

const DRAINS: &str = "/fairlead.v1.Fairlead/Drains";

/// A stream of levels that a client has opened. Dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct DrainsStream {
    /// The node in the request.
    pub(crate) node: String,
    /// When the client opened it.
    pub(crate) opened: Instant,
    outgoing: mpsc::Sender<Result<DrainLevels, Status>>,
}

/// Serves `Drains`, and passes on all other calls.
#[derive(Clone, Debug)]
pub(crate) struct DrainsService<S> {
    others: S,
    streams: DrainsStreams,
}

/// Passes on the streams that clients open.
#[derive(Clone, Debug)]
struct DrainsStreams(mpsc::UnboundedSender<DrainsStream>);

// === impl DrainsStream ===

impl DrainsStream {
    pub(crate) async fn send(&self, levels: DrainLevels) {
        // Fails if the client has ended the stream, which `closed` shows.
        let _ = self.outgoing.send(Ok(levels)).await;
    }

    /// Returns when the client has ended the stream.
    pub(crate) async fn closed(&self) {
        self.outgoing.closed().await;
    }

    /// Ends the stream with an error.
    pub(crate) async fn fail(self, status: Status) {
        let _ = self.outgoing.send(Err(status)).await;
    }
}

// === impl DrainsService ===

impl<S> DrainsService<S> {
    pub(crate) fn new(others: S, streams: mpsc::UnboundedSender<DrainsStream>) -> Self {
        Self { others, streams: DrainsStreams(streams) }
    }
}

impl<S: NamedService> NamedService for DrainsService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for DrainsService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), Infallible>> {
        self.others.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != DRAINS {
            return Box::pin(self.others.call(request));
        }

        let streams = self.streams.clone();
        let codec = ProstCodec::<DrainLevels, DrainsRequest>::default();
        Box::pin(async move { Ok(Grpc::new(codec).server_streaming(streams, request).await) })
    }
}

impl ServerStreamingService<DrainsRequest> for DrainsStreams {
    type Response = DrainLevels;
    type ResponseStream = ReceiverStream<Result<DrainLevels, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<DrainsRequest>) -> Self::Future {
        let (outgoing, levels) = mpsc::channel(1);
        let stream = DrainsStream { node: request.into_inner().node, opened: Instant::now(), outgoing };
        let sent = self.0.send(stream).map_err(|_| Status::unavailable("the protocol test has finished"));
        ready(sent.map(|()| Response::new(ReceiverStream::new(levels))))
    }
}
