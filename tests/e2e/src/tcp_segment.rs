//! TCP segments that a test writes itself, for packets that no kernel sends. Format: RFC 9293, section 3.1.

use std::net::IpAddr;

use nix::libc::IPPROTO_TCP;

const HEADER: usize = 20;
const ACK: u8 = 0x10;
const CHECKSUM: usize = 16;

/// A segment without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
}

// === impl Segment ===

impl Segment {
    /// The bytes of an acknowledgment, with their checksum.
    pub(crate) fn encode(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(self.source_port.to_be_bytes());
        bytes.extend(self.destination_port.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgment.to_be_bytes());
        // The length of the header in units of four bytes, and the window.
        bytes.extend([(HEADER as u8 / 4) << 4, ACK, 0x10, 0]);
        bytes.resize(HEADER, 0);
        let checksum = checksum(&bytes, source, destination);
        bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// The fields of any segment. `None` if it is too short.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..HEADER)?;
        let u16_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
        Some(Self {
            source_port: u16_at(0),
            destination_port: u16_at(2),
            sequence: u32_at(4),
            acknowledgment: u32_at(8),
        })
    }
}

/// The Internet checksum of the pseudo-header and the segment, which has an even length.
fn checksum(segment: &[u8], source: IpAddr, destination: IpAddr) -> u16 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let length = u16::try_from(segment.len()).expect("a segment is short").to_be_bytes();
    let protocol = [0, IPPROTO_TCP as u8];
    let bytes = [&octets(source)[..], &octets(destination), &protocol, &length, segment].concat();
    let sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_and_checksum_is_valid() {
        let segment = Segment { source_port: 8080, destination_port: 40_000, sequence: 1 << 31, acknowledgment: 7 };
        for ips in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let [source, destination] = ips.map(|ip| ip.parse().unwrap());
            let bytes = segment.encode(source, destination);
            assert_eq!(Segment::decode(&bytes), Some(segment));
            assert_eq!(checksum(&bytes, source, destination), 0);
        }
        assert_eq!(Segment::decode(&[0; 19]), None);
    }
}
