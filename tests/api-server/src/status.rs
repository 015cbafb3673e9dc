//! Errors as an API server sends them.

use serde_json::{Value, json};

/// A complete answer: the HTTP status code, the header `Retry-After` in seconds, and the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) retry_after: Option<u32>,
    pub(crate) body: AnswerBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerBody {
    Json(String),
    Text(&'static str),
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(code: u16, body: String) -> Self {
        Self { code, retry_after: None, body: AnswerBody::Json(body) }
    }

    /// A `Status` object.
    pub(crate) fn error(code: u16, message: &str) -> Self {
        Self::json(code, status(code, message).to_string())
    }

    /// An object that has changed since the version in the request.
    pub(crate) fn conflict(resource: &str, name: &str) -> Self {
        let text = format!(
            "Operation cannot be fulfilled on {resource} {name:?}: the object has been modified; please apply your \
             changes to the latest version and try again"
        );
        let mut status = status(409, &text);
        status["reason"] = "Conflict".into();
        Self::json(409, status.to_string())
    }

    /// A path that is not served: a resource of a served group, or anything else.
    pub(crate) fn unknown_path(path: &str) -> Self {
        if path.starts_with("/api/v1/") {
            return Self::error(404, "the server could not find the requested resource");
        }
        Self { code: 404, retry_after: None, body: AnswerBody::Text("404 page not found\n") }
    }

    /// As API Priority and Fairness rejects a request.
    pub(crate) fn throttled(retry_after: u32) -> Self {
        let text = "Too many requests, please try again later.\n";
        Self { code: 429, retry_after: Some(retry_after), body: AnswerBody::Text(text) }
    }
}

/// A `Status` object of a failure.
pub(crate) fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "AlreadyExists",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    })
}
