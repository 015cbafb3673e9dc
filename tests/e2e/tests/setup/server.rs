//! An HTTPS server that sends the same response to every request, with a thread for each connection.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use e2e::Netns;
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// Starts on loopback with a certificate and key. `answer`: the status line's end and the body, for each request path.
pub(crate) fn start(
    netns: &Netns,
    (certificate, key): (String, String),
    answer: impl Fn(&str) -> (&'static str, String) + Send + Sync + 'static,
) -> SocketAddr {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate with its key");
    let config = Arc::new(config);
    let listener = netns.run(|| TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, answer) = (config.clone(), answer.clone());
            // An error means that the client has rejected the certificate, as expected in some tests.
            thread::spawn(move || serve(stream, config, &*answer));
        }
    });
    address
}

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    answer: &dyn Fn(&str) -> (&'static str, String),
) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut reader = BufReader::new(StreamOwned::new(connection, stream));
    loop {
        let (mut request, mut line) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            request.push_str(&line);
        }
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, body) = answer(path);
        let stream = reader.get_mut();
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        stream.flush()?;
    }
}
