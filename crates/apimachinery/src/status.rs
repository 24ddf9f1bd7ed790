//! The `Status` object: how every request that fails (and some that succeed) is answered.
//!
//! Reasons are typed and fix the HTTP code; messages are built here only, in upstream's words, because clients
//! and tests match on them.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::field::Problems;

/// Why a request failed. Clients act on this word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Reason {
    Unknown,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    ServerTimeout,
    StoreReadError,
    Timeout,
    TooManyRequests,
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    Expired,
    ServiceUnavailable,
}

impl Reason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Unknown => "",
            Reason::Unauthorized => "Unauthorized",
            Reason::Forbidden => "Forbidden",
            Reason::NotFound => "NotFound",
            Reason::AlreadyExists => "AlreadyExists",
            Reason::Conflict => "Conflict",
            Reason::Gone => "Gone",
            Reason::Invalid => "Invalid",
            Reason::ServerTimeout => "ServerTimeout",
            Reason::StoreReadError => "StorageReadError",
            Reason::Timeout => "Timeout",
            Reason::TooManyRequests => "TooManyRequests",
            Reason::BadRequest => "BadRequest",
            Reason::MethodNotAllowed => "MethodNotAllowed",
            Reason::NotAcceptable => "NotAcceptable",
            Reason::RequestEntityTooLarge => "RequestEntityTooLarge",
            Reason::UnsupportedMediaType => "UnsupportedMediaType",
            Reason::InternalError => "InternalError",
            Reason::Expired => "Expired",
            Reason::ServiceUnavailable => "ServiceUnavailable",
        }
    }

    /// The reason for a word on the wire.
    pub fn parse(word: &str) -> Reason {
        const ALL: [Reason; 19] = [
            Reason::Unauthorized,
            Reason::Forbidden,
            Reason::NotFound,
            Reason::AlreadyExists,
            Reason::Conflict,
            Reason::Gone,
            Reason::Invalid,
            Reason::ServerTimeout,
            Reason::StoreReadError,
            Reason::Timeout,
            Reason::TooManyRequests,
            Reason::BadRequest,
            Reason::MethodNotAllowed,
            Reason::NotAcceptable,
            Reason::RequestEntityTooLarge,
            Reason::UnsupportedMediaType,
            Reason::InternalError,
            Reason::Expired,
            Reason::ServiceUnavailable,
        ];
        ALL.into_iter().find(|reason| reason.as_str() == word).unwrap_or(Reason::Unknown)
    }

    /// The HTTP status code that goes with it.
    pub fn code(self) -> u16 {
        match self {
            Reason::Unknown | Reason::InternalError | Reason::StoreReadError => 500,
            Reason::Unauthorized => 401,
            Reason::Forbidden => 403,
            Reason::NotFound => 404,
            Reason::AlreadyExists | Reason::Conflict => 409,
            Reason::Gone | Reason::Expired => 410,
            Reason::Invalid => 422,
            Reason::ServerTimeout => 500,
            Reason::Timeout => 504,
            Reason::TooManyRequests => 429,
            Reason::BadRequest => 400,
            Reason::MethodNotAllowed => 405,
            Reason::NotAcceptable => 406,
            Reason::RequestEntityTooLarge => 413,
            Reason::UnsupportedMediaType => 415,
            Reason::ServiceUnavailable => 503,
        }
    }
}

/// One reason behind a failure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable word.
    pub reason: String,
    /// Text.
    pub message: String,
    /// Where in the object.
    pub field: String,
}

/// What the failure is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// API group.
    pub group: String,
    /// Resource (plural) or kind.
    pub kind: String,
    /// Uid of the object.
    pub uid: String,
    /// Reasons behind.
    pub causes: Vec<Cause>,
    /// When to try again; 0 is unset.
    pub retry_after_seconds: i32,
}

/// The answer to a request that has no object to return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Failure, unless true.
    pub success: bool,
    /// Text for people.
    pub message: String,
    /// Word for programs.
    pub reason: Reason,
    /// HTTP code.
    pub code: u16,
    /// What it is about.
    pub details: Option<Box<Details>>,
    /// `metadata.continue`, used by expired list tokens.
    pub continue_token: String,
}

impl std::error::Error for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// `deployments.apps`, or `pods` for the core group.
pub fn group_resource(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl Status {
    /// A failure with a reason and a text.
    pub fn failure(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            success: false,
            message: message.into(),
            reason,
            code: reason.code(),
            details: None,
            continue_token: String::new(),
        }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        self.details = Some(Box::new(Details {
            name: name.into(),
            group: group.into(),
            kind: kind.into(),
            ..Details::default()
        }));
        self
    }

    /// Success without an object, as DELETE answers.
    pub fn success() -> Self {
        Self { success: true, code: 200, ..Self::failure(Reason::Unknown, "") }
    }

    /// The answer to a DELETE that removed the object.
    pub fn deleted(group: &str, resource: &str, name: &str, uid: &str) -> Self {
        let mut status = Self::success().about(group, resource, name);
        if let Some(details) = &mut status.details {
            details.uid = uid.into();
        }
        status
    }

    /// 404 for an object.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", group_resource(group, resource));
        Self::failure(Reason::NotFound, message).about(group, resource, name)
    }

    /// 404 for a path that nothing serves.
    pub fn no_such_path() -> Self {
        Self::failure(Reason::NotFound, "the server could not find the requested resource").about("", "", "")
    }

    /// 409 on create.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", group_resource(group, resource));
        Self::failure(Reason::AlreadyExists, message).about(group, resource, name)
    }

    /// 409 on create when generated names keep colliding.
    pub fn generate_name_conflict(group: &str, resource: &str, name: &str) -> Self {
        let message = format!(
            "{} \"{name}\" already exists, the server was not able to generate a unique name for the object",
            group_resource(group, resource)
        );
        Self::failure(Reason::AlreadyExists, message).about(group, resource, name).retry_after(1)
    }

    /// 409 on update.
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", group_resource(group, resource));
        Self::failure(Reason::Conflict, message).about(group, resource, name)
    }

    /// The usual 409: the resource version is not the current one.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, resource, name, why)
    }

    /// 409 of server-side apply.
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        let mut status = Self::failure(Reason::Conflict, message);
        status.details = Some(Box::new(Details { causes, ..Details::default() }));
        status
    }

    /// 422 with one cause per problem.
    pub fn invalid(group: &str, kind: &str, name: &str, problems: &Problems) -> Self {
        let what = group_resource(group, kind);
        let message = if problems.is_empty() {
            format!("{what} \"{name}\" is invalid")
        } else {
            format!("{what} \"{name}\" is invalid: {}", problems.summary())
        };
        let mut status = Self::failure(Reason::Invalid, message).about(group, kind, name);
        if let Some(details) = &mut status.details {
            details.causes = problems
                .iter()
                .map(|problem| Cause {
                    reason: problem.kind.reason().into(),
                    message: problem.body(),
                    field: problem.path.clone(),
                })
                .collect();
        }
        status
    }

    /// 403. Pass empty resource for a non-resource path and empty name for a collection.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let what = group_resource(group, resource);
        let message = match (resource.is_empty() && group.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{what} is forbidden: {why}"),
            (false, false) => format!("{what} \"{name}\" is forbidden: {why}"),
        };
        Self::failure(Reason::Forbidden, message).about(group, resource, name)
    }

    /// 401
    pub fn unauthorized() -> Self {
        Self::failure(Reason::Unauthorized, "Unauthorized")
    }

    /// 400
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(Reason::BadRequest, message)
    }

    /// 410 for a watch or list that asks for a revision that is gone.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(Reason::Expired, message)
    }

    /// 410
    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(Reason::Gone, message)
    }

    /// 429
    pub fn too_many_requests(message: impl Into<String>, retry_after: i32) -> Self {
        Self::failure(Reason::TooManyRequests, message).retry_after(retry_after)
    }

    /// 405
    pub fn method_not_supported(group: &str, resource: &str, action: &str) -> Self {
        let message =
            format!("{action} is not supported on resources of kind \"{}\"", group_resource(group, resource));
        Self::failure(Reason::MethodNotAllowed, message).about(group, resource, "")
    }

    /// 405 for a path that knows other methods.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::failure(Reason::MethodNotAllowed, message).about("", "", "")
    }

    /// 406
    pub fn not_acceptable(supported: &[&str]) -> Self {
        let message = format!("406: Not Acceptable\n\nAvailable representations: {}", supported.join(", "));
        Self::failure(Reason::NotAcceptable, message).about("", "", "")
    }

    /// 406 of those who look at the media types themselves.
    pub fn only_accepted(supported: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", supported.join(", "));
        Self::failure(Reason::NotAcceptable, message)
    }

    /// 415 for a form of patch that is not taken.
    pub fn unsupported_patch() -> Self {
        Self::failure(Reason::UnsupportedMediaType, "415: Unsupported Media Type").about("", "", "")
    }

    /// 415
    pub fn unsupported_media_type(supported: &[&str]) -> Self {
        Self::failure(
            Reason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                supported.join(", ")
            ),
        )
    }

    /// 413
    pub fn too_large(message: impl fmt::Display) -> Self {
        Self::failure(Reason::RequestEntityTooLarge, format!("Request entity too large: {message}"))
    }

    /// 503
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::failure(Reason::ServiceUnavailable, message)
    }

    /// 500: the operation could not be done now; try again.
    pub fn server_timeout(group: &str, resource: &str, operation: &str) -> Self {
        let message = format!(
            "The {operation} operation against {} could not be completed at this time, please try again.",
            group_resource(group, resource)
        );
        Self::failure(Reason::ServerTimeout, message).about(group, resource, "")
    }

    /// 504
    pub fn timeout(message: impl fmt::Display, retry_after: i32) -> Self {
        Self::failure(Reason::Timeout, format!("Timeout: {message}")).retry_after(retry_after)
    }

    /// 500 for what should not happen.
    pub fn internal(message: impl fmt::Display) -> Self {
        let text = message.to_string();
        let mut status = Self::failure(Reason::InternalError, format!("Internal error occurred: {text}"));
        status.details = Some(Box::new(Details {
            causes: vec![Cause { message: text, ..Cause::default() }],
            ..Details::default()
        }));
        status
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: i32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Adds a cause.
    #[must_use]
    pub fn cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        self.details.get_or_insert_default().causes.push(Cause {
            reason: reason.into(),
            message: message.into(),
            field: field.into(),
        });
        self
    }

    /// The object on the wire.
    pub fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if !self.continue_token.is_empty() {
            metadata.insert("continue".into(), self.continue_token.clone().into());
        }
        let mut out = Map::new();
        out.insert("kind".into(), "Status".into());
        out.insert("apiVersion".into(), "v1".into());
        out.insert("metadata".into(), metadata.into());
        out.insert("status".into(), if self.success { "Success" } else { "Failure" }.into());
        if !self.message.is_empty() {
            out.insert("message".into(), self.message.clone().into());
        }
        if self.reason != Reason::Unknown {
            out.insert("reason".into(), self.reason.as_str().into());
        }
        if let Some(details) = &self.details {
            out.insert("details".into(), details.to_value());
        }
        if !self.success || self.code != 200 {
            out.insert("code".into(), self.code.into());
        }
        Value::Object(out)
    }

    /// Reads a Status object, as a client or a proxy gets it.
    pub fn from_value(value: &Value) -> Option<Self> {
        if value["kind"] != "Status" {
            return None;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let reason = Reason::parse(value["reason"].as_str().unwrap_or_default());
        let code = value["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        let success = value["status"] == "Success";
        let details = value.get("details").map(|details| {
            let causes = details["causes"].as_array().into_iter().flatten();
            Box::new(Details {
                name: text(&details["name"]),
                group: text(&details["group"]),
                kind: text(&details["kind"]),
                uid: text(&details["uid"]),
                causes: causes
                    .map(|cause| Cause {
                        reason: text(&cause["reason"]),
                        message: text(&cause["message"]),
                        field: text(&cause["field"]),
                    })
                    .collect(),
                retry_after_seconds: details["retryAfterSeconds"].as_i64().unwrap_or(0) as i32,
            })
        });
        Some(Self {
            success,
            message: text(&value["message"]),
            reason,
            code: code.unwrap_or(if success { 200 } else { reason.code() }),
            details,
            continue_token: text(&value["metadata"]["continue"]),
        })
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (key, text) in
            [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)]
        {
            if !text.is_empty() {
                out.insert(key.into(), text.clone().into());
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(|cause| {
                let mut out = Map::new();
                for (key, text) in
                    [("reason", &cause.reason), ("message", &cause.message), ("field", &cause.field)]
                {
                    if !text.is_empty() {
                        out.insert(key.into(), text.clone().into());
                    }
                }
                Value::Object(out)
            });
            out.insert("causes".into(), causes.collect());
        }
        if self.retry_after_seconds != 0 {
            out.insert("retryAfterSeconds".into(), json!(self.retry_after_seconds));
        }
        Value::Object(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;

    #[test]
    fn an_invalid_object_is_told_with_causes() {
        let mut problems = Problems::new();
        problems.required(&Path::new("spec").child("selector"), "");
        problems.invalid(&Path::new("metadata").child("name"), "A", "bad");
        let status = Status::invalid("apps", "Deployment", "A", &problems);
        assert_eq!(
            status.message,
            "Deployment.apps \"A\" is invalid: [spec.selector: Required value, metadata.name: Invalid value: \"A\": bad]"
        );
        let value = status.to_value();
        assert_eq!(value["code"], 422);
        assert_eq!(value["details"]["causes"][0]["reason"], "FieldValueRequired");
        assert_eq!(Status::from_value(&value), Some(status));
    }

    #[test]
    fn every_reason_survives_its_word() {
        for status in [
            Status::not_found("apps", "deployments", "a"),
            Status::forbidden("", "", "", "no"),
            Status::too_many_requests("later", 3),
            Status::expired("old"),
            Status::deleted("", "pods", "a", "u"),
        ] {
            assert_eq!(Status::from_value(&status.to_value()).as_ref(), Some(&status));
        }
    }
}
