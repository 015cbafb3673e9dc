//! Waits for messages of the client, and checks them against the rules.

use std::time::Duration;

use proto::{
    digest::{Digest, DigestVector},
    model::{Ack, ClientMessage, Hello, Revision, Role, ServerMessage},
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{MAX_BACKOFF, Outcome, ScriptedFrontend, violation};
use crate::drains::DrainsStream;

/// Tolerance for `apply_micros`, which must not exceed the time between commit and Ack.
const APPLY_TIME_TOLERANCE: Duration = Duration::from_secs(1);
/// The number of Acks that a client may repeat on a stream at once, and per second after that (rule 12).
const REPEATED_ACKS: u64 = 64;
const REPEATED_ACKS_PER_SECOND: u64 = 10;

impl ScriptedFrontend<'_> {
    /// Waits for a stream and its Hello.
    pub(crate) async fn expect_hello(&mut self) -> Outcome<Hello> {
        self.expect_stream().await.map(|(hello, _)| hello)
    }

    /// Waits for a stream and its Hello, and returns when the stream was opened.
    pub(crate) async fn expect_stream(&mut self) -> Outcome<(Hello, Instant)> {
        let patience = self.patience + MAX_BACKOFF;
        let accepted = tokio::select! {
            biased;
            accepted = timeout(patience, self.server.accept()) => accepted,
            () = self.backend.failed() => return violation("did not open a stream"),
        };
        let Ok(Some(stream)) = accepted else {
            return violation(format!("did not open a stream within {patience:?}"));
        };

        let opened = stream.opened;
        self.stream = Some(stream);
        self.acked_number = 0;
        self.repeated_acks = 0;

        let hello = match self.next_message(self.patience).await? {
            Some(ClientMessage::Hello(hello)) => hello,
            Some(other) => return violation(format!("sent {} before Hello", describe(&other))),
            None => return violation(format!("did not send Hello within {:?}", self.patience)),
        };
        self.check_hello(&hello)?;
        Ok((hello, opened))
    }

    /// Waits for a stream of `Drains`; `None` after a timeout.
    pub(crate) async fn expect_drains(&mut self, within: Duration) -> Outcome<Option<DrainsStream>> {
        match timeout(within, self.server.accept_drains()).await {
            Ok(Some(stream)) if stream.node != *self.node => {
                violation(format!("called Drains for node {:?} instead of {:?}", stream.node, self.node))
            }
            Ok(stream) => Ok(stream),
            Err(_) => Ok(None),
        }
    }

    fn check_hello(&mut self, hello: &Hello) -> Outcome<()> {
        if *hello.node != *self.node {
            return violation(format!("sent Hello for node {:?} instead of {:?}", hello.node, self.node));
        }
        if let Err(error) = hello.check_version() {
            return violation(format!("sent Hello, but there is no common protocol version: {error}"));
        }
        if hello.role != Role::Backend {
            return violation("sent Hello with another role than ROLE_BACKEND");
        }
        if hello.backend.is_empty() {
            return violation("sent Hello with an empty field `backend`");
        }

        self.has_digests |= hello.digests.is_some();
        match hello.resume {
            Some((epoch, revision)) if epoch == self.epoch => self.check_resume(hello, revision),
            _ => Ok(()),
        }
    }

    /// Checks a Hello that resumes in the current epoch.
    fn check_resume(&self, hello: &Hello, revision: Revision) -> Outcome<()> {
        match self.last_ack {
            Some(acked) if acked == (self.epoch, revision) => {}
            Some((_, acked)) => {
                return violation(format!("sent Hello with revision {revision}, but has acked {acked}"));
            }
            None => return violation(format!("sent Hello with revision {revision}, but has acked nothing")),
        }
        match &hello.digests {
            Some(digests) if **digests != *self.state.digests() => {
                violation(format!("sent Hello with digests that are not those of its revision {revision}"))
            }
            _ => Ok(()),
        }
    }

    /// Waits until the commit or bookmark in flight is acked and programmed.
    pub(crate) async fn expect_ack(&mut self) -> Outcome<Ack> {
        self.expect_ack_with(Some(self.digest())).await
    }

    /// Waits until the commit or bookmark in flight is acked and programmed. `None`: its digest is not checked.
    pub(crate) async fn expect_ack_with(&mut self, expected: Option<Digest>) -> Outcome<Ack> {
        let number = self.acked_number + 1;
        let revision = self.revision;
        let deadline = Instant::now() + self.patience;
        loop {
            let ack = match self.receive(deadline).await? {
                None if self.acked_number == number => {
                    return violation(format!("did not program revision {revision} within {:?}", self.patience));
                }
                None => return violation(format!("did not ack revision {revision} within {:?}", self.patience)),
                Some(ClientMessage::Ack(ack)) if ack.received_number == number => ack,
                Some(message) => {
                    if self.is_repeated_ack(&message)? {
                        continue;
                    }
                    return violation(match message {
                        ClientMessage::Ack(ack) => {
                            format!("acked number {}, but {number} was sent", ack.received_number)
                        }
                        other => format!("sent {} instead of an Ack", describe(&other)),
                    });
                }
            };

            let is_programmed = ack.programmed_number == number;
            // The Ack that says that everything is programmed is not limited, because there is one for each revision.
            if self.acked_number == number && !is_programmed {
                self.count_repeated_ack()?;
            }
            self.acked_number = number;
            self.last_ack = Some((self.epoch, revision));

            self.check_ack(&ack)?;
            // Contents first, because a digest does not tell what differs.
            if is_programmed {
                self.check_programmed(&ack).await?;
            }
            self.check_digest(&ack, expected)?;
            if is_programmed {
                return Ok(ack);
            }
        }
    }

    fn check_ack(&self, ack: &Ack) -> Outcome<()> {
        let apply_time = ack.apply_time;
        let elapsed = self.sent_at.elapsed();
        if apply_time > elapsed + APPLY_TIME_TOLERANCE {
            return violation(format!(
                "sent an Ack with an apply time of {apply_time:?}, {elapsed:?} after the commit"
            ));
        }
        if let Some(failure) = ack.failures.iter().find(|failure| self.state.service_port(&failure.key).is_none()) {
            return violation(format!("reported a failure of {}, which is not in the committed state", failure.key));
        }
        Ok(())
    }

    fn check_digest(&mut self, ack: &Ack, expected: Option<Digest>) -> Outcome<()> {
        match (ack.digest, expected) {
            (None, _) if self.has_digests => violation("sent an Ack without a digest, after messages with digests"),
            (Some(digest), Some(expected)) if digest != expected => violation(format!(
                "acked revision {} with digest {:016x}, but that of the committed state is {:016x}",
                self.revision, digest.0, expected.0
            )),
            _ => {
                self.has_digests |= ack.digest.is_some();
                Ok(())
            }
        }
    }

    /// Sends a DigestRequest, and waits for the response.
    pub(crate) async fn request_digests(&mut self) -> Outcome<Box<DigestVector>> {
        self.send(ServerMessage::DigestRequest).await;
        match self.next_message(self.patience).await? {
            Some(ClientMessage::DigestResponse(revision, digests)) if revision == self.revision => Ok(digests),
            Some(ClientMessage::DigestResponse(revision, _)) => {
                violation(format!("sent the digests of revision {revision}, but has committed {}", self.revision))
            }
            Some(other) => violation(format!("sent {} instead of a DigestResponse", describe(&other))),
            None => violation(format!("did not send a DigestResponse within {:?}", self.patience)),
        }
    }

    /// Waits, and expects no message but repetitions of the last Ack.
    pub(crate) async fn expect_quiet(&mut self, period: Duration, when: &str) -> Outcome<()> {
        match self.next_message(period).await? {
            None => Ok(()),
            Some(other) => violation(format!("sent {} {when}", describe(&other))),
        }
    }

    /// Expects the client to end the stream, without any message but repetitions of the last Ack.
    pub(crate) async fn expect_end(&mut self, within: Duration, when: &str) -> Outcome<()> {
        match self.next_message(within).await {
            Err(_) if self.stream.is_none() => Ok(()),
            Err(deviation) => Err(deviation),
            Ok(None) => violation(format!("did not end the stream within {within:?} {when}")),
            Ok(Some(other)) => violation(format!("sent {} {when}, and did not end the stream", describe(&other))),
        }
    }

    /// The next message that is not a repetition of the last Ack; `None` after a timeout.
    async fn next_message(&mut self, within: Duration) -> Outcome<Option<ClientMessage>> {
        let deadline = Instant::now() + within;
        loop {
            let Some(message) = self.receive(deadline).await? else { return Ok(None) };
            if !self.is_repeated_ack(&message)? {
                return Ok(Some(message));
            }
        }
    }

    /// The next message; `None` after a timeout. The end of the stream is a violation here.
    async fn receive(&mut self, deadline: Instant) -> Outcome<Option<ClientMessage>> {
        let Some(stream) = &mut self.stream else { return violation("has no stream") };
        match timeout_at(deadline, stream.receive()).await {
            Err(_) => Ok(None),
            Ok(Ok(Some(message))) => Ok(Some(message)),
            Ok(Err(error)) => violation(format!("sent an invalid message: {error}")),
            Ok(Ok(None)) => {
                self.stream = None;
                violation("ended the stream")
            }
        }
    }

    /// Whether a message is a repetition of the last Ack, of which there must not be too many.
    fn is_repeated_ack(&mut self, message: &ClientMessage) -> Outcome<bool> {
        match message {
            ClientMessage::Ack(ack) if self.acked_number == ack.received_number => {
                self.count_repeated_ack()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Counts from the start of the stream, because messages may have waited here.
    fn count_repeated_ack(&mut self) -> Outcome<()> {
        self.repeated_acks += 1;
        let since = self.stream.as_ref().map(|stream| stream.opened.elapsed()).unwrap_or_default();
        let allowed = REPEATED_ACKS + REPEATED_ACKS_PER_SECOND * (since.as_secs() + 1);
        if self.repeated_acks <= allowed {
            return Ok(());
        }
        violation(format!(
            "has repeated Acks {} times within {since:.1?}: the limit is {REPEATED_ACKS} at once, then \
             {REPEATED_ACKS_PER_SECOND} per second",
            self.repeated_acks
        ))
    }
}

fn describe(message: &ClientMessage) -> String {
    match message {
        ClientMessage::Hello(_) => "a second Hello".to_owned(),
        ClientMessage::Ack(ack) => format!("an Ack of number {}", ack.received_number),
        ClientMessage::DigestResponse(..) => "a DigestResponse without a request".to_owned(),
    }
}
