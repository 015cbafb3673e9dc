//! Connections and responses.

use std::{convert::Infallible, io, net::TcpListener};

use http_body_util::{BodyExt as _, channel::Channel};
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Bytes},
    header::{CONTENT_TYPE, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    runtime::Handle,
    select,
    task::{AbortHandle, JoinSet},
};

use crate::status::{Answer, AnswerBody};

/// The error of a response body that is cut off.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
pub struct Cut;

/// The body of a response.
pub(crate) type Body = Channel<Bytes, Cut>;
/// The sending end of a body.
pub(crate) type BodySender = http_body_util::channel::Sender<Bytes, Cut>;

/// A request whose body has been received.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    /// As it was sent.
    pub(crate) query: String,
    /// Whether only the metadata of objects is requested.
    pub(crate) metadata_only: bool,
    pub(crate) body: Bytes,
}

/// Serves connections until the task is aborted, which closes them, or the runtime ends. `answer` returns the response
/// to each request.
pub(crate) fn serve<F>(
    listener: TcpListener,
    runtime: &Handle,
    answer: impl Fn(ApiRequest) -> F + Clone + Send + Sync + 'static,
) -> io::Result<AbortHandle>
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    listener.set_nonblocking(true)?;
    let _inside = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let serving = runtime.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let stream = select! {
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(_) => return,
                },
            };
            // Only costs latency if it fails.
            let _ = stream.set_nodelay(true);
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answer = answer.clone();
                async move { Ok::<_, Infallible>(answer(ApiRequest::receive(request).await).await) }
            });
            connections.spawn(async move {
                // Fails with every body that is cut off.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok(serving.abort_handle())
}

// === impl ApiRequest ===

impl ApiRequest {
    pub(crate) async fn receive(request: Request<impl HttpBody>) -> Self {
        let (head, body) = request.into_parts();
        let accept = head.headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            metadata_only: accept.contains("as=PartialObjectMetadata"),
            // An incomplete body does not parse.
            body: body.collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
        }
    }

    /// The value of a parameter; empty if absent.
    pub(crate) fn parameter(&self, name: &str) -> String {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(found, _)| found == name).map_or_else(String::new, |(_, value)| value.into_owned())
    }

    /// Whether a parameter is `true` or `1`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.parameter(name).as_str(), "true" | "1")
    }
}

/// A complete response.
pub(crate) fn respond(answer: Answer) -> Response<Body> {
    let (kind, bytes) = match answer.body {
        AnswerBody::Json(text) => ("application/json", Bytes::from(text)),
        AnswerBody::Text(text) => ("text/plain; charset=utf-8", Bytes::from(text)),
    };
    let (mut sender, body) = Channel::new(1);
    sender.try_send(hyper::body::Frame::data(bytes)).expect("an empty channel");
    let mut response = Response::builder().status(answer.code).header(CONTENT_TYPE, kind);
    if let Some(seconds) = answer.retry_after {
        response = response.header(RETRY_AFTER, seconds);
    }
    response.body(body).expect("a valid response")
}

/// A response whose body follows.
pub(crate) fn stream() -> (BodySender, Response<Body>) {
    let (sender, body) = Channel::new(16);
    (sender, Response::builder().header(CONTENT_TYPE, "application/json").body(body).expect("a valid response"))
}
