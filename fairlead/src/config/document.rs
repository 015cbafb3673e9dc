//! A configuration file: its kind and its fields.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

/// `apiVersion` of our files.
pub(crate) const API_VERSION: &str = "fairlead.io/v1alpha1";
/// `apiVersion` of kube-proxy's.
const KUBE_PROXY_API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The key of kube-proxy's configuration in the ConfigMap of kubeadm and kind.
const KUBEADM_KEY: &str = "config.conf";

/// One configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) kind: Kind,
    /// All but `apiVersion` and `kind`.
    pub(crate) fields: Map<String, Value>,
}

/// The kind of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Frontend,
    Backend,
    Local,
    KubeProxy,
}

impl Kind {
    pub(crate) const OURS: [Self; 3] = [Self::Frontend, Self::Backend, Self::Local];

    /// `kind` in the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frontend => "FrontendConfiguration",
            Self::Backend => "BackendConfiguration",
            Self::Local => "LocalConfiguration",
            Self::KubeProxy => "KubeProxyConfiguration",
        }
    }

    /// The command that takes all fields of this kind; for kube-proxy's, the equivalent command.
    pub(crate) fn command(self) -> &'static [&'static str] {
        match self {
            Self::Frontend => &["frontend"],
            Self::Backend => &["backend", "configured"],
            Self::Local | Self::KubeProxy => &["local"],
        }
    }

    fn of(api_version: &str, kind: &str) -> Result<Self> {
        match api_version {
            KUBE_PROXY_API_VERSION if kind == Self::KubeProxy.name() => Ok(Self::KubeProxy),
            API_VERSION => {
                let known = Self::OURS.map(Self::name).join(", ");
                let found = Self::OURS.into_iter().find(|known| known.name() == kind);
                found.with_context(|| format!("kind: {kind:?} is not one of {known}"))
            }
            _ => bail!(
                "apiVersion {api_version:?} with kind {kind:?} is not a configuration: expected {API_VERSION}, or \
                 {KUBE_PROXY_API_VERSION} with kind {}",
                Self::KubeProxy.name()
            ),
        }
    }
}

impl Document {
    /// Reads a file, or standard input (`-`).
    pub(crate) fn read_text(path: &Path) -> Result<String> {
        let text = if path == Path::new("-") { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
        text.with_context(|| format!("cannot read {}", path.display()))
    }

    /// Parses YAML, and so JSON.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let Value::Object(mut fields) = yaml(text)? else {
            bail!("expected fields, such as apiVersion and kind");
        };
        let api_version = take_text(&mut fields, "apiVersion")?;
        let kind = take_text(&mut fields, "kind")?;

        match (api_version.as_str(), kind.as_str()) {
            ("v1", "ConfigMap") => Self::of_config_map(&fields),
            ("v1", "List") => Self::of_list(&fields),
            _ => Ok(Self { kind: Kind::of(&api_version, &kind)?, fields }),
        }
    }

    /// The configuration in the ConfigMap of a list, such as the output of `kubectl get daemonset,configmap`.
    fn of_list(list: &Map<String, Value>) -> Result<Self> {
        let mut items = list.get("items").and_then(Value::as_array).into_iter().flatten();
        let is_config_map = |item: &&Value| item.get("kind").is_some_and(|kind| kind == "ConfigMap");
        let config_map = items.find(is_config_map).and_then(Value::as_object);
        Self::of_config_map(config_map.context("items: the List contains no ConfigMap")?)
    }

    /// The configuration in a ConfigMap.
    fn of_config_map(config_map: &Map<String, Value>) -> Result<Self> {
        let data = config_map.get("data").and_then(Value::as_object).context("data: missing in the ConfigMap")?;
        let known = [KUBE_PROXY_API_VERSION, API_VERSION];
        let is_configuration = |text: &&str| known.iter().any(|version| text.contains(version));

        // The value of the known key is a configuration, even if it cannot be read as one.
        let of_key = data.get(KUBEADM_KEY).and_then(Value::as_str);
        let text = of_key.or_else(|| data.values().filter_map(Value::as_str).find(is_configuration));
        Self::parse(text.context("data: the ConfigMap contains no configuration")?)
    }
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Result<String> {
    match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => bail!("{name}: missing, or not text"),
    }
}

fn yaml(text: &str) -> Result<Value> {
    let options = serde_saphyr::options! { with_snippet: false, duplicate_keys: DuplicateKeyPolicy::Error };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| anyhow::anyhow!(yaml_error(&error)))
}

/// An error of the YAML library without its advice, which is for programmers.
pub(crate) fn yaml_error(error: &serde_saphyr::Error) -> String {
    let text = error.to_string().replace(", set DuplicateKeyPolicy in Options if acceptable", "");
    text.replace("; use from_str_multiple or from_str_multiple_with_options", "; expected one")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    #[test]
    fn kind_is_read_from_the_file() {
        let ours = |kind: &str| Document::parse(&format!("apiVersion: {API_VERSION}\nkind: {kind}\n"));
        for kind in Kind::OURS {
            assert_eq!(ours(kind.name()).unwrap().kind, kind);
        }
        assert!(ours("Frontend").unwrap_err().to_string().contains("FrontendConfiguration, Backend"));
        assert_eq!(Document::parse(HEAD).unwrap().kind, Kind::KubeProxy);
        let json = r#"{"apiVersion": "fairlead.io/v1alpha1", "kind": "LocalConfiguration", "backend": "nft"}"#;
        assert_eq!(Document::parse(json).unwrap().fields["backend"], "nft");
        for (text, part) in [
            ("", "expected fields"),
            ("a: 1", "apiVersion: missing"),
            ("apiVersion: v1\nkind: Pod", "is not a configuration"),
            ("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}", "contains no configuration"),
            ("apiVersion: v1\nkind: ConfigMap\ndata: {config.conf: 'mode: ipvs'}", "apiVersion: missing"),
            ("apiVersion: v1\nkind: List\nitems: [{kind: DaemonSet}]", "contains no ConfigMap"),
        ] {
            let error = format!("{:#}", Document::parse(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn configuration_in_a_config_map_is_found() {
        let map = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "kube-proxy" },
            "data": { "kubeconfig.conf": "kind: Config\n", "config.conf": format!("{HEAD}mode: ipvs\n") },
        });
        let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": [{ "kind": "DaemonSet" }, map] });
        for text in [map.to_string(), list.to_string()] {
            let document = Document::parse(&text).unwrap();
            assert_eq!((document.kind, &document.fields["mode"]), (Kind::KubeProxy, &"ipvs".into()));
        }
    }

    #[test]
    fn duplicate_keys_are_rejected() {
        for text in [
            format!("{HEAD}iptables:\n  masqueradeBit: 1\n  masqueradeBit: 2\n"),
            format!("apiVersion: {API_VERSION}\nkind: LocalConfiguration\nmasqueradeBit: 1\nmasqueradeBit: 2\n"),
        ] {
            let error = Document::parse(&text).unwrap_err().to_string();
            assert!(error.contains("masqueradeBit"), "{error}");
        }
    }

    #[test]
    fn errors_have_no_advice_for_programmers() {
        for (text, expected) in [("a: 1\na: 2\n", "duplicate mapping key: a"), ("a: 1\n---\nb: 2\n", "; expected one")]
        {
            let error = Document::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("Options") && !error.contains("from_str"), "{error}");
        }
    }
}
