//! One backend at a time: an abstract unix socket, which the kernel binds once in each network namespace. The rules
//! belong to that namespace too, while two pods on a node may have different file systems. The kernel releases the
//! socket when the process ends, however it ends.
//!
//! The holder answers every connection with one line that describes it, for the error of the other process.

use std::{
    fmt,
    io::{self, ErrorKind, Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::socket::{
        AddressFamily, Shutdown as ShutdownKind, SockFlag, SockType, UnixAddr, connect, getsockopt, shutdown, socket,
        sockopt::PeerCredentials,
    },
    unistd::geteuid,
};
use runtime::Shutdown;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use crate::modes::Mode;

/// The name of the socket, after a zero byte.
const SOCKET: &str = "fairlead-backend";
/// The interval between two attempts while another process holds the socket.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long the holder may take to accept a connection, and then to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the holder may accept no connections. A backend listens when it has bound the socket, and a thread of its
/// own accepts all connections at once.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 512;

/// Held while a backend programs this network namespace, or `cleanup` removes its objects. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    /// `None`: the kernel does not provide the socket, or a process holds it that cannot be a backend.
    listener: Option<UnixListener>,
}

/// The process that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its process id in this PID namespace; 0 if it is in another one.
    pid: i32,
    uid: u32,
    /// Its answer: `backend nftables of node node-a, version 0.1.0`.
    answer: Option<String>,
}

/// The result of an attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    Acquired(InstanceLock),
    HeldBy(Holder),
}

impl InstanceLock {
    /// Does not wait for the end of the holder, but up to four seconds for its answer. `description`: what other
    /// processes are told.
    pub(crate) fn try_acquire(description: &str) -> Result<Attempt> {
        Self::try_acquire_named(SOCKET, description)
    }

    fn try_acquire_named(name: &str, description: &str) -> Result<Attempt> {
        let own_uid = geteuid().as_raw();
        let begun = Instant::now();
        // A process of another user, or a process that does not listen, cannot be a backend, and must not be able to
        // prevent one.
        loop {
            if let Some(lock) = Self::bind(name, description)? {
                return Ok(Attempt::Acquired(lock));
            }
            match Holder::ask(name) {
                Ok(holder) if holder.uid == own_uid => return Ok(Attempt::HeldBy(holder)),
                Ok(holder) => {
                    warn!(%holder, "a process of another user holds the instance lock, continuing without it");
                    break;
                }
                Err(error) if !matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock) => {
                    return Ok(Attempt::HeldBy(Holder { pid: 0, uid: own_uid, answer: None }));
                }
                Err(error) if begun.elapsed() >= LISTEN_TIMEOUT => {
                    warn!(%error, "the holder of the instance lock accepts no connections, continuing without it");
                    break;
                }
                Err(_) => thread::sleep(RETRY_DELAY),
            }
        }
        Ok(Attempt::Acquired(Self { listener: None }))
    }

    /// As [`Self::try_acquire`], on another thread.
    async fn attempt(description: String) -> Result<Attempt> {
        spawn_blocking(move || Self::try_acquire(&description)).await.context("the attempt was cancelled")?
    }

    /// `None` while another process holds it.
    fn bind(name: &str, description: &str) -> Result<Option<Self>> {
        let listener = match UnixListener::bind_addr(&address(name)?) {
            Ok(listener) => listener,
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) => {
                warn!(%error, "cannot take the instance lock, continuing without it");
                return Ok(Some(Self { listener: None }));
            }
        };

        let answering = listener.try_clone().context("cannot share the socket of the instance lock")?;
        let line = format!("{description}\n");
        let thread = thread::Builder::new().name("instance".to_owned());
        thread.spawn(move || answer_all(&answering, &line)).context("cannot start a thread")?;
        Ok(Some(Self { listener: Some(listener) }))
    }

    /// Waits until no other backend runs in this network namespace; `None` at the shutdown.
    ///
    /// # Errors
    /// When one still runs after `timeout`.
    pub(crate) async fn acquire(
        mode: Mode,
        node: &str,
        timeout: Duration,
        shutdown: &mut Shutdown,
    ) -> Result<Option<Self>> {
        let description = format!("backend {} of node {node}, version {}", mode.name(), env!("CARGO_PKG_VERSION"));
        let holder = match Self::attempt(description.clone()).await? {
            Attempt::Acquired(lock) => return Ok(Some(lock)),
            Attempt::HeldBy(holder) => holder,
        };

        warn!(
            %holder, timeout_s = timeout.as_secs(),
            "another instance of Fairlead runs in this network namespace, waiting for it to exit"
        );
        let begun = Instant::now();
        while begun.elapsed() < timeout {
            if shutdown.run_until_started(sleep(RETRY_DELAY)).await.is_none() {
                return Ok(None);
            }
            // The holder is not asked again meanwhile: if it does not accept connections, they would fill its queue.
            if let Some(lock) = Self::bind(SOCKET, &description)? {
                info!(after_ms = begun.elapsed().as_millis(), "the other instance has exited");
                return Ok(Some(lock));
            }
        }

        // Another process may have taken the socket when the first holder ended.
        match Self::attempt(description).await? {
            Attempt::Acquired(lock) => Ok(Some(lock)),
            Attempt::HeldBy(holder) => bail!(
                "another instance of Fairlead runs in this network namespace: {holder}. Two would overwrite each \
                 other's rules: stop it, or remove one of the two installations"
            ),
        }
    }
}

/// Answers every connection with this line, until the socket is shut down.
fn answer_all(listener: &UnixListener, line: &str) {
    loop {
        match listener.accept() {
            // A few bytes, which fit into the buffer of the new socket.
            Ok((mut stream, _)) => drop(stream.write_all(line.as_bytes())),
            // The lock was dropped, which shuts the socket down.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            Err(_) => thread::sleep(RETRY_DELAY),
        }
    }
}

fn address(name: &str) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(name).context("the name of the instance lock is invalid")
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            // Ends the thread, whose copy would keep the name.
            let _ = shutdown(listener.as_raw_fd(), ShutdownKind::Both);
        }
    }
}

impl Holder {
    fn ask(name: &str) -> io::Result<Self> {
        let stream = UnixStream::from(socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?);
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        // While the queue of the listener is full, `connect` waits as long as a write may.
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        connect(stream.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        let credentials = getsockopt(&stream, PeerCredentials)?;

        // A backend writes its answer at once. A process that writes a byte from time to time is not read further.
        let mut buffer = [0; MAX_ANSWER_BYTES];
        let length = (&stream).read(&mut buffer).unwrap_or_default();
        let answer = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
        Ok(Self {
            pid: credentials.pid(),
            uid: credentials.uid(),
            answer: if answer.is_empty() { None } else { Some(answer) },
        })
    }

    /// Whether it is a backend of this mode.
    pub(crate) fn is_backend(&self, mode: Mode) -> bool {
        let prefix = format!("backend {} ", mode.name());
        self.answer.as_ref().is_some_and(|answer| answer.starts_with(&prefix))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.answer.as_deref().unwrap_or("a process that does not answer"))?;
        match self.pid {
            0 => write!(f, " (in another PID namespace, uid {})", self.uid),
            pid => write!(f, " (pid {pid}, uid {})", self.uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    fn test_name(test: &str) -> String {
        format!("fairlead-test-{test}-{}", std::process::id())
    }

    /// A socket that has the name and does not listen yet.
    fn bound(name: &str) -> OwnedFd {
        let bound = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(bound.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        bound
    }

    #[test]
    fn process_that_accepts_no_connections_does_not_hold_the_lock() {
        let deaf = test_name("deaf");
        let _deaf = bound(&deaf);
        let full = test_name("full");
        let listener = bound(&full);
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _queued = UnixStream::connect_addr(&address(&full).unwrap()).unwrap();
        for name in [&deaf, &full] {
            let begun = Instant::now();
            let attempt = InstanceLock::try_acquire_named(name, "backend ipvs of node node-a, version 1").unwrap();
            assert!(matches!(attempt, Attempt::Acquired(_)), "{name}: {attempt:?}");
            let took = begun.elapsed();
            assert!(took >= LISTEN_TIMEOUT && took < 3 * LISTEN_TIMEOUT, "{name}: {took:?}");
        }
    }

    #[test]
    fn process_that_listens_late_holds_the_lock() {
        let name = test_name("late");
        let socket = bound(&name);
        let late = socket.try_clone().unwrap();
        let listens = thread::spawn(move || {
            thread::sleep(3 * RETRY_DELAY);
            listen(&late, Backlog::MAXCONN).unwrap();
        });
        let attempt = InstanceLock::try_acquire_named(&name, "backend ipvs of node node-a, version 1").unwrap();
        assert!(matches!(attempt, Attempt::HeldBy(_)), "{attempt:?}");
        listens.join().unwrap();
    }

    #[test]
    fn answer_that_does_not_end_is_not_waited_for() {
        let name = test_name("slow");
        let listener = UnixListener::bind_addr(&address(&name).unwrap()).unwrap();
        let writes = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"x").is_ok() {
                thread::sleep(ANSWER_TIMEOUT / 4);
            }
        });
        let begun = Instant::now();
        let attempt = InstanceLock::try_acquire_named(&name, "backend ipvs of node node-a, version 1").unwrap();
        assert!(matches!(attempt, Attempt::HeldBy(_)), "{attempt:?}");
        assert!(begun.elapsed() < 2 * ANSWER_TIMEOUT, "{:?}", begun.elapsed());
        writes.join().unwrap();
    }

    #[test]
    fn second_instance_gets_the_description_of_the_first() {
        let name = test_name("first");
        let acquire = || InstanceLock::try_acquire_named(&name, "backend ipvs of node node-a, version 1").unwrap();
        let Attempt::Acquired(first) = acquire() else { panic!("held") };
        for _ in 0..3 {
            let Attempt::HeldBy(holder) = acquire() else { panic!("not held") };
            assert_eq!(holder.pid, std::process::id() as i32);
            assert!(holder.is_backend(Mode::Ipvs) && !holder.is_backend(Mode::Nftables));
            assert!(holder.to_string().starts_with("backend ipvs of node node-a, version 1 (pid "), "{holder}");
        }
        drop(first);
        let until = std::time::Instant::now() + ANSWER_TIMEOUT;
        while !matches!(acquire(), Attempt::Acquired(_)) {
            assert!(std::time::Instant::now() < until, "still held");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
