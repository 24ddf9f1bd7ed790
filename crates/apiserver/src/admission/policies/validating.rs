//! Validating policies: run, decide, and say why.

use std::time::Instant;

use api::admissionregistration::policy::{self, Validation};
use apimachinery::status::{Reason, Status};
use cel::{Budget, Val};
use serde_json::{Value, json};

use super::evaluate::{Asker, Scene};
use super::{Binding, Hook, Policy};
use crate::admission::Request;
use crate::server::ApiServer;

/// A longer message is not taken from an expression.
const MESSAGE_LIMIT: usize = 5 * 1024;
/// A longer audit annotation is cut.
const ANNOTATION_LIMIT: usize = 10 * 1024;

/// A refusal.
struct Denial {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Reason,
}

/// What running a policy once says: refusals with the number of their expression, and audit annotations.
#[derive(Default)]
struct Verdict {
    denied: Vec<(usize, String, Reason)>,
    annotations: Vec<(String, String)>,
}

/// Asks every bound policy; the first refusal is the answer.
pub fn judge(
    server: &ApiServer,
    request: &Request<'_>,
    hooks: &[Hook],
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let mut denials = Vec::new();
    let scene = Scene::new(server, request)?;
    for hook in hooks {
        judge_one(&scene, hook, object, old, &mut denials);
    }
    let Some(first) = denials.into_iter().next() else { return Ok(()) };
    let text = match &first.binding {
        Some(binding) => format!(
            "ValidatingAdmissionPolicy '{}' with binding '{binding}' denied request: {}",
            first.policy, first.message
        ),
        None => format!("ValidatingAdmissionPolicy '{}' denied request: {}", first.policy, first.message),
    };
    let mut status = request.forbid(scene.name(object, old), &text).cause("", text.clone(), "");
    status.reason = first.reason;
    status.code = first.reason.code();
    Err(status)
}

/// A policy that cannot be used refuses, unless it says that errors do not count.
fn misconfigured(policy: &Policy, binding: Option<&Binding>, error: &str, denials: &mut Vec<Denial>) {
    if policy.fails_closed {
        let what = if binding.is_some() { "binding" } else { "policy" };
        denials.push(Denial {
            policy: policy.name.clone(),
            binding: binding.map(|binding| binding.name.clone()),
            message: format!("failed to configure {what}: {error}"),
            reason: Reason::Invalid,
        });
    }
}

fn judge_one(
    scene: &Scene<'_>,
    hook: &Hook,
    object: Option<&Value>,
    old: Option<&Value>,
    denials: &mut Vec<Denial>,
) {
    let policy = &*hook.policy;
    let context = scene.request.context;
    let metrics = &scene.server.metrics.admission;
    let matched = match &policy.constraints {
        Ok(constraints) => scene.matched(constraints, object, old),
        Err(error) => return misconfigured(policy, None, error, denials),
    };
    let Some(matched) = matched else { return };
    if let Some(error) = &policy.broken {
        return misconfigured(policy, None, error, denials);
    }
    let bound = scene.bound(policy, &hook.bindings, object, old);
    if bound.is_empty() {
        return;
    }
    let new_version = object.map(|object| scene.in_version(object, &matched));
    let old_version = old.map(|old| scene.in_version(old, &matched));
    let request_value = scene.request_value(&matched, object, old);
    let mut annotations: Vec<(String, Vec<String>)> = Vec::new();
    for (binding, params) in bound {
        let params = match params {
            Ok(params) => params,
            Err(error) => {
                misconfigured(policy, Some(binding), &error, denials);
                continue;
            }
        };
        for param in &params {
            let began = Instant::now();
            let verdict = run(
                scene,
                policy,
                new_version.as_deref(),
                old_version.as_deref(),
                &request_value,
                param.as_ref(),
            );
            let took = began.elapsed();
            metrics.evaluation.time(took);
            for (index, message, reason) in verdict.denied {
                for action in &binding.actions {
                    let done = match action.as_str() {
                        "Deny" => "deny",
                        "Warn" => "warn",
                        _ => "audit",
                    };
                    metrics.validating(&policy.name, &binding.name, done, "invalid_error", took);
                    match action.as_str() {
                        "Deny" => denials.push(Denial {
                            policy: policy.name.clone(),
                            binding: Some(binding.name.clone()),
                            message: message.clone(),
                            reason,
                        }),
                        "Warn" => context.warn(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                            policy.name, binding.name
                        )),
                        "Audit" => context.audit(
                            "validation.policy.admission.k8s.io/validation_failure",
                            json!([{"message": message, "policy": policy.name, "binding": binding.name,
                                "expressionIndex": index, "validationActions": binding.actions}])
                            .to_string(),
                        ),
                        _ => {}
                    }
                }
            }
            for (key, mut value) in verdict.annotations {
                let mut end = value.len().min(ANNOTATION_LIMIT);
                while !value.is_char_boundary(end) {
                    end -= 1;
                }
                value.truncate(end);
                match annotations.iter_mut().find(|(own, _)| *own == key) {
                    Some((_, values)) if values.contains(&value) => {}
                    Some((_, values)) => values.push(value),
                    None => annotations.push((key, vec![value])),
                }
            }
        }
    }
    for (key, values) in annotations {
        context.audit(&format!("{}/{key}", policy.name), values.join(", "));
    }
}

/// Runs a policy's expressions with one set of params.
fn run(
    scene: &Scene<'_>,
    policy: &Policy,
    object: Option<&Value>,
    old: Option<&Value>,
    request: &Value,
    params: Option<&Value>,
) -> Verdict {
    let failed = |error: String| {
        let denied = if policy.fails_closed { vec![(0, error, Reason::Invalid)] } else { Vec::new() };
        Verdict { denied, annotations: Vec::new() }
    };
    let inputs = match scene.inputs(policy, object, old, request, params) {
        Ok(inputs) => inputs,
        Err(error) => return failed(error),
    };
    let asker = Asker { server: scene.server, user: &scene.request.context.user };
    match policy::holds(&policy.compiled.conditions, &inputs, Some(&asker)) {
        Ok(true) => {}
        Ok(false) => return Verdict::default(),
        Err(error) => return failed(error),
    }
    let mut verdict = Verdict::default();
    let mut budget = Budget::default();
    for (index, validation) in policy.compiled.validations.iter().enumerate() {
        match validation.program.run(&inputs, Some(&asker), &mut budget) {
            Ok(Val::Bool(true)) => {}
            Ok(_) => {
                let message = message(validation, &inputs, &mut budget);
                let reason = match validation.reason.as_str() {
                    "" => Reason::Invalid,
                    word => Reason::parse(word),
                };
                verdict.denied.push((index, message, reason));
            }
            Err(error) if policy.fails_closed => {
                let text = format!("expression '{}' resulted in error: {error}", validation.program.source());
                verdict.denied.push((index, text, Reason::Invalid));
            }
            Err(_) => {} // the policy says that errors do not count
        }
    }
    let mut budget = Budget::default();
    for (key, program) in &policy.compiled.annotations {
        match program.run(&inputs, Some(&asker), &mut budget) {
            Ok(Val::Text(text)) if !text.trim().is_empty() => {
                verdict.annotations.push((key.clone(), text.trim().to_owned()));
            }
            Ok(_) => {}
            Err(error) if policy.fails_closed => {
                let text = format!("expression '{}' resulted in error: {error}", program.source());
                verdict.denied.push((0, text, Reason::Invalid));
            }
            Err(_) => {}
        }
    }
    verdict
}

/// What is said about a validation that does not hold: what its expression says, else its message, else itself.
fn message<'a>(validation: &'a Validation, inputs: &policy::Inputs<'a>, budget: &mut Budget) -> String {
    if let Some(program) = &validation.message_program
        && let Ok(Val::Text(text)) = program.run(inputs, None, budget)
    {
        let text = text.trim();
        if !text.is_empty() && text.len() <= MESSAGE_LIMIT && !text.contains('\n') {
            return text.to_owned();
        }
    }
    let said = validation.message.trim();
    if said.is_empty() {
        return format!("failed expression: {}", validation.program.source().trim());
    }
    said.to_owned()
}
