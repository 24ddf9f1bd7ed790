//! Mutating policies: what their expressions give is merged as by server-side apply, or applied as a JSON patch.
//!
//! A patched object is read again through the schema of its kind and defaulted, so that what a policy makes is as well
//! formed as what a client sends.

use std::time::Instant;

use api::admissionregistration::policy::{self, Mutation};
use apimachinery::apply::walk;
use apimachinery::decode::{self, FieldValidation};
use apimachinery::patch;
use apimachinery::schema::{Kind, ListType, Node};
use apimachinery::status::{Reason, Status};
use cel::value::Map;
use cel::{Budget, Val};
use serde_json::Value;

use super::evaluate::{Asker, Scene, convert};
use super::{Hook, Policy};
use crate::admission::Request;
use crate::registry::Resource;
use crate::server::ApiServer;

/// Runs every bound policy on the object, one after the other. Says whether anything was patched.
pub fn change(
    server: &ApiServer,
    request: &Request<'_>,
    hooks: &[Hook],
    object: &mut Value,
    old: Option<&Value>,
    again: bool,
) -> Result<bool, Status> {
    let scene = Scene::new(server, request)?;
    let mut patched = false;
    let mut errors: Vec<String> = Vec::new();
    for hook in hooks {
        let policy = &*hook.policy;
        if again && !policy.reinvoke {
            continue;
        }
        let mut fail = |text: String| {
            if policy.fails_closed {
                errors.push(text);
            }
        };
        let matched = match &policy.constraints {
            Ok(constraints) => scene.matched(constraints, Some(object), old),
            Err(error) => {
                fail(format!("policy {:?} denied request: failed to configure policy: {error}", policy.name));
                continue;
            }
        };
        let Some(matched) = matched else { continue };
        if let Some(error) = &policy.broken {
            fail(format!("policy {:?} denied request: failed to configure policy: {error}", policy.name));
            continue;
        }
        for (binding, params) in scene.bound(policy, &hook.bindings, Some(object), old) {
            let who = format!("policy '{}' with binding '{}' denied request", policy.name, binding.name);
            let params = match params {
                Ok(params) => params,
                Err(error) => {
                    fail(format!("{who}: failed to configure binding: {error}"));
                    continue;
                }
            };
            for param in &params {
                let began = Instant::now();
                let outcome = invoke(&scene, policy, &matched, object, old, param.as_ref());
                let (took, metrics) = (began.elapsed(), &server.metrics.admission);
                metrics.evaluation.time(took);
                let error = if outcome.is_ok() { "no_error" } else { "invalid_error" };
                metrics.mutating(&policy.name, &binding.name, error, took);
                match outcome {
                    Ok(did) => patched |= did,
                    Err(error) => fail(format!("{who}: {error}")),
                }
            }
        }
    }
    let Some(first) = errors.first() else { return Ok(patched) };
    let mut status = request.forbid(scene.name(Some(object), old), first);
    status.message = first.clone();
    status.reason = Reason::Invalid;
    for error in &errors {
        status = status.cause("", error.clone(), "");
    }
    Err(status)
}

/// Runs one policy with one set of params. Says whether it patched.
fn invoke(
    scene: &Scene<'_>,
    policy: &Policy,
    matched: &Resource,
    object: &mut Value,
    old: Option<&Value>,
    params: Option<&Value>,
) -> Result<bool, String> {
    let own = &scene.request.context.resource;
    let other = own.api_version != matched.api_version;
    let mut current = scene.in_version(object, matched).into_owned();
    let old_version = old.map(|old| scene.in_version(old, matched));
    let request = scene.request_value(matched, Some(object), old);
    let asker = Asker { server: scene.server, user: &scene.request.context.user };
    {
        let inputs = scene.inputs(policy, Some(&current), old_version.as_deref(), &request, params)?;
        if !policy::holds(&policy.compiled.conditions, &inputs, Some(&asker))? {
            return Ok(false);
        }
    }
    for mutation in &policy.compiled.mutations {
        let new = {
            let inputs = scene.inputs(policy, Some(&current), old_version.as_deref(), &request, params)?;
            match mutation {
                Mutation::Apply(program) => {
                    let value = program.run(&inputs, Some(&asker), &mut Budget::default());
                    let value = value.map_err(|error| failed(program.source(), &error))?;
                    merged(&current, &value, matched)?
                }
                Mutation::Patch(program) => {
                    let value = program.run(&inputs, Some(&asker), &mut Budget::default());
                    let value = value.map_err(|error| failed(program.source(), &error))?;
                    let operations = value.to_json().map_err(|error| error.to_string())?;
                    patch::json_patch(current.clone(), &operations).map_err(|error| error.to_string())?
                }
            }
        };
        let read = decode::value(new, &matched.definition.schema, FieldValidation::Ignore)
            .map_err(|error| error.to_string())?;
        current = read.value;
        matched.definition.set_defaults(&mut current);
    }
    *object = if other { convert(&current, matched, own) } else { current };
    Ok(!policy.compiled.mutations.is_empty())
}

fn failed(source: &str, error: &cel::Error) -> String {
    format!("expression '{source}' resulted in error: {error}")
}

/// The object with an apply configuration merged into it.
fn merged(object: &Value, configuration: &Val<'_>, resource: &Resource) -> Result<Value, String> {
    check_names(configuration, "Object").map_err(|error| format!("type mismatch: {error}"))?;
    let mut wanted = configuration.to_json().map_err(|error| error.to_string())?;
    for field in ["apiVersion", "kind"] {
        if let Some(value) = object.get(field) {
            wanted[field] = value.clone();
        }
    }
    let node = resource.definition.schema.node();
    let unknown = walk::undeclared(&wanted, node);
    if !unknown.is_empty() {
        return Err(format!(
            "error applying patch: failed to convert patch object to typed object: {}",
            unknown.join("\n")
        ));
    }
    let bad = walk::bad_lists(&wanted, node);
    if !bad.is_empty() {
        return Err(format!(
            "error applying patch: failed to convert patch object to typed object: {}",
            bad.join("\n")
        ));
    }
    let mut atomic = Vec::new();
    atomics(&wanted, node, String::new(), &mut atomic);
    if !atomic.is_empty() {
        return Err(format!(
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
            atomic.join(", ")
        ));
    }
    let mut merged = object.clone();
    walk::merge(&mut merged, &wanted, node);
    Ok(merged)
}

/// `Object.spec.x{}` may only stand where `spec.x` is.
fn check_names(value: &Val<'_>, wanted: &str) -> Result<(), String> {
    match value {
        Val::Map(map @ Map::Object(name, _)) => {
            if *name != wanted {
                return Err(format!(
                    "unexpected type name {name:?}, expected {wanted:?}, which matches field name path from root Object type"
                ));
            }
            for key in map.keys() {
                let Val::Text(field) = &key else { continue };
                if let Ok(Some(below)) = map.get(&key) {
                    check_names(&below, &format!("{wanted}.{}", &**field))?;
                }
            }
            Ok(())
        }
        Val::List(list) => {
            list.items().unwrap_or_default().iter().try_for_each(|item| check_names(item, wanted))
        }
        _ => Ok(()),
    }
}

/// Lists, maps and structs that are owned as a whole: setting a part of one would silently drop the rest.
fn atomics(value: &Value, node: Node<'_>, path: String, out: &mut Vec<String>) {
    match (node.kind(), value) {
        (Kind::Object(object), Value::Object(map)) => {
            if object.atomic {
                out.push(path.clone());
            }
            for (name, below) in map {
                if let Some(inner) = node.child(name) {
                    atomics(below, inner, format!("{path}.{name}"), out);
                }
            }
        }
        (Kind::Map { value: inner, atomic }, Value::Object(map)) => {
            if *atomic {
                out.push(path.clone());
            }
            for (name, below) in map {
                atomics(below, node.at(*inner), format!("{path}.{name}"), out);
            }
        }
        (Kind::List(list), Value::Array(items)) => {
            if list.list_type == ListType::Atomic {
                out.push(path.clone());
            }
            for (index, item) in items.iter().enumerate() {
                atomics(item, node.at(list.items), format!("{path}[{index}]"), out);
            }
        }
        _ => {}
    }
}
