//! Values of fields as Go decodes them, and their zero values.

use ipnet::IpNet;
use serde_json::Value;

use super::fields::Shape;

/// Go's units of time in nanoseconds. `ms` comes before `m`, its prefix.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("\u{3bc}s", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 6e10),
    ("h", 3.6e12),
];

/// The value of our field. The kernel's unit of time is the second; kube-proxy rounds down too.
///
/// # Errors
/// Which values are allowed.
pub(super) fn decode(value: &Value, shape: Shape) -> Result<Value, String> {
    let time = value.as_str().and_then(nanoseconds).filter(|time| *time >= 0.0);
    let (is_valid, expected) = match shape {
        Shape::Text => (value.is_string(), "text"),
        Shape::Bool => (value.is_boolean(), "true or false"),
        Shape::Integer(from, to) => {
            let is_valid = value.as_i64().is_some_and(|number| (from..=to).contains(&number));
            (is_valid, &*format!("a number from {from} to {to}"))
        }
        Shape::Number => (value.is_number(), "a number"),
        Shape::Time => (time.is_some(), "a time of 0 or more, such as 30s or 1h30m"),
        Shape::Cidrs => (value.as_array().is_some_and(|list| list.iter().all(Value::is_string)), "a list of text"),
        Shape::Map => {
            let is_valid = value.as_object().is_some_and(|gates| gates.values().all(Value::is_boolean));
            (is_valid, "names with true or false")
        }
        Shape::Any => (true, ""),
    };
    match (shape, time, value) {
        _ if !is_valid => Err(format!("{value}: expected {expected}")),
        (Shape::Time, Some(time), _) => Ok(seconds(time).into()),
        (Shape::Cidrs, _, Value::Array(list)) => Ok(list.iter().filter_map(Value::as_str).map(str::trim).collect()),
        _ => Ok(value.clone()),
    }
}

/// Whether it is the zero value of its type in Go.
pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0" || nanoseconds(text) == Some(0.0),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

/// Parses a CIDR, without its host bits.
pub(super) fn cidr(text: &str) -> Result<IpNet, String> {
    text.trim()
        .parse::<IpNet>()
        .map(|cidr| cidr.trunc())
        .map_err(|_| format!("{text:?}: expected a CIDR such as 10.244.0.0/16"))
}

/// Parses a duration of Go.
pub(super) fn nanoseconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0.0);
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let (unit, length) = UNITS.iter().find(|(unit, _)| rest[end..].starts_with(unit))?;
        sum += number * length;
        rest = &rest[end + unit.len()..];
    }
    (!text.is_empty()).then_some(sign * sum)
}

fn seconds(nanoseconds: f64) -> String {
    format!("{:.0}s", (nanoseconds / 1e9).floor())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_of_go_are_parsed() {
        for (text, expected) in [
            ("1h30m", "5400s"),
            ("24h0m0s", "86400s"),
            ("1.5h", "5400s"),
            ("1500ms", "1s"),
            ("0", "0s"),
            ("0s", "0s"),
            ("7us", "0s"),
            ("2m5s10ms", "125s"),
        ] {
            assert_eq!(nanoseconds(text).map(seconds).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "5", "s", "1d", "1h-5m", "h1", "1..5s", "-"] {
            assert!(nanoseconds(text).is_none_or(|time| text == "-" && time == 0.0), "{text}");
        }
        assert_eq!(nanoseconds("-5s"), Some(-5e9));
    }

    #[test]
    fn zero_values_are_recognized() {
        for zero in [json!(null), json!(""), json!(0), json!("0s"), json!(false), json!([]), json!({"a": {"b": "0"}})] {
            assert!(is_zero(&zero), "{zero}");
        }
        for value in [json!("a"), json!(1), json!("1s"), json!(true), json!(["a"]), json!({"a": 1}), json!(-1)] {
            assert!(!is_zero(&value), "{value}");
        }
    }

    #[test]
    fn values_are_decoded_by_type() {
        let decode = |value: Value, shape| decode(&value, shape);
        assert_eq!(decode(json!(5), Shape::Integer(0, 9)), Ok(json!(5)));
        assert_eq!(decode(json!("1m30s"), Shape::Time), Ok(json!("90s")));
        assert_eq!(decode(json!(false), Shape::Bool), Ok(json!(false)));
        for (value, shape, part) in [
            (json!(10), Shape::Integer(0, 9), "10: expected a number from 0 to 9"),
            (json!("5"), Shape::Integer(0, 9), "expected a number"),
            (json!("yes"), Shape::Bool, "true or false"),
            (json!(30), Shape::Time, "such as 30s"),
            (json!("-1s"), Shape::Time, "0 or more"),
            (json!("a"), Shape::Cidrs, "a list"),
            (json!({"a": "true"}), Shape::Map, "true or false"),
            (json!(["a"]), Shape::Text, "text"),
        ] {
            let error = decode(value, shape).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
