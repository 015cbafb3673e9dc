//! What one client may take of the frontend: streams, how often it gets its state, a place in the queue of those that
//! are sent everything, and large answers.

mod answers;
mod rate_limiter;
mod rebuild_queue;

pub(crate) use self::{
    answers::{AnswerClient, AnswerPermit, Answers},
    rate_limiter::{RateLimiter, StreamPermit},
    rebuild_queue::{RebuildPermit, RebuildQueue},
};
