//! A client in the same process, as in `fairlead local`: no connection and no encoding, otherwise like any other
//! client.

use futures::{Stream, StreamExt as _};
use proto::{
    model::{ClientMessage, Hello, ServerMessage},
    v1,
};
use runtime::Shutdown;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::{
    Frontend,
    identity::Identity,
    server,
    session::{self, OutgoingMessage, QUEUED_MESSAGES},
};

impl Frontend {
    /// The messages of the call `Drains` for a node.
    ///
    /// # Errors
    /// When not all objects have been listed.
    pub fn drains(
        &self,
        node: &str,
        shutdown: Shutdown,
    ) -> Result<impl Stream<Item = v1::DrainLevels> + use<>, Status> {
        server::drains(self.context.clone(), node.into(), (), shutdown)
    }

    /// Starts a stream and returns its two ends: for the client's messages after Hello, and for the messages of the
    /// frontend.
    ///
    /// The stream ends when either is dropped, or at the shutdown.
    #[must_use]
    pub fn attach(
        &self,
        hello: Hello,
        shutdown: Shutdown,
    ) -> (mpsc::Sender<ClientMessage>, mpsc::Receiver<ServerMessage>) {
        let (to_session, from_client) = mpsc::channel(QUEUED_MESSAGES);
        let (outgoing, from_session) = mpsc::channel(QUEUED_MESSAGES);
        let (to_client, receiver) = mpsc::channel(1);
        let hello = futures::stream::iter([ClientMessage::Hello(hello)]);
        let input = hello.chain(ReceiverStream::new(from_client)).map(Ok);
        let session = session::run(self.context.clone(), Identity::Trusted, input, outgoing, shutdown);

        tokio::spawn(async move {
            // The session has logged its error.
            let _ = tokio::join!(session, forward(from_session, to_client));
        });
        (to_session, receiver)
    }
}

async fn forward(mut from_session: mpsc::Receiver<OutgoingMessage>, to_client: mpsc::Sender<ServerMessage>) {
    loop {
        let message = tokio::select! {
            () = to_client.closed() => return,
            message = from_session.recv() => message,
        };
        let Some(message) = message else { return };
        // Fails when the client has just disconnected, which the next iteration notices.
        let _ = to_client.send(message.into_message()).await;
    }
}
