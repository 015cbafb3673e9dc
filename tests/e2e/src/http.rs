//! HTTP requests from any namespace.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::{netns::Netns, pace::patience};

/// A response.
#[derive(Debug)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The status line and the header fields.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Sends a GET request from `netns`, and reads the response until the server closes the connection.
pub fn http_get(netns: &Netns, to: SocketAddr, path: &str, timeout: Duration) -> io::Result<HttpResponse> {
    netns.run(|| http_get_here(to, path, timeout))
}

/// As [`http_get`], from the namespace of this thread.
pub fn http_get_here(to: SocketAddr, path: &str, timeout: Duration) -> io::Result<HttpResponse> {
    let timeout = patience(timeout);
    let mut stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    parse(&response).ok_or_else(|| io::Error::other(format!("not an HTTP response: {response:?}")))
}

fn parse(response: &str) -> Option<HttpResponse> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(HttpResponse { status, head: head.to_owned(), body: body.to_owned() })
}
