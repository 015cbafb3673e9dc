//! HTTP/1.1: requests without a body, answers of a known length, and answers in chunks.

use std::{collections::HashMap, str::FromStr};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::Kind;

/// Limit of a request in bytes.
const MAX_REQUEST: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) kind: Kind,
    /// The name of a node in the path.
    pub(super) node: Option<String>,
    query: HashMap<String, String>,
}

impl Request {
    /// The next request of a connection; `None` when it has ended.
    pub(super) async fn read(stream: &mut TcpStream) -> Result<Option<Self>> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            if bytes.len() > MAX_REQUEST {
                bail!("a request of more than {MAX_REQUEST} bytes");
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let target = text.split(' ').nth(1).context("a request without a target")?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let node = path.strip_prefix("/api/v1/nodes/").map(str::to_owned);
        let kind = if node.is_some() { Some(Kind::Node) } else { Kind::from_path(path) };
        let kind = kind.with_context(|| format!("this server does not serve {path}"))?;
        let query = query.split('&').filter_map(|part| part.split_once('='));
        let query = query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Some(Self { kind, node, query }))
    }

    pub(super) fn has(&self, parameter: &str) -> bool {
        self.query.contains_key(parameter)
    }

    pub(super) fn number<T: FromStr>(&self, parameter: &str) -> Option<T> {
        self.query.get(parameter)?.parse().ok()
    }

    /// The name that a field selector requires.
    pub(super) fn selected_node(&self) -> Option<&str> {
        self.query.get("fieldSelector")?.strip_prefix("metadata.name%3D")
    }
}

pub(super) async fn answer(stream: &mut TcpStream, status: &str, body: &str) -> Result<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await.context("answer")
}

/// Starts an answer whose length is not known yet.
pub(super) async fn begin_chunks(stream: &mut TcpStream) -> Result<()> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head).await.context("answer")
}

/// Sends a part of such an answer. An empty one would end it.
pub(super) async fn chunk(stream: &mut TcpStream, text: &str) -> Result<()> {
    let chunk = format!("{:x}\r\n{text}\r\n", text.len());
    stream.write_all(chunk.as_bytes()).await.context("answer")
}

pub(super) async fn end_chunks(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"0\r\n\r\n").await.context("end an answer")
}
