//! The part of HTTP/2 (RFC 9113) and gRPC that one call on one connection needs. Hand-written, because five thousand
//! complete clients would compete for CPU with the measured server.

use std::{borrow::Cow, io::Read as _};

use anyhow::{Context as _, Result, ensure};
use flate2::read::GzDecoder;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
const GRPC_HEAD: usize = 5;
/// The heads of a gzip stream and of its first block, which is stored: the fields of a batch follow.
const GZIP_HEAD: usize = 15;
/// The flow-control windows of a backend: of its stream, and the increment of that of its connection over the default
/// of 65,535 bytes.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;
/// After this number of bytes both windows are updated.
const WINDOW_UPDATE_INTERVAL: u32 = STREAM_WINDOW / 2;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// `ACK` of SETTINGS and PING, `END_STREAM` of DATA and HEADERS.
const FLAG_1: u8 = 1;
const END_HEADERS: u8 = 4;
const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;

/// The receiving side of a connection.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    head: [u8; FRAME_HEAD],
    /// The number of bytes of `head` that have arrived.
    got: usize,
    /// The number of bytes of the frame's content that have not arrived, once its head is complete.
    left: usize,
    /// The content of a short frame.
    content: Vec<u8>,
    /// Bytes of DATA since the last window update.
    consumed: u32,
    message: Message,
}

/// A gRPC message that is arriving.
#[derive(Debug, Default)]
struct Message {
    head: [u8; GRPC_HEAD],
    got: usize,
    left: usize,
    kept: Vec<u8>,
}

/// Whether the server has ended the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Open,
    Ended,
}

/// The start of a connection: the preface, the call, with a bearer token if there is one, and its first message.
pub(crate) fn call(path: &str, authority: &str, token: Option<&str>, message: &[u8]) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    let mut settings = SETTINGS_INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    settings.extend(STREAM_WINDOW.to_be_bytes());
    frame(&mut out, SETTINGS, 0, 0, &settings);
    frame(&mut out, WINDOW_UPDATE, 0, 0, &CONNECTION_WINDOW.to_be_bytes());
    // HPACK (RFC 7541): indexed fields and literals without indexing, names from the static table.
    let mut headers = vec![0x83, 0x86]; // :method POST, :scheme http
    literal(&mut headers, &[0x04], path); // :path
    literal(&mut headers, &[0x01], authority); // :authority
    literal(&mut headers, &[0x0f, 0x10], "application/grpc"); // content-type
    literal(&mut headers, b"\x00\x02te", "trailers");
    literal(&mut headers, b"\x00\x14grpc-accept-encoding", "gzip");
    if let Some(token) = token {
        literal(&mut headers, &[0x0f, 0x08], &format!("Bearer {token}")); // authorization
    }
    frame(&mut out, HEADERS, END_HEADERS, 1, &headers);
    send(&mut out, message);
    out
}

/// Appends a message.
pub(crate) fn send(out: &mut Vec<u8>, message: &[u8]) {
    let mut content = Vec::with_capacity(GRPC_HEAD + message.len());
    content.push(0);
    content.extend((message.len() as u32).to_be_bytes());
    content.extend_from_slice(message);
    frame(out, DATA, 0, 1, &content);
}

/// Appends a PING frame.
pub(crate) fn ping(out: &mut Vec<u8>) {
    frame(out, PING, 0, 0, &[0; 8]);
}

impl Reader {
    /// Processes received bytes: calls `on_message` with the first `keep` bytes of each complete message, and appends
    /// the answers that HTTP/2 requires to `out`.
    pub(crate) fn take(
        &mut self,
        mut bytes: &[u8],
        keep: usize,
        out: &mut Vec<u8>,
        mut on_message: impl FnMut(&[u8], &mut Vec<u8>) -> Result<()>,
    ) -> Result<Stream> {
        let mut stream = Stream::Open;
        while !bytes.is_empty() {
            if self.got < FRAME_HEAD {
                let (head, rest) = bytes.split_at(bytes.len().min(FRAME_HEAD - self.got));
                self.head[self.got..self.got + head.len()].copy_from_slice(head);
                (self.got, bytes) = (self.got + head.len(), rest);
                if self.got < FRAME_HEAD {
                    break;
                }
                let [high, middle, low, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
            }
            let (content, rest) = bytes.split_at(bytes.len().min(self.left));
            (self.left, bytes) = (self.left - content.len(), rest);
            if self.head[3] == DATA {
                self.consumed += content.len() as u32;
                self.message.take(content, keep, |message| on_message(message, out))?;
            } else {
                self.content.extend_from_slice(content);
            }
            if self.left == 0 {
                self.got = 0;
                if self.frame(out) == Stream::Ended {
                    stream = Stream::Ended;
                }
            }
        }
        Ok(stream)
    }

    /// Processes a complete frame.
    fn frame(&mut self, out: &mut Vec<u8>) -> Stream {
        let (kind, flags) = (self.head[3], self.head[4]);
        let mut ended = Stream::Open;
        match kind {
            SETTINGS if flags & FLAG_1 == 0 => frame(out, SETTINGS, FLAG_1, 0, &[]),
            PING if flags & FLAG_1 == 0 => frame(out, PING, FLAG_1, 0, &self.content),
            DATA | HEADERS if flags & FLAG_1 != 0 => ended = Stream::Ended,
            RST_STREAM => ended = Stream::Ended,
            _ => {}
        }
        self.content.clear();
        if self.consumed > WINDOW_UPDATE_INTERVAL {
            for stream in [0, 1] {
                frame(out, WINDOW_UPDATE, 0, stream, &self.consumed.to_be_bytes());
            }
            self.consumed = 0;
        }
        ended
    }
}

impl Message {
    fn take(&mut self, mut bytes: &[u8], keep: usize, mut on_message: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            if self.got < GRPC_HEAD {
                let (head, rest) = bytes.split_at(bytes.len().min(GRPC_HEAD - self.got));
                self.head[self.got..self.got + head.len()].copy_from_slice(head);
                (self.got, bytes) = (self.got + head.len(), rest);
                if self.got < GRPC_HEAD {
                    break;
                }
                let [_, length @ ..] = self.head;
                self.left = u32::from_be_bytes(length) as usize;
            }
            let (content, rest) = bytes.split_at(bytes.len().min(self.left));
            (self.left, bytes) = (self.left - content.len(), rest);
            let kept = keep.saturating_add(GZIP_HEAD).saturating_sub(self.kept.len()).min(content.len());
            self.kept.extend_from_slice(&content[..kept]);
            if self.left == 0 {
                self.got = 0;
                on_message(&self.uncompressed(keep)?)?;
                self.kept.clear();
            }
        }
        Ok(())
    }

    /// What was kept. Of a compressed message that was not kept as a whole, only what its first block stores: a real
    /// node decompresses on CPUs of its own.
    fn uncompressed(&self, keep: usize) -> Result<Cow<'_, [u8]>> {
        Ok(match (self.head[0], keep) {
            (0, _) => Cow::Borrowed(&self.kept),
            (_, usize::MAX) => {
                let mut message = Vec::new();
                GzDecoder::new(self.kept.as_slice()).read_to_end(&mut message).context("decompress")?;
                Cow::Owned(message)
            }
            _ => {
                let block = self.kept.get(GZIP_HEAD - 5..).context("a short compressed message")?;
                ensure!(block[0] == 0, "the first block of a compressed message is not stored");
                let size = usize::from(u16::from_le_bytes([block[1], block[2]]));
                Cow::Borrowed(block.get(5..5 + size).context("a long first block")?)
            }
        })
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, content: &[u8]) {
    let [_, length @ ..] = (content.len() as u32).to_be_bytes();
    out.extend(length);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(content);
}

/// A field whose value is shorter than 127 bytes.
fn literal(out: &mut Vec<u8>, name: &[u8], value: &str) {
    out.extend_from_slice(name);
    out.push(value.len() as u8);
    out.extend_from_slice(value.as_bytes());
}
