//! Authorization: may this user do this? Authorizers are asked in order; the first with an opinion decides.

pub mod abac;
pub mod default_policy;
pub mod escalation;
pub mod node;
pub mod rbac;
pub mod webhook;

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
}

/// An authorizer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, because.
    Allow(String),
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

    /// Why.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow(reason) | Self::Deny(reason) | Self::NoOpinion(reason) => reason,
        }
    }
}
