//! The credentials of an `https` connection. The files are read for each connection, so that they can be replaced at
//! any time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow};
use runtime::certificate::unusable_pair;
use tokio::{sync::Semaphore, task::spawn_blocking};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::{CONNECT_TIMEOUT, FrontendAddress, Token, error::OwnCertificate};

/// The most files that are read at the same time. Each takes a thread, for as long as a disk hangs.
const MAX_READS: usize = 4;

static READS: Semaphore = Semaphore::const_new(MAX_READS);

/// The files that authenticate both ends. Used for `https` only: a token is never sent in the clear.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The CA certificates (PEM) that the frontend's certificate is verified with.
    pub authorities: Option<PathBuf>,
    /// The certificate (PEM) of this node and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A service-account token bound to this node.
    pub token: Option<PathBuf>,
    /// The name that the frontend's certificate must contain. `None`: the host of the frontend's address.
    pub frontend_name: Option<String>,
}

impl Credentials {
    /// Configures TLS for an endpoint. `name` is the server name of the address. Also returns the own certificate.
    pub(super) async fn configure(
        &self,
        endpoint: Endpoint,
        name: Option<&str>,
    ) -> Result<(Endpoint, Option<OwnCertificate>)> {
        let authorities = self.authorities.as_ref().context(
            "an https address requires --tls-ca: a PEM file with the CA certificate that signed the frontend's \
             certificate",
        )?;
        let authorities = Certificate::from_pem(read(authorities, "--tls-ca").await?);
        let mut config = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT).ca_certificate(authorities);
        if let Some(name) = self.frontend_name.as_deref().or(name) {
            config = config.domain_name(name);
        }

        let Some((certificate, key)) = &self.identity else {
            return Ok((endpoint.tls_config(config).context("cannot use the TLS credentials")?, None));
        };

        let pem = read(certificate, "--tls-cert").await?;
        let own = OwnCertificate::new(certificate, &pem);
        let config = config.identity(Identity::from_pem(pem, read(key, "--tls-key").await?));
        let endpoint = endpoint.tls_config(config).map_err(|error| {
            let certificate = format!("--tls-cert {}", certificate.display());
            let key = format!("--tls-key {}", key.display());
            anyhow!(unusable_pair(&error, &certificate, &key))
        })?;
        Ok((endpoint, Some(own)))
    }

    /// The value of the `authorization` header for requests to a frontend.
    pub(super) async fn token_for(&self, address: &FrontendAddress) -> Result<Option<Token>> {
        let Some(path) = &self.token else { return Ok(None) };
        if !address.is_https() {
            return Ok(None);
        }

        let token = String::from_utf8(read(path, "--token-file").await?)
            .with_context(|| format!("{}: the token is not text", path.display()))?;
        let mut value: Token = format!("Bearer {}", token.trim())
            .parse()
            .with_context(|| format!("{}: the token has characters that a header cannot have", path.display()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

async fn read(path: &Path, flag: &str) -> Result<Vec<u8>> {
    let context = || format!("cannot read {} ({flag}: check the path, the mount and the permissions)", path.display());
    let permit = READS.acquire().await.with_context(context)?;

    let file = path.to_owned();
    let read = spawn_blocking(move || {
        // Held until the read has ended, also when nothing waits for it any more.
        let _permit = permit;
        fs::read(file)
    });
    read.await.with_context(context)?.with_context(context)
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use tokio::{runtime::Builder, time::timeout};

    use super::*;

    #[test]
    fn attempts_to_connect_take_few_threads_while_a_disk_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let credentials = Credentials { token: Some(path.clone()), ..Credentials::default() };
        let frontend = FrontendAddress { uri: "https://10.0.0.1:7600".to_owned(), server_name: None };
        let runtime = Builder::new_current_thread().thread_name("hung disk").enable_all().build().unwrap();
        runtime.block_on(async {
            for _ in 0..5 * MAX_READS {
                timeout(Duration::from_millis(10), credentials.token_for(&frontend)).await.unwrap_err();
            }
        });
        let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let threads = names.filter(|name| name.trim() == "hung disk").count();
        assert!((1..=MAX_READS).contains(&threads), "{threads}");
        // A peer of the FIFO ends the reads.
        fs::write(path, "").unwrap();
    }
}
