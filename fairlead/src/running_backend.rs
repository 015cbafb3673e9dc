//! The backend that runs on this node, as its `/configz` describes it.

use std::net::SocketAddr;

use clap::ValueEnum as _;
use serde_json::Value;

use crate::{
    cli::node_name,
    config::{Setting, field_of},
    http_get::{RESPONSE_TIMEOUT, http_get},
    modes::Mode,
};

/// The flag that names the backend.
const BACKEND: &str = "backend";
/// The flag of a backend that `fairlead local` does not have.
const DRAINED_PORT: &str = "drained-port";

/// A running `fairlead backend` or `fairlead local`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunningBackend {
    /// Its `--metrics`.
    pub(crate) address: SocketAddr,
    /// The node that it runs as.
    pub(crate) node: String,
    /// Its `--backend`, and all settings that a flag, the environment or a file has. Its other flags have their
    /// defaults.
    pub(crate) settings: Vec<Setting>,
    is_local: bool,
}

impl RunningBackend {
    /// `None` if no backend of Fairlead answers at this address.
    pub(crate) async fn find(address: SocketAddr) -> Option<Self> {
        let response = http_get(address, "/configz", RESPONSE_TIMEOUT).await.ok()?;
        let config: Value = serde_json::from_str(&response.body).ok()?;
        Self::from_config(address, &config["fairlead"])
    }

    pub(crate) fn from_config(address: SocketAddr, config: &Value) -> Option<Self> {
        let command = config["command"].as_str()?;
        let flags = config["flags"].as_object()?;
        let text = |flag: &str| flags.get(flag).and_then(|flag| flag["value"].as_str());

        let by_command = command.strip_prefix("backend ").filter(|name| *name != "configured");
        let mode = Mode::from_str(by_command.or_else(|| text(BACKEND))?, false).ok()?;
        let node = node_name(text("node-name")).ok()?;

        let mut settings = Vec::new();
        for (flag, given) in flags {
            if flag != BACKEND && given["from"] != "default" {
                settings.push(Setting::new(flag, field_of(flag), given["value"].clone()));
            }
        }
        settings.push(Setting::new(BACKEND, BACKEND, mode.name()));
        let is_local = command == "local";
        if is_local {
            // It has no such flag because it never answers `/drained`.
            settings.push(Setting::new(DRAINED_PORT, field_of(DRAINED_PORT), 0));
        }
        Some(Self { address, node, settings, is_local })
    }

    /// The settings that a command takes over, for its user. The name of the backend is in its result.
    pub(crate) fn describe(&self, settings: &[Setting]) -> Option<String> {
        let mut described = Vec::new();
        for Setting { field, value, path } in settings {
            if field != BACKEND {
                described.push(format!("{path} {}", flag_text(value)));
            }
        }
        if described.is_empty() {
            return None;
        }
        Some(format!("settings of the backend that runs here (at {}): {}", self.address, described.join(" ")))
    }

    /// Whether it is a `fairlead local` that does not listen for commands, because it has no `--listen`.
    pub(crate) fn answers_no_commands(&self) -> bool {
        self.is_local && !self.settings.iter().any(|setting| setting.field == "listen")
    }
}

/// A value as a flag has it.
fn flag_text(value: &Value) -> String {
    match value {
        Value::Array(values) => values.iter().map(flag_text).collect::<Vec<_>>().join(","),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10249);

    fn backend(command: &str, flags: Value) -> Option<RunningBackend> {
        RunningBackend::from_config(ADDRESS, &json!({ "command": command, "flags": flags }))
    }

    #[test]
    fn settings_are_what_the_backend_was_told() {
        let flags = json!({
            "node-name": { "value": "Node-A", "from": "environment" },
            "cluster-cidr": { "value": ["10.244.0.0/16", "fd00::/56"], "from": "command line" },
            "masquerade-bit": { "value": "14", "from": "default" },
        });
        let running = backend("backend nftables", flags).unwrap();
        assert_eq!(running.node, "node-a");
        let fields: Vec<_> = running.settings.iter().map(|setting| &*setting.field).collect();
        assert_eq!(fields, ["clusterCIDR", "nodeName", "backend"]);
        assert!(!running.answers_no_commands());
    }

    #[test]
    fn name_is_that_of_the_command_or_a_flag() {
        let ipvs = || json!({ "backend": { "value": "ipvs", "from": "file" } });
        for command in ["local", "backend configured", "backend ipvs"] {
            assert_eq!(backend(command, ipvs()).unwrap().settings[0].value, "ipvs");
        }
        let local = backend("local", ipvs()).unwrap();
        assert!(local.answers_no_commands());
        assert_eq!(local.settings[1], Setting::new("drained-port", "drainedPort", 0));
        let listens = json!({
            "backend": { "value": "nft", "from": "command line" },
            "listen": { "value": "unix:/s", "from": "command line" },
        });
        assert!(!backend("local", listens).unwrap().answers_no_commands());
        for other in ["frontend", "status"] {
            assert_eq!(backend(other, json!({})), None);
        }
        assert_eq!(RunningBackend::from_config(ADDRESS, &json!({ "mode": "iptables" })), None, "kube-proxy's");
    }
}
