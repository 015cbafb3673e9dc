//! What an operator can do about an error of the API server or of its client: one line for each set-up that is often
//! wrong. Pure.

use std::{error::Error, io};

use kube::core::Status;
use runtime::{
    connect_advice::{causes, connect_advice},
    failure::chain,
};

use super::{api::ApiSettings, request::RequestError};

/// A resource of the API, as RBAC and URLs name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiResource {
    /// Empty for the core group.
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    /// The first version of Kubernetes that serves it by default. `None` for those that each version serves.
    pub(super) since: Option<&'static str>,
}

/// What to do about a failed request. `resource` is what was requested, if that is one of those that are watched.
pub(super) fn advice(error: &RequestError, settings: &ApiSettings, resource: Option<&ApiResource>) -> Option<String> {
    match error {
        RequestError::Refused(status) => about_status(status, settings, resource),
        RequestError::Html => Some(about_address(settings)),
        RequestError::NoResponse(error) => {
            connect_advice(error, &settings.connect()).or_else(|| about_files(error).map(str::to_owned))
        }
        _ => None,
    }
}

/// An error of reading the configuration, with what to do about it.
pub(super) fn with_start_advice(error: &(dyn Error + 'static)) -> String {
    let text = chain(error);
    match about_files(error).or_else(|| about_contents(&text)) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

fn about_status(status: &Status, settings: &ApiSettings, resource: Option<&ApiResource>) -> Option<String> {
    let ApiSettings { address, credentials, .. } = settings;
    match status.code {
        400 if status.message.contains("HTTP request to an HTTPS server") => {
            Some(format!("that port speaks TLS: use https:// in {address}"))
        }
        401 => Some(format!(
            "the API server does not accept the credentials: check that {credentials} is of this cluster and has not \
             expired"
        )),
        403 => Some(about_permission(&status.message, settings, resource)),
        404 => Some(match resource {
            Some(resource) if !is_web_page(&status.message) => about_missing(resource, settings),
            _ => about_address(settings),
        }),
        _ => None,
    }
}

/// The API server writes: `User "U" cannot V resource "R" in API group "G" at the cluster scope`.
fn about_permission(message: &str, settings: &ApiSettings, resource: Option<&ApiResource>) -> String {
    let quoted = |before: &str| Some(message.split_once(before)?.1.split_once('"')?.0);
    let verb = message.split_once(" cannot ").and_then(|(_, rest)| rest.split_once(" resource ")).map(|(verb, _)| verb);
    let user = quoted("User \"");
    if user == Some("system:anonymous") {
        return format!("the request carried no valid credentials: check {}", settings.credentials);
    }
    let plural = quoted("resource \"").or_else(|| resource.map(|resource| resource.plural.as_str()));
    let group = quoted("API group \"").or_else(|| resource.map(|resource| resource.group.as_str()));
    let (verb, plural) = (verb.unwrap_or("list and watch"), plural.unwrap_or("this resource"));
    let user = user.unwrap_or("the user of these credentials");
    let group = group.filter(|group| !group.is_empty()).map_or_else(String::new, |group| format!(".{group}"));
    format!("grant {verb} on {plural}{group} to {user}: the ClusterRole of the Helm chart lists all permissions")
}

fn about_missing(resource: &ApiResource, settings: &ApiSettings) -> String {
    let ApiResource { group, version, plural, since } = resource;
    match since {
        Some(since) => format!(
            "the API server does not serve {plural}.{group}/{version}: Kubernetes does from {since} on; if yours is \
             newer, check that {} has no path, and --runtime-config of kube-apiserver",
            settings.address
        ),
        None => format!(
            "every API server serves {plural}: check that {} is its address and has no path, or that of the proxy in \
             front of it",
            settings.address
        ),
    }
}

fn about_address(settings: &ApiSettings) -> String {
    format!("what answers is not an API server: check the host, the port and the path in {}", settings.address)
}

fn about_files(error: &(dyn Error + 'static)) -> Option<&'static str> {
    causes(error).find_map(|cause| match cause.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::NotFound => Some("check the path of this file, and that it is mounted"),
        io::ErrorKind::PermissionDenied => Some("make this file readable for the user that this process runs as"),
        io::ErrorKind::IsADirectory => Some("give the path of a file, not of a directory"),
        _ => None,
    })
}

fn about_contents(text: &str) -> Option<&'static str> {
    let advice = [
        ("PEM", "use a PEM file with the blocks CERTIFICATE or PRIVATE KEY, as it was issued"),
        ("private key", "use an unencrypted PEM file with a block PRIVATE KEY"),
        ("base64", "encode the value with `base64 -w0`, or refer to a file instead"),
        ("context", "set current-context to one of the contexts in the file (`kubectl config use-context`)"),
        ("YAML", "write the file with `kubectl config view --raw --flatten`"),
    ];
    advice.into_iter().find(|(word, _)| text.contains(word)).map(|(_, advice)| advice)
}

/// Whether a text is HTML, as proxies and web servers send it.
pub(super) fn is_web_page(text: &str) -> bool {
    text.trim_start().starts_with('<')
}

#[cfg(test)]
mod tests;
