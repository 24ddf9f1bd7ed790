//! Brings one object of a release into the cluster: creates it, restores what the release owns of it, deletes it, or
//! waits for the operator that it stands for.

use client::{Client, DeleteOptions, Error, Resource};
use serde_json::{Value, json};
use tracing::info;

use super::State;
use super::failure::{Effect, Failure};
use super::health;
use super::manifest::Manifest;
use crate::library::restore::Restorer;

const CREATE_ONLY: &str = "release.openshift.io/create-only";
const DELETE: &str = "release.openshift.io/delete";

/// Applies objects through one client.
pub struct Applier {
    client: Client,
    restorer: Restorer,
    /// The ClusterVersion that everything applied belongs to.
    owner: Option<Value>,
}

impl Applier {
    pub fn new(client: Client) -> Self {
        Self { restorer: Restorer::new(client.clone()), client, owner: None }
    }

    /// Marks what is applied as belonging to a ClusterVersion.
    pub fn owned_by(mut self, cluster_version: &Value) -> Self {
        self.owner = Some(json!({
            "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion", "controller": true,
            "name": cluster_version["metadata"]["name"], "uid": cluster_version["metadata"]["uid"],
        }));
        self
    }

    /// Applies one object. `task` says which, and its place among all, for messages.
    pub async fn apply(&self, manifest: &Manifest, task: &str, state: State) -> Result<(), Failure> {
        let failed = |error: Error| Failure::of_request(task, &error);
        let id = &manifest.id;
        let found =
            self.restorer.mapper.resource(&id.group, &manifest.version, &id.kind).await.map_err(failed)?;
        let resource = found.ok_or_else(|| Failure::no_such_kind(task))?;
        match manifest.annotation(DELETE) {
            None => {}
            Some("true") => return self.delete(&resource, manifest, task, state).await,
            Some(value) => {
                let message =
                    format!("Could not update {task}: {DELETE} is {value:?}; it can only be \"true\"");
                return Err(Failure::new(Effect::Fail, "UpdatePayloadResourceInvalid", message, ""));
            }
        }
        let mut required = manifest.object.clone();
        if let Some(owner) = &self.owner {
            required["metadata"]["ownerReferences"] = json!([owner]);
        }
        if manifest.is("config.openshift.io", "ClusterOperator") {
            return self.cluster_operator(&resource, &required, task, state).await;
        }
        let create_only = manifest.annotation(CREATE_ONLY) == Some("true");
        let brought = self.restorer.bring(&resource, manifest, &required, create_only).await;
        let applied = brought.map_err(|error| {
            // The definition behind the resource may have been replaced.
            if error.is_not_found() {
                self.restorer.mapper.forget(&resource);
            }
            failed(error)
        })?;
        health::applied(&applied, state)
    }

    /// Deletes an object that the release no longer has, while updating; and waits until it is gone.
    async fn delete(
        &self,
        resource: &Resource,
        manifest: &Manifest,
        task: &str,
        state: State,
    ) -> Result<(), Failure> {
        let failed = |error: Error| Failure::of_request(task, &error);
        let api = self.client.api(resource).within(&manifest.id.namespace);
        let Some(existing) = api.find::<Value>(&manifest.id.name).await.map_err(failed)? else {
            return Ok(());
        };
        if existing["metadata"]["deletionTimestamp"].is_null() {
            if state != State::Updating {
                return Ok(());
            }
            info!(object = manifest.title(), "deleting");
            let options = DeleteOptions::default();
            match api.delete(&manifest.id.name, &options).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(failed(error)),
            }
        }
        match api.find::<Value>(&manifest.id.name).await.map_err(failed)? {
            None => Ok(()),
            Some(_) => {
                let message = format!("Could not update {task}: it is still being deleted");
                Err(Failure::new(Effect::Fail, "UpdatePayloadFailed", message, ""))
            }
        }
    }

    /// Puts an operator's object there before its turn, so that whoever looks sees what is expected.
    pub async fn precreate(&self, manifest: &Manifest) -> Result<(), Error> {
        let id = &manifest.id;
        let Some(resource) = self.restorer.mapper.resource(&id.group, &manifest.version, &id.kind).await?
        else {
            return Ok(());
        };
        let api = self.client.api(&resource);
        let created: Value = match api
            .create(&json!({
                "apiVersion": manifest.object["apiVersion"], "kind": manifest.object["kind"],
                "metadata": manifest.object["metadata"], "spec": {},
            }))
            .await
        {
            Ok(created) => created,
            Err(error) if error.is_already_exists() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut status = created;
        status["status"]["relatedObjects"] = manifest.object["status"]["relatedObjects"].clone();
        match api.replace_sub::<Value>(&id.name, "status", &status).await {
            Ok(_) => Ok(()),
            // The operator was faster, and knows better.
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn cluster_operator(
        &self,
        resource: &Resource,
        required: &Value,
        task: &str,
        state: State,
    ) -> Result<(), Failure> {
        let failed = |error: Error| Failure::of_request(task, &error);
        let api = self.client.api(resource);
        let name = required["metadata"]["name"].as_str().unwrap_or_default();
        let mut actual: Value = api.get(name).await.map_err(failed)?;
        if state == State::Reconciling
            && let Some(merged) = self.restorer.forms.merge(&actual, required)
        {
            actual = api.replace(name, &merged).await.map_err(failed)?;
        }
        health::cluster_operator(required, &actual, state)
    }
}
