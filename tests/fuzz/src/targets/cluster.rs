//! The targets of the frontend: clients, credentials, manifests, HTTP.

use std::{
    cell::OnceCell,
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    str::from_utf8,
    sync::OnceLock,
    thread,
    time::Duration,
};

use frontend::{
    Config, Frontend, Rate,
    fuzzing::{Credentials, Sessions},
};
use proto::{model, v1};
use runtime::{Ready, Shutdown, Trigger};
use tokio::{net::TcpListener, sync::mpsc};

use super::{block_on, split};
use crate::seeds;

/// How long an HTTP client waits for the end of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(8);

thread_local! {
    static CREDENTIALS: Credentials = block_on(async { Credentials::new() });
    static SESSIONS: OnceCell<(Sessions, Trigger)> = const { OnceCell::new() };
}

/// A frontend that limits neither streams nor repairs: this would only make the target slow.
fn frontend() -> Frontend {
    let often = Rate { burst: u32::MAX, every: Duration::from_nanos(1) };
    Frontend::new(Config {
        commit_interval: Duration::ZERO,
        commit_interval_per_stream: Duration::ZERO,
        catch_up_timeout: Duration::from_millis(1),
        streams_per_node: 1024,
        syncs_per_node: often,
        repeated_acks: often,
        ..Config::default()
    })
}

async fn sessions() -> (Sessions, Trigger) {
    let frontend = frontend();
    let (trigger, shutdown) = Shutdown::channel();
    let (sender, updates) = mpsc::channel(64);
    let (running, stopped) = (frontend.clone(), shutdown.clone());
    tokio::spawn(async move { running.run(updates, Ready::default().guard("fuzz"), stopped).await });
    (Sessions::new(frontend, sender, shutdown, seeds::WEB).await, trigger)
}

/// What a frontend receives on a stream. An empty message is a change of the cluster. A valid message is the same after
/// it is encoded and decoded again.
pub(super) fn client_messages(input: &[u8]) {
    let messages = split(input).filter_map(|bytes| match bytes {
        [] => Some(None),
        bytes => proto::fuzzing::client_message(bytes).map(Some),
    });
    let messages: Vec<_> = messages.collect();
    for message in messages.iter().flatten() {
        let encoded = v1::ClientMessage::from(message);
        assert_eq!(model::ClientMessage::try_from(encoded).as_ref(), Ok(message));
    }
    SESSIONS.with(|cell| {
        if cell.get().is_none() {
            let started = block_on(sessions());
            assert!(cell.set(started).is_ok());
        }
        let Some((sessions, _)) = cell.get() else { return };
        block_on(sessions.stream(messages));
    });
}

/// Objects of Kubernetes in YAML or JSON, up to the state of a node.
pub(super) fn manifests(input: &[u8]) {
    let Ok(text) = from_utf8(input) else { return };
    if let Some((operations, digest)) = frontend::fuzzing::manifests(text, backend::fuzzing::NODE) {
        backend::fuzzing::apply(operations, digest);
    }
}

/// A certificate in DER, or certificates in PEM.
pub(super) fn certificates(input: &[u8]) {
    CREDENTIALS.with(|credentials| credentials.certificate(input));
    if let Ok(validities) = runtime::certificate::validities(input) {
        for validity in validities {
            let _ = validity.invalid_at(std::time::SystemTime::now());
        }
    }
}

/// A token; after a line break, the answer of the API server that reviews it.
pub(super) fn tokens(input: &[u8]) {
    let (token, answer) =
        input.iter().position(|&byte| byte == b'\n').map_or((input, &[][..]), |at| input.split_at(at));
    let Ok(token) = from_utf8(token) else { return };
    CREDENTIALS.with(|credentials| block_on(credentials.token(token, answer)));
}

/// Bytes that a client sends to the HTTP listener of the status page.
pub(super) fn http(input: &[u8]) {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    let address = ADDRESS.get_or_init(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::spawn(move || {
            block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                let _ = sender.send(listener.local_addr()?);
                let (_trigger, shutdown) = Shutdown::channel();
                frontend().serve_page(listener, shutdown).await;
                Ok::<_, std::io::Error>(())
            })
        });
        receiver.recv().unwrap_or_else(|error| panic!("no listener: {error}"))
    });
    let exchange = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.write_all(input)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        Ok::<_, std::io::Error>(response)
    };
    match exchange() {
        Ok(response) => assert!(response.is_empty() || response.starts_with(b"HTTP/1."), "{response:?}"),
        // The server closes a connection whose request it does not read to the end.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        Err(error) => panic!("no response: {error}"),
    }
}
