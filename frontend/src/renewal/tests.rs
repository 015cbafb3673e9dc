//! Renewals at a fake API server, of the certificates that Helm has created on 2026-11-22, at times of a fake clock.

use std::sync::Arc;

use fake_api_server::{ApiServer, Fault, RequestKind, Resource};
use jiff::Timestamp;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{CertificateDer, UnixTime, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);
/// What the chart has created.
const HELM: &str = include_str!("tests/helm.pem");
const SERVER: &str = "fairlead.kube-system.svc";
/// When the certificate of the frontend has two thirds of its lifetime behind it.
const CERTIFICATE_DUE: &str = "2028-03-23T12:17:06Z";
/// The same of the CA.
const AUTHORITY_DUE: &str = "2033-07-22T12:17:06Z";
const LIFETIMES: CertificateLifetimes = CertificateLifetimes {
    certificate: Duration::from_secs(730 * 86_400),
    authority: Duration::from_secs(3650 * 86_400),
    overlap: DAY,
};

fn time(text: &str) -> SystemTime {
    text.parse::<Timestamp>().unwrap().into()
}

/// A release that was installed by Helm.
struct Release {
    server: ApiServer,
    _directory: tempfile::TempDir,
    kubeconfig: std::path::PathBuf,
    metrics: Metrics,
}

impl Release {
    async fn install() -> Self {
        let server = ApiServer::start().unwrap();
        let blocks: Vec<_> = HELM.split_inclusive("-----\n").collect::<Vec<_>>();
        let blocks: Vec<_> = blocks.chunks(2).map(<[&str]>::concat).collect();
        let [ca, ca_key, certificate, key] = &blocks[..] else { panic!("{} blocks", blocks.len()) };
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let release = Self { server, _directory: directory, kubeconfig, metrics: Metrics::default() };
        release.put_secret("fairlead-ca", &[("tls.crt", ca), ("tls.key", ca_key)]);
        release.put_secret("fairlead-tls", &[("tls.crt", certificate), ("tls.key", key)]);
        let metadata = json!({"namespace": "kube-system", "name": "fairlead-ca"});
        let _ = release.server.put(Resource::ConfigMap, json!({"metadata": metadata, "data": {"ca.crt": ca}}));
        release
    }

    fn put_secret(&self, name: &str, data: &[(&str, &str)]) {
        let data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))));
        let metadata =
            json!({"namespace": "kube-system", "name": name, "annotations": {"fairlead.io/generation": "1"}});
        let data: serde_json::Map<_, _> = data.collect();
        let _ =
            self.server.put(Resource::Secret, json!({"metadata": metadata, "type": "kubernetes.io/tls", "data": data}));
    }

    async fn replica(&self) -> CertificateRenewal {
        let api = KubernetesApi::new(Some(&self.kubeconfig)).await.unwrap();
        let objects = "kube-system/fairlead".parse().unwrap();
        CertificateRenewal::new(api, RenewalOptions { objects, lifetimes: LIFETIMES })
    }

    async fn check(&self, now: SystemTime) -> RenewalCheck {
        self.replica().await.check(now, &self.metrics).await.unwrap()
    }

    /// The certificate that frontends use.
    async fn certificate(&self) -> String {
        objects::text(&self.replica().await.objects.read().await.unwrap().certificate, "tls.crt").unwrap()
    }

    /// The CAs that backends trust.
    async fn bundle(&self) -> String {
        self.replica().await.objects.read().await.unwrap().bundle.data.unwrap()["ca.crt"].clone()
    }

    /// The number of certificates and CAs that were issued.
    fn issued(&self) -> [u64; 2] {
        ["server", "ca"].map(|certificate| self.metrics.certificates_renewed(certificate))
    }

    fn writes(&self) -> u64 {
        [Resource::Secret, Resource::ConfigMap].map(|kind| self.server.requests(kind, RequestKind::Write)).iter().sum()
    }
}

/// Whether a backend with this bundle accepts this certificate.
fn trusts(bundle: &str, certificate: &str, now: SystemTime) -> bool {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap());
    verifier.verify_server_cert(&certificate, &[], &SERVER.try_into().unwrap(), &[], now).is_ok()
}

#[tokio::test]
async fn certificate_is_renewed_for_the_same_names() {
    let release = Release::install().await;
    let (old, bundle) = (release.certificate().await, release.bundle().await);
    let due = time(CERTIFICATE_DUE);
    assert!(trusts(&bundle, &old, due));

    release.check(due - DAY).await;
    assert_eq!((release.issued(), release.writes()), ([0, 0], 0));
    release.check(due + DAY).await;
    release.check(due + 2 * DAY).await;
    assert_eq!((release.issued(), release.writes()), ([1, 0], 1));

    let renewed = release.certificate().await;
    assert_ne!(renewed, old);
    assert_eq!(release.bundle().await, bundle);
    let names = |pem: &str| issue::certificates(pem).unwrap()[0].server_names();
    assert_eq!(names(&renewed), names(&old));
    for (certificate, days, is_trusted) in [(&old, 400, false), (&renewed, 0, true), (&renewed, 700, true)] {
        assert_eq!(trusts(&bundle, certificate, due + (1 + days) * DAY), is_trusted, "{days}");
    }
    // The rest of the Secret is kept, such as what Helm looks up in it.
    let secret = release.replica().await.objects.read().await.unwrap().certificate;
    assert_eq!(secret.metadata.annotations.unwrap()["fairlead.io/generation"], "1");
    assert_eq!(secret.data.unwrap().len(), 2);
}

#[tokio::test]
async fn authority_changes_without_a_backend_that_rejects_the_certificate() {
    let release = Release::install().await;
    let due = time(AUTHORITY_DUE);
    release.check(due - DAY).await;
    let old_bundle = release.bundle().await;

    // The new CA is distributed. Backends that have only the old bundle connect for a day.
    release.check(due + DAY).await;
    let both = release.bundle().await;
    assert!(both.starts_with(&old_bundle) && both.len() > old_bundle.len());
    release.check(due + 2 * DAY - Duration::from_secs(1)).await;
    let before = release.certificate().await;
    for bundle in [&old_bundle, &both] {
        assert!(trusts(bundle, &before, due + 2 * DAY));
    }

    // It signs. Frontends that have only the old certificate are trusted for a day.
    release.check(due + 2 * DAY).await;
    let after = release.certificate().await;
    assert_ne!(after, before);
    assert_eq!(release.bundle().await, both);
    for certificate in [&before, &after] {
        assert!(trusts(&both, certificate, due + 2 * DAY));
    }
    assert!(!trusts(&old_bundle, &after, due + 2 * DAY));

    release.check(due + 3 * DAY + Duration::from_secs(1)).await;
    let new_bundle = release.bundle().await;
    assert_eq!(new_bundle.len(), both.len() - old_bundle.len());
    assert!(trusts(&new_bundle, &after, due + 3 * DAY) && !trusts(&new_bundle, &before, due + 3 * DAY));

    // The old key is gone, and nothing is due.
    let secret = release.replica().await.objects.read().await.unwrap().authority;
    assert_eq!(secret.data.unwrap().into_keys().collect::<Vec<_>>(), ["tls.crt", "tls.key"]);
    let writes = release.writes();
    release.check(due + 100 * DAY).await;
    assert_eq!((release.writes(), release.issued()[1]), (writes, 1));
}

#[tokio::test]
async fn of_two_replicas_one_renews_and_both_use_its_certificate() {
    let release = Release::install().await;
    // Both have read the objects before one writes.
    release
        .server
        .set_faults(Resource::Secret, |faults| faults.writes = Some(Fault::Delay(Duration::from_millis(300))));
    let (one, other) = (release.replica().await, release.replica().await);
    let due = time(CERTIFICATE_DUE) + DAY;
    let (first, second) = tokio::join!(one.check(due, &release.metrics), other.check(due, &release.metrics));
    assert_eq!(first.unwrap(), second.unwrap());
    assert_eq!(release.writes(), 2, "one of them was a conflict");
    assert_eq!(release.issued(), [1, 0]);
    assert!(trusts(&release.bundle().await, &release.certificate().await, due));

    // A complete change of the CA.
    let due = time(AUTHORITY_DUE);
    for day in 1..6 {
        let checks = (one.check(due + day * DAY, &release.metrics), other.check(due + day * DAY, &release.metrics));
        let (first, second) = tokio::join!(checks.0, checks.1);
        assert_eq!(first.unwrap(), second.unwrap());
        assert!(trusts(&release.bundle().await, &release.certificate().await, due + day * DAY));
    }
    assert_eq!(release.issued()[1], 1);
}

#[tokio::test]
async fn failures_are_retried_and_keep_the_certificate() {
    let release = Release::install().await;
    let old = release.certificate().await;
    let due = time(CERTIFICATE_DUE) + DAY;
    let replica = release.replica().await;
    for (fault, text) in [(Fault::Refuse(500), "500"), (Fault::Refuse(403), "403")] {
        release.server.set_faults(Resource::Secret, |faults| faults.writes = Some(fault));
        let error = format!("{:#}", replica.check(due, &release.metrics).await.unwrap_err());
        assert!(error.contains(text) && error.contains("kube-system/fairlead-tls"), "{error}");
        assert_eq!(release.certificate().await, old);
    }
    release.server.set_faults(Resource::Secret, |faults| faults.writes = None);
    replica.check(due, &release.metrics).await.unwrap();
    assert_ne!(release.certificate().await, old);
}

#[tokio::test]
async fn missing_objects_are_an_error_that_names_them() {
    let release = Release::install().await;
    release.server.delete(Resource::ConfigMap, "kube-system", "fairlead-ca");
    let error = release.replica().await.check(time(CERTIFICATE_DUE), &release.metrics).await.unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("get configmaps kube-system/fairlead-ca") && error.contains("not found"), "{error}");
}

/// The next write to a Secret.
async fn write(writes: &mut UnboundedReceiver<(String, Value)>) -> String {
    tokio::time::timeout(Duration::from_secs(60), writes.recv()).await.expect("a write").unwrap().0
}

#[tokio::test]
async fn failing_api_server_is_retried_until_it_answers() {
    let release = Release::install().await;
    // An expired CA, so that a renewal is due at the real time.
    let validity = plan_validity(-20, -10);
    let authority = create_authority("fairlead-ca", validity).unwrap();
    let pem = &issue::certificates(&authority.certificate).unwrap()[0];
    let old = &issue::certificates(&release.certificate().await).unwrap()[0];
    let issued = issue(pem, &authority.key, old, validity).unwrap();
    release.put_secret("fairlead-ca", &[("tls.crt", &authority.certificate), ("tls.key", &authority.key)]);
    release.put_secret("fairlead-tls", &[("tls.crt", &issued.certificate), ("tls.key", &issued.key)]);
    release.server.set_faults(Resource::ConfigMap, |faults| faults.lists = Some(Fault::Refuse(503)));

    let mut replica = release.replica().await;
    replica.retry = (Duration::from_millis(1), Duration::from_millis(5));
    let failing = async {
        let gets = || release.server.requests(Resource::ConfigMap, RequestKind::Get);
        while gets() < 5 {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((release.metrics.certificate_renewal_failing.get(), release.writes()), (1, 0));
        let mut writes = release.server.writes();
        release.server.set_faults(Resource::ConfigMap, |faults| faults.lists = None);
        for name in ["secrets/fairlead-ca", "configmaps/fairlead-ca", "secrets/fairlead-ca", "secrets/fairlead-tls"] {
            let path = write(&mut writes).await;
            assert!(path.contains(name), "{path}");
        }
        while release.metrics.certificate_renewal_failing.get() == 1 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = replica.run(&release.metrics) => unreachable!(),
        () = failing => {}
    }
    assert!(trusts(&release.bundle().await, &release.certificate().await, SystemTime::now()));
}

/// From and until so many days after now.
fn plan_validity(from: i64, until: i64) -> runtime::certificate::Validity {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    runtime::certificate::Validity { not_before: now + from * 86_400, not_after: now + until * 86_400 }
}

#[tokio::test]
async fn certificates_of_another_owner_are_not_touched() {
    let now = time(AUTHORITY_DUE) + 1000 * DAY;
    let foreign = async |change: &dyn Fn(&Release), expected: &str| {
        let release = Release::install().await;
        change(&release);
        let check = release.check(now).await;
        assert!(matches!(&check, RenewalCheck::Foreign(reason) if reason.contains(expected)), "{check:?}");
        assert_eq!(release.writes(), 0);
    };
    let validity = plan_validity(-20, 1000);
    let other = create_authority("corporate", validity).unwrap();
    let other_pem = issue::certificates(&other.certificate).unwrap().remove(0);
    let helm = issue::certificates(HELM).unwrap();
    let issued = issue(&other_pem, &other.key, &helm[1], validity).unwrap();

    foreign(
        &|release| {
            release.put_secret("fairlead-tls", &[("tls.crt", &issued.certificate), ("tls.key", &issued.key)]);
        },
        "another CA has signed",
    )
    .await;
    foreign(
        &|release| {
            release.put_secret("fairlead-ca", &[("tls.crt", &other.certificate), ("tls.key", &other.key)]);
            release.put_secret("fairlead-tls", &[("tls.crt", &issued.certificate), ("tls.key", &issued.key)]);
        },
        "common name fairlead-ca",
    )
    .await;
    foreign(
        &|release| {
            let metadata = json!({"namespace": "kube-system", "name": "fairlead-ca",
                "annotations": {"cert-manager.io/inject-ca-from": "kube-system/x"}});
            let object = json!({"metadata": metadata, "data": {"ca.crt": other.certificate}});
            let _ = release.server.put(Resource::ConfigMap, object);
        },
        "cert-manager.io/inject-ca-from",
    )
    .await;
}

#[tokio::test]
async fn other_authorities_in_the_bundle_stay() {
    let release = Release::install().await;
    let other = create_authority("corporate", plan_validity(-20, 1000)).unwrap();
    let bundle = format!("# Ours\n{}{}", other.certificate, release.bundle().await);
    let metadata = json!({"namespace": "kube-system", "name": "fairlead-ca"});
    let _ = release.server.put(Resource::ConfigMap, json!({"metadata": metadata, "data": {"ca.crt": bundle}}));
    for day in 1..6 {
        release.check(time(AUTHORITY_DUE) + day * DAY).await;
    }
    let bundle = release.bundle().await;
    assert_eq!((issue::certificates(&bundle).unwrap().len(), release.issued()[1]), (2, 1));
    assert!(bundle.starts_with(&other.certificate));
}

#[test]
fn wrong_clock_prevents_renewals() {
    for server in [SystemTime::now() + DAY, SystemTime::now() - DAY] {
        let error = check_clock(Some(server)).unwrap_err().to_string();
        assert!(error.contains("set the clock of this host"), "{error}");
    }
    check_clock(Some(SystemTime::now() - Duration::from_secs(60))).unwrap();
    check_clock(None).unwrap();
}

#[tokio::test]
async fn time_of_the_api_server_is_read() {
    let release = Release::install().await;
    let time = release.replica().await.objects.read().await.unwrap().server_time.unwrap();
    assert!(SystemTime::now().duration_since(time).unwrap() < Duration::from_secs(60));
}

#[test]
fn names_of_objects_are_parsed() {
    for wrong in ["fairlead", "/fairlead", "kube-system/", "a/b/c"] {
        let error = wrong.parse::<CertificateObjectsName>().unwrap_err();
        assert!(error.contains("expected NAMESPACE/NAME"), "{error}");
    }
}
