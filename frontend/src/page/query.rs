//! The query string of the page: `?q=FILTER`.

/// Longer filters are truncated.
const MAX_FILTER_CHARS: usize = 100;

/// What to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageQuery {
    /// As typed.
    pub(super) filter: String,
}

impl PageQuery {
    /// Parses a query string. Unknown parameters are ignored.
    pub(super) fn parse(text: &str) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            if name == "q" {
                query.filter = value.trim().chars().take(MAX_FILTER_CHARS).collect();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_decoded() {
        let query = PageQuery::parse("x&q=%20a%2Fb+%C3%BC%zz%2&other=1");
        assert_eq!(query, PageQuery { filter: "a/b ü%zz%2".to_owned() });
        assert_eq!(PageQuery::parse(&format!("q={}", "a".repeat(1000))).filter.len(), MAX_FILTER_CHARS);
        let texts = ["xA/B", "Ü%ZZ%2"].map(str::to_owned);
        assert!(query.matches(&texts) && !query.matches(&texts[..1]));
        assert!(PageQuery::default().matches(&[]));
    }
}
