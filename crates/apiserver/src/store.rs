//! The order of a write, stated once: default → record owners → mutate-admit → default again → prepare → validate → validate-admit →
//! effects → compare-and-swap, and again from the start with fresh state if somebody was quicker.
//!
//! Every create, update, patch, apply and subresource write of every kind goes through [`ApiServer::create_object`]
//! or [`ApiServer::update_object`]; every removal through [`ApiServer::remove_entry`].

use std::sync::Arc;
use std::time::Duration;

use api::{Change, Effect};
use apimachinery::meta::{self, Meta, MetaMut};
use apimachinery::status::{Reason, Status};
use apimachinery::time;
use bytes::Bytes;
use etcd::{Committed, Precondition};
use serde_json::Value;

use crate::admission::{Operation, Request};
use crate::cache::entry::{Entry, encode_for_store};
use crate::context::Context;
use crate::conversion::Age;
use crate::effects;
use crate::foreign;
use crate::managed;
use crate::registry::Resource;
use crate::server::ApiServer;
use crate::verbs::read::store_failure;

/// A write that keeps losing against others gives up after so many turns.
const TURNS: usize = 64;
/// How often a generated name is tried.
const NAMES: usize = 8;

/// How a write is meant.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Judge, but store nothing.
    pub dry_run: bool,
    /// Who owns the written fields.
    pub manager: String,
    /// The subresource that is written, or nothing.
    pub subresource: String,
    /// Whether the new object brings its own record of field owners (server-side apply made it).
    pub applied: bool,
}

impl WriteOptions {
    /// As the request says.
    pub fn of(context: &Context) -> Result<Self, Status> {
        Ok(Self {
            dry_run: context.dry_run()?,
            manager: context.field_manager(),
            subresource: context.info.subresource.clone(),
            applied: false,
        })
    }
}

/// The outcome of an update.
pub struct Written {
    /// The object after it.
    pub entry: Arc<Entry>,
    /// Whether it was made by this.
    pub created: bool,
}

/// Makes the new object from the old one; called again when the old one turns out to be outdated. `None` if
/// there is no old one.
pub type MakeNew<'a> = dyn FnMut(Option<&Value>) -> Result<Value, Status> + Send + 'a;

impl ApiServer {
    /// Creates an object.
    pub async fn create_object(
        &self,
        context: &Context,
        object: Value,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, Status> {
        let resource = &context.resource;
        let generate = object.name().is_empty() && !object.generate_name().is_empty();
        let mut attempt = 0;
        let mut given = object;
        loop {
            attempt += 1;
            // Only a generated name is ever tried twice.
            let mut object = if generate { given.clone() } else { std::mem::take(&mut given) };
            self.place(context, &mut object)?;
            if generate {
                let name = self.generate_name(object.generate_name());
                object.set_meta("name", &name);
            }
            match self.try_create(context, object, options).await? {
                Ok(entry) => return Ok(entry),
                Err(name) if generate && attempt < NAMES => {
                    tracing::debug!(name, "generated name was taken");
                }
                Err(name) if generate => {
                    return Err(Status::generate_name_conflict(resource.group(), resource.plural(), &name));
                }
                Err(name) => {
                    let mut status = Status::already_exists(resource.group(), resource.plural(), &name);
                    let old = self.cached(resource, &context.info.namespace, &name);
                    if old.is_some_and(|entry| resource.parse(&entry).is_terminating()) {
                        status.message = format!("object is being deleted: {}", status.message);
                    }
                    return Err(status);
                }
            }
        }
    }

    /// One attempt; the inner error is the name that exists already.
    async fn try_create(
        &self,
        context: &Context,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Result<Arc<Entry>, String>, Status> {
        let resource = &context.resource;
        let definition = &resource.definition;
        if !object.resource_version().is_empty() && !options.dry_run {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(Status::failure(Reason::Unknown, why));
        }
        object.set_meta("uid", &self.new_uid());
        object.set_meta("creationTimestamp", &time::seconds(crate::clock::now()));
        for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            object.take_meta(field);
        }
        one_of_each_owner(context, &mut object, "");
        definition.set_defaults(&mut object);
        // A manager owns what it sent; what admission and the server add belongs to nobody.
        if !options.applied {
            managed::created(&mut object, resource, &options.manager);
        }
        let mut request = Request::new(context, Operation::Create, &options.subresource, options.dry_run);
        self.admission.mutate(self, &mut request, &mut object, None).await?;
        one_of_each_owner(context, &mut object, AFTER_ADMISSION);
        definition.set_defaults(&mut object);
        definition.prepare_create(&mut object);
        effects::prepare_create(self, context, &mut object)?;
        self.check_new(context, &object)?;
        let change = Change::create(&object);
        let problems = definition.validate(&change);
        if !problems.is_empty() {
            return Err(context.invalid(&object, &problems));
        }
        effects::warn(context, change.new);
        for warning in definition.warnings(&change) {
            context.warn(warning);
        }
        let key = resource.key(object.namespace(), object.name());
        // A name that is taken is said before quota is charged for nothing. The cache may not know yet that it is free again.
        if self.cached(resource, object.namespace(), object.name()).is_some()
            && Box::pin(self.entry(resource, object.namespace(), object.name())).await?.is_some()
        {
            return Ok(Err(object.name().to_owned()));
        }
        self.admission.validate(self, &mut request, Some(&object), None).await?;
        let reserved = match effects::reserve(self, context, &mut object, None, options.dry_run).await {
            Ok(reserved) => reserved,
            Err(status) => {
                self.admission.release(self, request).await;
                return Err(status);
            }
        };
        let value = match self.storable(resource, &object).await {
            Ok(value) => value,
            Err(status) => {
                self.admission.release(self, request).await;
                reserved.undo(self).await;
                return Err(status);
            }
        };
        if options.dry_run {
            self.admission.release(self, request).await;
            reserved.undo(self).await;
            return Ok(Ok(Arc::new(Entry::new(resource.prefix.len(), key, value, 0))));
        }
        let lease =
            if definition.storage.prefix == "/registry/events" { self.event_lease().await } else { 0 };
        let sealed = self.seal(resource, &key, &value)?;
        match self.hub.store().put(key.clone(), sealed, lease, Precondition::Absent).await {
            Ok(Committed::Done { revision, .. }) => {
                reserved.keep(self, &object).await;
                self.settle(resource, &options.subresource, revision).await;
                Ok(Ok(Arc::new(Entry::new(resource.prefix.len(), key, value, revision))))
            }
            Ok(Committed::Conflict { .. }) => {
                self.admission.release(self, request).await;
                reserved.undo(self).await;
                Ok(Err(object.name().to_owned()))
            }
            Err(error) => {
                self.admission.release(self, request).await;
                reserved.undo(self).await;
                Err(store_failure(&error))
            }
        }
    }

    /// Puts the object into the namespace of the path.
    fn place(&self, context: &Context, object: &mut Value) -> Result<(), Status> {
        let resource = &context.resource;
        if !resource.is_namespaced() {
            object.take_meta("namespace");
            return Ok(());
        }
        let namespace = &context.info.namespace;
        if namespace.is_empty() {
            return Err(Status::bad_request("an empty namespace may not be set during creation"));
        }
        if object.namespace().is_empty() {
            object.set_meta("namespace", namespace);
        } else if object.namespace() != namespace {
            return Err(wrong_namespace());
        }
        Ok(())
    }

    fn check_new(&self, context: &Context, object: &Value) -> Result<(), Status> {
        if let Some(name) = context.info.name.split('/').next().filter(|name| !name.is_empty())
            && context.info.subresource.is_empty()
            && name != object.name()
        {
            return Err(Status::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({name})",
                object.name()
            )));
        }
        Ok(())
    }

    /// Changes an object, or creates it where the kind allows that (and apply always does).
    pub async fn update_object(
        &self,
        context: &Context,
        options: &WriteOptions,
        create_if_absent: bool,
        make: &mut MakeNew<'_>,
    ) -> Result<Written, Status> {
        let resource = &context.resource;
        let (namespace, name) = (context.info.namespace.as_str(), context.info.name.as_str());
        for _ in 0..TURNS {
            let Some(old_entry) = self.entry(resource, namespace, name).await? else {
                // What cannot be read is told before it is told that there is nothing to change.
                let mut object = make(None)?;
                if !create_if_absent {
                    return Err(context.not_found());
                }
                if object.name().is_empty() {
                    object.set_meta("name", name);
                }
                if !object.uid().is_empty() {
                    let why = format!(
                        "Precondition failed: UID in precondition: {}, UID in object meta: ",
                        object.uid()
                    );
                    return Err(Status::conflict(resource.group(), resource.plural(), name, &why));
                }
                // Nothing is there that the version could be compared with.
                object.take_meta("resourceVersion");
                self.place(context, &mut object)?;
                match self.try_create(context, object, options).await? {
                    Ok(entry) => return Ok(Written { entry, created: true }),
                    Err(_) => continue, // it exists after all
                }
            };
            let shown = self.shown_as(resource, old_entry.clone(), Age::Known).await?;
            let old = resource.parse(&shown);
            let new = loop {
                let made = make(Some(&old));
                // Until all versions are there in which somebody owns something, nothing that was made is final.
                if !Box::pin(self.fulfil(context)).await? {
                    break made?;
                }
            };
            if let Some(entry) = self.try_update(context, options, &old_entry, &old, new).await? {
                return Ok(Written { entry, created: false });
            }
        }
        Err(Status::conflict(
            resource.group(),
            resource.plural(),
            name,
            "too many others are changing the object; please try again",
        ))
    }

    /// One attempt; `None` if the old object is outdated.
    async fn try_update(
        &self,
        context: &Context,
        options: &WriteOptions,
        old_entry: &Arc<Entry>,
        old: &Value,
        mut new: Value,
    ) -> Result<Option<Arc<Entry>>, Status> {
        let resource = &context.resource;
        let definition = &resource.definition;
        self.check_addressed(context, &mut new, old)?;
        definition.set_defaults(&mut new);
        let mut request = Request::new(context, Operation::Update, &options.subresource, options.dry_run);
        // A manager owns what it sent, also what the kind does not let it change.
        if !options.applied {
            loop {
                let sent = resource.converter.is_some().then(|| new.clone());
                managed::updated(context, &mut new, old, &options.manager, &options.subresource);
                match sent {
                    Some(sent) if Box::pin(self.fulfil(context)).await? => new = sent,
                    _ => break,
                }
            }
        }
        // What the addressed part does not own is taken from the old object before anyone judges the new one.
        definition.prepare_update(&mut new, old, &options.subresource);
        // A binding was admitted when it was told; the pod that it changes is the server's own affair.
        let told = options.subresource == "binding";
        if told {
            self.admission.plug_ins(self, &request, &mut new, Some(old))?;
        } else {
            self.admission.mutate(self, &mut request, &mut new, Some(old)).await?;
        }
        one_of_each_owner(context, &mut new, AFTER_ADMISSION);
        definition.set_defaults(&mut new);
        definition.prepare_update(&mut new, old, &options.subresource);
        effects::prepare_update(self, context, &mut new, old, &options.subresource)?;
        let change = Change { new: &new, old: Some(old), subresource: &options.subresource };
        let problems = definition.validate(&change);
        if !problems.is_empty() {
            return Err(context.invalid(&new, &problems));
        }
        // Who writes only a part is not warned of the rest.
        if matches!(options.subresource.as_str(), "" | "scale") {
            effects::warn(context, change.new);
            for warning in definition.warnings(&change) {
                context.warn(warning);
            }
        }
        // Who judges is asked also about what changes nothing.
        if !told {
            self.admission.validate(self, &mut request, Some(&new), Some(old)).await?;
        }
        let kept = managed::is_unchanged(&new, old) && !resource.is_outdated(old_entry);
        if kept && !self.is_under_an_old_key(resource, old_entry).await? {
            self.admission.release(self, request).await;
            return Ok(Some(old_entry.clone()));
        }
        if should_vanish(definition, &new, old) {
            let value = encode_for_store(&new);
            if !options.dry_run && !self.remove_entry(context, old_entry, old).await? {
                return Ok(None);
            }
            return Ok(Some(Arc::new(Entry::new(
                resource.prefix.len(),
                old_entry.key.clone(),
                value,
                old_entry.revision,
            ))));
        }
        let reserved = match effects::reserve(self, context, &mut new, Some(old), options.dry_run).await {
            Ok(reserved) => reserved,
            Err(status) => {
                self.admission.release(self, request).await;
                return Err(status);
            }
        };
        let value = match self.storable(resource, &new).await {
            Ok(value) => value,
            Err(status) => {
                self.admission.release(self, request).await;
                reserved.undo(self).await;
                return Err(status);
            }
        };
        let key = old_entry.key.clone();
        if options.dry_run {
            self.admission.release(self, request).await;
            reserved.undo(self).await;
            return Ok(Some(Arc::new(Entry::new(resource.prefix.len(), key, value, old_entry.revision))));
        }
        let sealed = self.seal(resource, &key, &value)?;
        let when = Precondition::ModRevision(old_entry.revision);
        let lease =
            if definition.storage.prefix == "/registry/events" { self.event_lease().await } else { 0 };
        match self.hub.store().put(key.clone(), sealed, lease, when).await {
            Ok(Committed::Done { revision, .. }) => {
                reserved.keep(self, &new).await;
                self.settle(resource, &options.subresource, revision).await;
                Ok(Some(Arc::new(Entry::new(resource.prefix.len(), key, value, revision))))
            }
            Ok(Committed::Conflict { .. }) => {
                self.admission.release(self, request).await;
                reserved.undo(self).await;
                Ok(None)
            }
            Err(error) => {
                self.admission.release(self, request).await;
                reserved.undo(self).await;
                Err(store_failure(&error))
            }
        }
    }

    /// Checks that the new object is meant for the one at this path and revision.
    fn check_addressed(&self, context: &Context, new: &mut Value, old: &Value) -> Result<(), Status> {
        let resource = &context.resource;
        let name = &context.info.name;
        if new.name().is_empty() {
            new.set_meta("name", name);
        } else if new.name() != name {
            return Err(wrong_name(new.name(), name));
        }
        if resource.is_namespaced() {
            if new.namespace().is_empty() {
                new.set_meta("namespace", &context.info.namespace);
            } else if new.namespace() != context.info.namespace {
                return Err(wrong_namespace());
            }
        } else {
            new.metadata_mut().shift_remove("namespace");
        }
        // Only who sends a whole object says which one it is meant for; of a patch it is a change.
        if context.info.verb != "patch" {
            self.check_uid(context, new.uid(), old)?;
        }
        let wanted = new.resource_version();
        if wanted.is_empty() || wanted == "0" {
            if resource.definition.unconditional_update {
                new.set_meta("resourceVersion", old.resource_version());
            } else {
                new.take_meta("resourceVersion");
            }
        } else if wanted.parse::<u64>().is_err() {
            let digits = wanted.bytes().all(|byte| byte.is_ascii_digit());
            let why = if digits { "value out of range" } else { "invalid syntax" };
            let why = format!("strconv.ParseUint: parsing {wanted:?}: {why}");
            return Err(Status::failure(Reason::Unknown, why));
        } else if wanted != old.resource_version() {
            return Err(Status::modified(resource.group(), resource.plural(), name));
        }
        Ok(())
    }

    /// Checks that a write that names a uid means the object that is there.
    pub(crate) fn check_uid(&self, context: &Context, wanted: &str, old: &Value) -> Result<(), Status> {
        if wanted.is_empty() || wanted == old.uid() {
            return Ok(());
        }
        let resource = &context.resource;
        let key = resource.key(old.namespace(), old.name());
        let key = String::from_utf8_lossy(&key);
        // Who only tries is told of the key without the prefix of all keys.
        let tried = context.dry_run().unwrap_or(false);
        let key = if tried { key.trim_start_matches("/registry") } else { &key };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {}",
            old.uid()
        );
        Err(Status::conflict(resource.group(), resource.plural(), old.name(), &why))
    }

    /// Removes an object for good. False if it is not as it was.
    pub async fn remove_entry(
        &self,
        context: &Context,
        entry: &Entry,
        object: &Value,
    ) -> Result<bool, Status> {
        let when = Precondition::ModRevision(entry.revision);
        match self.hub.store().delete(entry.key.clone(), when).await {
            Ok(Committed::Done { revision, .. }) => {
                effects::removed(self, context, object).await;
                self.settle(&context.resource, "", revision).await;
                Ok(true)
            }
            Ok(Committed::Conflict { .. }) => Ok(false),
            Err(error) => Err(store_failure(&error)),
        }
    }

    /// Waits until the caches show a write, so that what its author does next is judged by it: a pod may name the
    /// service account that was made a moment ago. Kinds that are written often and that nobody is judged by are
    /// not waited for, nor is what nodes say of themselves all the time.
    async fn settle(&self, resource: &Resource, subresource: &str, revision: i64) {
        const BUSY: [&str; 7] = [
            "/registry/pods",
            "/registry/events",
            "/registry/leases",
            "/registry/configmaps",
            "/registry/secrets",
            "/registry/services/endpoints",
            "/registry/endpointslices",
        ];
        let prefix = &*resource.definition.storage.prefix;
        let busy = BUSY.contains(&prefix) || prefix == "/registry/minions" && subresource == "status";
        if !busy {
            // A cache that lags is only less comfortable; the write stands.
            let _ = self.hub.wait_for(revision, Duration::from_millis(500)).await;
        }
    }

    /// The bytes that go to the store: as they are, or encrypted.
    pub fn seal(&self, resource: &Resource, key: &[u8], value: &Bytes) -> Result<Bytes, Status> {
        let value = if self.settings.protobuf { foreign::write(resource, value) } else { value.clone() };
        match &self.encryption {
            Some(encryption) => encryption.seal(&resource.prefix, key, &value).map_err(Status::internal),
            None => Ok(value),
        }
    }

    /// Whether an object is stored under another key than the one that is written with now. Then a write that changes
    /// nothing is done nevertheless: that is how keys are rotated.
    async fn is_under_an_old_key(&self, resource: &Resource, entry: &Entry) -> Result<bool, Status> {
        let Some(encryption) = &self.encryption else { return Ok(false) };
        if encryption.is_outdated(&resource.prefix, &[]).is_none() {
            return Ok(false);
        }
        let (stored, _) = self.hub.store().get(&entry.key, 0).await.map_err(|error| store_failure(&error))?;
        Ok(stored.and_then(|stored| encryption.is_outdated(&resource.prefix, &stored.value)).unwrap_or(false))
    }

    /// A lease that ends when events written now should. One is shared by all events of some time.
    async fn event_lease(&self) -> i64 {
        let now = tokio::time::Instant::now();
        let known = *self.event_lease.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((lease, made)) = known
            && now.duration_since(made) < self.settings.lease_reuse
        {
            return lease;
        }
        match self
            .hub
            .store()
            .grant_lease((self.event_ttl + self.settings.lease_reuse).as_secs() as i64)
            .await
        {
            Ok(lease) => {
                *self.event_lease.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                    Some((lease, now));
                lease
            }
            // An event that stays is better than one that is lost.
            Err(error) => {
                tracing::warn!(error = %telemetry::chain(&error), "no lease for events");
                0
            }
        }
    }

    /// A name from a prefix: five letters that spell no words.
    pub fn generate_name(&self, base: &str) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut name: String = base.chars().take(58).collect();
        let random = self.random_bytes::<5>();
        name.extend(random.iter().map(|byte| LETTERS[*byte as usize % LETTERS.len()] as char));
        name
    }

    /// A random (version 4) UUID.
    pub fn new_uid(&self) -> String {
        let mut bytes = self.random_bytes::<16>();
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        uuid_text(&bytes)
    }
}

const AFTER_ADMISSION: &str = " after mutating admission happens";

/// Says each owner once. What was said twice is told to the client, and when that was found.
pub(crate) fn one_of_each_owner(context: &Context, object: &mut Value, when: &str) {
    let owners = object.owner_references();
    let again = |at: usize| owners[..at].iter().any(|own| meta::same(own, &owners[at]));
    let twice: Vec<usize> = (1..owners.len()).filter(|at| again(*at)).collect();
    if twice.is_empty() {
        return;
    }
    let uids: Vec<&str> = twice.iter().map(|at| owners[*at]["uid"].as_str().unwrap_or_default()).collect();
    context.warn(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        uids.join(", ")
    ));
    if let Some(owners) = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut) {
        twice.iter().rev().for_each(|at| {
            owners.remove(*at);
        });
    }
}

/// The object says another name than the path.
pub(crate) fn wrong_name(own: &str, name: &str) -> Status {
    Status::bad_request(format!("the name of the object ({own}) does not match the name on the URL ({name})"))
}

/// The object says another namespace than the path.
pub(crate) fn wrong_namespace() -> Status {
    Status::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )
}

/// The usual form of a UUID: groups of 4, 2, 2, 2 and 6 bytes.
fn uuid_text(bytes: &[u8; 16]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

/// Whether an update lets the last thing go that kept a deleted object alive.
fn should_vanish(definition: &api::Definition, new: &Value, old: &Value) -> bool {
    if !old.is_terminating() || !new.finalizers().is_empty() {
        return false;
    }
    let grace = |object: &Value| object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if grace(new) != 0 {
        return false;
    }
    if definition.effects.contains(&Effect::FinalizeNamespace) {
        return new["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty);
    }
    true
}
