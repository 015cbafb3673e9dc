//! Times as Kubernetes writes them, in flags and files.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a time as Go writes it: `24h`, `1h30m`, `1.5s`, `500ms`, `0`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    // Others that the parser accepts: `1 hour`, `1h, 30m`, `01:30:00`, `PT1H`.
    let is_gos = text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains([':', ',', ' ', '\t']);
    let parsed = match text {
        "0" => Some(SignedDuration::ZERO),
        // Two characters look like that of micro.
        _ if is_gos => text.replace('\u{3bc}', "\u{b5}").parse().ok(),
        _ => None,
    };
    let time = parsed.and_then(|time: SignedDuration| Duration::try_from(time).ok());
    time.filter(|time| time.as_secs() <= u64::from(u32::MAX))
        .ok_or_else(|| format!("{text:?}: expected a time such as 24h, 1h30m, 90s or 0"))
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
}
