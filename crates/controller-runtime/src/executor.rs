//! Does what a plan says.
//!
//! Within a stage everything is sent at once, except that creates start slowly (1, 2, 4, …): if the first of five
//! hundred pods is refused, the other 499 are not tried. A stage with a failure ends the plan; its caller decides
//! anew. Each success yields what the caches must show before the next decision.

use client::{Client, DeleteOptions, Error, ListOptions, Patch, Preconditions};
use serde::Deserialize;
use serde_json::Value;
use tracing::debug;

use crate::caches::Expect;
use crate::plan::{Announce, PatchForm, Plan, Verb, Write, merge};
use crate::recorder::Recorder;

/// Why a plan was not carried out entirely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason word of the event about it, or of the verb.
    pub reason: &'static str,
    /// What the server said.
    pub message: String,
    /// Someone else wrote first: nothing is wrong, look again.
    pub is_conflict: bool,
}

/// What became of a plan.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub failure: Option<Failure>,
    pub expect: Vec<Expect>,
}

pub(crate) struct Executor {
    /// Writes, as the controller's own identity.
    pub client: Client,
    /// Fills the caches: may list everything, and so reads what the controller may only change.
    pub shared: Client,
    pub recorder: Recorder,
}

/// The part of an answer that matters after a write.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Written {
    kind: Option<Box<str>>,
    metadata: WrittenMeta,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct WrittenMeta {
    name: Box<str>,
    resource_version: Box<str>,
}

impl Executor {
    /// Does the stages in order, then the status, then records the events.
    pub async fn execute(&self, plan: &Plan) -> Outcome {
        let mut outcome = Outcome::default();
        for stage in plan.stages() {
            self.stage(stage, &mut outcome).await;
            if outcome.failure.is_some() {
                return outcome;
            }
        }
        if let Some(status) = plan.status() {
            self.status(status, &mut outcome).await;
        }
        if outcome.failure.is_none() {
            for event in plan.events() {
                self.recorder.record(event.clone());
            }
        }
        outcome
    }

    /// Does only the status of a plan.
    pub async fn status(&self, status: &Write, outcome: &mut Outcome) {
        self.batch(std::slice::from_ref(status), outcome).await;
    }

    async fn stage(&self, stage: &[Write], outcome: &mut Outcome) {
        let (creates, others): (Vec<&Write>, Vec<&Write>) =
            stage.iter().partition(|write| matches!(write.verb, Verb::Create(_)));
        self.batch(others, outcome).await;
        let mut rest = &creates[..];
        let mut size = 1;
        while !rest.is_empty() && outcome.failure.is_none() {
            let (now, later) = rest.split_at(size.min(rest.len()));
            self.batch(now.iter().copied(), outcome).await;
            rest = later;
            size *= 2;
        }
    }

    async fn batch<'a>(&self, writes: impl IntoIterator<Item = &'a Write>, outcome: &mut Outcome) {
        let results =
            futures::future::join_all(writes.into_iter().map(|write| async move { self.send(write).await }))
                .await;
        for (expect, failure) in results {
            outcome.expect.extend(expect);
            if let Some(failure) = failure {
                // A real failure says more than a conflict.
                if outcome.failure.as_ref().is_none_or(|first| first.is_conflict && !failure.is_conflict) {
                    outcome.failure = Some(failure);
                }
            }
        }
    }

    async fn send(&self, write: &Write) -> (Option<Expect>, Option<Failure>) {
        let revision =
            |seen: &str| seen.parse().ok().map(|revision| Expect::Revision(write.resource.clone(), revision));
        for event in &write.telling {
            self.recorder.record(event.clone());
        }
        match self.call(write).await {
            Ok(Sent::Done(written)) => {
                debug!(%write, "done");
                self.announce(write, &written.metadata.name, None);
                let deleted = matches!(write.verb, Verb::Delete { .. });
                let expect = match (&write.verb, written.kind.as_deref()) {
                    (Verb::DeleteCollection, _) => None,
                    (Verb::Delete { uid: Some(uid), .. }, _) if deleted => {
                        Some(Expect::Gone(write.resource.clone(), write.key.clone(), uid.clone()))
                    }
                    // Bodies posted to subresources are answered with other kinds.
                    _ if write.subresource.is_some() && matches!(write.verb, Verb::Create(_)) => None,
                    _ => revision(&written.metadata.resource_version),
                };
                (expect, None)
            }
            Ok(Sent::Unneeded) => (None, None),
            Ok(Sent::Stale { seen }) => {
                let message = format!("{} {} changed meanwhile", write.resource, write.key);
                (revision(&seen), Some(Failure { reason: "Conflict", message, is_conflict: true }))
            }
            Err(error) if write.tolerant && (error.is_not_found() || error.is_already_exists()) => {
                (None, None)
            }
            // Whatever is created there would be deleted at once; the object that asked for it goes, too.
            Err(error) if error.is_namespace_terminating() && matches!(write.verb, Verb::Create(_)) => {
                debug!(%write, "not done, the namespace is going away");
                (None, None)
            }
            Err(error) => {
                let is_conflict = error.is_conflict()
                    || (error.is_not_found() && !matches!(write.verb, Verb::Create(_)))
                    || (error.is_already_exists() && !write.key.name.is_empty());
                let message = telemetry::chain(&error).to_string();
                if !is_conflict {
                    self.announce(write, &write.key.name, Some(&message));
                }
                let reason = write
                    .announce
                    .as_ref()
                    .and_then(|announce| announce.failure.as_ref())
                    .map_or("Failed", |(reason, _)| *reason);
                // Deciding again from caches that do not know of it would do it twice.
                let expect = error.is_outcome_unknown().then(|| Expect::Fresh(write.resource.clone()));
                (expect, Some(Failure { reason, message, is_conflict }))
            }
        }
    }

    fn announce(&self, write: &Write, name: &str, error: Option<&str>) {
        let Some(Announce { about, success, failure }) = &write.announce else { return };
        let name = if name.is_empty() { &write.key.name } else { name };
        let text = match error {
            None => success,
            Some(_) => failure,
        };
        if let Some((reason, text)) = text {
            let message = text.replace("{name}", name).replace("{error}", error.unwrap_or(""));
            let event = crate::plan::Event {
                about: about.clone(),
                warning: error.is_some(),
                reason: (*reason).to_string(),
                message,
            };
            self.recorder.record(event);
        }
    }

    /// The whole object, of which the caches keep only a part. Some roles let a controller update what they do not let it
    /// get, since it is expected to have it from the shared informers: then it is read as those do, by listing.
    async fn whole(&self, write: &Write) -> Result<Value, Error> {
        let Write { resource, key, .. } = write;
        match self.client.api(resource).within(&key.namespace).get(&key.name).await {
            Err(error) if error.is_forbidden() => {
                let only = ListOptions::fields(format!("metadata.name={}", key.name));
                let list = self.shared.api(resource).within(&key.namespace).list::<Value>(&only).await?;
                let mut object = list.items.into_iter().next().ok_or(error)?;
                // Items of a list do not repeat what they are.
                object["apiVersion"] = resource.api_version().into();
                object["kind"] = (&*resource.kind).into();
                Ok(object)
            }
            answer => answer,
        }
    }

    async fn call(&self, write: &Write) -> Result<Sent, Error> {
        let api = self.client.api(&write.resource).within(&write.key.namespace);
        let name = &*write.key.name;
        let done = match (&write.verb, write.subresource) {
            (Verb::Create(object), None) => api.create(object).await?,
            (Verb::Create(object), Some(sub)) => api.create_sub(name, sub, object).await?,
            (Verb::Replace(object), None) => api.replace(name, object).await?,
            (Verb::Replace(object), Some(sub)) => api.replace_sub(name, sub, object).await?,
            (Verb::Patch { form, body }, sub) => {
                let patch = match form {
                    PatchForm::Merge => Patch::Merge(body),
                    PatchForm::Strategic => Patch::Strategic(body),
                    PatchForm::Json => Patch::Json(body),
                    PatchForm::Apply(manager) => Patch::Apply { manager, force: true, object: body },
                };
                match sub {
                    None => api.patch(name, patch).await?,
                    Some(sub) => api.patch_sub(name, sub, patch).await?,
                }
            }
            (Verb::Update { change, uid, revision }, sub) => {
                let mut object = self.whole(write).await?;
                let field = |name| object.pointer(name).and_then(Value::as_str).unwrap_or("");
                let seen = field("/metadata/resourceVersion").to_owned();
                let stale = field("/metadata/uid") != &**uid
                    || revision.as_ref().is_some_and(|revision| **revision != *seen);
                if stale {
                    return Ok(Sent::Stale { seen });
                }
                let before = object.clone();
                merge(&mut object, change);
                if object == before {
                    return Ok(Sent::Unneeded);
                }
                match sub {
                    None => api.replace(name, &object).await?,
                    Some(sub) => api.replace_sub(name, sub, &object).await?,
                }
            }
            (Verb::Delete { uid, revision, propagation, grace_period_seconds }, _) => {
                let preconditions = Preconditions {
                    uid: uid.as_deref().map(str::to_owned),
                    resource_version: revision.as_deref().map(str::to_owned),
                };
                let has_preconditions = uid.is_some() || revision.is_some();
                let options = DeleteOptions {
                    grace_period_seconds: *grace_period_seconds,
                    propagation_policy: *propagation,
                    preconditions: has_preconditions.then_some(preconditions),
                };
                api.delete(name, &options).await?;
                Written { kind: None, metadata: WrittenMeta { name: name.into(), ..WrittenMeta::default() } }
            }
            (Verb::DeleteCollection, _) => {
                api.delete_collection(&DeleteOptions::default(), &ListOptions::default()).await?;
                Written::default()
            }
        };
        Ok(Sent::Done(done))
    }
}

enum Sent {
    Done(Written),
    /// The object is already as it should be.
    Unneeded,
    /// The object is not the one, or not in the state, that the decision was based on.
    Stale {
        seen: String,
    },
}
