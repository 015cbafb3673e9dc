//! etcd and a real API server, in the namespace of a control plane.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use e2e::Process;
use fake_api_server::Resource;
use rustls::ClientConfig;
use serde_json::Value;

use super::api_connection::ApiConnection;
use crate::{
    credentials::Credentials,
    lab::{DEADLINE, Lab},
    report::Report,
    scale::cluster::{Cluster, SliceId},
};

/// The first address is that of `default/kubernetes`.
const SERVICE_CIDR: &str = "10.64.0.0/12";
const PORT: u16 = 6443;
/// Connections that write all objects.
const CONNECTIONS: usize = 16;
/// The names of certificates: of the API server, and of its clients, which may do everything.
const SERVER: &str = "kube-apiserver";
const CLIENT: &str = "admin";
const POLL: Duration = Duration::from_millis(200);

/// The programs. Dropping it kills them.
pub(super) struct ControlPlane {
    lab: Lab,
    credentials: Credentials,
    client: Arc<ClientConfig>,
    api_server: Process,
    etcd: Process,
}

impl ControlPlane {
    /// Starts them. `programs`: a directory with `kube-apiserver`.
    pub(super) fn start(lab: Lab, programs: &Path, etcd: &Path) -> Result<Self> {
        Report::progress("starting etcd and kube-apiserver");
        let credentials = Credentials::create(&lab.path(""))?;
        credentials.sign(SERVER, SERVER, "", &[&lab.address().to_string()])?;
        credentials.sign(CLIENT, CLIENT, "system:masters", &[])?;
        let client = credentials.client(CLIENT)?;

        let etcd_data = format!("--data-dir={}", lab.path("etcd").display());
        let etcd_arguments = [&etcd_data, "--unsafe-no-fsync", "--listen-peer-urls=http://127.0.0.1:2380"];
        let etcd = lab.spawn_other(etcd, &etcd_arguments, "etcd.log");
        let file = |name: &str| lab.path(name).display().to_string();
        let (certificate, key) = (file(&format!("{SERVER}.crt")), file(&format!("{SERVER}.key")));
        let arguments = [
            "--etcd-servers=http://127.0.0.1:2379",
            &format!("--advertise-address={}", lab.address()),
            &format!("--secure-port={PORT}"),
            &format!("--service-cluster-ip-range={SERVICE_CIDR}"),
            &format!("--client-ca-file={}", file("ca.crt")),
            &format!("--tls-cert-file={certificate}"),
            &format!("--tls-private-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            &format!("--service-account-key-file={certificate}"),
            &format!("--service-account-signing-key-file={key}"),
        ];
        let api_server = lab.spawn_other(&programs.join("kube-apiserver"), &arguments, "kube-apiserver.log");
        let control_plane = Self { lab, credentials, client, api_server, etcd };
        control_plane.wait_until_ready()?;
        control_plane.write_kubeconfig()?;
        Ok(control_plane)
    }

    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    pub(super) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Of a client that may do everything.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.lab.kubeconfig()
    }

    /// Creates all objects.
    pub(super) fn load(&self, cluster: &Cluster) -> Result<()> {
        let objects: Vec<_> = cluster.objects().collect();
        Report::progress(&format!("writing {} objects", objects.len()));
        let started = Instant::now();
        let next = AtomicUsize::new(0);
        let create_all = || -> Result<()> {
            let mut connection = self.connect()?;
            while let Some((resource, object)) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                connection.request("POST", &path(*resource)?, object)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(create_all)).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread has panicked"),
            })
        })?;
        Report::progress(&format!("written in {:.0} s", started.elapsed().as_secs_f64()));
        Ok(())
    }

    /// A new connection, from the control plane's own namespace.
    pub(super) fn connect(&self) -> Result<ApiConnection> {
        self.lab.run(|| ApiConnection::open(self.address(), &self.client))
    }

    pub(super) fn api_server(&self) -> &Process {
        &self.api_server
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.lab.address(), PORT)
    }

    /// Fails if a program has ended, with the last line that it has printed.
    pub(super) fn check(&self) -> Result<()> {
        for (name, program) in [("etcd", &self.etcd), ("kube-apiserver", &self.api_server)] {
            if let Some(status) = program.exited() {
                let lines = program.lines_since(0);
                bail!("{name} ended with {status}: {}", lines.last().map_or("", String::as_str));
            }
        }
        Ok(())
    }

    /// The API server creates `default/kubernetes` last, after its namespace and its range of addresses.
    fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        let get = || self.connect()?.request("GET", "/api/v1/namespaces/default/services/kubernetes", &Value::Null);
        while let Err(error) = get() {
            self.check()?;
            if Instant::now() > deadline {
                return Err(error.context(format!("the API server is not ready within {DEADLINE:?}")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn write_kubeconfig(&self) -> Result<()> {
        let text = format!(
            "\
apiVersion: v1
kind: Config
clusters: [{{name: bench, cluster: {{server: 'https://{}', certificate-authority: ca.crt}}}}]
users: [{{name: {CLIENT}, user: {{client-certificate: {CLIENT}.crt, client-key: {CLIENT}.key}}}}]
contexts: [{{name: bench, context: {{cluster: bench, user: {CLIENT}}}}}]
current-context: bench
",
            self.address()
        );
        fs::write(self.kubeconfig(), text).context("write a kubeconfig")
    }
}

/// Writes the current state of a slice. `trigger`: the time of its change, in microseconds since 1970.
pub(super) fn put_slice(connection: &mut ApiConnection, cluster: &Cluster, id: SliceId, trigger: u64) -> Result<()> {
    let slice = cluster.slice(id, trigger);
    let name = slice["metadata"]["name"].as_str().context("the name of a slice")?;
    connection.request("PUT", &format!("{}/{name}", path(Resource::EndpointSlice)?), &slice)?;
    Ok(())
}

/// Of all objects of a kind in `default`.
pub(super) fn path(resource: Resource) -> Result<String> {
    Ok(match resource {
        Resource::Node => "/api/v1/nodes".to_owned(),
        Resource::Service => "/api/v1/namespaces/default/services".to_owned(),
        Resource::EndpointSlice => "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices".to_owned(),
        other => bail!("no path of {}", other.kind()),
    })
}
