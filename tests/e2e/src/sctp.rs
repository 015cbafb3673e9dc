//! The three SCTP packets that clients and servers exchange over raw sockets: many kernels have no SCTP sockets, but
//! conntrack and NAT support the protocol. A client sends INIT; a server answers with INIT ACK, whose state cookie is
//! its reply, or with ABORT. Formats: RFC 9260, sections 3.1, 3.3.2, 3.3.3 and 3.3.7.

/// The IP protocol number of SCTP.
pub(crate) const IPPROTO_SCTP: i32 = 132;

const COMMON_HEADER: usize = 12;
const CHUNK_HEADER: usize = 4;
/// Initiate tag, window, streams out and in, first TSN.
const INIT_FIXED: usize = 16;
const PARAMETER_STATE_COOKIE: u16 = 7;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;

/// A packet with one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// The receiver's tag; 0 in an INIT.
    pub(crate) verification_tag: u32,
    pub(crate) chunk: Chunk,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    Init { tag: u32 },
    InitAck { tag: u32, cookie: Vec<u8> },
    Abort,
}

// === impl Packet ===

impl Packet {
    /// The bytes, with their checksum.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(self.source_port.to_be_bytes());
        bytes.extend(self.destination_port.to_be_bytes());
        bytes.extend(self.verification_tag.to_be_bytes());
        bytes.extend([0; 4]);
        self.chunk.encode(&mut bytes);
        let checksum = crc32c(&bytes);
        // The one little-endian field of the protocol (RFC 9260, appendix A).
        bytes[8..COMMON_HEADER].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None` if it is not one of the three packets, or its checksum is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut zeroed = bytes.to_vec();
        zeroed.get_mut(8..COMMON_HEADER)?.fill(0);
        if bytes[8..COMMON_HEADER] != crc32c(&zeroed).to_le_bytes() {
            return None;
        }
        Some(Self {
            source_port: u16_at(bytes, 0)?,
            destination_port: u16_at(bytes, 2)?,
            verification_tag: u32_at(bytes, 4)?,
            chunk: Chunk::decode(&bytes[COMMON_HEADER..])?,
        })
    }
}

// === impl Chunk ===

impl Chunk {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, body) = match self {
            Self::Init { tag } => (INIT, init_fixed(*tag)),
            Self::InitAck { tag, cookie } => {
                let mut body = init_fixed(*tag);
                body.extend(PARAMETER_STATE_COOKIE.to_be_bytes());
                body.extend(length(CHUNK_HEADER + cookie.len()));
                body.extend(cookie);
                (INIT_ACK, body)
            }
            Self::Abort => (ABORT, Vec::new()),
        };
        bytes.extend([kind, 0]);
        bytes.extend(length(CHUNK_HEADER + body.len()));
        bytes.extend(&body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let body = bytes.get(CHUNK_HEADER..u16_at(bytes, 2)?.into())?;
        match *bytes.first()? {
            INIT => Some(Self::Init { tag: u32_at(body, 0)? }),
            INIT_ACK => {
                let parameter = body.get(INIT_FIXED..)?;
                if u16_at(parameter, 0)? != PARAMETER_STATE_COOKIE {
                    return None;
                }
                let cookie = parameter.get(CHUNK_HEADER..u16_at(parameter, 2)?.into())?;
                Some(Self::InitAck { tag: u32_at(body, 0)?, cookie: cookie.to_vec() })
            }
            ABORT => Some(Self::Abort),
            _ => None,
        }
    }
}

fn init_fixed(tag: u32) -> Vec<u8> {
    let mut body = Vec::with_capacity(INIT_FIXED);
    body.extend(tag.to_be_bytes());
    body.extend(65_536u32.to_be_bytes());
    body.extend(1u16.to_be_bytes());
    body.extend(1u16.to_be_bytes());
    body.extend(tag.to_be_bytes());
    body
}

fn length(length: usize) -> [u8; 2] {
    u16::try_from(length).expect("a chunk is short").to_be_bytes()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// CRC-32C (Castagnoli), bit by bit: packets are few and short.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_check_string() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn packets_are_decoded_and_damage_is_detected() {
        let chunks =
            [Chunk::Init { tag: 7 }, Chunk::InitAck { tag: 8, cookie: b"pod-a-1 odd length".to_vec() }, Chunk::Abort];
        for chunk in chunks {
            let packet = Packet { source_port: 40_000, destination_port: 80, verification_tag: 9, chunk };
            let mut bytes = packet.encode();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(Packet::decode(&bytes), Some(packet));
            bytes[1] ^= 1;
            assert_eq!(Packet::decode(&bytes), None);
        }
        assert_eq!(Packet::decode(b"short"), None);
    }
}
