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

/// A decoded value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decoded {
    Text(String),
    Bool(bool),
    Integer(i64),
    /// Nanoseconds.
    Time(f64),
    List(Vec<String>),
    Other(Value),
}

impl Decoded {
    /// Decodes a value of this type.
    ///
    /// # Errors
    /// Which values are allowed.
    pub(super) fn of(value: &Value, shape: Shape) -> Result<Self, String> {
        let wrong = |expected: &str| Err(format!("{value}: expected {expected}"));
        match (shape, value) {
            (Shape::Text, Value::String(text)) => Ok(Self::Text(text.clone())),
            (Shape::Text, _) => wrong("text"),
            (Shape::Bool, Value::Bool(bool)) => Ok(Self::Bool(*bool)),
            (Shape::Bool, _) => wrong("true or false"),
            (Shape::Integer(from, to), value) => match value.as_i64() {
                Some(number) if (from..=to).contains(&number) => Ok(Self::Integer(number)),
                _ => wrong(&format!("a number from {from} to {to}")),
            },
            (Shape::Number, Value::Number(_)) => Ok(Self::Other(value.clone())),
            (Shape::Number, _) => wrong("a number"),
            (Shape::Time, Value::String(text)) => match nanoseconds(text) {
                Some(time) if time >= 0.0 => Ok(Self::Time(time)),
                Some(_) => wrong("0 or more"),
                None => wrong("a time such as 30s or 1h30m"),
            },
            (Shape::Time, _) => wrong("a time such as 30s or 1h30m"),
            (Shape::Cidrs, Value::Array(values)) => {
                let text = |value: &Value| value.as_str().map(|text| text.trim().to_owned());
                values
                    .iter()
                    .map(text)
                    .collect::<Option<_>>()
                    .map(Self::List)
                    .map_or_else(|| wrong("a list of text"), Ok)
            }
            (Shape::Cidrs, _) => wrong("a list"),
            (Shape::Map, Value::Object(gates)) if gates.values().all(Value::is_boolean) => {
                Ok(Self::Other(value.clone()))
            }
            (Shape::Map, _) => wrong("names with true or false"),
            (Shape::Any, value) => Ok(Self::Other(value.clone())),
        }
    }

    /// The value of our field.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Bool(on) => (*on).into(),
            Self::Integer(number) => (*number).into(),
            // The kernel's unit is the second; kube-proxy rounds down too.
            Self::Time(nanoseconds) => time(*nanoseconds).into(),
            Self::List(list) => list.as_slice().into(),
            Self::Other(value) => value.clone(),
        }
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
fn nanoseconds(text: &str) -> Option<f64> {
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

fn time(nanoseconds: f64) -> String {
    format!("{:.0}s", (nanoseconds / 1e9).floor())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_of_go_are_parsed() {
        for (text, seconds) in [
            ("1h30m", "5400s"),
            ("24h0m0s", "86400s"),
            ("1.5h", "5400s"),
            ("1500ms", "1s"),
            ("0", "0s"),
            ("0s", "0s"),
            ("7us", "0s"),
            ("2m5s10ms", "125s"),
        ] {
            assert_eq!(nanoseconds(text).map(time).as_deref(), Some(seconds), "{text}");
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
        let decode = |value: Value, shape| Decoded::of(&value, shape).map(|decoded| decoded.to_value());
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
