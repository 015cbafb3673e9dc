//! The query string of the page: `?q=FILTER&all=1`.

/// Longer filters are truncated.
const MAX_FILTER_CHARS: usize = 100;

/// What to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageQuery {
    /// As typed.
    pub(super) filter: String,
    /// Whether long tables are shown completely.
    pub(super) show_all: bool,
}

impl PageQuery {
    /// Parses a query string. Unknown parameters are ignored.
    pub(super) fn parse(text: &str) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "q" => query.filter = value.trim().chars().take(MAX_FILTER_CHARS).collect(),
                "all" => query.show_all = value == "1",
                _ => {}
            }
        }
        query
    }

    /// Whether a row is shown: each word of the filter is in one of its texts, ignoring case.
    pub(super) fn matches(&self, texts: &[String]) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        let texts: Vec<_> = texts.iter().map(|text| text.to_lowercase()).collect();
        self.filter.split_whitespace().map(str::to_lowercase).all(|word| texts.iter().any(|text| text.contains(&word)))
    }

    /// The filter in form encoding.
    pub(super) fn encoded_filter(&self) -> String {
        form_urlencoded::byte_serialize(self.filter.as_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_decoded_and_encoded() {
        let query = PageQuery::parse("x&q=%20a%2Fb+%C3%BC%zz%2&all=1");
        assert_eq!(query, PageQuery { filter: "a/b ü%zz%2".to_owned(), show_all: true });
        assert_eq!(PageQuery::parse(&format!("q={}", query.encoded_filter())).filter, query.filter);
        assert_eq!(PageQuery::parse(&format!("q={}", "a".repeat(1000))).filter.len(), MAX_FILTER_CHARS);
        let texts = ["xA/B", "Ü%ZZ%2"].map(str::to_owned);
        assert!(query.matches(&texts) && !query.matches(&texts[..1]));
        assert!(PageQuery::default().matches(&[]));
    }
}
