//! Nothing is made in a namespace that does not exist or is going away; some namespaces never go.

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::server::ApiServer;

/// These cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The plug-in.
pub struct NamespaceLifecycle;

impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    /// Said once, before other plug-ins look for what would be in the namespace.
    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        let context = request.context;
        if request.operation != Operation::Create || !context.resource.is_namespaced() {
            return Ok(());
        }
        // Reviews are judged in namespaces that need not exist.
        if context.resource.group() == "authorization.k8s.io" {
            return Ok(());
        }
        let namespace = context.info.namespace.as_str();
        let namespaces = server.builtin("", "namespaces")?;
        let Some(entry) = server.cached(&namespaces, "", namespace) else {
            return Err(Status::not_found("", "namespaces", namespace));
        };
        let found = entry.parsed();
        if found["status"]["phase"] == "Terminating" || found.is_terminating() {
            let name = object.name();
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let message = format!("namespace {namespace} is being terminated");
            return Err(request.forbid(name, &why).cause(
                "NamespaceTerminating",
                message,
                "metadata.namespace",
            ));
        }
        Ok(())
    }

    fn validate(
        &self,
        _: &ApiServer,
        request: &Request<'_>,
        _: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        match old {
            Some(old)
                if request.operation == Operation::Delete
                    && request.is("", "namespaces")
                    && IMMORTAL.contains(&old.name()) =>
            {
                Err(request.forbid(old.name(), "this namespace may not be deleted"))
            }
            _ => Ok(()),
        }
    }
}
