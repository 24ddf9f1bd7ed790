//! Small rules about storage and ingress: default classes, protection from early removal, growth of claims.

use std::sync::Arc;

use apimachinery::meta::{Meta, MetaMut};
use apimachinery::quantity::Quantity;
use apimachinery::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Request};
use crate::cache::entry::Entry;
use crate::server::ApiServer;

/// The newest object of a cluster-scoped kind that carries an annotation set to "true".
fn marked_default(
    server: &ApiServer,
    group: &str,
    plural: &str,
    annotation: &str,
) -> Result<Option<Arc<Entry>>, Status> {
    let resource = server.builtin(group, plural)?;
    let Some(cache) = server.hub.cache(&resource.prefix) else { return Ok(None) };
    let all = cache.snapshot(&resource.prefix, 0).entries;
    let marked = all.into_iter().filter(|one| one.parsed().annotation(annotation) == Some("true"));
    // The newest wins; of two made in the same second the first by name.
    Ok(marked.min_by(|one, two| {
        let made = |entry: &Entry| entry.parsed().meta_str("creationTimestamp").to_owned();
        made(two).cmp(&made(one)).then(one.name().cmp(two.name()))
    }))
}

/// Claims that name no class get the default one.
pub struct DefaultStorageClass;

impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        claim: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create || !request.is("", "persistentvolumeclaims") {
            return Ok(());
        }
        if !claim["spec"]["storageClassName"].is_null()
            || claim.annotation("volume.beta.kubernetes.io/storage-class").is_some()
        {
            return Ok(());
        }
        let default = marked_default(
            server,
            "storage.k8s.io",
            "storageclasses",
            "storageclass.kubernetes.io/is-default-class",
        )?;
        if let Some(class) = default {
            claim["spec"]["storageClassName"] = json!(class.name());
        }
        Ok(())
    }
}

/// Ingresses that name no class get the default one.
pub struct DefaultIngressClass;

impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        ingress: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create || !request.is("networking.k8s.io", "ingresses") {
            return Ok(());
        }
        if !ingress["spec"]["ingressClassName"].is_null()
            || ingress.annotation("kubernetes.io/ingress.class").is_some()
        {
            return Ok(());
        }
        let default = marked_default(
            server,
            "networking.k8s.io",
            "ingressclasses",
            "ingressclass.kubernetes.io/is-default-class",
        )?;
        if let Some(class) = default {
            ingress["spec"]["ingressClassName"] = json!(class.name());
        }
        Ok(())
    }
}

/// Claims and volumes carry a finalizer that a controller removes when nobody uses them.
pub struct StorageObjectInUseProtection;

impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn mutate(
        &self,
        _: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create {
            return Ok(());
        }
        if request.is("", "persistentvolumeclaims") {
            object.add_finalizer("kubernetes.io/pvc-protection");
        } else if request.is("", "persistentvolumes") {
            object.add_finalizer("kubernetes.io/pv-protection");
        } else if request.is("storage.k8s.io", "volumeattributesclasses") {
            object.add_finalizer("kubernetes.io/vac-protection");
        }
        Ok(())
    }
}

/// A claim grows only if its class allows that.
pub struct PersistentVolumeClaimResize;

impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (new, old) else { return Ok(()) };
        if request.operation != Operation::Update || !request.is("", "persistentvolumeclaims") {
            return Ok(());
        }
        let size = |claim: &Value| -> Option<Quantity> {
            claim["spec"]["resources"]["requests"]["storage"].as_str()?.parse().ok()
        };
        let (Some(after), Some(before)) = (size(new), size(old)) else { return Ok(()) };
        if after <= before {
            return Ok(());
        }
        if old["status"]["phase"] != "Bound" {
            return Err(request.forbid(new.name(), "Only bound persistent volume claims can be expanded"));
        }
        let class = old["spec"]["storageClassName"].as_str().unwrap_or_default();
        let classes = server.builtin("storage.k8s.io", "storageclasses")?;
        let allowed = server
            .cached(&classes, "", class)
            .is_some_and(|entry| entry.parsed()["allowVolumeExpansion"] == true);
        if allowed {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(request.forbid(new.name(), why))
    }
}
