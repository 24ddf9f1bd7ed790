//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: rules that users write in CEL.
//!
//! The caches tell [`Policies`] about every policy and binding; each policy is compiled once per change. A request asks
//! for the present [`Set`] (nothing to do if nobody bound a policy), finds which bindings are about it (`matching`),
//! and runs their expressions (`evaluate`), which is a pure function of objects and authorizer.

pub(super) mod evaluate;
pub mod matching;
mod mutating;
mod validating;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use api::admissionregistration::policy::{Compiled, Types, compile};
use apimachinery::meta::get_str;
use apimachinery::selector::LabelSelector;
use apimachinery::status::Status;
use serde_json::Value;

use self::matching::MatchResources;
use super::Request;
use crate::metrics::histogram::Histogram;
use crate::server::ApiServer;

/// The group of policies.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// The kinds that are followed.
pub const KINDS: [&str; 4] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
];

/// A policy.
struct Policy {
    name: String,
    /// Refuses what it cannot judge.
    fails_closed: bool,
    reinvoke: bool,
    param_kind: Option<(String, String)>,
    constraints: Result<MatchResources, String>,
    compiled: Compiled,
    /// Why it cannot be used.
    broken: Option<String>,
}

/// A binding.
struct Binding {
    name: String,
    policy: String,
    resources: Result<MatchResources, String>,
    param_ref: Option<Value>,
    actions: Vec<String>,
}

/// A policy with its bindings.
struct Hook {
    policy: Arc<Policy>,
    bindings: Vec<Arc<Binding>>,
}

/// What is in force.
#[derive(Default)]
struct Set {
    validating: Vec<Hook>,
    mutating: Vec<Hook>,
}

#[derive(Default)]
struct Known {
    policies: [BTreeMap<String, Arc<Policy>>; 2],
    bindings: [BTreeMap<String, Arc<Binding>>; 2],
}

/// All policies and bindings.
#[derive(Default)]
pub struct Policies {
    known: RwLock<Known>,
    set: RwLock<Arc<Set>>,
}

impl Policies {
    /// Takes a policy or binding as it is now.
    pub fn set(&self, plural: &str, name: &str, object: Option<&Value>, compiled: &Histogram) {
        let side = usize::from(plural.starts_with("mutating"));
        let mut known = self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if plural.ends_with("bindings") {
            match object {
                Some(object) => {
                    known.bindings[side]
                        .insert(name.to_owned(), Arc::new(Binding::of(name, &object["spec"])));
                }
                None => {
                    known.bindings[side].remove(name);
                }
            }
        } else {
            match object {
                Some(object) => {
                    let began = Instant::now();
                    let policy = Policy::of(name, &object["spec"]);
                    compiled.time(began.elapsed());
                    known.policies[side].insert(name.to_owned(), Arc::new(policy));
                }
                None => {
                    known.policies[side].remove(name);
                }
            }
        }
        let hooks = |side: usize| -> Vec<Hook> {
            let bindings = &known.bindings[side];
            let hook = |policy: &Arc<Policy>| Hook {
                policy: policy.clone(),
                bindings: bindings.values().filter(|one| one.policy == policy.name).cloned().collect(),
            };
            known.policies[side].values().map(hook).filter(|hook| !hook.bindings.is_empty()).collect()
        };
        let set = Set { validating: hooks(0), mutating: hooks(1) };
        *self.set.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Arc::new(set);
    }

    fn present(&self) -> Arc<Set> {
        self.set.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Whether any policy may change objects.
    pub fn any_mutating(&self) -> bool {
        !self.present().mutating.is_empty()
    }

    /// Refuses what a policy does not allow.
    pub fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let set = self.present();
        if set.validating.is_empty() || is_about_policies(request) {
            return Ok(());
        }
        validating::judge(server, request, &set.validating, object, old)
    }

    /// Lets policies change the object. `again` is the second round, in which only those take part that asked for it.
    /// Says whether anything was patched.
    pub fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
        again: bool,
    ) -> Result<bool, Status> {
        let set = self.present();
        if set.mutating.is_empty() || is_about_policies(request) || request.subresource == "scale" {
            return Ok(false);
        }
        mutating::change(server, request, &set.mutating, object, old, again)
    }
}

/// Policies do not judge policies: nobody could repair a bad one.
fn is_about_policies(request: &Request<'_>) -> bool {
    let resource = &request.context.resource;
    resource.group() == GROUP && KINDS.contains(&resource.plural())
}

impl Policy {
    fn of(name: &str, spec: &Value) -> Self {
        let param_kind = spec
            .get("paramKind")
            .map(|kind| (get_str(kind, "apiVersion").to_owned(), get_str(kind, "kind").to_owned()));
        let (compiled, failures) = compile(spec, &Types::dynamic(param_kind.is_some()));
        let texts: Vec<String> =
            failures.into_iter().map(|failure| format!("{}: {}", failure.path, failure.message)).collect();
        Self {
            name: name.to_owned(),
            fails_closed: get_str(spec, "failurePolicy") != "Ignore",
            reinvoke: get_str(spec, "reinvocationPolicy") == "IfNeeded",
            param_kind,
            constraints: MatchResources::parse(&spec["matchConstraints"]),
            compiled,
            broken: (!texts.is_empty()).then(|| texts.join(", ")),
        }
    }
}

impl Binding {
    fn of(name: &str, spec: &Value) -> Self {
        let actions = spec["validationActions"].as_array().into_iter().flatten();
        Self {
            name: name.to_owned(),
            policy: get_str(spec, "policyName").to_owned(),
            resources: MatchResources::parse(&spec["matchResources"]),
            param_ref: spec.get("paramRef").cloned(),
            actions: actions.filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// The objects that the policy is run with; one `None` if it takes none.
    fn params(
        &self,
        server: &ApiServer,
        policy: &Policy,
        namespace: &str,
    ) -> Result<Vec<Option<Value>>, String> {
        let (Some((api_version, kind)), Some(reference)) = (&policy.param_kind, &self.param_ref) else {
            return Ok(vec![None]);
        };
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let table = server.registry.table();
        let resource = table
            .by_kind(group, version, kind)
            .ok_or_else(|| format!("paramKind kind `{group}/{version}, Kind={kind}` not known"))?;
        let asked = get_str(reference, "namespace");
        let namespace = match (resource.is_namespaced(), asked, namespace) {
            (false, "", _) => "",
            (false, ..) => {
                return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into());
            }
            (true, "", "") => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .into(),
                );
            }
            (true, "", own) => own,
            (true, asked, _) => asked,
        };
        let mut found = Vec::new();
        let name = get_str(reference, "name");
        if !name.is_empty() {
            found.extend(server.cached(resource, namespace, name).map(|entry| Some(resource.parse(&entry))));
        } else if let Some(selector) = reference.get("selector") {
            let selector = LabelSelector::from_object(selector).map_err(|error| error.to_string())?;
            let cache = server.hub.cache(&resource.prefix);
            let entries = cache.map(|cache| cache.snapshot(&resource.collection(namespace), 0).entries);
            for entry in entries.unwrap_or_default() {
                let object = resource.parse(&entry);
                if selector.matches(object["metadata"]["labels"].as_object()) {
                    found.push(Some(object));
                }
            }
        }
        if found.is_empty() && get_str(reference, "parameterNotFoundAction") != "Allow" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
        }
        Ok(found)
    }
}
