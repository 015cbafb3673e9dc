//! The objects of the chart that certificates are kept in, as an API server has them.
//!
//! | object | keys |
//! |---|---|
//! | Secret `NAME-ca` | the CA: `tls.crt`, `tls.key`; the next: `next.crt`, `next.key`; earlier ones: `previous.crt` |
//! | Secret `NAME-tls` | the frontend's certificate: `tls.crt`, `tls.key` |
//! | ConfigMap `NAME-ca` | the CAs that backends trust: `ca.crt` |

use std::{
    collections::BTreeMap,
    str::FromStr,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, bail};
use http::header::DATE;
use http_body_util::BodyExt as _;
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    api::{GetParams, Patch, PatchParams, ResourceExt as _},
    client::Body,
    core::{Request, Status},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    issue::{CertificatePem, certificates},
    plan::CertificateState,
};
use crate::source::KubernetesApi;

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// The field manager of changes.
const FIELD_MANAGER: &str = "fairlead-frontend";
/// When a CA was last added to the bundle, as an annotation of the ConfigMap.
const BUNDLE_EXTENDED: &str = "fairlead.io/bundle-extended";
/// The annotations of objects that cert-manager writes begin with this.
const CERT_MANAGER: &str = "cert-manager.io/";

/// `NAMESPACE/NAME`: the namespace of a release, and the beginning of the names of its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateObjectsName {
    namespace: String,
    name: String,
}

/// Reads and changes the objects.
pub(super) struct CertificateObjects {
    api: KubernetesApi,
    name: CertificateObjectsName,
}

/// The objects in one version.
pub(super) struct ReadObjects {
    pub(super) authority: Secret,
    pub(super) certificate: Secret,
    pub(super) bundle: ConfigMap,
    /// The time of the API server.
    pub(super) server_time: Option<SystemTime>,
}

/// What the objects contain.
pub(super) struct CertificateContents {
    pub(super) authority: CertificatePem,
    pub(super) authority_key: String,
    /// A CA and its key.
    pub(super) next: Option<(CertificatePem, String)>,
    pub(super) previous: Vec<CertificatePem>,
    pub(super) bundle: Vec<CertificatePem>,
    bundle_extended: Option<i64>,
    pub(super) certificate: CertificatePem,
}

/// Whether the chart has generated the certificates.
pub(super) enum CertificateOrigin {
    /// They are renewed.
    Generated(Box<CertificateContents>),
    /// They have another owner, for this reason.
    Foreign(String),
}

/// A change of an object.
pub(super) enum ObjectPatch {
    /// Of the Secret with the CA.
    Authority(Value),
    /// Of the Secret with the certificate.
    Certificate(Value),
    /// Of the ConfigMap.
    Bundle(Value),
}

/// Whether an object was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchResult {
    Changed,
    /// Another replica, or an operator, has changed it since it was read.
    Conflict,
}

// === impl CertificateObjects ===

impl CertificateObjects {
    pub(super) fn new(api: KubernetesApi, name: CertificateObjectsName) -> Self {
        Self { api, name }
    }

    /// The common name of CAs, the name of their Secret and of the ConfigMap.
    pub(super) fn authority_name(&self) -> String {
        format!("{}-ca", self.name.name)
    }

    fn certificate_name(&self) -> String {
        format!("{}-tls", self.name.name)
    }

    pub(super) async fn read(&self) -> Result<ReadObjects> {
        let (bundle, _) = self.get("configmaps", &self.authority_name()).await?;
        let (certificate, _) = self.get("secrets", &self.certificate_name()).await?;
        // Last: its time is compared with that of this host.
        let (authority, server_time) = self.get("secrets", &self.authority_name()).await?;
        Ok(ReadObjects { authority, certificate, bundle, server_time })
    }

    async fn get<K: DeserializeOwned>(&self, plural: &str, name: &str) -> Result<(K, Option<SystemTime>)> {
        let object = || format!("get {plural} {}/{name}", self.name.namespace);
        let request = Request::new(format!("/api/v1/namespaces/{}/{plural}", self.name.namespace));
        let request = request.get(name, &GetParams::default())?;
        let answer = async {
            let response =
                self.client().send(request.map(Body::from)).await.map_err(|error| self.api.explain(error))?;
            let is_success = response.status().is_success();
            let date = response.headers().get(DATE).and_then(|value| parse_date(value.to_str().ok()?));
            let body = response.into_body().collect().await?.to_bytes();
            if !is_success {
                let status: Status = serde_json::from_slice(&body).context("the API server sent no Status")?;
                return Err(self.api.explain(kube::Error::Api(status.boxed())));
            }
            Ok((serde_json::from_slice(&body)?, date))
        };
        timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| timed_out()).flatten().with_context(object)
    }

    /// Changes an object, unless it has changed since it was read.
    pub(super) async fn patch(&self, read: &ReadObjects, patch: ObjectPatch) -> Result<PatchResult> {
        let namespace = &self.name.namespace;
        let options = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let versioned = |mut patch: Value, version: Option<String>| {
            patch["metadata"]["resourceVersion"] = version.into();
            Patch::Merge(patch)
        };
        let name = match patch {
            ObjectPatch::Certificate(_) => self.certificate_name(),
            ObjectPatch::Authority(_) | ObjectPatch::Bundle(_) => self.authority_name(),
        };
        let answer = async {
            match patch {
                ObjectPatch::Authority(patch) => {
                    let patch = versioned(patch, read.authority.resource_version());
                    Api::<Secret>::namespaced(self.client(), namespace).patch(&name, &options, &patch).await.map(drop)
                }
                ObjectPatch::Certificate(patch) => {
                    let patch = versioned(patch, read.certificate.resource_version());
                    Api::<Secret>::namespaced(self.client(), namespace).patch(&name, &options, &patch).await.map(drop)
                }
                ObjectPatch::Bundle(patch) => {
                    let patch = versioned(patch, read.bundle.resource_version());
                    Api::<ConfigMap>::namespaced(self.client(), namespace)
                        .patch(&name, &options, &patch)
                        .await
                        .map(drop)
                }
            }
        };
        let patched = match timeout(REQUEST_TIMEOUT, answer).await {
            Ok(Ok(())) => Ok(PatchResult::Changed),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(PatchResult::Conflict),
            Ok(Err(error)) => Err(self.api.explain(error)),
            Err(_) => Err(timed_out()),
        };
        patched.with_context(|| format!("patch {namespace}/{name}"))
    }

    fn client(&self) -> Client {
        self.api.client()
    }
}

fn timed_out() -> anyhow::Error {
    anyhow!("no response of the API server within {REQUEST_TIMEOUT:?}")
}

fn parse_date(text: &str) -> Option<SystemTime> {
    Some(DateTimeParser::new().parse_timestamp(text).ok()?.into())
}

// === impl ReadObjects ===

impl ReadObjects {
    /// Parses the objects. `authority_name` is the common name of the chart's CAs.
    pub(super) fn contents(&self, authority_name: &str) -> Result<CertificateOrigin> {
        let annotations = [&self.authority.metadata, &self.certificate.metadata, &self.bundle.metadata];
        let mut annotations = annotations.into_iter().flat_map(|metadata| metadata.annotations.iter().flatten());
        if let Some((annotation, _)) = annotations.find(|(key, _)| key.starts_with(CERT_MANAGER)) {
            return Ok(CertificateOrigin::Foreign(format!("an object has the annotation {annotation}")));
        }
        let authority = only(&self.authority, "tls.crt").context("the CA")?;
        let authority_key = text(&self.authority, "tls.key").context("the key of the CA")?;
        if !authority.is_authority(authority_name) {
            let reason = format!("the CA is not a self-signed one with the common name {authority_name}");
            return Ok(CertificateOrigin::Foreign(reason));
        }
        if !authority.has_key(&authority_key)? {
            bail!("tls.key of the CA is not the key of its tls.crt");
        }
        let next = match (text(&self.authority, "next.crt").is_ok(), text(&self.authority, "next.key")) {
            (true, Ok(key)) => Some((only(&self.authority, "next.crt").context("the next CA")?, key)),
            _ => None,
        };
        let previous = match text(&self.authority, "previous.crt") {
            Ok(text) => certificates(&text).context("previous CAs")?,
            Err(_) => Vec::new(),
        };
        let bundle = self.bundle.data.as_ref().and_then(|data| data.get("ca.crt")).map_or("", String::as_str);
        let bundle = certificates(bundle).context("ca.crt")?;
        let extended = self.bundle.annotations().get(BUNDLE_EXTENDED);
        let bundle_extended = extended.and_then(|time| Some(Timestamp::from_str(time).ok()?.as_second()));
        let certificate = only(&self.certificate, "tls.crt").context("the frontend's certificate")?;
        let contents =
            CertificateContents { authority, authority_key, next, previous, bundle, bundle_extended, certificate };
        match contents.issuer() {
            Some(_) => Ok(CertificateOrigin::Generated(Box::new(contents))),
            None => Ok(CertificateOrigin::Foreign("another CA has signed the frontend's certificate".to_owned())),
        }
    }
}

pub(super) fn text(secret: &Secret, key: &str) -> Result<String> {
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    let value = secret.data.as_ref().and_then(|data: &BTreeMap<String, ByteString>| data.get(key));
    let value = value.with_context(|| format!("Secret {name} has no {key}"))?;
    String::from_utf8(value.0.clone()).with_context(|| format!("{key} of Secret {name} is no PEM"))
}

/// The first certificate of this key.
fn only(secret: &Secret, key: &str) -> Result<CertificatePem> {
    let first = certificates(&text(secret, key)?)?.into_iter().next();
    first.with_context(|| format!("{key} has no certificate"))
}

// === impl CertificateContents ===

impl CertificateContents {
    /// The CA that has signed the frontend's certificate.
    fn issuer(&self) -> Option<&CertificatePem> {
        let next = self.next.as_ref().map(|(next, _)| next);
        let mut authorities = [&self.authority].into_iter().chain(next).chain(&self.previous);
        authorities.find(|authority| authority.has_signed(&self.certificate))
    }

    pub(super) fn state(&self) -> Result<CertificateState> {
        let issuer = self.issuer().context("another CA has signed the frontend's certificate")?;
        Ok(CertificateState {
            authority: (self.authority.fingerprint, self.authority.validity),
            next: self.next.as_ref().map(|(next, _)| (next.fingerprint, next.validity)),
            previous: self.previous.iter().map(|previous| previous.fingerprint).collect(),
            bundle: self.bundle.iter().map(|trusted| trusted.fingerprint).collect(),
            bundle_extended: self.bundle_extended,
            certificate: self.certificate.validity,
            issuer: issuer.fingerprint,
        })
    }
}

// === impl ObjectPatch ===

impl ObjectPatch {
    /// `None` removes a key.
    fn of_secret(data: &[(&str, Option<String>)]) -> Value {
        let encoded = data.iter().map(|(key, value)| {
            let value = value.as_ref().map(|value| json!(ByteString(value.clone().into_bytes())));
            ((*key).to_owned(), value.unwrap_or(Value::Null))
        });
        json!({ "data": encoded.collect::<serde_json::Map<_, _>>() })
    }

    pub(super) fn authority(data: &[(&str, Option<String>)]) -> Self {
        Self::Authority(Self::of_secret(data))
    }

    pub(super) fn certificate(certificate: String, key: String) -> Self {
        Self::Certificate(Self::of_secret(&[("tls.crt", Some(certificate)), ("tls.key", Some(key))]))
    }

    /// The CAs of a bundle. `extended`: CAs were added to it.
    pub(super) fn bundle(authorities: &[&CertificatePem], extended: Option<i64>) -> Result<Self> {
        let mut patch = json!({"data": {"ca.crt": pem(authorities.iter().copied())}});
        if let Some(extended) = extended {
            patch["metadata"] = json!({"annotations": {BUNDLE_EXTENDED: Timestamp::new(extended, 0)?.to_string()}});
        }
        Ok(Self::Bundle(patch))
    }
}

/// Certificates as one PEM text.
pub(super) fn pem<'a>(certificates: impl IntoIterator<Item = &'a CertificatePem>) -> String {
    certificates.into_iter().map(|certificate| certificate.pem.as_str()).collect()
}

// === impl CertificateObjectsName ===

impl FromStr for CertificateObjectsName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("{text:?}: expected NAMESPACE/NAME, such as kube-system/fairlead")),
        }
    }
}
