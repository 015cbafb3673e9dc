//! Reads and replaces files in threads of their own: a disk that hangs blocks neither the caller nor the end of the
//! process.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

/// The time that reading a file at the start may take. A healthy disk reads the state of a large cluster in less.
const READ_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(3) } else { Duration::from_secs(10) };

/// The largest file that is read, so that a file that is none of ours does not fill the memory. The state of 50,000
/// Services with 250,000 endpoints takes a fraction of it.
const MAX_BYTES: u64 = 64 << 20;

/// Runs a closure in a new thread, for which nothing waits. An async runtime that ends waits for its blocking tasks.
///
/// # Errors
/// When there can be no more threads.
pub(crate) fn in_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> io::Result<mpsc::Receiver<T>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("file".to_owned()).spawn(move || {
        // After a timeout there is no receiver.
        let _ = sender.send(run());
    })?;
    Ok(receiver)
}

/// Reads a file as [`read_bounded`] does. Blocks for at most [`READ_TIMEOUT`].
///
/// # Errors
/// When the file cannot be read, or not in time.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    let no_answer = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer of the disk in {READ_TIMEOUT:?}"));
    in_thread(move || read_bounded(&path))?.recv_timeout(READ_TIMEOUT).map_err(no_answer)?
}

/// Reads a regular file of at most [`MAX_BYTES`]. Blocks.
///
/// # Errors
/// When the file cannot be read, is no regular file or too large.
pub(crate) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::Error::other(format!("it has {} bytes, more than {MAX_BYTES}", metadata.len())));
    }

    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The file while its successor is written.
pub(crate) fn successor(path: &Path) -> PathBuf {
    path.with_added_extension("new")
}

/// Replaces a file: a crash leaves the old or the new one. Blocks.
///
/// # Errors
/// When the file cannot be written. It is then as before.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }

    let successor = successor(path);
    // A link would be followed, and another file overwritten.
    if successor.is_symlink() {
        fs::remove_file(&successor)?;
    }

    let mut file = File::create(&successor)?;
    file.write_all(bytes)?;
    // Otherwise a power loss after the rename could leave an empty file.
    file.sync_data()?;
    fs::rename(successor, path)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, process::Command, time::Instant};

    use super::*;

    /// Opening a FIFO blocks until there is a peer, like a file on a disk that hangs.
    #[test]
    fn hung_disk_delays_a_read_by_the_timeout_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let begun = Instant::now();
        assert_eq!(read(&path).unwrap_err().to_string(), "no answer of the disk in 3s");
        assert!(begun.elapsed() < 2 * READ_TIMEOUT);
    }

    #[test]
    fn only_regular_files_of_a_limited_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let error = || read(&path).unwrap_err().to_string();
        symlink("/dev/zero", &path).unwrap();
        assert_eq!(error(), "it is not a regular file");
        fs::remove_file(&path).unwrap();
        let sparse = File::create(&path).unwrap();
        sparse.set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(error(), "it has 67108865 bytes, more than 67108864");
        sparse.set_len(1000).unwrap();
        assert_eq!(read(&path).unwrap(), [0; 1000]);
    }

    #[test]
    fn a_file_is_replaced_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| dir.path().join(name));
        fs::write(&other, "of another program").unwrap();
        symlink(&other, successor(&path)).unwrap();
        replace(&path, b"ours").unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert_eq!(fs::read(&other).unwrap(), b"of another program");
        // A process that was killed has left one behind.
        fs::write(successor(&path), "half").unwrap();
        replace(&path, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }
}
