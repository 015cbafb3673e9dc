//! A value that is expensive to compute, once per second for all clients that ask for it.

use std::{sync::Mutex, time::Duration};

use runtime::lock;
use tokio::time::Instant;

/// How long a value is served before a new one is computed.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The last value, and when it was computed.
#[derive(Debug)]
pub(crate) struct Cached<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Cached<T> {
    /// The last value, or a new one. Meanwhile other clients wait for it.
    pub(crate) fn get(&self, compute: impl FnOnce() -> T) -> T {
        let mut last = lock(&self.0);
        if let Some((computed, value)) = &*last
            && computed.elapsed() < MAX_AGE
        {
            return value.clone();
        }
        let value = compute();
        *last = Some((Instant::now(), value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn value_is_computed_once_per_second() {
        let (cached, computed) = (Cached::default(), Cell::new(0));
        let get = || {
            cached.get(|| {
                computed.set(computed.get() + 1);
                computed.get()
            })
        };
        assert!((0..1_000).all(|_| get() == 1));
        tokio::time::advance(MAX_AGE).await;
        assert!((0..1_000).all(|_| get() == 2));
    }
}
