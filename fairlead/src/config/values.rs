//! Values in flags and files that are written as Kubernetes writes them: times and CIDRs.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use jiff::SignedDuration;

/// Parses a time as Go writes it: `24h`, `1h30m`, `1.5s`, `500ms`, `0`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?}: expected a time such as 24h, 1h30m, 90s or 0");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    // The parser accepts more than Go: `1 hour`, `1h, 30m`, `01:30:00`, `PT1H`.
    let is_gos = text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains([':', ',', ' ', '\t']);
    if !is_gos {
        return Err(invalid());
    }

    // Unicode has two characters for `micro`, which look alike.
    let parsed: SignedDuration = text.replace('\u{3bc}', "\u{b5}").parse().map_err(|_| invalid())?;
    let time = Duration::try_from(parsed).map_err(|_| invalid())?;
    if time.as_secs() > u64::from(u32::MAX) { Err(invalid()) } else { Ok(time) }
}

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

    match text.parse::<IpNet>() {
        Ok(cidr) => Ok(cidr.trunc()),
        Err(_) => Err(format!("{text:?}: expected a CIDR such as 10.244.0.0/16")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_in_kubernetes() {
        for (text, millis) in [
            ("24h", 86_400_000),
            ("1h30m", 5_400_000),
            ("90s", 90_000),
            ("0", 0),
            ("0s", 0),
            ("24h0m0s", 86_400_000),
            ("1.5h", 5_400_000),
            ("1500ms", 1_500),
            ("3000000000ns", 3_000),
            ("7us", 0),
            ("7\u{b5}s", 0),
            ("7\u{3bc}s", 0),
            ("2m5s10ms", 125_010),
        ] {
            assert_eq!(duration(text).map(|time| time.as_millis()), Ok(millis), "{text}");
        }
        let not_gos = ["1 hour", "01:30:00", "PT1H", "1h,30m", "1h\t30m"];
        let invalid = ["", "24", "h", "1d", "-1s", "99999999999h", "1h ", "5", "s", "1h-5m", "h1", "1..5s", "-"];
        for text in invalid.into_iter().chain(not_gos) {
            assert!(duration(text).unwrap_err().contains("1h30m"), "{text}");
        }
    }

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
