//! Every pod runs as a service account and, unless it declines, gets that account's token mounted.

use std::sync::Arc;

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Request};
use crate::cache::entry::Entry;
use crate::server::ApiServer;

const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The plug-in.
pub struct ServiceAccount;

impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create
            || !request.is("", "pods")
            || pod.annotation(MIRROR).is_some()
        {
            return Ok(());
        }
        if pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
            pod["spec"]["serviceAccountName"] = json!("default");
        }
        let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().to_owned();
        pod["spec"]["serviceAccount"] = json!(name);
        let account = self.account(server, request, pod, &name)?;
        let account = account.parsed();
        if pod["spec"]["imagePullSecrets"].as_array().is_none_or(Vec::is_empty)
            && let Some(secrets) = account["imagePullSecrets"].as_array().filter(|list| !list.is_empty())
        {
            pod["spec"]["imagePullSecrets"] = json!(secrets);
        }
        let automount = pod["spec"]["automountServiceAccountToken"]
            .as_bool()
            .or_else(|| account["automountServiceAccountToken"].as_bool())
            .unwrap_or(true);
        if automount {
            mount_token(pod, &server.generate_name("kube-api-access-"));
        }
        Ok(())
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(pod) = pod.filter(|_| request.is("", "pods")) else { return Ok(()) };
        if pod.annotation(MIRROR).is_some() {
            let secrets = pod["spec"]["volumes"].as_array().into_iter().flatten();
            if !pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
                return Err(request.forbid(pod.name(), "a mirror pod may not reference service accounts"));
            }
            if secrets.into_iter().any(|volume| volume["secret"].is_object()) {
                return Err(request.forbid(pod.name(), "a mirror pod may not reference secrets"));
            }
            return Ok(());
        }
        if request.operation == Operation::Create && old.is_none() {
            let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
            self.account(server, request, pod, name)?;
        }
        Ok(())
    }
}

impl ServiceAccount {
    fn account(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: &Value,
        name: &str,
    ) -> Result<Arc<Entry>, Status> {
        let namespace = &request.context.info.namespace;
        let accounts = server.builtin("", "serviceaccounts")?;
        match server.cached(&accounts, namespace, name) {
            Some(entry) => Ok(entry),
            None => {
                let why = format!(
                    "error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found"
                );
                Err(request.forbid(pod.name(), &why))
            }
        }
    }
}

/// Adds the token volume and mounts it where nothing is mounted yet.
fn mount_token(pod: &mut Value, volume: &str) {
    // A pod that already projects a token under this kind of name keeps it.
    let present = pod["spec"]["volumes"].as_array().into_iter().flatten().find_map(|own| {
        let name = own["name"].as_str()?;
        (name.starts_with("kube-api-access-") && own["projected"].is_object()).then(|| name.to_owned())
    });
    let (volume, exists) = match present {
        Some(name) => (name, true),
        None => (volume.to_owned(), false),
    };
    let mut used = false;
    for list in ["initContainers", "containers"] {
        let path = format!("/spec/{list}");
        for container in pod.pointer_mut(&path).and_then(Value::as_array_mut).into_iter().flatten() {
            if !container["volumeMounts"].is_array() {
                container["volumeMounts"] = json!([]);
            }
            let Some(mounts) = container["volumeMounts"].as_array_mut() else { continue };
            if mounts.iter().any(|mount| mount["mountPath"] == MOUNT) {
                continue;
            }
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT}));
            used = true;
        }
    }
    if !used || exists {
        return;
    }
    let source = json!({
        "name": volume,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ],
        },
    });
    match pod.pointer_mut("/spec/volumes").and_then(Value::as_array_mut) {
        Some(volumes) => volumes.push(source),
        None => pod["spec"]["volumes"] = json!([source]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_mounted_once_where_nothing_is() {
        let mut pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT}]}]}});
        mount_token(&mut pod, "kube-api-access-x");
        assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 1);
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-x");
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        let once = pod.clone();
        mount_token(&mut pod, "kube-api-access-y");
        assert_eq!(pod, once);
    }
}
