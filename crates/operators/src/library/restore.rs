//! Brings objects into the cluster: creates them, or restores what is owned of them.

use client::{Client, Error, Resource};
use serde_json::Value;
use thiserror::Error as ThisError;
use tracing::info;

use super::mapper::Mapper;
use crate::version::manifest::{self, Manifest};
use crate::version::merge::Forms;

/// Others write too: how often a write is tried against what they left.
const CONFLICTS: usize = 5;

/// Why an object is not there as it should be.
#[derive(Debug, ThisError)]
pub enum RestoreError {
    #[error("{object}: {reason}")]
    Request { object: String, reason: String },
    #[error("{object}: the server does not recognize this resource")]
    NoSuchKind { object: String },
    #[error("an embedded object cannot be read")]
    Manifest(#[from] manifest::ManifestError),
}

/// Applies objects through one client, with the rules by which a release's objects are applied.
pub struct Restorer {
    client: Client,
    pub(crate) mapper: Mapper,
    pub(crate) forms: Forms,
}

impl Restorer {
    pub fn new(client: Client) -> Self {
        Self { mapper: Mapper::new(client.clone()), client, forms: Forms::default() }
    }

    /// Creates the object or restores what is owned of it; returns it as it is now.
    pub async fn restore(&self, required: &Value) -> Result<Value, RestoreError> {
        let manifest = Manifest::of("", 0, required.clone())?;
        let failed = |error: Error| RestoreError::Request { object: manifest.title(), reason: said(&error) };
        let id = &manifest.id;
        let resource = self.mapper.resource(&id.group, &manifest.version, &id.kind).await.map_err(failed)?;
        let resource = resource.ok_or_else(|| RestoreError::NoSuchKind { object: manifest.title() })?;
        self.bring(&resource, &manifest, required, false).await.map_err(|error| {
            // The definition behind the resource may have been replaced.
            if error.is_not_found() {
                self.mapper.forget(&resource);
            }
            failed(error)
        })
    }

    /// The objects of files that were built in, with words replaced.
    pub async fn restore_all(&self, required: &[Value]) -> Vec<String> {
        let mut errors = Vec::new();
        for object in required {
            if let Err(error) = self.restore(object).await {
                errors.push(telemetry::chain(&error).to_string());
            }
        }
        errors
    }

    /// Creates the object or restores what is owned of it, or leaves it alone once it is there.
    pub(crate) async fn bring(
        &self,
        resource: &Resource,
        manifest: &Manifest,
        required: &Value,
        create_only: bool,
    ) -> Result<Value, Error> {
        let api = self.client.api(resource).within(&manifest.id.namespace);
        let name = &manifest.id.name;
        let mut attempts = 0;
        loop {
            let outcome: Result<Value, Error> = match api.find::<Value>(name).await? {
                None => {
                    info!(object = manifest.title(), "creating");
                    api.create(required).await
                }
                Some(existing) if create_only => return Ok(existing),
                Some(mut existing) => {
                    // Items of typed lists may come without these.
                    existing["apiVersion"] = required["apiVersion"].clone();
                    existing["kind"] = required["kind"].clone();
                    match self.forms.merge(&existing, required) {
                        None => return Ok(existing),
                        Some(merged) => {
                            info!(object = manifest.title(), "restoring");
                            api.replace(name, &merged).await
                        }
                    }
                }
            };
            attempts += 1;
            match outcome {
                Err(error) if (error.is_conflict() || error.is_already_exists()) && attempts < CONFLICTS => {}
                outcome => return outcome,
            }
        }
    }
}

/// The objects of an embedded file. Files are part of the program: what cannot be read is an error of ours, and told.
pub fn embedded(text: &str) -> Result<Vec<Value>, RestoreError> {
    Ok(manifest::parse("", text.as_bytes())?.into_iter().map(|manifest| manifest.object).collect())
}

/// What the server said, without the address that was asked.
pub fn said(error: &Error) -> String {
    telemetry::chain(error).to_string()
}
