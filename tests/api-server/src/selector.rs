//! Label and field selectors.

use serde_json::Value;

/// The objects of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Missing(String),
    Equal(String, String),
    NotEqual(String, String),
}

// === impl Selector ===

impl Selector {
    /// From the parameters `labelSelector` and `fieldSelector`.
    pub(crate) fn new(labels: &str, fields: &str) -> Self {
        let parse = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(Requirement::parse).collect();
        Self { labels: parse(labels), fields: parse(fields) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        let field = |path: &str| path.split('.').fold(object, |value, name| &value[name]).as_str();
        self.labels.iter().all(|requirement| requirement.matches(label))
            // A field that is not set is empty.
            && self.fields.iter().all(|requirement| requirement.matches(|path| Some(field(path).unwrap_or_default())))
    }
}

// === impl Requirement ===

impl Requirement {
    fn parse(text: &str) -> Self {
        let owned =
            |(name, value): (&str, &str)| (name.trim().to_owned(), value.trim_start_matches('=').trim().to_owned());
        if let Some(pair) = text.split_once("!=") {
            let (name, value) = owned(pair);
            Self::NotEqual(name, value)
        } else if let Some(pair) = text.split_once('=') {
            let (name, value) = owned(pair);
            Self::Equal(name, value)
        } else if let Some(name) = text.strip_prefix('!') {
            Self::Missing(name.to_owned())
        } else {
            Self::Exists(text.to_owned())
        }
    }

    fn matches<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Exists(name) => value(name).is_some(),
            Self::Missing(name) => value(name).is_none(),
            Self::Equal(name, expected) => value(name) == Some(expected),
            Self::NotEqual(name, expected) => value(name) != Some(expected),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_fields_select_objects() {
        let object =
            json!({"metadata": {"name": "web", "labels": {"app": "web", "x": ""}}, "spec": {"clusterIP": "10.0.0.1"}});
        let matches = |labels, fields| Selector::new(labels, fields).matches(&object);
        assert!(matches("", "") && matches("app=web,x", "metadata.name=web") && matches("!y", "spec.clusterIP!=None"));
        assert!(!matches("!app", "") && !matches("app!=web", "") && !matches("y", "") && !matches("app==db", ""));
        assert!(!matches("", "metadata.name=db") && matches("", "spec.missing="));
    }
}
