//! The xtables lock of the legacy variant. It is waited for before a program is started, so that the waiting time can
//! be measured.

use std::{
    fs::{File, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tracing::{debug, info};

/// `XT_LOCK_NAME` of iptables.
const DEFAULT_PATH: &str = "/run/xtables.lock";
/// The environment variable with which iptables is given another path.
const PATH_VARIABLE: &str = "XTABLES_LOCKFILE";
/// After this time the program is started anyway, because it waits for the lock itself.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// The random delay between two attempts, in milliseconds, so that several waiting processes do not try at the same
/// moments.
const POLL_INTERVAL_MS: std::ops::Range<u64> = 5..25;

/// The lock file of this machine.
pub(crate) fn path() -> PathBuf {
    std::env::var_os(PATH_VARIABLE).map_or_else(|| DEFAULT_PATH.into(), PathBuf::from)
}

/// Waits until the lock is free, but at most for [`MAX_WAIT`]. Returns the time spent waiting.
pub(crate) async fn wait(path: &Path) -> Duration {
    if !is_locked(path) {
        return Duration::ZERO;
    }

    info!(path = %path.display(), "waiting for the xtables lock of another process");
    let begun = Instant::now();
    while begun.elapsed() < MAX_WAIT {
        sleep(Duration::from_millis(fastrand::u64(POLL_INTERVAL_MS))).await;
        if !is_locked(path) {
            break;
        }
    }
    begun.elapsed()
}

/// Whether another process has the lock. The only way to find out is to take it for a moment.
fn is_locked(path: &Path) -> bool {
    let error = match File::open(path).map(|file| file.try_lock()) {
        Ok(Ok(())) => return false,
        Ok(Err(TryLockError::WouldBlock)) => return true,
        Ok(Err(TryLockError::Error(error))) => error,
        Err(error) if error.kind() == ErrorKind::NotFound => return false,
        Err(error) => error,
    };
    debug!(path = %path.display(), %error, "cannot check the xtables lock");
    false
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn waits_until_another_process_unlocks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(wait(file.path()).await, Duration::ZERO);
        let other = File::open(file.path()).unwrap();
        other.lock().unwrap();
        let mut waiting = pin!(wait(file.path()));
        let locked_for = Duration::from_millis(50);
        assert!(tokio::time::timeout(locked_for, &mut waiting).await.is_err());
        other.unlock().unwrap();
        let waited = waiting.await;
        assert!(waited >= locked_for / 2 && waited < MAX_WAIT, "{waited:?}");
        assert!(other.try_lock().is_ok(), "the lock was not released");
    }

    #[tokio::test]
    async fn gives_up_after_the_timeout() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = File::open(file.path()).unwrap();
        other.lock().unwrap();
        assert!(wait(file.path()).await >= MAX_WAIT / 2);
    }

    #[tokio::test]
    async fn a_missing_lock_file_is_not_locked() {
        assert_eq!(wait(Path::new("/nowhere/xtables.lock")).await, Duration::ZERO);
    }
}
