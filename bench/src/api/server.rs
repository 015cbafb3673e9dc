//! The part of an API server that a frontend uses: lists, streamed or in pages, and watches without events that end
//! with 410 Gone on request. A thread for each connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::objects::{Kind, Objects};
use crate::lab::{DEADLINE, Lab};

/// How many kinds a frontend watches.
const KINDS: usize = 4;

/// Whether lists are streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lists {
    Streamed,
    Pages,
}

/// The server. Its threads end with the process.
pub(super) struct Server {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    objects: Objects,
    lists: Lists,
    /// Bytes of objects.
    sent: AtomicU64,
    watches: Mutex<Watches>,
    changed: Condvar,
}

#[derive(Default)]
struct Watches {
    /// How often [`Server::forget`] was called.
    forgotten: usize,
    /// Watches that were started after a list.
    begun: usize,
}

/// What is asked for.
struct Request {
    kind: Kind,
    query: String,
}

// === impl Server ===

impl Server {
    /// Listens on the lab's loopback.
    pub(super) fn start(lab: &Lab, objects: Objects, lists: Lists) -> Result<Self> {
        let listener = lab.run(|| TcpListener::bind("127.0.0.1:0")).context("listen")?;
        let address = listener.local_addr().context("listen")?;
        let (watches, changed) = Default::default();
        let state = Arc::new(State { objects, lists, sent: AtomicU64::new(0), watches, changed });
        let server = Self { address, state: Arc::clone(&state) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                // Ends when the frontend does, or hangs up.
                thread::spawn(move || state.serve(stream));
            }
        });
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes of objects have been sent.
    pub(super) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::Relaxed)
    }

    /// Ends all watches with 410 Gone, and waits until everything has been relisted and is watched again.
    pub(super) fn forget(&self) -> Result<()> {
        let mut watches = self.state.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.forgotten += 1;
        watches.begun = 0;
        self.state.changed.notify_all();
        let waited = self.state.changed.wait_timeout_while(watches, DEADLINE, |watches| watches.begun < KINDS);
        let (watches, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ensure!(watches.begun >= KINDS, "not everything was relisted within {DEADLINE:?}");
        Ok(())
    }
}

// === impl State ===

impl State {
    fn serve(&self, mut stream: TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream.try_clone().context("read")?);
        while let Some(Request { kind, query }) = Request::read(&mut reader)? {
            let has = |parameter: &str| query.split('&').any(|part| part == parameter);
            if !has("watch=true") {
                self.page(&mut stream, kind, &query)?;
            } else if has("sendInitialEvents=true") && self.lists == Lists::Pages {
                let refusal = json!({"kind": "Status", "status": "Failure", "message": "no", "code": 422});
                answer(&mut stream, "422 Unprocessable Entity", &refusal.to_string())?;
            } else {
                stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
                if has("sendInitialEvents=true") {
                    self.stream(&mut stream, kind)?;
                }
                return self.watch(&mut stream);
            }
        }
        Ok(())
    }

    fn page(&self, stream: &mut TcpStream, kind: Kind, query: &str) -> Result<()> {
        let number = |name: &str| -> Option<u32> {
            query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let count = self.objects.count(kind);
        let first = number("continue").unwrap_or(0);
        let end = count.min(first + number("limit").unwrap_or(count));
        let token = if end < count { end.to_string() } else { String::new() };
        let items = (first..end).map(|n| self.objects.object(kind, n)).collect::<Vec<_>>();
        let metadata = json!({"resourceVersion": "1", "continue": token});
        let list = json!({"kind": format!("{}List", kind.name()), "metadata": metadata, "items": items});
        let body = list.to_string();
        self.sent.fetch_add(body.len() as u64, Ordering::Relaxed);
        answer(stream, "200 OK", &body)
    }

    fn stream(&self, stream: &mut TcpStream, kind: Kind) -> Result<()> {
        for number in 0..self.objects.count(kind) {
            self.event(stream, "ADDED", &self.objects.object(kind, number))?;
        }
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": "1", "annotations": annotations});
        self.event(stream, "BOOKMARK", &json!({"kind": kind.name(), "metadata": metadata}))
    }

    /// Sends no event until all versions are forgotten.
    fn watch(&self, stream: &mut TcpStream) -> Result<()> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.begun += 1;
        self.changed.notify_all();
        let forgotten = watches.forgotten;
        let wait = self.changed.wait_while(watches, |watches| watches.forgotten == forgotten);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
        self.event(stream, "ERROR", &json!({"kind": "Status", "message": "gone", "code": 410}))
    }

    fn event(&self, stream: &mut TcpStream, r#type: &str, object: &serde_json::Value) -> Result<()> {
        let line = json!({"type": r#type, "object": object}).to_string() + "\n";
        self.sent.fetch_add(line.len() as u64, Ordering::Relaxed);
        Ok(stream.write_all(line.as_bytes())?)
    }
}

fn answer(stream: &mut TcpStream, status: &str, body: &str) -> Result<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    Ok(stream.write_all(body.as_bytes())?)
}

// === impl Request ===

impl Request {
    /// The next request of a connection; `None` when it is closed.
    fn read(reader: &mut impl BufRead) -> Result<Option<Self>> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(None);
            }
        }
        let target = head.split_whitespace().nth(1).context("a request without a target")?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let kind = Kind::of_path(path).with_context(|| format!("this server has nothing at {path}"))?;
        Ok(Some(Self { kind, query: query.to_owned() }))
    }
}
