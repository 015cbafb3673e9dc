//! Formats keys and values as nft does: `10.96.0.10 . tcp . 80`.

use netlink::nft::{DataType, FieldReader};
use proto::model::{IpFamily, Protocol};

/// nft's `TYPE_INTEGER`: the result of `numgen`, in host byte order.
const INTEGER: u32 = 4;

/// Formats a value of these types.
pub(super) fn value(types: &[DataType], bytes: &[u8]) -> String {
    let mut reader = FieldReader::new(bytes);
    let mut fields = Vec::new();
    for kind in types {
        let field = match kind {
            DataType::Ipv4Addr => reader.addr(IpFamily::V4).map(|address| address.to_string()),
            DataType::Ipv6Addr => reader.addr(IpFamily::V6).map(|address| address.to_string()),
            DataType::InetProto => reader.proto().map(protocol),
            DataType::InetService => reader.port().map(|port| port.to_string()),
            DataType::Mark => reader.mark().map(|mark| format!("{mark:#x}")),
            DataType::Other(INTEGER) => reader.mark().map(|number| number.to_string()),
            _ => None,
        };
        match field {
            Some(field) => fields.push(field),
            None => return hex(bytes),
        }
    }
    if fields.is_empty() { hex(bytes) } else { fields.join(" . ") }
}

fn protocol(number: u8) -> String {
    Protocol::from_number(number).map_or_else(|| number.to_string(), |protocol| protocol.lower().to_owned())
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

#[cfg(test)]
mod tests {
    use netlink::nft::Fields;

    use super::*;

    #[test]
    fn keys_are_formatted_as_nft_does() {
        let types = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
        let key = Fields::new().addr([10, 96, 0, 10]).proto(6).port(80);
        assert_eq!(value(&types, &key), "10.96.0.10 . tcp . 80");
        assert_eq!(value(&[DataType::Mark], &1u32.to_ne_bytes()), "0x1");
        assert_eq!(value(&[DataType::Other(3)], &[1, 2]), "0x0102");
    }
}
