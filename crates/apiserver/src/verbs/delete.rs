//! DELETE of an object or of everything that a selection names.
//!
//! An object goes at once, or is marked and goes later: when its finalizers are done, when its kubelet has stopped
//! the pod, when its namespace is empty.

use api::Effect;
use apimachinery::meta::{self, Meta, MetaMut};
use apimachinery::status::Status;
use apimachinery::time;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

use super::create::read_body;
use crate::admission::{Operation, Request};
use crate::body::Body;
use crate::cache::entry::{Entry, encode_for_store};
use crate::codec::{self, Expected};
use crate::context::Context;
use crate::negotiate;
use crate::options;
use crate::respond::{self, Page};
use crate::server::ApiServer;
use crate::verbs::read::store_failure;

/// What a body may come in.
const BODIES: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// How often a delete is tried against a changing object.
const TURNS: usize = 64;
/// DeleteOptions, from body and query.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOptions {
    /// Seconds until it may be gone.
    pub grace_period_seconds: Option<i64>,
    /// What must hold.
    pub preconditions: Option<Preconditions>,
    /// The old word for a policy.
    pub orphan_dependents: Option<bool>,
    /// Orphan, Background or Foreground.
    pub propagation_policy: Option<String>,
    /// Judge only.
    pub dry_run: Vec<String>,
}

/// What must hold of an object to delete it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    /// It is still this one.
    pub uid: Option<String>,
    /// It has not changed.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the body or, when there is none, the query.
    pub fn read(context: &Context, bytes: &Bytes) -> Result<Self, Status> {
        let mut options = if bytes.is_empty() {
            Self::default()
        } else {
            let schema = api::schemas::schemas()
                .get("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")
                .ok_or_else(|| Status::internal("the DeleteOptions kind is not known"))?;
            let format = negotiate::content_format(&context.headers)
                .ok_or_else(|| Status::unsupported_media_type(&BODIES))?;
            let expected =
                Expected { api_version: "v1", kind: "DeleteOptions", schema: &schema, exact: false };
            let (value, _) = codec::decode(bytes, format, &expected, context.field_validation()?)?;
            if value["kind"] != "DeleteOptions" {
                return Err(Status::bad_request(format!(
                    "no kind {} is registered for version {} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"",
                    value["kind"], value["apiVersion"]
                )));
            }
            serde_json::from_value(value).map_err(|error| Status::bad_request(error.to_string()))?
        };
        let query = &context.query;
        if bytes.is_empty() {
            if let Some(text) = query.get("gracePeriodSeconds") {
                options::numbers(query, &["gracePeriodSeconds"])?;
                options.grace_period_seconds = text.parse().ok();
            }
            options.propagation_policy = query.get("propagationPolicy").map(str::to_owned);
            if query.get("orphanDependents").is_some() {
                options.orphan_dependents = Some(query.flag("orphanDependents"));
            }
            options.dry_run = query.all("dryRun").map(str::to_owned).collect();
        }
        options.check()?;
        // A negative period has always meant the shortest one.
        options.grace_period_seconds =
            options.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
        Ok(options)
    }

    pub(crate) fn check(&self) -> Result<(), Status> {
        let mut problems = apimachinery::field::Problems::new();
        let path = |field: &'static str| apimachinery::field::Path::new(field);
        if self.propagation_policy.is_some() && self.orphan_dependents.is_some() {
            problems.invalid(
                &path("propagationPolicy"),
                self.propagation_policy.clone().unwrap_or_default(),
                "orphanDependents and deletionPropagation cannot be both set",
            );
        }
        if let Some(policy) = &self.propagation_policy
            && !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan")
        {
            problems.not_one_of(
                &path("propagationPolicy"),
                policy.clone(),
                &["Foreground", "Background", "Orphan", "nil"],
            );
        }
        let dry_run: Vec<&str> = self.dry_run.iter().map(String::as_str).collect();
        options::dry_run(&dry_run, &mut problems);
        if problems.is_empty() {
            return Ok(());
        }
        Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &problems))
    }

    /// The finalizers that the policy asks for: those to add and those to take away.
    fn garbage_policy(
        &self,
        orphan_by_default: bool,
        object: &Value,
    ) -> (Option<&'static str>, Vec<&'static str>) {
        let (orphan, foreground) = match (&self.propagation_policy, self.orphan_dependents) {
            (Some(policy), _) => (policy == "Orphan", policy == "Foreground"),
            (None, Some(orphan)) => (orphan, false),
            (None, None) => {
                // Nothing said: what the object already carries stays, then the kind's own habit.
                let has = |name: &str| object.finalizers().contains(&name);
                if has(ORPHAN) {
                    (true, false)
                } else if has(FOREGROUND) {
                    (false, true)
                } else {
                    (orphan_by_default, false)
                }
            }
        };
        match (orphan, foreground) {
            (true, _) => (Some(ORPHAN), vec![FOREGROUND]),
            (false, true) => (Some(FOREGROUND), vec![ORPHAN]),
            (false, false) => (None, vec![ORPHAN, FOREGROUND]),
        }
    }
}

/// What a delete comes to.
pub enum Deleted {
    /// The object is gone; this is its last state.
    Gone(Arc<Entry>),
    /// The object is marked and stays for now.
    Marked(Arc<Entry>),
}

impl ApiServer {
    /// DELETE of one object.
    pub async fn delete(&self, context: &Context, body: Body) -> Result<Response<Body>, Status> {
        let bytes = read_body(body).await?;
        let options = DeleteOptions::read(context, &bytes)?;
        let unsaid = options.propagation_policy.is_none() && options.orphan_dependents.is_none();
        if let Some(warning) = context.resource.definition.orphan_warning.filter(|_| unsaid) {
            context.warn(warning);
        }
        match self.delete_object(context, &options).await? {
            Deleted::Gone(entry) => {
                if context.resource.definition.answers_with_object {
                    return respond::object(context, StatusCode::OK, &entry);
                }
                let object = context.resource.parse(&entry);
                let resource = &context.resource;
                let status =
                    Status::deleted(resource.group(), resource.plural(), object.name(), object.uid());
                Ok(respond::status(&status, &context.accepted))
            }
            Deleted::Marked(entry) => {
                let accepted = options.orphan_dependents == Some(false);
                let code = if accepted { StatusCode::ACCEPTED } else { StatusCode::OK };
                let entry = self.shown(&context.resource, entry).await?;
                respond::object(context, code, &entry)
            }
        }
    }

    /// Deletes or marks the addressed object.
    pub async fn delete_object(&self, context: &Context, options: &DeleteOptions) -> Result<Deleted, Status> {
        let resource = &context.resource;
        let definition = &resource.definition;
        let (namespace, name) = (context.info.namespace.as_str(), context.info.name.as_str());
        let dry_run = !options.dry_run.is_empty();
        for _ in 0..TURNS {
            let entry = self.entry(resource, namespace, name).await?.ok_or_else(|| context.not_found())?;
            let shown = self.shown(resource, entry.clone()).await?;
            let old = resource.parse(&shown);
            self.check_preconditions(context, options, &old)?;
            let mut request = Request::new(context, Operation::Delete, "", dry_run);
            self.admission.validate(self, &mut request, None, Some(&old)).await?;
            let mut new = old.clone();
            let now =
                mark(definition, &mut new, options, crate::clock::now(), self.settings.garbage_collection);
            // What the author is shown is the object as it would be marked, even where nothing is written.
            let shown = |new: &Value| {
                if meta::same(new, &old) {
                    return shown.clone();
                }
                let value = encode_for_store(new);
                Arc::new(Entry::new(resource.prefix.len(), entry.key.clone(), value, entry.revision))
            };
            if now {
                if !dry_run && !self.remove_entry(context, &entry, &old).await? {
                    continue;
                }
                return Ok(Deleted::Gone(shown(&new)));
            }
            if meta::same(&new, &old) || dry_run {
                return Ok(Deleted::Marked(shown(&new)));
            }
            let value = self.storable(resource, &new).await?;
            let sealed = self.seal(resource, &entry.key, &value)?;
            let when = etcd::Precondition::ModRevision(entry.revision);
            match self.hub.store().put(entry.key.clone(), sealed, 0, when).await {
                Ok(etcd::Committed::Done { revision, .. }) => {
                    let marked = Entry::new(resource.prefix.len(), entry.key.clone(), value, revision);
                    return Ok(Deleted::Marked(Arc::new(marked)));
                }
                Ok(etcd::Committed::Conflict { .. }) => continue,
                Err(error) => return Err(store_failure(&error)),
            }
        }
        Err(Status::conflict(
            resource.group(),
            resource.plural(),
            name,
            "too many others are changing the object; please try again",
        ))
    }

    fn check_preconditions(
        &self,
        context: &Context,
        options: &DeleteOptions,
        old: &Value,
    ) -> Result<(), Status> {
        let Some(conditions) = &options.preconditions else { return Ok(()) };
        let resource = &context.resource;
        let conflict = |what: &str, wanted: &str, own: &str, perhaps: &str| {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({own}). The object might have been {perhaps}"
            );
            Err(Status::conflict(resource.group(), &resource.definition.names.kind, old.name(), &why))
        };
        if let Some(uid) = &conditions.uid
            && uid != old.uid()
        {
            return conflict("UID", uid, old.uid(), "deleted and then recreated");
        }
        if let Some(version) = &conditions.resource_version
            && version != old.resource_version()
        {
            return conflict("ResourceVersion", version, old.resource_version(), "modified");
        }
        Ok(())
    }

    /// DELETE of a selection: each object as if deleted alone.
    pub async fn delete_collection(&self, context: &Context, body: Body) -> Result<Response<Body>, Status> {
        let bytes = read_body(body).await?;
        let options = DeleteOptions::read(context, &bytes)?;
        let page = self.page(context).await?;
        let deleting = page.entries.into_iter().map(|entry| async {
            let entry = entry;
            let mut one = Context::internal(
                context.user.clone(),
                context.resource.clone(),
                "delete",
                entry.namespace(),
                entry.name(),
            );
            one.query = context.query.clone();
            match self.delete_object(&one, &options).await {
                // What is shown is the list as it was found.
                Ok(Deleted::Gone(_) | Deleted::Marked(_)) => Ok(Some(entry)),
                // Somebody else was quicker: what was asked for is the case.
                Err(status) if status.code == 404 => Ok(None),
                Err(status) => Err(status),
            }
        });
        let gone: Vec<Arc<Entry>> = futures::stream::iter(deleting)
            .buffered(self.settings.delete_workers)
            .try_filter_map(|entry| std::future::ready(Ok::<_, Status>(entry)))
            .try_collect()
            .await?;
        let page = Page {
            entries: gone,
            revision: page.revision,
            continue_token: page.continue_token,
            remaining: page.remaining,
        };
        respond::list(context, page)
    }
}

/// Marks an object as being deleted. Returns whether nothing keeps it and it can go now.
fn mark(
    definition: &api::Definition,
    object: &mut Value,
    options: &DeleteOptions,
    now: Timestamp,
    garbage_collection: bool,
) -> bool {
    let (add, remove) = if garbage_collection {
        options.garbage_policy(definition.orphan_by_default, object)
    } else {
        (None, Vec::new()) // nobody would come for what the finalizers ask for
    };
    let explicit = options.propagation_policy.is_some() || options.orphan_dependents.is_some();
    for finalizer in remove {
        if explicit || add.is_some() {
            object.remove_finalizer(finalizer);
        }
    }
    if let Some(finalizer) = add {
        object.add_finalizer(finalizer);
    }
    // A CRD stays until its objects are gone.
    if definition.effects.contains(&Effect::ServeCustomResources) && !object.is_terminating() {
        object.add_finalizer(crate::crds::CLEANUP);
    }
    let grace = grace_period(definition, object, options);
    let kept = |object: &Value| {
        !object.finalizers().is_empty()
            || (definition.effects.contains(&Effect::FinalizeNamespace)
                && object["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()))
    };
    if object.is_terminating() {
        let present = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        // A second delete may only shorten the time.
        if options.grace_period_seconds.is_some() && grace < present {
            if let Some(end) = object.deleted() {
                let end = end + SignedDuration::from_secs(grace - present);
                object.set_meta("deletionTimestamp", &time::seconds(end));
            }
            object.put_meta("deletionGracePeriodSeconds", Value::from(grace));
            return grace == 0 && !kept(object);
        }
        return present == 0 && !kept(object);
    }
    // A pod is marked even if it may go at once: that is what its author is shown.
    let graceful = definition.effects.contains(&Effect::GracefulPodDeletion);
    let gone = grace == 0 && !kept(object);
    if gone && !graceful {
        return true;
    }
    let end = now + SignedDuration::from_secs(grace);
    object.set_meta("deletionTimestamp", &time::seconds(end));
    // Who is emptied first goes when that is done, not after a time, and is no other object than before.
    let emptied = [Effect::FinalizeNamespace, Effect::ServeCustomResources];
    if !emptied.iter().any(|effect| definition.effects.contains(effect)) {
        object.put_meta("deletionGracePeriodSeconds", Value::from(grace));
        if object.generation() > 0 {
            let next = object.generation() + 1;
            object.put_meta("generation", Value::from(next));
        }
    }
    if definition.effects.contains(&Effect::FinalizeNamespace) {
        object["status"]["phase"] = Value::String("Terminating".to_owned());
    }
    gone
}

/// How long the object may take to go. Only pods that run on a node get time.
fn grace_period(definition: &api::Definition, object: &Value, options: &DeleteOptions) -> i64 {
    if !definition.effects.contains(&Effect::GracefulPodDeletion) {
        return 0;
    }
    let spec = &object["spec"];
    let phase = object["status"]["phase"].as_str().unwrap_or_default();
    if spec["nodeName"].as_str().unwrap_or_default().is_empty() || matches!(phase, "Failed" | "Succeeded") {
        return 0;
    }
    let asked = options.grace_period_seconds.or_else(|| spec["terminationGracePeriodSeconds"].as_i64());
    match asked.unwrap_or(30) {
        seconds if seconds < 0 => 1,
        seconds => seconds,
    }
}
