//! CIDRs in flags and files.

use std::net::IpAddr;

use ipnet::IpNet;

/// Parses one CIDR. Bits of the host are cleared.
pub(crate) fn cidr(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        let whole = IpNet::from(address);
        let example = if address.is_ipv4() { 16 } else { 64 };
        return Err(format!(
            "{text:?}: the prefix length is missing, as in {text}/{example}; this address alone is {whole}"
        ));
    }
    let cidr = text.parse::<IpNet>();
    cidr.map(|cidr| cidr.trunc()).map_err(|_| format!("{text:?}: expected a CIDR such as 10.244.0.0/16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_prefix_length_is_explained() {
        assert_eq!(cidr(" 10.244.1.7/16").unwrap().to_string(), "10.244.0.0/16");
        for (text, part) in [
            ("10.244.0.0", "the prefix length is missing, as in 10.244.0.0/16; this address alone is 10.244.0.0/32"),
            ("fd00::", "the prefix length is missing, as in fd00::/64; this address alone is fd00::/128"),
            ("10.244.0.0/33", "expected a CIDR such as"),
            ("", "expected a CIDR such as"),
        ] {
            let error = cidr(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
