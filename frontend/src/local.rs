//! A client in the same process: no connection and no bytes, otherwise like any other.

use futures::StreamExt as _;
use proto::model::{ClientMessage, Hello, ServerMessage};
use runtime::Shutdown;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::{Frontend, identity::Identity, session};

/// How many messages wait for the client.
const MESSAGES: usize = 2;
/// How many messages wait for the session. A client has at most one ack under way.
const EVENTS: usize = 4;

impl Frontend {
    /// Starts a stream and gives its two ends: what the client says after its Hello, and what it is told.
    ///
    /// The stream ends when either is dropped, or at the shutdown; it needs no other owner.
    #[must_use]
    pub fn attach(
        &self,
        hello: Hello,
        shutdown: Shutdown,
    ) -> (mpsc::Sender<ClientMessage>, mpsc::Receiver<ServerMessage>) {
        let (events, inbox) = mpsc::channel(EVENTS);
        let (frames, mut outbox) = mpsc::channel(MESSAGES);
        let (updates, receiver) = mpsc::channel(1);
        let hello = futures::stream::iter([ClientMessage::Hello(hello)]);
        let input = hello.chain(ReceiverStream::new(inbox)).map(Ok);
        let session = session::run(self.shared.clone(), Identity::Trusted, input, frames, shutdown);
        tokio::spawn(async move {
            let forward = async move {
                loop {
                    let frame = tokio::select! {
                        () = updates.closed() => return,
                        frame = outbox.recv() => frame,
                    };
                    let Some(frame) = frame else { return };
                    // Fails when the client has gone just now, which is noticed above.
                    let _ = updates.send(frame.into_event()).await;
                }
            };
            // A broken rule has been logged by the session.
            let _ = tokio::join!(session, forward);
        });
        (events, receiver)
    }
}
