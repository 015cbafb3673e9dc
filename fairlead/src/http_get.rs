//! A GET request to an HTTP listener of a backend.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// How long a backend may take to answer a question of a command, if the command has no other limit.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest response that is read, in bytes: metrics of a node have less than a MiB.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;
/// A node without a listener may keep silent, as at the port of `/drained` while its backend restarts. A new attempt
/// finds the next listener sooner than the kernel's repeated segments, which come after 1, 3 and 7 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A response, whatever its status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The status line.
    pub(crate) line: String,
    pub(crate) body: String,
}

/// Sends the request, and reads the response until the server closes the connection.
pub(crate) async fn http_get(to: SocketAddr, path: &str, limit: Duration) -> Result<HttpResponse> {
    let exchanged = timeout(limit, exchange(to, path)).await;
    let response = exchanged.with_context(|| format!("no response of {to} within {limit:?}"))??;
    parse(&response).with_context(|| format!("{to} sent no HTTP response"))
}

async fn exchange(to: SocketAddr, path: &str) -> Result<String> {
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await.map_err(io::Error::from).flatten();
    let mut stream = connected.with_context(|| format!("cannot connect to {to}"))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: fairlead\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;

    let mut response = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response).await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

fn parse(response: &str) -> Option<HttpResponse> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let line = head.lines().next()?;
    let status = line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(HttpResponse { status, line: line.to_owned(), body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_parsed() {
        let response = parse("HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 4\r\n\r\nlate").unwrap();
        assert_eq!((response.status, &*response.body), (504, "late"));
        assert_eq!(response.line, "HTTP/1.1 504 Gateway Timeout");
        for invalid in ["", "HTTP/1.1 200 OK", "220 mail\r\n\r\n", "HTTP/1.1 OK\r\n\r\n"] {
            assert_eq!(parse(invalid), None, "{invalid:?}");
        }
    }
}
