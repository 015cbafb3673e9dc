//! Clients that do what no backend does: connections without a byte, garbage, handshakes without a certificate, random
//! tokens. Their number is limited, so that the frontends, not the machine, are under test.

use std::{
    collections::VecDeque,
    fmt,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use e2e::Netns;
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use super::stage::{self, Stage};
use crate::{credentials::NAME, scale::http2};

/// How many silent connections are open.
const SILENT: usize = 200;
/// The time between two attacks.
const EVERY: Duration = Duration::from_millis(100);
/// How long a hostile client waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What hostile clients did.
#[derive(Debug, Default)]
pub(super) struct Attacks {
    connections: AtomicU64,
    garbage: AtomicU64,
    tokens: AtomicU64,
}

/// The thread of the hostile clients.
#[derive(Debug)]
pub(super) struct Hostile {
    attacks: Arc<Attacks>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hostile {
    pub(super) fn start(stage: &Stage) -> Self {
        let (attacks, stop) = (Arc::<Attacks>::default(), Arc::<AtomicBool>::default());
        let netns: Netns = stage.cluster().outside().clone();
        let tls = stage.stranger();
        let (counted, stopping) = (attacks.clone(), stop.clone());
        let thread = thread::spawn(move || {
            netns.run(|| {
                let mut silent = VecDeque::new();
                for number in 0u64.. {
                    if stopping.load(Relaxed) {
                        return;
                    }
                    let frontend = stage::frontend_addresses()[number as usize % 2];
                    // A frontend that restarts refuses connections.
                    let _ = attack(number, frontend, &tls, &mut silent, &counted);
                    thread::sleep(EVERY);
                }
            });
        });
        Self { attacks, stop, thread: Some(thread) }
    }

    /// Stops, and returns what was done.
    pub(super) fn finish(mut self) -> Arc<Attacks> {
        self.join();
        self.attacks.clone()
    }

    fn join(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic of the thread, if any, has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.join();
    }
}

fn attack(
    number: u64,
    frontend: SocketAddr,
    tls: &Arc<rustls::ClientConfig>,
    silent: &mut VecDeque<TcpStream>,
    attacks: &Attacks,
) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect_timeout(&frontend, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    attacks.connections.fetch_add(1, Relaxed);
    match number % 4 {
        0 | 1 => {
            silent.push_back(stream);
            if silent.len() > SILENT {
                silent.pop_front();
            }
        }
        2 => {
            let garbage: Vec<u8> = (0..fastrand::usize(1..4096)).map(|_| fastrand::u8(..)).collect();
            stream.write_all(&garbage)?;
            attacks.garbage.fetch_add(1, Relaxed);
        }
        _ => {
            // Without a certificate, with a token that was never issued.
            let connection = ClientConnection::new(tls.clone(), ServerName::try_from(NAME)?)?;
            let mut stream = StreamOwned::new(connection, stream);
            let token: String = (0..64).map(|_| fastrand::alphanumeric()).collect();
            let head = http2::call("/fairlead.v1.Fairlead/Watch", "frontend", Some(&token), &[]);
            stream.write_all(&head)?;
            stream.flush()?;
            attacks.tokens.fetch_add(1, Relaxed);
            let mut answer = [0; 1024];
            let _ = std::io::Read::read(&mut stream, &mut answer);
        }
    }
    Ok(())
}

impl fmt::Display for Attacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, garbage, tokens } = self;
        let [connections, garbage, tokens] = [connections, garbage, tokens].map(|count| count.load(Relaxed));
        write!(f, "{connections} connections, of these {garbage} with garbage, {tokens} with random tokens")
    }
}
