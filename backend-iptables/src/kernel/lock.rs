//! The lock that the programs of the older iptables take from each other. It is waited for here before one is started, so that it is
//! known how long.

use std::{
    fs::{File, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tracing::{debug, info};

/// `XT_LOCK_NAME` of iptables.
const FILE: &str = "/run/xtables.lock";
/// Where iptables is told of another one.
const VARIABLE: &str = "XTABLES_LOCKFILE";
/// For so long it is waited for. Then the program gets in line, in which nobody can tell how long it waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks, in milliseconds: any of these, so that several who wait do not look at the same moments.
const PAUSE: std::ops::Range<u64> = 5..25;

/// The file of this machine.
pub(super) fn path() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| FILE.into(), PathBuf::from)
}

/// Returns when nobody holds it, or when that takes too long: after how much time.
pub(super) async fn wait(path: &Path) -> Duration {
    let mut since = None;
    while is_held(path) {
        let since = *since.get_or_insert_with(|| {
            info!(path = %path.display(), "waiting: the lock is held by others");
            Instant::now()
        });
        if since.elapsed() >= PATIENCE {
            break;
        }
        sleep(Duration::from_millis(fastrand::u64(PAUSE))).await;
    }
    since.map(|since| since.elapsed()).unwrap_or_default()
}

/// Taken for a moment: nobody else says whether it is held.
fn is_held(path: &Path) -> bool {
    match File::open(path).map(|file| file.try_lock()) {
        Ok(Err(TryLockError::WouldBlock)) => true,
        Ok(Ok(())) => false,
        Ok(Err(TryLockError::Error(error))) => {
            debug!(path = %path.display(), %error, "cannot tell who holds the lock");
            false
        }
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                debug!(path = %path.display(), %error, "cannot tell who holds the lock");
            }
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn a_lock_of_others_is_waited_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(wait(file.path()).await, Duration::ZERO);
        let others = File::open(file.path()).unwrap();
        others.lock().unwrap();
        let mut waiting = pin!(wait(file.path()));
        let held = Duration::from_millis(50);
        assert!(tokio::time::timeout(held, &mut waiting).await.is_err());
        others.unlock().unwrap();
        let waited = waiting.await;
        assert!(waited >= held / 2 && waited < PATIENCE, "{waited:?}");
        // It was not kept.
        assert!(others.try_lock().is_ok());
    }

    #[tokio::test]
    async fn not_for_ever() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let others = File::open(file.path()).unwrap();
        others.lock().unwrap();
        assert!(wait(file.path()).await >= PATIENCE / 2);
    }

    #[tokio::test]
    async fn nobody_holds_what_is_not_there() {
        assert_eq!(wait(Path::new("/nowhere/xtables.lock")).await, Duration::ZERO);
    }
}
