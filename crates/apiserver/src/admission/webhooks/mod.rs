//! Admission webhooks: servers that users name, which change or refuse what is written.
//!
//! The caches tell [`Webhooks`] of every configuration; each hook is read and its conditions are compiled once per
//! change. Mutating hooks are asked one after the other, in the order of their configurations' names; validating ones
//! all at once. `call` knows the form of question and answer. A hook that cannot be asked refuses the request or is
//! passed over, as its failure policy says. What configures admission is never asked about: nobody could repair it.

pub mod call;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use api::admissionregistration::policy::{Condition, Types, conditions, holds};
use apimachinery::decode::{self, FieldValidation};
use apimachinery::meta::{get_list, get_str};
use apimachinery::patch;
use apimachinery::status::Status;
use serde_json::{Value, json};
use tracing::warn;

use self::call::{Answer, Client, Refusal};
use super::policies::evaluate::{Asker, Scene, convert, word};
use super::policies::matching::MatchResources;
use super::{Operation, Request, policies};
use crate::metrics::admission::Outcome;
use crate::metrics::histogram::Histogram;
use crate::registry::Resource;
use crate::server::ApiServer;

/// The kinds that are followed.
pub const KINDS: [&str; 2] = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];

/// One webhook of a configuration.
struct Hook {
    name: String,
    configuration: String,
    /// Whether it may only refuse.
    validates: bool,
    client: Result<Client, String>,
    resources: Result<MatchResources, String>,
    conditions: Vec<Condition>,
    /// Why its conditions cannot be used.
    broken: Option<String>,
    fails_closed: bool,
    timeout: Duration,
    /// Whether it may be asked when nothing will be stored.
    dry_run: bool,
    reinvoke: bool,
    /// The version of AdmissionReview that it understands.
    version: Option<&'static str>,
}

impl Hook {
    fn read(configuration: &str, validates: bool, value: &Value) -> Self {
        let matching = json!({
            "namespaceSelector": value["namespaceSelector"], "objectSelector": value["objectSelector"],
            "resourceRules": value["rules"], "matchPolicy": value["matchPolicy"],
        });
        let mut failures = Vec::new();
        let list = get_list(value, "matchConditions");
        let compiled = conditions(list, &Types::dynamic(false), "matchConditions", &mut failures);
        let texts: Vec<String> = failures.into_iter().map(|one| one.message).collect();
        let versions = get_list(value, "admissionReviewVersions");
        Self {
            name: get_str(value, "name").to_owned(),
            configuration: configuration.to_owned(),
            validates,
            client: Client::read(&value["clientConfig"]),
            resources: MatchResources::parse(&matching),
            conditions: compiled,
            broken: (!texts.is_empty()).then(|| texts.join(", ")),
            fails_closed: get_str(value, "failurePolicy") != "Ignore",
            timeout: Duration::from_secs(value["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30)),
            dry_run: matches!(get_str(value, "sideEffects"), "None" | "NoneOnDryRun"),
            reinvoke: get_str(value, "reinvocationPolicy") == "IfNeeded",
            version: versions.iter().find_map(|own| match own.as_str() {
                Some("v1") => Some("v1"),
                Some("v1beta1") => Some("v1beta1"),
                _ => None,
            }),
        }
    }
}

#[derive(Default)]
struct Set {
    mutating: Vec<Arc<Hook>>,
    validating: Vec<Arc<Hook>>,
}

/// All configurations.
#[derive(Default)]
pub struct Webhooks {
    known: RwLock<[BTreeMap<String, Vec<Arc<Hook>>>; 2]>,
    set: RwLock<Arc<Set>>,
}

/// What a hook was last shown, to see whether it wants to look again.
pub struct Seen {
    hook: Arc<Hook>,
    object: Value,
}

impl Webhooks {
    /// Takes a configuration as it is now.
    pub fn set(&self, plural: &str, name: &str, object: Option<&Value>, compiled: &Histogram) {
        let validates = plural.starts_with("validating");
        let side = usize::from(validates);
        let mut known = self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        match object {
            Some(object) => {
                let read = |one: &Value| {
                    let began = Instant::now();
                    let hook = Hook::read(name, validates, one);
                    if !hook.conditions.is_empty() {
                        compiled.time(began.elapsed());
                    }
                    Arc::new(hook)
                };
                let hooks = get_list(object, "webhooks").iter().map(read);
                known[side].insert(name.to_owned(), hooks.collect());
            }
            None => {
                known[side].remove(name);
            }
        }
        let all = |side: usize| known[side].values().flatten().cloned().collect();
        let set = Set { mutating: all(0), validating: all(1) };
        *self.set.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Arc::new(set);
    }

    fn present(&self) -> Arc<Set> {
        self.set.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        let set = self.present();
        !(set.mutating.is_empty() && set.validating.is_empty())
    }

    /// Whether any hook may change objects.
    pub fn any_mutating(&self) -> bool {
        !self.present().mutating.is_empty()
    }

    /// Lets hooks change the object. Says what those saw that want to look again if others change it later, and whether
    /// anything was patched.
    pub async fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(Vec<Seen>, bool), Status> {
        let set = self.present();
        let (mut seen, mut patched) = (Vec::new(), false);
        if set.mutating.is_empty() || is_about_admission(request) {
            return Ok((seen, patched));
        }
        let scene = Scene::new(server, request)?;
        for hook in &set.mutating {
            let Some(did) = turn(&scene, hook, Some(object), old).await? else { continue };
            if let Some(new) = did {
                *object = new;
                patched = true;
            }
            if hook.reinvoke {
                seen.push(Seen { hook: hook.clone(), object: object.clone() });
            }
        }
        Ok((seen, patched))
    }

    /// Asks those again that want it and saw another object.
    pub async fn mutate_again(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
        seen: &[Seen],
    ) -> Result<(), Status> {
        let scene = Scene::new(server, request)?;
        for one in seen.iter().filter(|one| one.hook.reinvoke) {
            if one.object != *object
                && let Some(Some(new)) = turn(&scene, &one.hook, Some(object), old).await?
            {
                *object = new;
            }
        }
        Ok(())
    }

    /// Lets hooks refuse. Of a deletion or a connection the mutating ones are asked too; they can only refuse there.
    pub async fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        mutating: bool,
        validating: bool,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let set = self.present();
        let ends = matches!(request.operation, Operation::Delete | Operation::Connect);
        let first: &[Arc<Hook>] = if ends && mutating { &set.mutating } else { &[] };
        let second: &[Arc<Hook>] = if validating { &set.validating } else { &[] };
        if first.is_empty() && second.is_empty() || is_about_admission(request) {
            return Ok(());
        }
        let scene = Scene::new(server, request)?;
        for hook in first {
            turn(&scene, hook, object, old).await?;
        }
        let all = second.iter().map(|hook| turn(&scene, hook, object, old));
        for outcome in futures::future::join_all(all).await {
            outcome?;
        }
        Ok(())
    }
}

/// Configurations of admission are not judged by it.
fn is_about_admission(request: &Request<'_>) -> bool {
    let resource = &request.context.resource;
    resource.group() == policies::GROUP
        && (policies::KINDS.contains(&resource.plural()) || KINDS.contains(&resource.plural()))
}

/// Asks one hook if it is about the request: `None` if it is not, otherwise the object if it was changed.
async fn turn(
    scene: &Scene<'_>,
    hook: &Hook,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Option<Option<Value>>, Status> {
    let failed = |why: String| {
        let why = format!("failed calling webhook {:?}: {why}", hook.name);
        if hook.fails_closed {
            return Err(Status::internal(why));
        }
        warn!(
            webhook = hook.name,
            configuration = hook.configuration,
            why,
            "an admission webhook is passed over"
        );
        Ok(None)
    };
    let matched = match &hook.resources {
        Ok(resources) => scene.matched(resources, object, old),
        Err(error) => return failed(error.clone()),
    };
    let Some(matched) = matched else { return Ok(None) };
    let shown = object.map(|object| scene.in_version(object, &matched).into_owned());
    let shown_old = old.map(|old| scene.in_version(old, &matched).into_owned());
    let question = scene.request_value(&matched, object, old);
    match applies(scene, hook, shown.as_ref(), shown_old.as_ref(), &question) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        // As upstream: a condition that cannot be judged refuses, without the server being asked.
        Err(error) if hook.fails_closed => {
            let name = scene.name(object, old);
            return Err(scene.request.forbid(name, &error));
        }
        Err(_) => return Ok(None),
    }
    let began = Instant::now();
    let asked = ask(scene, hook, &matched, shown, shown_old, question, object).await;
    let metrics = &scene.server.metrics.admission;
    let side = if hook.validates { "validating" } else { "admit" };
    let note = |outcome: Outcome| {
        metrics.webhook(&hook.name, side, word(scene.request.operation), outcome, began.elapsed())
    };
    match asked {
        Ok(changed) => {
            note(Outcome::Allowed);
            Ok(Some(changed))
        }
        Err(Trouble::Denied(status)) => {
            note(Outcome::Denied(status.code));
            Err(*status)
        }
        Err(Trouble::Refused(status)) => Err(*status),
        Err(Trouble::Failed(why)) => {
            note(Outcome::Failed { refuses: hook.fails_closed });
            failed(why)
        }
    }
}

/// Why a hook did not say yes.
enum Trouble {
    /// It said no.
    Denied(Box<Status>),
    /// It may not be asked this.
    Refused(Box<Status>),
    /// It could not be asked, or not be understood.
    Failed(String),
}

/// Asks one hook; the object if it was changed.
async fn ask(
    scene: &Scene<'_>,
    hook: &Hook,
    matched: &Resource,
    shown: Option<Value>,
    shown_old: Option<Value>,
    question: Value,
    object: Option<&Value>,
) -> Result<Option<Value>, Trouble> {
    let failed = |why: String| Err(Trouble::Failed(why));
    let context = scene.request.context;
    if scene.request.dry_run && !hook.dry_run {
        let text = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Trouble::Refused(Box::new(Status::bad_request(text))));
    }
    let Some(version) = hook.version else {
        return failed("webhook does not accept known AdmissionReview versions (v1, v1beta1)".to_owned());
    };
    let client = match &hook.client {
        Ok(client) => client,
        Err(error) => return failed(error.clone()),
    };
    let uid = scene.server.new_uid();
    let review = call::review(version, &uid, question, shown.as_ref(), shown_old.as_ref());
    let answer = match client.ask(scene.server, &review, hook.timeout).await {
        Ok(answer) => answer,
        Err(error) => return failed(format!("failed to call webhook: {error}")),
    };
    let Answer { warnings, annotations, outcome } = match call::read(version, &uid, &answer) {
        Ok(answer) => answer,
        Err(error) => return failed(error),
    };
    for warning in warnings {
        context.warn(warning);
    }
    for (key, value) in annotations {
        context.audit(&format!("{}/{key}", hook.name), value);
    }
    match (outcome, shown) {
        (Err(Refusal(result)), _) => Err(Trouble::Denied(Box::new(call::denied(&hook.name, &result)))),
        (Ok(None), _) => Ok(None),
        (Ok(Some(_)), None) => failed("a patch of nothing".to_owned()),
        (Ok(Some(operations)), Some(shown)) => match patched(scene, matched, shown, &operations) {
            Ok(new) => Ok(Some(new).filter(|new| Some(new) != object)),
            Err(error) => failed(error),
        },
    }
}

/// Whether all conditions of a hook hold.
fn applies(
    scene: &Scene<'_>,
    hook: &Hook,
    object: Option<&Value>,
    old: Option<&Value>,
    question: &Value,
) -> Result<bool, String> {
    if let Some(error) = &hook.broken {
        return Err(error.clone());
    }
    if hook.conditions.is_empty() {
        return Ok(true);
    }
    let inputs = scene.inputs_with(&[], object, old, question, None)?;
    let asker = Asker { server: scene.server, user: &scene.request.context.user };
    let began = Instant::now();
    let outcome = holds(&hook.conditions, &inputs, Some(&asker));
    scene.server.metrics.admission.evaluation.time(began.elapsed());
    outcome
}

/// The object after a patch, read again as if a client had sent it.
fn patched(scene: &Scene<'_>, matched: &Resource, shown: Value, operations: &Value) -> Result<Value, String> {
    let new = patch::json_patch(shown, operations).map_err(|error| error.to_string())?;
    let read = decode::value(new, &matched.definition.schema, FieldValidation::Ignore)
        .map_err(|error| error.to_string())?;
    let mut new = read.value;
    matched.definition.set_defaults(&mut new);
    let own = &scene.request.context.resource;
    Ok(if own.api_version == matched.api_version { new } else { convert(&new, matched, own) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_stand_in_the_order_of_their_configurations() {
        let webhooks = Webhooks::default();
        let object = |names: &[&str]| {
            let hooks: Vec<Value> = names
                .iter()
                .map(|name| json!({"name": name, "clientConfig": {"url": "https://a.example/x"}, "failurePolicy": "Fail",
                    "admissionReviewVersions": ["v9", "v1beta1"], "sideEffects": "None", "timeoutSeconds": 3}))
                .collect();
            json!({"webhooks": hooks})
        };
        let compiled = Histogram::new(&[1.0]);
        webhooks.set(KINDS[0], "b", Some(&object(&["three"])), &compiled);
        webhooks.set(KINDS[0], "a", Some(&object(&["one", "two"])), &compiled);
        webhooks.set(KINDS[1], "c", Some(&object(&["four"])), &compiled);
        let set = webhooks.present();
        let names: Vec<&str> = set.mutating.iter().map(|hook| hook.name.as_str()).collect();
        assert_eq!(names, ["one", "two", "three"]);
        let hook = &set.validating[0];
        assert_eq!((hook.version, hook.timeout.as_secs(), hook.dry_run), (Some("v1beta1"), 3, true));
        assert!(hook.fails_closed && !hook.reinvoke && hook.client.is_ok());
        webhooks.set(KINDS[0], "a", None, &compiled);
        assert_eq!(webhooks.present().mutating.len(), 1);
    }
}
