//! A connection to an API server, over which one request follows the other: HTTP/1.1 with JSON over TLS.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

/// Timeout of each read and write.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The connection. Fails for good with the first request that fails.
pub(super) struct ApiConnection(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl ApiConnection {
    /// Connects from the network namespace of this thread.
    pub(super) fn open(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to the API server at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let session = ClientConnection::new(config.clone(), address.ip().into()).context("begin TLS")?;
        Ok(Self(BufReader::new(StreamOwned::new(session, stream))))
    }

    /// Sends a request, expects success, and returns the body of the response.
    pub(super) fn request(&mut self, method: &str, path: &str, body: &Value) -> Result<Vec<u8>> {
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n\
             {body}"
        );
        let stream = self.0.get_mut();
        stream.write_all(request.as_bytes()).with_context(|| format!("send {method} {path}"))?;
        stream.flush()?;

        let (status, response) = self.response().with_context(|| format!("read the response to {method} {path}"))?;
        let text = String::from_utf8_lossy(&response);
        ensure!(status.starts_with('2'), "{method} {path}: {status}: {text}");
        Ok(response)
    }

    /// Begins a watch, of which [`Self::skip`] reads the events. `media_type`: their encoding.
    pub(super) fn watch(&mut self, path: &str, media_type: &str) -> Result<()> {
        let stream = self.0.get_mut();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: api\r\nAccept: {media_type}\r\n\r\n").context("send a watch")?;
        stream.flush()?;
        let status = self.line()?;
        ensure!(status.starts_with("HTTP/1.1 200"), "GET {path}: {status}");
        while !self.line()?.is_empty() {}
        Ok(())
    }

    /// Reads what has come, and returns how many bytes it was; 0 if nothing comes within `timeout`.
    pub(super) fn skip(&mut self, timeout: Duration) -> Result<usize> {
        self.0.get_ref().sock.set_read_timeout(Some(timeout))?;
        match self.0.fill_buf() {
            Ok([]) => bail!("the API server has closed the watch"),
            Ok(bytes) => {
                let length = bytes.len();
                self.0.consume(length);
                Ok(length)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(0),
            Err(error) => Err(error).context("read events"),
        }
    }

    /// The status and the body.
    fn response(&mut self) -> Result<(String, Vec<u8>)> {
        let status = self.line()?;
        let status = status.strip_prefix("HTTP/1.1 ").with_context(|| format!("not HTTP: {status:?}"))?.to_owned();
        let mut length = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.parse().context("the length of the body")?);
            }
        }

        let mut body = Vec::new();
        if let Some(length) = length {
            self.read_exactly(length, &mut body)?;
            return Ok((status, body));
        }
        // Go sends a body in chunks if it is larger than a buffer.
        loop {
            let length = usize::from_str_radix(&self.line()?, 16).context("the length of a chunk")?;
            self.read_exactly(length, &mut body)?;
            self.line()?;
            if length == 0 {
                return Ok((status, body));
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line)?;
        ensure!(read > 0, "the API server has closed the connection");
        Ok(line.trim_end().to_owned())
    }

    fn read_exactly(&mut self, length: usize, body: &mut Vec<u8>) -> Result<()> {
        let read = self.0.by_ref().take(length as u64).read_to_end(body)?;
        ensure!(read == length, "{read} of {length} bytes");
        Ok(())
    }
}
