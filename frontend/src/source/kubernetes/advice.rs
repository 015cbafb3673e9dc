//! What an operator can do about an error of the API server or of its client, where that is a definite fact. Pure.

use runtime::connect_advice::connect_advice;

use super::{api::ApiSettings, request::RequestError};

/// What to do about a failed request for a resource, as RBAC names it. `since` is the first version of Kubernetes that
/// serves it by default; `None` if each does.
pub(super) fn advice(
    error: &RequestError,
    settings: &ApiSettings,
    resource: &str,
    since: Option<&str>,
) -> Option<String> {
    let ApiSettings { address, credentials, .. } = settings;
    let code = match error {
        RequestError::Refused(status, _) => status.code,
        RequestError::Html => {
            return Some(format!(
                "what answers is not an API server: check the host, the port and the path in {address}"
            ));
        }
        RequestError::NoResponse(error) => return connect_advice(error, &settings.connect()),
        _ => return None,
    };
    Some(match (code, since) {
        (401, _) => format!(
            "the API server does not accept the credentials: check that {credentials} is of this cluster and has not \
             expired"
        ),
        (403, _) => format!(
            "grant list and watch on {resource} to the user of {credentials}: the ClusterRole of the Helm chart lists \
             all permissions"
        ),
        (404, None) => format!(
            "every API server serves {resource}: check that {address} is its address and has no path, or that of the \
             proxy in front of it"
        ),
        (404, Some(since)) => format!(
            "Kubernetes serves {resource} from {since} on: check the version, --runtime-config of kube-apiserver, and \
             check that {address} has no path"
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
