//! Binding: a scheduler puts a pod on a node.

use apimachinery::meta::{Meta, MetaMut};
use apimachinery::status::{Reason, Status};
use apimachinery::time;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::Body;
use crate::context::Context;
use crate::respond;
use crate::server::ApiServer;
use crate::store::{WriteOptions, wrong_namespace};
use crate::verbs::create::{decode_as, read_body};

impl ApiServer {
    /// POST to `pods/NAME/binding`, or to `bindings` with the pod's name in the object.
    pub(crate) async fn bind_pod(&self, context: &Context, body: Body) -> Result<Response<Body>, Status> {
        let bytes = read_body(body).await?;
        let schema = api::schemas::schemas()
            .get("io.k8s.api.core.v1.Binding")
            .ok_or_else(|| Status::internal("the Binding kind is not known"))?;
        let mut binding = decode_as(context, &bytes, "v1", "Binding", &schema)?;
        let pods = self.builtin("", "pods")?;
        if !context.info.subresource.is_empty() && binding.name() != context.info.name {
            return Err(Status::bad_request("name in URL does not match name in Binding object"));
        }
        if !binding.namespace().is_empty() && binding.namespace() != context.info.namespace {
            return Err(wrong_namespace());
        }
        let name = if context.info.subresource.is_empty() { binding.name() } else { &context.info.name };
        let mut inner =
            Context::internal(context.user.clone(), pods, "create", &context.info.namespace, name);
        inner.query = context.query.clone();
        inner.headers = context.headers.clone();
        inner.info.subresource = "binding".to_owned();
        let mut options = WriteOptions::of(&inner)?;
        Box::pin(self.admission.admit_told(self, &inner, &mut binding, options.dry_run)).await?;
        options.subresource = "binding".to_owned();
        // Nobody becomes the owner of a field by binding.
        options.applied = true;
        self.update_object(&inner, &options, false, &mut |old| {
            let old = old.ok_or_else(|| inner.not_found())?;
            bound(old, &binding)
        })
        .await?;
        let success = Status { code: 201, ..Status::success() };
        let mut response = respond::status(&success, &context.accepted);
        *response.status_mut() = StatusCode::CREATED;
        Ok(response)
    }
}

/// The pod as it is after the binding.
fn bound(old: &Value, binding: &Value) -> Result<Value, Status> {
    let target = &binding["target"];
    let node = target["name"].as_str().unwrap_or_default();
    let kind = target["kind"].as_str().unwrap_or_default();
    // Upstream does not dress these up as a status of their own.
    if !matches!(kind, "" | "Node") {
        let why =
            format!("target.kind: Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\"");
        return Err(Status::failure(Reason::Unknown, why));
    }
    if node.is_empty() {
        return Err(Status::failure(Reason::Unknown, "target.name: Required value"));
    }
    let refuse = |why: String| Err(Status::conflict("", "pods/binding", old.name(), &why));
    if !binding.uid().is_empty() && binding.uid() != old.uid() {
        return refuse(format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            binding.uid(),
            old.uid()
        ));
    }
    let wanted = binding.resource_version();
    if !wanted.is_empty() && wanted != old.resource_version() {
        return Err(Status::conflict(
            "",
            "pods",
            old.name(),
            &format!(
                "StorageError: invalid object, Code: 4, Key: /pods/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {}",
                old.namespace(),
                old.name(),
                old.resource_version()
            ),
        ));
    }
    if old.is_terminating() {
        return refuse(format!("pod {} is being deleted, cannot be assigned to a host", old.name()));
    }
    let present = old["spec"]["nodeName"].as_str().unwrap_or_default();
    if !present.is_empty() {
        return refuse(format!("pod {} is already assigned to node {present:?}", old.name()));
    }
    if old["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return refuse(format!("pod {} has non-empty .spec.schedulingGates", old.name()));
    }
    let mut new = old.clone();
    new["spec"]["nodeName"] = json!(node);
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            if field == "annotations" {
                new.set_annotation(key, value.as_str().unwrap_or_default());
            } else {
                new.set_label(key, value.as_str().unwrap_or_default());
            }
        }
    }
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": time::seconds(crate::clock::now()),
    });
    if let Some(status) = new["status"].as_object_mut() {
        status.shift_remove("nominatedNodeName");
    }
    if !new["status"]["conditions"].is_array() {
        new["status"]["conditions"] = json!([]);
    }
    if let Some(conditions) = new["status"]["conditions"].as_array_mut() {
        match conditions.iter_mut().find(|own| own["type"] == "PodScheduled") {
            Some(own) => *own = condition,
            None => conditions.push(condition),
        }
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_bound_once() {
        let pod = json!({
            "metadata": {"name": "p", "uid": "1"}, "spec": {}, "status": {"nominatedNodeName": "n"},
        });
        let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        let done = bound(&pod, &binding).unwrap();
        assert_eq!(done["spec"]["nodeName"], "n");
        assert_eq!(done["status"]["conditions"][0]["status"], "True");
        assert!(done["status"].get("nominatedNodeName").is_none());
        assert_eq!(bound(&done, &binding).unwrap_err().code, 409);
        let mut other = binding.clone();
        other["metadata"]["uid"] = json!("2");
        assert_eq!(bound(&pod, &other).unwrap_err().code, 409);
        assert_eq!(bound(&pod, &json!({"target": {}})).unwrap_err().code, 500);
    }
}
