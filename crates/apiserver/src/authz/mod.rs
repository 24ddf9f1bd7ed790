//! Authorization: may this user do this? Authorizers are asked in order; the first with an opinion decides.

pub mod abac;
pub mod default_policy;
pub mod escalation;
pub mod node;
pub mod rbac;
pub mod webhook;

use std::borrow::Cow;
use std::fmt;

use apimachinery::status::Status;

use crate::request_info::RequestInfo;
use crate::user::UserInfo;

/// One of the authorizers, in the order in which they are asked.
pub enum Authorizer {
    /// Everything is allowed.
    AlwaysAllow,
    /// Nothing is allowed.
    AlwaysDeny,
    /// Kubelets reach what their pods need.
    Node,
    /// Roles and bindings.
    Rbac,
    /// The policies of a file.
    Abac(std::sync::Arc<abac::Policies>),
    /// Somebody else decides.
    Webhook(Box<webhook::WebhookAuthorizer>),
}

/// A question to the authorizers.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    /// Who.
    pub user: &'a UserInfo,
    /// Does what.
    pub verb: &'a str,
    /// Whether to a resource; otherwise only verb and path count.
    pub is_resource: bool,
    /// The API group.
    pub group: &'a str,
    /// The API version.
    pub version: &'a str,
    /// The plural resource.
    pub resource: &'a str,
    /// The subresource or nothing.
    pub subresource: &'a str,
    /// The namespace or nothing.
    pub namespace: &'a str,
    /// The object's name or nothing.
    pub name: &'a str,
    /// The URL path of non-resources.
    pub path: &'a str,
    /// The field selector of a list or watch, as far as authorizers may rely on it.
    pub field_selector: &'a str,
    /// And the label selector.
    pub label_selector: &'a str,
}

impl<'a> Attributes<'a> {
    /// The question that a request asks by itself.
    pub fn of(
        user: &'a UserInfo,
        info: &'a RequestInfo,
        field_selector: &'a str,
        label_selector: &'a str,
    ) -> Self {
        Self {
            user,
            verb: info.verb,
            is_resource: info.is_resource,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: &info.path,
            field_selector,
            label_selector,
        }
    }

    /// A question about a resource.
    pub fn resource(
        user: &'a UserInfo,
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Self {
            user,
            verb,
            is_resource: true,
            group,
            version: "*",
            resource,
            subresource,
            namespace,
            name,
            path: "",
            field_selector: "",
            label_selector: "",
        }
    }

    /// The sentence that a refused client reads.
    pub fn refusal(&self) -> String {
        let user = &self.user.name;
        let verb = self.verb;
        if !self.is_resource {
            return format!("User {user:?} cannot {verb} path {:?}", self.path);
        }
        let resource = if self.subresource.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        };
        let mut sentence =
            format!("User {user:?} cannot {verb} resource {resource:?} in API group {:?}", self.group);
        if self.namespace.is_empty() {
            sentence.push_str(" at the cluster scope");
        } else {
            sentence.push_str(&format!(" in the namespace {:?}", self.namespace));
        }
        sentence
    }

    /// 403 with what the authorizers said.
    pub fn forbidden(&self, reason: &str) -> Status {
        let mut why = self.refusal();
        if !reason.is_empty() {
            why.push_str(": ");
            why.push_str(reason);
        }
        // A path below a group is no resource of it.
        let group = if self.is_resource { self.group } else { "" };
        Status::forbidden(group, self.resource, self.name, &why)
    }
}

/// Why something is allowed. It is put in words only for audit and reviews: every request has one, and few are asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// As it was said.
    Text(String),
    /// A binding of a role.
    Bound(rbac::Grant),
}

impl Reason {
    /// Nothing is said.
    pub const NONE: Self = Self::Text(String::new());
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Bound(grant) => grant.fmt(f),
        }
    }
}

/// An authorizer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, because.
    Allow(Reason),
    /// No, and nobody else is asked.
    Deny(String),
    /// Somebody else may know.
    NoOpinion(String),
}

impl Decision {
    /// Whether it is a yes.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// 403 unless it is a yes to `asked`.
    pub fn or_forbidden(&self, asked: &Attributes<'_>) -> Result<(), Status> {
        if self.is_allowed() { Ok(()) } else { Err(asked.forbidden(&self.reason())) }
    }

    /// Why.
    pub fn reason(&self) -> Cow<'_, str> {
        match self {
            Self::Allow(Reason::Text(text)) | Self::Deny(text) | Self::NoOpinion(text) => Cow::Borrowed(text),
            Self::Allow(reason) => Cow::Owned(reason.to_string()),
        }
    }
}
