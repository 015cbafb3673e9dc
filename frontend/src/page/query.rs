//! What is asked for in the address of the page: `?q=FILTER&all=1`.

/// Longer filters are cut, in characters.
const MAX_FILTER: usize = 100;

/// What is to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// As it was typed.
    pub(super) filter: String,
    pub(super) extent: Extent,
}

/// How much of a long table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Extent {
    #[default]
    Beginning,
    All,
}

impl Query {
    /// Reads a query string. What is unknown in it does not matter.
    pub(super) fn parse(text: &str) -> Self {
        let mut query = Self::default();
        for (name, value) in text.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "q" => query.filter = decoded(value).trim().chars().take(MAX_FILTER).collect(),
                "all" if value == "1" => query.extent = Extent::All,
                _ => {}
            }
        }
        query
    }

    /// Whether a row is shown: each word of the filter is somewhere in it, in whatever case.
    pub(super) fn wants(&self, words: &[&str]) -> bool {
        self.filter.split_whitespace().all(|wanted| {
            let wanted = wanted.to_lowercase();
            words.iter().any(|word| word.to_lowercase().contains(&wanted))
        })
    }

    /// As it is written in an address.
    pub(super) fn encoded(&self) -> String {
        let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let encode = |byte| if safe(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        self.filter.bytes().map(encode).collect()
    }
}

/// Undoes what a form does to a text.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = hex.filter(|_| *byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(match byte {
            b'+' => b' ',
            byte => escaped.unwrap_or(*byte),
        });
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_and_written() {
        let query = Query::parse("x&q=%20a%2Fb+%C3%BC%zz%2&all=1");
        assert_eq!(query, Query { filter: "a/b ü%zz%2".to_owned(), extent: Extent::All });
        assert_eq!(Query::parse(&format!("q={}", query.encoded())).filter, query.filter);
        assert_eq!(Query::parse(&format!("q={}", "a".repeat(1000))).filter.len(), MAX_FILTER);
        assert!(query.wants(&["xA/B", "Ü%ZZ%2"]) && !query.wants(&["a/b"]));
        assert!(Query::default().wants(&[]));
    }
}
