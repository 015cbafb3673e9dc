//! What the client says, held against the rules.

use std::time::Duration;

use proto::{
    digest::DigestVector,
    model::{Ack, ClientMessage, Hello, Role, ServerMessage},
};
use tokio::time::{Instant, timeout};

use super::{LONGEST_BACKOFF, Played, Script, broken};
use crate::server::{Heard, Peer};

/// How much later than it says itself a client may have begun to apply, for clocks are coarse.
const APPLY_SLACK: Duration = Duration::from_secs(1);

impl Script<'_> {
    /// Waits for a stream and its Hello.
    pub(crate) async fn connect(&mut self) -> Played<Hello> {
        self.connect_at().await.map(|(hello, _)| hello)
    }

    /// The same; says when the stream began.
    pub(crate) async fn connect_at(&mut self) -> Played<(Hello, Instant)> {
        let patience = self.patience + LONGEST_BACKOFF;
        let Ok(Some(peer)) = timeout(patience, self.server.accept()).await else {
            return broken(format!("has not begun a stream within {patience:?}"));
        };
        let since = peer.since;
        (self.peer, self.acked) = (Some(peer), None);
        let hello = match self.hear(self.patience).await? {
            Some(ClientMessage::Hello(hello)) => hello,
            Some(other) => return broken(format!("says {} first, and not Hello", name(&other))),
            None => return broken(format!("has not said Hello within {:?}", self.patience)),
        };
        self.check_hello(&hello)?;
        Ok((hello, since))
    }

    fn check_hello(&mut self, hello: &Hello) -> Played<()> {
        if *hello.node != *self.node {
            return broken(format!("says Hello for node {:?}, and not {:?}", hello.node, self.node));
        }
        if hello.role != Role::Backend {
            return broken("says that it only observes");
        }
        if hello.backend.is_empty() {
            return broken("does not say in Hello what its backend is called");
        }
        self.digests |= hello.digests.is_some();
        let Some((epoch, revision)) = hello.resume.filter(|(epoch, _)| *epoch == self.epoch) else {
            return Ok(());
        };
        match self.held {
            Some(held) if held == (epoch, revision) => {}
            Some((_, held)) => {
                return broken(format!("says in Hello that it holds revision {revision}, but it has acked {held}"));
            }
            None => {
                return broken(format!("says in Hello that it holds revision {revision}, but acked nothing"));
            }
        }
        match &hello.digests {
            Some(digests) if **digests != self.state.digests() => broken(format!(
                "says digests in Hello that are not those of revision {revision}, which it says it holds"
            )),
            _ => Ok(()),
        }
    }

    /// Waits for the Ack of what was sent last.
    pub(crate) async fn ack(&mut self) -> Played<Ack> {
        self.ack_with(Digested::AsCommitted).await
    }

    /// The same, where the digest may or must not be looked at.
    pub(crate) async fn ack_with(&mut self, digested: Digested) -> Played<Ack> {
        let (revision, deadline) = (self.revision, Instant::now() + self.patience);
        let ack = loop {
            match self.hear(deadline.saturating_duration_since(Instant::now())).await? {
                None => {
                    return broken(format!("has not acked revision {revision} within {:?}", self.patience));
                }
                Some(ClientMessage::Ack(ack)) if ack.revision == revision => break ack,
                Some(ClientMessage::Ack(ack)) if self.acked == Some(ack.revision) => {}
                Some(ClientMessage::Ack(ack)) => {
                    return broken(format!("has acked revision {}, but {revision} was sent", ack.revision));
                }
                Some(other) => return broken(format!("says {} instead of an Ack", name(&other))),
            }
        };
        (self.acked, self.held) = (Some(revision), Some((self.epoch, revision)));
        let took = self.sent.elapsed();
        if ack.apply_time > took + APPLY_SLACK {
            return broken(format!("says that applying took {:?}, {took:?} after the commit was sent", ack.apply_time));
        }
        if let Some(failure) = ack.failures.iter().find(|failure| !self.state.has(&failure.key)) {
            return broken(format!("could not program {}, of which it was told nothing", failure.key));
        }
        match ack.digest {
            None if self.digests => return broken("acks without a digest, though it has sent one before"),
            None => {}
            Some(digest) if digested == Digested::AsCommitted && digest != self.digest() => {
                let right = self.digest().0;
                return broken(format!(
                    "acks revision {revision} with digest {:016x}, but what was committed has {right:016x}",
                    digest.0
                ));
            }
            Some(_) => self.digests = true,
        }
        self.compare(&ack).await?;
        Ok(ack)
    }

    /// Asks for the digest vector.
    pub(crate) async fn ask_digests(&mut self) -> Played<Box<DigestVector>> {
        self.say(ServerMessage::DigestRequest).await;
        match self.hear(self.patience).await? {
            Some(ClientMessage::DigestResponse(revision, digests)) if revision == self.revision => Ok(digests),
            Some(ClientMessage::DigestResponse(revision, _)) => {
                broken(format!("sends the digests of revision {revision}, but it holds {}", self.revision))
            }
            Some(other) => broken(format!("says {} instead of Digests", name(&other))),
            None => broken(format!("has not sent its digests within {:?}", self.patience)),
        }
    }

    /// Nothing must be said for a while, but for a repeated Ack.
    pub(crate) async fn quiet(&mut self, during: Duration, why: &str) -> Played<()> {
        let deadline = Instant::now() + during;
        loop {
            match self.hear(deadline.saturating_duration_since(Instant::now())).await? {
                None => return Ok(()),
                Some(ClientMessage::Ack(ack)) if self.acked == Some(ack.revision) => {}
                Some(other) => return broken(format!("says {} {why}", name(&other))),
            }
        }
    }

    /// The client must end the stream; what it says until then must be no Ack of anything new.
    pub(crate) async fn ended(&mut self, within: Duration, why: &str) -> Played<()> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(peer) = &mut self.peer else { return Ok(()) };
            match timeout(left, peer.hear()).await {
                Err(_) => return broken(format!("has not ended the stream within {within:?} {why}")),
                Ok(Heard::Ended) => {
                    self.peer = None;
                    return Ok(());
                }
                Ok(Heard::Unreadable(what)) => return broken(format!("says what cannot be read: {what}")),
                Ok(Heard::Event(event)) => match *event {
                    ClientMessage::Ack(ack) if self.acked == Some(ack.revision) => {}
                    other => {
                        return broken(format!("says {} {why}, and does not end the stream", name(&other)));
                    }
                },
            }
        }
    }

    /// The next event; `None` when there is none for so long. The end of the stream is against the rules here.
    async fn hear(&mut self, within: Duration) -> Played<Option<ClientMessage>> {
        let Some(peer) = &mut self.peer else { return broken("has no stream") };
        match timeout(within, Peer::hear(peer)).await {
            Err(_) => Ok(None),
            Ok(Heard::Event(event)) => Ok(Some(*event)),
            Ok(Heard::Unreadable(what)) => broken(format!("says what cannot be read: {what}")),
            Ok(Heard::Ended) => {
                self.peer = None;
                broken("has ended the stream")
            }
        }
    }
}

/// What the digest of an Ack is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digested {
    /// What was committed.
    AsCommitted,
    /// Nothing: a client may hash what it does not know, or not.
    Anyhow,
}

/// How people call it.
fn name(event: &ClientMessage) -> String {
    match event {
        ClientMessage::Hello(_) => "a second Hello".to_owned(),
        ClientMessage::Ack(ack) => format!("an Ack of revision {}", ack.revision),
        ClientMessage::DigestResponse(..) => "Digests that nobody has asked for".to_owned(),
    }
}
