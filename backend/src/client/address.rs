//! Addresses of frontends, and where they come from: configured addresses, DNS names, and discovery.

use std::{fmt, net::IpAddr, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::BoxFuture;
use tokio::net::lookup_host;
use tonic::transport::Uri;

/// The address of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendAddress {
    /// `unix:/path`, `https://address:port` or `http://address:port`.
    pub uri: String,
    /// The name that the certificate must contain, if it is not in the URI.
    pub server_name: Option<String>,
}

impl FrontendAddress {
    /// Whether the frontend listens on a Unix socket of this machine.
    pub(super) fn is_unix(&self) -> bool {
        self.uri.starts_with("unix:")
    }

    /// Whether the connection uses TLS, without which no token is sent.
    pub(super) fn is_https(&self) -> bool {
        self.uri.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
    }
}

/// Discovers frontends by other means than addresses and DNS names. Displayed as it is configured.
pub trait Discover: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The current frontends.
    ///
    /// # Errors
    /// When they cannot be discovered. The last known frontends are used then.
    fn discover(&self) -> BoxFuture<'_, Result<Vec<FrontendAddress>>>;
}

#[derive(Clone, Debug)]
pub(super) enum AddressSource {
    /// One address.
    Fixed(FrontendAddress),
    /// All addresses of a DNS name.
    Dns { scheme: String, host: String, port: u16 },
    /// Discovery.
    Discovered(Arc<dyn Discover>),
}

// === impl AddressSource ===

impl AddressSource {
    /// Parses `unix:/path`, `https://host:port` or `http://host:port`.
    pub(super) fn parse(address: &str) -> Result<Self> {
        let fixed = || Self::Fixed(FrontendAddress { uri: address.to_owned(), server_name: None });
        if let Some(path) = address.strip_prefix("unix:") {
            ensure!(path.starts_with('/'), "{address:?}: the path of a Unix socket must begin with /");
            return Ok(fixed());
        }

        let expected = || {
            format!(
                "{address:?} is not the address of a frontend: expected unix:/path, https://host:port or \
                 http://host:port"
            )
        };
        let uri: Uri = address.parse().with_context(expected)?;
        let (Some(scheme @ ("http" | "https")), Some(host)) = (uri.scheme_str(), uri.host()) else {
            bail!(expected());
        };
        ensure!(matches!(uri.path(), "" | "/") && uri.query().is_none(), expected());
        let port = uri.port_u16().with_context(|| format!("{address:?} has no port"))?;

        if host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Ok(fixed());
        }
        Ok(Self::Dns { scheme: scheme.to_owned(), host: host.to_owned(), port })
    }

    pub(super) async fn resolve(&self) -> Result<Vec<FrontendAddress>> {
        let found: Vec<_> = match self {
            Self::Fixed(address) => vec![address.clone()],
            Self::Dns { scheme, host, port } => {
                let resolved = lookup_host((host.as_str(), *port)).await;
                let addresses = resolved.with_context(|| format!("cannot resolve {host}"))?;
                let uris = addresses.map(|address| format!("{scheme}://{address}"));
                uris.map(|uri| FrontendAddress { uri, server_name: Some(host.clone()) }).collect()
            }
            Self::Discovered(discovery) => discovery.discover().await?,
        };

        ensure!(!found.is_empty(), "found no frontends");
        Ok(found)
    }
}

impl fmt::Display for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) => f.write_str(&address.uri),
            Self::Dns { scheme, host, port } => write!(f, "{scheme}://{host}:{port}"),
            Self::Discovered(discovery) => discovery.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_addresses_are_fixed_and_dns_names_are_resolved() {
        for (text, is_fixed) in [
            ("unix:/run/fairlead/frontend.sock", true),
            ("https://10.0.0.1:7600", true),
            ("https://[fd00::1]:7600/", true),
            ("http://fairlead.kube-system.svc:7600", false),
        ] {
            let source = AddressSource::parse(text).unwrap();
            assert_eq!(matches!(source, AddressSource::Fixed(_)), is_fixed, "{text}");
            assert_eq!(source.to_string(), text);
        }
        for (text, expected) in [
            ("fairlead:7600", "not the address of a frontend"),
            ("ftp://fairlead:7600", "not the address of a frontend"),
            ("https://fairlead:7600/path", "not the address of a frontend"),
            ("https://fairlead", "has no port"),
            ("unix:frontend.sock", "must begin with /"),
            ("", "not the address of a frontend"),
        ] {
            let error = format!("{:#}", AddressSource::parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn dns_name_resolves_to_all_its_addresses() {
        let found = AddressSource::parse("https://localhost:7600").unwrap().resolve().await.unwrap();
        let address = |uri: &str| FrontendAddress { uri: uri.into(), server_name: Some("localhost".into()) };
        assert!(found.contains(&address("https://127.0.0.1:7600")), "{found:?}");
        let unresolvable = AddressSource::parse("https://fairlead.invalid:7600").unwrap().resolve().await;
        assert!(format!("{:#}", unresolvable.unwrap_err()).contains("fairlead.invalid"));
    }
}
