//! How a field of a configuration file is read: by the same parser as the flag of its name.

use std::{fmt::Display, str::FromStr};

use clap::ValueEnum;
use serde::{Deserialize, Deserializer, de::Error as _};

/// One text, or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A field whose flag is parsed by `parse`.
pub(crate) fn parsed<'de, D, T, E>(deserializer: D, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: Display,
{
    let text = String::deserialize(deserializer)?;
    parse(&text).map_err(|reason| D::Error::custom(format!("invalid value '{text}': {reason}")))
}

/// A field of a type that parses itself.
pub(crate) fn text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    parsed(deserializer, str::parse)
}

/// As [`text`], of a field that has no default.
pub(crate) fn optional_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    text(deserializer).map(Some)
}

/// One of the values that the flag lists.
pub(crate) fn choice<'de, D: Deserializer<'de>, T: ValueEnum>(deserializer: D) -> Result<Option<T>, D::Error> {
    let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let expected = values.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join(", ");
    parsed(deserializer, |text| T::from_str(text, false).map_err(|_| format!("expected one of {expected}"))).map(Some)
}

/// A list, or a single value.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let texts = match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    };
    let parse = |text: &String| text.parse().map_err(|reason| format!("invalid value '{text}': {reason}"));
    texts.iter().map(parse).collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// A list, or a text with commas, that `parse` takes with commas.
pub(crate) fn comma_separated<'de, D, T, E>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: Display,
{
    let text = match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => text,
        OneOrMany::Many(texts) => texts.join(","),
    };
    parse(&text).map_err(|reason| D::Error::custom(format!("invalid value '{text}': {reason}")))
}

/// As [`comma_separated`], of values that parse themselves.
pub(crate) fn comma_list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    comma_separated(deserializer, |text| text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>())
}
