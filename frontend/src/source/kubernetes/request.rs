//! Requests to the API for one kind, each with a deadline: pages of a list, and watches as a sequence of whole events.
//!
//! The watcher of the `kube` crate is not used: it says nothing of bookmarks, which are how a quiet API shows that it is heard;
//! it goes on behind an event that it could not decode, and so loses it; it holds a page several times over; and it knows no way
//! back from a server without streaming lists.

use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, Status};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::Deadlines;
use super::decode::{Event, Page, Watchable};

/// How many objects a page has at most: what one answer costs the server, and us, in memory. As client-go has it.
const PAGE: u32 = 500;

/// How many objects are asked for where only the version of the list matters.
const PROBE: u32 = 1;

/// Why there is no answer, or no whole one.
#[derive(Debug, Error)]
pub(super) enum RequestError {
    /// By the status of the answer, or by an ERROR event in a watch.
    #[error("{} ({})", .0.message, .0.code)]
    Refused(Box<Status>),
    /// Not an answer at all: no connection, no certificate, no token.
    #[error("no answer: {0}")]
    NoAnswer(Box<kube::Error>),
    /// The deadline has passed.
    #[error("nothing whole has come for {0:?}")]
    Silent(Duration),
    /// The connection broke.
    #[error("the answer broke off: {0}")]
    BrokenOff(#[from] io::Error),
    /// The answer ended in the middle of an event.
    #[error("the watch was cut in the middle of an event")]
    Cut,
    /// Something else than a list or an event of this kind.
    #[error("not what was asked for: {0}")]
    Undecodable(#[from] serde_json::Error),
    /// The order of events is broken, so that nobody knows which of them are the newer ones.
    #[error("version {found} came after version {last}")]
    Backwards {
        /// EventChange had been reached.
        last: String,
        /// EventChange came then.
        found: String,
    },
    /// The server does not stream lists, although it has not refused to.
    #[error("the streaming list ended without saying that it was complete")]
    Unfinished,
    /// In order, but long before its time.
    #[error("the watch ended {0:?} after it had begun")]
    EndedEarly(Duration),
}

/// How one kind is asked for.
pub(super) struct Requests<K> {
    client: Client,
    path: Request,
    deadlines: Deadlines,
    kind: PhantomData<fn() -> K>,
}

/// From where a watch starts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start<'a> {
    /// With everything there is: a streaming list.
    Everything,
    /// Behind this version.
    Behind(&'a str),
}

/// A watch under way.
pub(super) struct Watch<K> {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    /// The line that is being read.
    line: Vec<u8>,
    begun: Instant,
    kind: PhantomData<fn() -> K>,
}

// === impl Requests ===

impl<K: Watchable> Requests<K> {
    pub(super) fn new(client: Client, deadlines: Deadlines) -> Self {
        Self { client, path: Request::new(K::url_path(&(), None)), deadlines, kind: PhantomData }
    }

    /// The first page, or the one that a token stands for.
    pub(super) async fn page(&self, token: Option<String>) -> Result<Page, RequestError> {
        self.up_to(PAGE, token).await
    }

    /// The version that the API has reached: the present one, not what some cache has.
    pub(super) async fn version(&self) -> Result<String, RequestError> {
        Ok(self.up_to(PROBE, None).await?.version)
    }

    async fn up_to(&self, limit: u32, token: Option<String>) -> Result<Page, RequestError> {
        let parameters = ListParams {
            label_selector: K::LABELS.map(str::to_owned),
            field_selector: K::FIELDS.map(str::to_owned),
            limit: Some(limit),
            continue_token: token,
            ..ListParams::default()
        };
        let request = self.path.list(&parameters).map_err(kube::Error::BuildRequest)?;
        let body = by(self.deadlines.answer, async {
            let mut stream = std::pin::pin!(self.client.request_stream(request).await?);
            let mut body = Vec::new();
            stream.read_to_end(&mut body).await?;
            Ok(body)
        });
        Ok(Page::decode::<K>(&body.await?)?)
    }

    /// Begins to watch.
    pub(super) async fn watch(&self, start: Start<'_>) -> Result<Watch<K>, RequestError> {
        let parameters = WatchParams {
            label_selector: K::LABELS.map(str::to_owned),
            field_selector: K::FIELDS.map(str::to_owned),
            timeout: Some(self.deadlines.watch_seconds),
            bookmarks: true,
            send_initial_events: matches!(start, Start::Everything),
        };
        let version = match start {
            // As new as can be, not what some cache has.
            Start::Everything => "",
            Start::Behind(version) => version,
        };
        let request = self.path.watch(&parameters, version).map_err(kube::Error::BuildRequest)?;
        let begun = Instant::now();
        let body = by(self.deadlines.answer, async { Ok(self.client.request_stream(request).await?) });
        Ok(Watch { body: Box::pin(body.await?), line: Vec::new(), begun, kind: PhantomData })
    }
}

async fn by<T>(deadline: Duration, answer: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
    timeout_at(Instant::now() + deadline, answer).await.unwrap_or(Err(RequestError::Silent(deadline)))
}

// === impl Watch ===

impl<K: Watchable> Watch<K> {
    /// The next event; `None` when the server has ended the watch in order. After that, and after an error, it is of no more use.
    pub(super) async fn next(&mut self, deadline: Duration) -> Result<Option<Event>, RequestError> {
        self.line.clear();
        let length = by(deadline, async { Ok(self.body.read_until(b'\n', &mut self.line).await?) }).await?;
        match self.line.last() {
            None if length == 0 => Ok(None),
            Some(b'\n') => Event::decode::<K>(&self.line)?.map(Some).map_err(RequestError::Refused),
            _ => Err(RequestError::Cut),
        }
    }

    /// For how long it has been under way.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }
}

// === impl RequestError ===

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            error => Self::NoAnswer(Box::new(error)),
        }
    }
}

impl RequestError {
    /// The version to watch from is of no use to the server (any more), so that everything must be listed anew: 410 Gone, 400 for
    /// one that it cannot read, 504 for one of its future; or the order is broken.
    pub(super) fn needs_list(&self) -> bool {
        matches!(self.code(), Some(400 | 410 | 504)) || matches!(self, Self::Backwards { .. })
    }

    /// The kind is not known to the server, or we may not read it.
    pub(super) fn is_not_offered(&self) -> bool {
        matches!(self.code(), Some(403 | 404))
    }

    /// The server knows no streaming lists. Kubernetes before 1.32 refuses the parameters as invalid (422); something in between
    /// that does not pass them on makes the last event fail to appear.
    pub(super) fn is_of_no_streaming(&self) -> bool {
        matches!(self.code(), Some(400 | 405 | 406 | 415 | 422 | 501)) || matches!(self, Self::Unfinished)
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            _ => None,
        }
    }
}
