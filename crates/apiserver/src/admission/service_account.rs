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
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";

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
        if request.operation != Operation::Create || !request.is("", "pods") {
            return Ok(());
        }
        // Nothing is added to what a kubelet runs already.
        if pod.annotation(MIRROR).is_some() {
            return self.judge_mirror(request, pod);
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
        only_listed(request, pod, account, NEW)
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(pod) = pod.filter(|_| request.context.resource.is_core("pods")) else { return Ok(()) };
        let kinds: &[_] = match (request.operation, request.subresource) {
            (Operation::Create, "") if old.is_none() => NEW,
            (Operation::Update, "ephemeralcontainers") => &[("ephemeral container", "ephemeralContainers")],
            _ => return Ok(()),
        };
        if request.subresource.is_empty() && pod.annotation(MIRROR).is_some() {
            return self.judge_mirror(request, pod);
        }
        let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
        let account = self.account(server, request, pod, name)?;
        only_listed(request, pod, account.parsed(), kinds)
    }
}

/// The containers that a new pod may have.
const NEW: &[(&str, &str)] = &[("init container", "initContainers"), ("container", "containers")];

/// An account may ask that its pods use only the secrets that it lists.
fn only_listed(
    request: &Request<'_>,
    pod: &Value,
    account: &Value,
    kinds: &[(&str, &str)],
) -> Result<(), Status> {
    if !account.annotation(ENFORCE).is_some_and(is_true) {
        return Ok(());
    }
    match unlisted_secret(pod, account, kinds) {
        Some(why) => Err(request.forbid(pod.name(), &why)),
        None => Ok(()),
    }
}

/// What Go's `strconv.ParseBool` takes for yes.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// The first secret of a pod that its account does not list, for accounts that ask for that. `kinds` are the containers to
/// look at; volumes and secrets for pulling are those of a new pod.
fn unlisted_secret(pod: &Value, account: &Value, kinds: &[(&str, &str)]) -> Option<String> {
    let items = |value: &'_ Value| value.as_array().map_or(&[][..], Vec::as_slice).to_vec();
    let lists = |field: &str, secret: &str| items(&account[field]).iter().any(|own| own["name"] == secret);
    let unlisted = |secret: &'_ Value| -> Option<String> {
        let secret = secret.as_str()?;
        (!lists("secrets", secret)).then(|| {
            let account = account.name();
            format!("secret.secretName=\"{secret}\" is not allowed because service account {account} does not reference that secret")
        })
    };
    let spec = &pod["spec"];
    let is_new = kinds.iter().any(|(_, list)| *list == "containers");
    let volumes = if is_new { items(&spec["volumes"]) } else { Vec::new() };
    let mut wrong = volumes
        .iter()
        .find_map(|volume| unlisted(&volume["secret"]["secretName"]).map(|why| format!("volume with {why}")));
    for (kind, list) in kinds {
        for container in items(&spec[*list]) {
            let name = container["name"].as_str().unwrap_or_default();
            wrong = wrong.or_else(|| {
                items(&container["env"]).iter().find_map(|own| {
                    let why = unlisted(&own["valueFrom"]["secretKeyRef"]["name"])?;
                    let variable = own["name"].as_str().unwrap_or_default();
                    Some(format!("{kind} {name} with envVar {variable} referencing {why}"))
                })
            });
            wrong = wrong.or_else(|| {
                let why = items(&container["envFrom"])
                    .iter()
                    .find_map(|own| unlisted(&own["secretRef"]["name"]))?;
                Some(format!("{kind} {name} with envFrom referencing {why}"))
            });
        }
    }
    let pulls = if is_new { items(&spec["imagePullSecrets"]) } else { Vec::new() };
    wrong.or_else(|| {
        pulls.iter().enumerate().find_map(|(index, own)| {
            let secret = own["name"].as_str().unwrap_or_default();
            let account_name = account.name();
            (!lists("imagePullSecrets", secret)).then(|| {
                format!("imagePullSecrets[{index}].name=\"{secret}\" is not allowed because service account {account_name} does not reference that imagePullSecret")
            })
        })
    })
}

impl ServiceAccount {
    /// What a kubelet runs already can have nothing that only this server could give it.
    fn judge_mirror(&self, request: &Request<'_>, pod: &Value) -> Result<(), Status> {
        if !pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
            return Err(request.forbid(pod.name(), "a mirror pod may not reference service accounts"));
        }
        if crate::authz::node::named_by(pod).0 {
            return Err(request.forbid(pod.name(), "a mirror pod may not reference secrets"));
        }
        let mut sources = pod["spec"]["volumes"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
        if sources.any(|source| source["serviceAccountToken"].is_object()) {
            let why = "a mirror pod may not use ServiceAccountToken volume projections";
            return Err(request.forbid(pod.name(), why));
        }
        Ok(())
    }

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
    fn only_listed_secrets_where_an_account_asks_for_it() {
        let account = json!({"metadata": {"name": "sa"}, "secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "p"}]});
        let new = &[("init container", "initContainers"), ("container", "containers")][..];
        let debugging = &[("ephemeral container", "ephemeralContainers")][..];
        let key = |secret: &str| json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]);
        let rest = "is not allowed because service account sa does not reference that";
        for (spec, kinds, wanted) in [
            (
                json!({"volumes": [{"secret": {"secretName": "s"}}], "imagePullSecrets": [{"name": "p"}], "containers": [{"name": "c", "env": key("s")}]}),
                new,
                None,
            ),
            (
                json!({"volumes": [{"secret": {"secretName": "t"}}]}),
                new,
                Some(format!("volume with secret.secretName=\"t\" {rest} secret")),
            ),
            (
                json!({"initContainers": [{"name": "i", "env": key("t")}]}),
                new,
                Some(format!(
                    "init container i with envVar V referencing secret.secretName=\"t\" {rest} secret"
                )),
            ),
            (
                json!({"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "t"}}]}]}),
                new,
                Some(format!("container c with envFrom referencing secret.secretName=\"t\" {rest} secret")),
            ),
            (
                json!({"imagePullSecrets": [{"name": "s"}]}),
                new,
                Some(format!("imagePullSecrets[0].name=\"s\" {rest} imagePullSecret")),
            ),
            (
                json!({"ephemeralContainers": [{"name": "e", "env": key("t")}]}),
                debugging,
                Some(format!(
                    "ephemeral container e with envVar V referencing secret.secretName=\"t\" {rest} secret"
                )),
            ),
            // What was there before is not looked at again.
            (json!({"volumes": [{"secret": {"secretName": "t"}}]}), debugging, None),
        ] {
            assert_eq!(unlisted_secret(&json!({"spec": spec}), &account, kinds), wanted);
        }
    }

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
