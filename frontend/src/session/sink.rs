//! Where the frames of a stream go, and the slot that its client may have meanwhile.

use std::time::Duration;

use runtime::Shutdown;
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, sleep_until},
};
use tracing::info;

use crate::outgoing::OutgoingMessage;

use super::{SessionEnd, rebuild_queue::RebuildPermit};

/// The sending side of a stream.
#[derive(Debug)]
pub(super) struct MessageSink {
    frames: mpsc::Sender<OutgoingMessage>,
    shutdown: Shutdown,
    slot: Option<RebuildPermit>,
}

impl MessageSink {
    pub(super) fn new(frames: mpsc::Sender<OutgoingMessage>, shutdown: Shutdown) -> Self {
        Self { frames, shutdown, slot: None }
    }

    /// Waits until the transport takes the frame, which may be as long as the client does not read. When that takes longer
    /// than its slot lasts, another client gets the slot.
    pub(super) async fn send(&mut self, frame: OutgoingMessage) -> Result<(), SessionEnd> {
        let frame = match self.frames.try_send(frame) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(SessionEnd::Gone),
            Err(TrySendError::Full(frame)) => frame,
        };
        let Self { frames, shutdown, slot } = self;
        let sending = frames.send(frame);
        tokio::pin!(sending);
        loop {
            let until = slot.as_ref().map(|slot| slot.until);
            tokio::select! {
                () = shutdown.recv() => return Err(SessionEnd::Stopping),
                sent = &mut sending => return sent.map_err(|_| SessionEnd::Gone),
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    info!("everything is taken too slowly, another client is admitted meanwhile");
                    *slot = None;
                }
            }
        }
    }

    /// Sends the frame if the transport takes it now.
    pub(super) fn try_send(&self, frame: OutgoingMessage) -> Result<(), SessionEnd> {
        match self.frames.try_send(frame) {
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(SessionEnd::Gone),
        }
    }

    /// As [`Self::send`], also while the process stops.
    pub(super) async fn send_last(&mut self, frame: OutgoingMessage) -> Result<(), SessionEnd> {
        self.slot = None;
        self.frames.send(frame).await.map_err(|_| SessionEnd::Gone)
    }

    /// What is sent from now on is a snapshot or a repair.
    pub(super) fn occupy(&mut self, slot: RebuildPermit) {
        self.slot = Some(slot);
    }

    /// Everything has been handed over, which does not mean that it has arrived: what is under way takes memory too. A client that
    /// has not acknowledged it within `patience` has it, or is slow, or dead.
    pub(super) fn release_within(&mut self, patience: Duration) {
        if let Some(slot) = &mut self.slot {
            slot.until = slot.until.min(Instant::now() + patience);
        }
    }

    /// The client has everything, or it need not have a slot any more.
    pub(super) fn release(&mut self) {
        self.slot = None;
    }

    /// Until when the client has a slot, if it has one.
    pub(super) fn slot_until(&self) -> Option<Instant> {
        self.slot.as_ref().map(|slot| slot.until)
    }

    /// Returns when nobody takes frames any more.
    pub(super) async fn closed(&self) {
        self.frames.closed().await;
    }

    /// Returns when there is no use in going on.
    pub(super) fn ended(&self) -> impl Future<Output = SessionEnd> + Send + use<> {
        let (mut shutdown, frames) = (self.shutdown.clone(), self.frames.clone());
        async move {
            tokio::select! {
                () = shutdown.recv() => SessionEnd::Stopping,
                () = frames.closed() => SessionEnd::Gone,
            }
        }
    }
}
