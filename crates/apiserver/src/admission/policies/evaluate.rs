//! One request as expressions see it: the objects in the version that a policy matched, the request, the namespace, and
//! an authorizer that answers for the requesting user.

use std::borrow::Cow;
use std::sync::Arc;

use api::admissionregistration::policy::{self, Inputs, Slot};
use api::{ScalePaths, Subresource};
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use cel::functions::authorizer::{authorizer, resource_check};
use cel::{Check, Val};
use serde_json::{Value, json};

use super::matching::{Labels, MatchResources, Target};
use super::{Binding, Policy};
use crate::admission::{Operation, Request};
use crate::authz::{Attributes, Decision};
use crate::registry::{Resource, Table};
use crate::server::ApiServer;
use crate::user::UserInfo;
use crate::verbs::update::scale_of;

/// What is true of one request, whatever the policy.
pub struct Scene<'s> {
    pub server: &'s ApiServer,
    pub request: &'s Request<'s>,
    table: Arc<Table>,
    namespace: Option<Value>,
}

/// Upstream's word for an operation.
pub fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

impl<'s> Scene<'s> {
    /// Looks up what all policies share.
    pub fn new(server: &'s ApiServer, request: &'s Request<'s>) -> Result<Self, Status> {
        let name = Self::namespace_name(request);
        let namespace = if name.is_empty() {
            None
        } else {
            let namespaces = server.builtin("", "namespaces")?;
            let entry = server.cached(&namespaces, "", name);
            Some(entry.ok_or_else(|| Status::not_found("", "namespaces", name))?.parse())
        };
        Ok(Self { server, request, table: server.registry.table(), namespace })
    }

    /// The namespace that the object is in; a Namespace is in none.
    pub fn namespace_name(request: &Request<'s>) -> &'s str {
        let context = request.context;
        let itself = context.resource.group().is_empty() && context.resource.plural() == "namespaces";
        if itself || !context.resource.is_namespaced() { "" } else { &context.info.namespace }
    }

    /// The scale that a write of the scale subresource is about.
    fn scale(&self) -> Option<&'s ScalePaths> {
        let context = self.request.context;
        match context.resource.definition.subresource(self.request.subresource) {
            Some(Subresource::Scale(paths)) => Some(paths),
            _ => None,
        }
    }

    /// The resource that a policy matches, if it does: the requested one, or the same objects in another version.
    pub fn matched(
        &self,
        resources: &MatchResources,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Option<Arc<Resource>> {
        let own = &self.request.context.resource;
        let mut candidates: Vec<&Arc<Resource>> = vec![own];
        let others = self.table.all().filter(|other| other.prefix == own.prefix);
        candidates.extend(others.filter(|other| other.api_version != own.api_version));
        let targets: Vec<Target<'_>> = candidates
            .iter()
            .map(|resource| Target {
                group: resource.group(),
                version: resource.version(),
                resource: resource.plural(),
                subresource: self.request.subresource,
                namespaced: resource.is_namespaced(),
            })
            .collect();
        let label_map = |value: &Value| value["metadata"]["labels"].as_object().cloned();
        let (new_labels, old_labels) = (object.and_then(label_map), old.and_then(label_map));
        let itself = own.group().is_empty() && own.plural() == "namespaces";
        // A namespace is selected by its own labels.
        let of_namespace = if itself {
            new_labels.clone().or_else(|| old_labels.clone())
        } else {
            self.namespace.as_ref().and_then(label_map)
        };
        let labels = Labels {
            namespace: of_namespace.as_ref(),
            in_namespace: itself || self.namespace.is_some(),
            object: new_labels.as_ref(),
            old: old_labels.as_ref(),
            present: (object.is_some(), old.is_some()),
        };
        let name = self.name(object, old);
        let found = resources.matches(&targets, word(self.request.operation), name, &labels)?;
        let index = targets.iter().position(|target| target == found)?;
        candidates.get(index).map(|resource| (*resource).clone())
    }

    /// The object's name.
    pub fn name<'o>(&self, object: Option<&'o Value>, old: Option<&'o Value>) -> &'o str
    where
        's: 'o,
    {
        match object.or(old).map(Meta::name) {
            Some(name) if !name.is_empty() => name,
            _ => &self.request.context.info.name,
        }
    }

    /// An object in the version of `matched`, or as the scale that is written.
    pub fn in_version<'o>(&self, object: &'o Value, matched: &Resource) -> Cow<'o, Value> {
        if let Some(paths) = self.scale() {
            return Cow::Owned(scale_of(object, paths));
        }
        let own = &self.request.context.resource;
        if own.api_version == matched.api_version {
            return Cow::Borrowed(object);
        }
        Cow::Owned(convert(object, own, matched))
    }

    /// `request`.
    pub fn request_value(&self, matched: &Resource, object: Option<&Value>, old: Option<&Value>) -> Value {
        let context = self.request.context;
        let own = &context.resource;
        let subresource =
            |resource: &'_ Resource| resource.definition.subresource(self.request.subresource).cloned();
        let kind = |resource: &Resource| match subresource(resource).and_then(|own| own.kind()) {
            None if subresource(resource) == Some(Subresource::Proxy) => {
                json!({"group": "", "version": "v1", "kind": format!("{}ProxyOptions", resource.kind())})
            }
            Some(other) => json!({"group": other.group, "version": other.version, "kind": other.kind}),
            None => {
                json!({"group": resource.group(), "version": resource.version(), "kind": resource.kind()})
            }
        };
        let plural = |resource: &Resource| json!({"group": resource.group(), "version": resource.version(), "resource": resource.plural()});
        let user = &context.user;
        let mut value = json!({
            "kind": kind(matched), "resource": plural(matched),
            "requestKind": kind(own), "requestResource": plural(own),
            "name": self.name(object, old), "operation": word(self.request.operation),
            "userInfo": {"username": user.name, "groups": user.groups},
            "dryRun": self.request.dry_run,
            "options": options(self.request),
        });
        if !user.uid.is_empty() {
            value["userInfo"]["uid"] = json!(user.uid);
        }
        if !user.extra.is_empty() {
            value["userInfo"]["extra"] = json!(user.extra);
        }
        if !context.info.namespace.is_empty() {
            value["namespace"] = json!(context.info.namespace);
        }
        if !self.request.subresource.is_empty() {
            value["subResource"] = json!(self.request.subresource);
            value["requestSubResource"] = json!(self.request.subresource);
        }
        value
    }

    /// The values of all variables.
    pub(super) fn inputs<'a>(
        &'a self,
        policy: &'a Policy,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
        request: &'a Value,
        params: Option<&'a Value>,
    ) -> Result<Inputs<'a>, String> {
        self.inputs_with(&policy.compiled.variables, object, old, request, params)
    }

    /// The same with these variables.
    pub fn inputs_with<'a>(
        &'a self,
        variables: &'a [(String, Arc<cel::Program>)],
        object: Option<&'a Value>,
        old: Option<&'a Value>,
        request: &'a Value,
        params: Option<&'a Value>,
    ) -> Result<Inputs<'a>, String> {
        let or_null = |value: Option<&'a Value>| value.map_or(Val::Null, Val::json);
        let context = self.request.context;
        let mut values = [const { Val::Null }; policy::SLOTS];
        values[Slot::Object as usize] = or_null(object);
        values[Slot::OldObject as usize] = or_null(old);
        values[Slot::Request as usize] = Val::json(request);
        values[Slot::Params as usize] = or_null(params);
        if let Some(namespace) = &self.namespace {
            values[Slot::Namespace as usize] =
                Val::typed(namespace, policy::namespace_type()).map_err(|error| error.to_string())?;
        }
        values[Slot::Authorizer as usize] = authorizer();
        values[Slot::RequestResource as usize] = resource_check(Check {
            group: context.resource.group().to_owned(),
            resource: context.resource.plural().to_owned(),
            subresource: self.request.subresource.to_owned(),
            namespace: context.info.namespace.clone(),
            name: self.name(object, old).to_owned(),
            ..Check::default()
        });
        Ok(Inputs::new(values, variables))
    }

    /// Which of a policy's bindings are about the request, and with which params; errors are configuration errors.
    pub(super) fn bound<'h>(
        &self,
        policy: &Policy,
        bindings: &'h [Arc<Binding>],
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Vec<(&'h Binding, Result<Vec<Option<Value>>, String>)> {
        let mut out: Vec<(&'h Binding, Result<Vec<Option<Value>>, String>)> = Vec::new();
        for binding in bindings {
            match &binding.resources {
                Err(error) => out.push((binding, Err(error.clone()))),
                Ok(resources) if self.matched(resources, object, old).is_some() => {
                    let namespace = &self.request.context.info.namespace;
                    out.push((binding, binding.params(self.server, policy, namespace)));
                }
                Ok(_) => {}
            }
        }
        out
    }
}

/// An object of one version in another version of the same resource.
pub fn convert(object: &Value, from: &Resource, to: &Resource) -> Value {
    let stored = serde_json::from_slice(&from.encode(object)).unwrap_or_else(|_| object.clone());
    to.served_value(stored)
}

fn options(request: &Request<'_>) -> Value {
    let kind = match request.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    let mut value = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(text) = request.context.query.get(field) {
            value[field] = json!(text);
        }
    }
    if request.dry_run {
        value["dryRun"] = json!(["All"]);
    }
    value
}

/// Answers checks for the requesting user, or for a service account.
pub struct Asker<'s> {
    pub server: &'s ApiServer,
    pub user: &'s UserInfo,
}

impl cel::Authorizer for Asker<'_> {
    fn check(&self, check: &Check) -> Result<(bool, String), String> {
        let account;
        let user = match &check.service_account {
            Some((namespace, name)) => {
                account = UserInfo::service_account(namespace, name);
                &account
            }
            None => self.user,
        };
        let asked = Attributes {
            user,
            verb: &check.verb,
            is_resource: check.path.is_none(),
            group: &check.group,
            version: "*",
            resource: &check.resource,
            subresource: &check.subresource,
            namespace: &check.namespace,
            name: &check.name,
            path: check.path.as_deref().unwrap_or_default(),
            field_selector: &check.field_selector,
            label_selector: &check.label_selector,
        };
        let decision = self.server.authorize_now(&asked);
        Ok((matches!(decision, Decision::Allow(_)), decision.reason().into_owned()))
    }
}
