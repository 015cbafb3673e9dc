//! What one client may take of the frontend: streams, how often it gets its state, a place in the queue of those that
//! are sent everything, and large answers.

mod answers;
mod per_client;
mod rate_limiter;
mod rebuild_queue;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use self::{
    answers::{AnswerClient, AnswerPermit, Answers},
    per_client::PerClient,
    rate_limiter::{RateLimiter, StreamPermit},
    rebuild_queue::{RebuildPermit, RebuildQueue},
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
