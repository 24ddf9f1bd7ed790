//! Whether containers may be privileged at all. The rule is part of validation upstream, so its answer is 422.

use apimachinery::field::{Path, Problems};
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde_json::Value;

use super::pod_security::pod_of;
use super::{Operation, Request};

/// Refuses pods and templates with a privileged container. What was there before stays.
pub fn check(request: &Request<'_>, object: Option<&Value>, old: Option<&Value>) -> Result<(), Status> {
    let resource = &request.context.resource;
    let written = matches!(request.operation, Operation::Create | Operation::Update)
        && matches!(request.subresource, "" | "ephemeralcontainers");
    let Some(object) = object.filter(|_| written) else { return Ok(()) };
    let of = |object| pod_of(resource.group(), resource.plural(), object);
    let Some(template) = of(object) else { return Ok(()) };
    if old.and_then(of).is_some_and(|before| before["spec"] == template["spec"]) {
        return Ok(());
    }
    let mut problems = Problems::new();
    let start = match (resource.group(), resource.plural()) {
        ("", "pods") => "spec",
        ("", "podtemplates") => "template.spec",
        ("batch", "cronjobs") => "spec.jobTemplate.spec.template.spec",
        _ => "spec.template.spec",
    };
    let is_host = |holder: &Value| holder["securityContext"]["windowsOptions"]["hostProcess"] == true;
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let mut containers =
        lists.iter().flat_map(|list| template["spec"][*list].as_array().into_iter().flatten());
    if is_host(&template["spec"]) || containers.any(is_host) {
        let why = "hostProcess containers are disallowed by cluster policy";
        problems.forbidden(&Path::new(start), why);
    }
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in template["spec"][field].as_array().into_iter().flatten().enumerate() {
            if container["securityContext"]["privileged"] == true {
                let path = format!("{start}.{field}[{index}].securityContext.privileged");
                problems.forbidden(&Path::new(&path), "disallowed by cluster policy");
            }
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(resource.group(), resource.kind(), object.name(), &problems))
}
