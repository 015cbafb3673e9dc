//! Requests to the API server for one kind, each with a deadline: pages of a list, and watches as a sequence of whole
//! events.
//!
//! The watcher of the `kube` crate is not used. It hides bookmarks, which show that a quiet API server still delivers;
//! it skips an event that does not decode, and so loses it; it holds a page several times in memory; and it cannot fall
//! back from streaming lists to pages.

use std::{
    error::Error,
    fmt, io,
    marker::PhantomData,
    pin::{Pin, pin},
    time::Duration,
};

use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use kube::{
    api::{ListParams, WatchParams},
    core::{Request, Status, request::Error as BuildError},
};
use thiserror::Error;
use tokio::time::{Instant, timeout};

use super::{
    Deadlines,
    advice::advice,
    api::KubernetesApi,
    decode::{Page, WatchEvent, Watchable, decode_metadata},
    versions::ObjectVersions,
};
use crate::excerpt::excerpt;

/// The most objects of a page: what one response costs the server, and this process, in memory. client-go uses the
/// same.
pub(super) const PAGE_OBJECTS: u32 = 500;

/// The most bytes of a page or an event. A page has some MiB, and etcd stores objects of up to 1.5 MiB; pages of larger
/// objects are requested with fewer of them.
pub(super) const MAX_RESPONSE_BYTES: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// The most that `Retry-After` of a response delays the next request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Why a request has no response, or no complete one.
#[derive(Debug, Error)]
pub(super) enum RequestError {
    /// An error status, of the response or of an ERROR event in a watch, and the header `Retry-After`, in seconds.
    #[error("{} ({})", message(.0), .0.code)]
    Refused(Box<Status>, Option<u32>),
    /// No response: no connection, or no credentials to send.
    #[error(transparent)]
    NoResponse(NoResponse),
    /// The deadline for this has passed.
    #[error("no complete {0} within {1:?}")]
    TimedOut(&'static str, Duration),
    /// A page, even with one object, or an event.
    #[error("a page or an event has more than {} MiB", MAX_RESPONSE_BYTES >> 20)]
    TooLarge,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The response ended in the middle of an event.
    #[error("the connection ended in the middle of an event")]
    Cut,
    /// A web page in place of JSON.
    #[error("the response is an HTML page")]
    Html,
    /// Something else than a list or an event of this kind.
    #[error("unexpected response: {0}")]
    Undecodable(#[from] serde_json::Error),
    /// Versions went back, so that it is unknown which events are the newer ones.
    #[error("resourceVersion {found} came after {last}")]
    Backwards { last: String, found: String },
    /// A comparison with the server has shown changes that the watch did not deliver.
    #[error("the watch has not delivered changes of {0} objects")]
    Missed(usize),
    /// The server does not stream lists, although it did not refuse to.
    #[error("the streaming list has no final bookmark")]
    Unfinished,
    /// The server ended the watch in order, but long before its timeout.
    #[error("the watch ended after {0:?}")]
    EndedEarly(Duration),
}

/// A request that got no response. Its source is the innermost error that says more.
#[derive(Debug)]
pub(super) struct NoResponse {
    /// `host:port`.
    server: String,
    error: Box<kube::Error>,
}

/// Requests for one kind.
pub(super) struct Requests<K> {
    api: KubernetesApi,
    path: Request,
    deadlines: Deadlines,
    kind: PhantomData<fn() -> K>,
}

pub(super) struct Watch {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    /// The line that is being read.
    line: Vec<u8>,
    pub(super) started: Instant,
}

impl<K: Watchable> Requests<K> {
    pub(super) fn new(api: KubernetesApi, deadlines: Deadlines) -> Self {
        Self { api, path: Request::new(K::url_path(&(), None)), deadlines, kind: PhantomData }
    }

    /// The current version of the API server, not that of its cache: a list of one object has it.
    pub(super) async fn version(&self) -> Result<String, RequestError> {
        Ok(self.page(&mut 1, None).await?.version)
    }

    /// The first page, or the one of a `continue` token, with up to `limit` objects. Lowers the limit as
    /// [`Self::body`] does.
    pub(super) async fn page(&self, limit: &mut u32, token: Option<String>) -> Result<Page, RequestError> {
        let request = |limit| self.path.list(&list_parameters::<K>(limit, token.clone()));
        let body = self.body(limit, request).await?;
        Page::decode::<K>(&body).map_err(|error| undecodable(&body, error))
    }

    /// The current version of each object, without the objects.
    pub(super) async fn object_versions(&self) -> Result<ObjectVersions, RequestError> {
        let pages = async {
            let mut versions = ObjectVersions::default();
            let mut token = None;
            let mut limit = PAGE_OBJECTS;
            loop {
                let request = |limit| self.path.list_metadata(&list_parameters::<K>(limit, token.clone()));
                let body = self.body(&mut limit, request).await?;
                token = decode_metadata(&body, &mut versions).map_err(|error| undecodable(&body, error))?;
                if token.is_none() {
                    return Ok(versions);
                }
            }
        };
        with_deadline("list", self.deadlines.list, pages).await
    }

    /// The whole body of a page. A page that is too large is requested again with fewer objects, and the pages after it
    /// have the same limit.
    async fn body(
        &self,
        limit: &mut u32,
        request: impl Fn(u32) -> Result<http::Request<Vec<u8>>, BuildError>,
    ) -> Result<Vec<u8>, RequestError> {
        loop {
            let request = request(*limit).map_err(kube::Error::BuildRequest);
            let body = with_deadline("response", self.deadlines.response, self.send(request)).await?;
            if body.len() <= MAX_RESPONSE_BYTES {
                return Ok(body);
            }
            if *limit == 1 {
                return Err(RequestError::TooLarge);
            }
            *limit = (*limit / 8).max(1);
        }
    }

    /// Sends a request, and reads the body of the response up to one byte more than accepted.
    async fn send(&self, request: kube::Result<http::Request<Vec<u8>>>) -> Result<Vec<u8>, RequestError> {
        let stream = pin!(self.api.send(request).await?);
        let mut body = Vec::new();
        stream.take(MAX_RESPONSE_BYTES as u64 + 1).read_to_end(&mut body).await?;
        Ok(body)
    }

    /// Starts a watch after a version. Without one, all objects come first, as a streaming list.
    pub(super) async fn watch(&self, after: Option<&str>) -> Result<Watch, RequestError> {
        let parameters = WatchParams {
            label_selector: K::LABEL_SELECTOR.map(str::to_owned),
            field_selector: K::FIELD_SELECTOR.map(str::to_owned),
            timeout: u32::try_from(self.deadlines.watch.as_secs()).ok(),
            bookmarks: true,
            send_initial_events: after.is_none(),
        };
        // The empty version stands for the newest, not that of the server's cache.
        let request = self.path.watch(&parameters, after.unwrap_or_default()).map_err(kube::Error::BuildRequest);

        let started = Instant::now();
        let body = with_deadline("response", self.deadlines.response, self.api.send(request)).await?;
        Ok(Watch { body: Box::pin(body), line: Vec::new(), started })
    }

    /// What to do about an error of these requests, if that is known.
    pub(super) fn advice(&self, error: &RequestError) -> Option<String> {
        let resource = format!("{}.{}", K::plural(&()), K::group(&()));
        // The core group has no name.
        advice(error, &self.api.settings, resource.trim_end_matches('.'), K::SINCE)
    }
}

/// The selected objects of a kind, up to `limit`.
fn list_parameters<K: Watchable>(limit: u32, token: Option<String>) -> ListParams {
    ListParams {
        label_selector: K::LABEL_SELECTOR.map(str::to_owned),
        field_selector: K::FIELD_SELECTOR.map(str::to_owned),
        limit: Some(limit),
        continue_token: token,
        ..ListParams::default()
    }
}

/// The response, if it is complete within this time. `what` names it in the error.
pub(super) async fn with_deadline<T>(
    what: &'static str,
    deadline: Duration,
    response: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    timeout(deadline, response).await.unwrap_or(Err(RequestError::TimedOut(what, deadline)))
}

impl Watch {
    /// The next event; `None` when the server has ended the watch in order. Not to be called after that, or after an
    /// error.
    pub(super) async fn next<K: Watchable>(&mut self, deadline: Duration) -> Result<Option<WatchEvent>, RequestError> {
        let Self { body, line, .. } = self;
        line.clear();
        let mut body = body.as_mut().take(MAX_RESPONSE_BYTES as u64 + 1);
        let length = with_deadline("event", deadline, async { Ok(body.read_until(b'\n', line).await?) }).await?;

        match line.last() {
            None if length == 0 => Ok(None),
            Some(b'\n') => {
                let event = WatchEvent::decode::<K>(line).map_err(|error| undecodable(line, error))?;
                Ok(Some(event))
            }
            _ if length > MAX_RESPONSE_BYTES => Err(RequestError::TooLarge),
            _ if is_web_page(&String::from_utf8_lossy(line)) => Err(RequestError::Html),
            _ => Err(RequestError::Cut),
        }
    }
}

impl RequestError {
    /// An error of a request to `server`, `host:port`.
    pub(super) fn of(error: kube::Error, server: &str) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status, None),
            error => Self::NoResponse(NoResponse { server: server.to_owned(), error: Box::new(error) }),
        }
    }

    /// The server cannot watch from this version (any more), so that a new list is needed: 410 Gone, 400 for a version
    /// that it cannot parse, 504 for one of its future; or versions went back.
    pub(super) fn needs_list(&self) -> bool {
        matches!(self.code(), Some(400 | 410 | 504)) || matches!(self, Self::Backwards { .. })
    }

    /// The shortest delay that the server asks for: `Retry-After` of a throttled request (429) or an overloaded server.
    pub(super) fn retry_after(&self) -> Duration {
        let Self::Refused(status, header) = self else { return Duration::ZERO };
        let in_status = || status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(header.unwrap_or_else(in_status).into()).min(MAX_RETRY_AFTER)
    }

    /// The server does not serve the kind, or does not allow this request.
    pub(super) fn is_not_offered(&self) -> bool {
        matches!(self.code(), Some(403 | 404))
    }

    /// The server does not stream lists. Kubernetes before 1.32 rejects the parameters as invalid (422); a proxy that
    /// drops them makes the final bookmark fail to appear.
    pub(super) fn means_no_streaming(&self) -> bool {
        matches!(self.code(), Some(400 | 405 | 406 | 415 | 422 | 501)) || matches!(self, Self::Unfinished)
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status, _) => Some(status.code),
            _ => None,
        }
    }
}

/// Of an error response without a `Status`, kube makes one whose message is the body.
fn message(status: &Status) -> String {
    match &status.message {
        text if is_web_page(text) => "the response is an HTML page".to_owned(),
        text if text.is_empty() => "no message".to_owned(),
        text => excerpt(text).replace(char::is_control, " "),
    }
}

/// Whether a text is HTML, as proxies and web servers send it.
fn is_web_page(text: &str) -> bool {
    text.trim_start().starts_with('<')
}

fn undecodable(body: &[u8], error: impl Into<RequestError>) -> RequestError {
    if is_web_page(&String::from_utf8_lossy(body)) { RequestError::Html } else { error.into() }
}

impl NoResponse {
    /// The error of hyper that a connection could not be established, and the cause that it does not print.
    fn connect_error(&self) -> Option<&(dyn Error + 'static)> {
        let kube::Error::Service(error) = &*self.error else { return None };
        let error = error.downcast_ref::<hyper_util::client::legacy::Error>()?;
        if error.is_connect() { error.source() } else { None }
    }
}

impl fmt::Display for NoResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, error } = self;
        match **error {
            _ if self.connect_error().is_some() => write!(f, "connect {server}"),
            kube::Error::Auth(_) => write!(f, "credentials for {server}"),
            _ => write!(f, "request to {server}"),
        }
    }
}

impl Error for NoResponse {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &*self.error {
            _ if self.connect_error().is_some() => self.connect_error(),
            kube::Error::Auth(error) => Some(error),
            kube::Error::Service(error) => Some(&**error),
            error => Some(error),
        }
    }
}
