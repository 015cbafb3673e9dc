//! Where frontends may be: at addresses that were given, behind names, or wherever somebody finds them.

use std::{fmt, net::IpAddr, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::BoxFuture;
use tokio::net::lookup_host;
use tonic::transport::Uri;

/// One frontend, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendAddress {
    /// What to connect to: `unix:/path`, `https://address:port` or `http://address:port`.
    pub address: String,
    /// The name that its certificate must be for, where that is not in the address.
    pub name: Option<String>,
}

/// Finds frontends by other means than addresses and names. Shown as what was asked for.
pub trait Discover: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Those that there are now.
    ///
    /// # Errors
    /// When that cannot be found out. The ones found last are used then.
    fn discover(&self) -> BoxFuture<'_, Result<Vec<FrontendAddress>>>;
}

/// Something that leads to frontends.
#[derive(Clone, Debug)]
pub(super) enum AddressSource {
    /// This one.
    Fixed(FrontendAddress),
    /// All addresses of a name.
    Name(Named),
    /// Whatever is found.
    Discovered(Arc<dyn Discover>),
}

/// All frontends behind a DNS name.
#[derive(Clone, Debug)]
pub(super) struct Named {
    scheme: String,
    host: String,
    port: u16,
}

// === impl AddressSource ===

impl AddressSource {
    /// Reads `unix:/path`, `https://host:port` or `http://host:port`.
    pub(super) fn parse(address: &str) -> Result<Self> {
        let fixed = || Self::Fixed(FrontendAddress { address: address.to_owned(), name: None });
        if let Some(path) = address.strip_prefix("unix:") {
            ensure!(path.starts_with('/'), "{address:?}: the path of a socket must begin with /");
            return Ok(fixed());
        }
        let expected = || {
            format!("{address:?} is no frontend's address: expected unix:/path, https://host:port or http://host:port")
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
        Ok(Self::Name(Named { scheme: scheme.to_owned(), host: host.to_owned(), port }))
    }

    /// The frontends there. Those of a fixed address cost nothing.
    pub(super) async fn look_up(&self) -> Result<Vec<FrontendAddress>> {
        let found = match self {
            Self::Fixed(candidate) => return Ok(vec![candidate.clone()]),
            Self::Name(name) => name.look_up().await?,
            Self::Discovered(discovery) => discovery.discover().await?,
        };
        ensure!(!found.is_empty(), "there is none");
        Ok(found)
    }
}

impl fmt::Display for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(candidate) => f.write_str(&candidate.address),
            Self::Name(Named { scheme, host, port }) => write!(f, "{scheme}://{host}:{port}"),
            Self::Discovered(discovery) => discovery.fmt(f),
        }
    }
}

// === impl Named ===

impl Named {
    async fn look_up(&self) -> Result<Vec<FrontendAddress>> {
        let Self { scheme, host, port } = self;
        let addresses = lookup_host((host.as_str(), *port)).await.with_context(|| format!("look up {host}"))?;
        let candidate =
            |address| FrontendAddress { address: format!("{scheme}://{address}"), name: Some(host.clone()) };
        Ok(addresses.map(candidate).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_told_apart() {
        for (text, is_fixed) in [
            ("unix:/run/fairlead/frontend.sock", true),
            ("https://10.0.0.1:7600", true),
            ("https://[fd00::1]:7600/", true),
            ("http://fairlead.kube-system.svc:7600", false),
        ] {
            let place = AddressSource::parse(text).unwrap();
            assert_eq!(matches!(place, AddressSource::Fixed(_)), is_fixed, "{text}");
            assert_eq!(place.to_string(), text);
        }
        for (text, said) in [
            ("fairlead:7600", "no frontend's address"),
            ("ftp://fairlead:7600", "no frontend's address"),
            ("https://fairlead:7600/path", "no frontend's address"),
            ("https://fairlead", "has no port"),
            ("unix:frontend.sock", "must begin with /"),
            ("", "no frontend's address"),
        ] {
            let error = format!("{:#}", AddressSource::parse(text).unwrap_err());
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn a_name_leads_to_all_its_addresses() {
        let found = AddressSource::parse("https://localhost:7600").unwrap().look_up().await.unwrap();
        let candidate = |address: &str| FrontendAddress { address: address.into(), name: Some("localhost".into()) };
        assert!(found.contains(&candidate("https://127.0.0.1:7600")), "{found:?}");
        let nowhere = AddressSource::parse("https://fairlead.invalid:7600").unwrap().look_up().await;
        assert!(format!("{:#}", nowhere.unwrap_err()).contains("fairlead.invalid"));
    }
}
