//! Reviews of tokens and permissions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{faults::Fault, status::Answer};

/// The user that a token belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewedUser {
    /// `system:serviceaccount:NAMESPACE:NAME` for a ServiceAccount.
    pub name: String,
    /// The node of the pod that the token is bound to.
    pub node: Option<String>,
    /// The audiences that the token is for.
    pub audiences: Vec<String>,
}

/// What reviews answer.
#[derive(Debug, Default)]
pub(crate) struct Reviewer {
    pub(crate) tokens: BTreeMap<String, ReviewedUser>,
    /// `VERB RESOURCE`; everything else is allowed.
    pub(crate) denied: BTreeSet<String>,
    pub(crate) fault: Option<Fault>,
}

// === impl Reviewer ===

impl Reviewer {
    /// The answer to a POST to a review. `None` if the path is none.
    pub(crate) fn answer(&self, path: &str, body: &[u8]) -> Option<Answer> {
        let review = match path {
            "/apis/authentication.k8s.io/v1/tokenreviews" => Self::token,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            | "/apis/authorization.k8s.io/v1/subjectaccessreviews" => Self::access,
            _ => return None,
        };
        let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
            return Some(Answer::error(400, "the body of the request is not JSON"));
        };
        object["status"] = review(self, &object["spec"]);
        object["metadata"] = json!({"creationTimestamp": null});
        Some(Answer::json(201, object.to_string()))
    }

    fn token(&self, spec: &Value) -> Value {
        let requested: Vec<_> = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let Some(user) = spec["token"].as_str().and_then(|token| self.tokens.get(token)) else {
            return json!({"user": {}, "error": "[invalid bearer token]"});
        };
        let audiences: Vec<_> =
            user.audiences.iter().filter(|audience| requested.contains(&audience.as_str())).collect();
        if audiences.is_empty() {
            return json!({"user": {}, "error": "[invalid bearer token]"});
        }
        let mut found = json!({"username": user.name, "groups": ["system:authenticated"]});
        if let Some(node) = &user.node {
            found["extra"] = json!({"authentication.kubernetes.io/node-name": [node]});
        }
        json!({"authenticated": true, "user": found, "audiences": audiences})
    }

    fn access(&self, spec: &Value) -> Value {
        let field = |name: &str| spec["resourceAttributes"][name].as_str().unwrap_or_default();
        let allowed = !self.denied.contains(&format!("{} {}", field("verb"), field("resource")));
        json!({"allowed": allowed})
    }
}
