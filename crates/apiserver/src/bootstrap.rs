//! What every cluster starts with: namespaces, roles, priority classes, the `kubernetes` Service, and the like.
//!
//! Objects are written through the same path as everybody's, as `system:apiserver`. What exists is left alone,
//! except for the default roles and bindings, whose missing rules and subjects are put back.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::apply::Configuration;
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde_json::{Value, json};
use tracing::warn;

use crate::authz::rbac::{self, Rule};
use crate::authz::{default_policy, rbac::Subject};
use crate::context::Context;
use crate::effects;
use crate::flowcontrol;
use crate::health::Written;
use crate::managed;
use crate::server::ApiServer;
use crate::store::WriteOptions;
use crate::user::UserInfo;

/// What extension API servers need to know to trust this one.
pub struct ExtensionConfig {
    /// Signs client certificates.
    pub client_ca: Option<Vec<u8>>,
    /// The front proxy.
    pub request_header: Option<crate::config::RequestHeaderConfig>,
}

/// How often the `kubernetes` Service, addresses and ports are looked after.
const LOOK_AFTER: Duration = Duration::from_secs(180);

pub(crate) fn options(manager: &str) -> WriteOptions {
    WriteOptions { dry_run: false, manager: manager.to_owned(), subresource: String::new(), applied: false }
}

/// Writes everything that is missing.
pub async fn write(server: &Arc<ApiServer>) -> Result<(), Status> {
    namespaces(server).await?;
    // Namespaces must be in the cache before anything can be made in them.
    server.hub.catch_up().await.map_err(|error| crate::verbs::read::store_failure(&error))?;
    let written = &server.written;
    policy(server).await?;
    written.note(Written::Policy);
    priority_classes(server).await?;
    written.note(Written::PriorityClasses);
    for (resource, object) in flowcontrol::default_objects() {
        ensure(server, "flowcontrol.apiserver.k8s.io", resource, "", object).await?;
    }
    written.note(Written::FlowControl);
    service_range(server).await?;
    written.note(Written::ServiceRange);
    extension_authentication(server).await?;
    written.note(Written::ExtensionAuthentication);
    api_services(server).await?;
    written.note(Written::ApiServices);
    crate::legacy_tokens::tell_since(server).await?;
    // A cluster without this Service still works for those who know the address; it is tried again later.
    if let Err(status) = crate::kubernetes_service::look_after(server).await {
        warn!(error = %status, "the kubernetes Service is not complete");
    }
    Ok(())
}

/// The namespaces that every cluster has.
async fn namespaces(server: &Arc<ApiServer>) -> Result<(), Status> {
    for name in ["kube-system", "default", "kube-public", "kube-node-lease"] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ensure(server, "", "namespaces", "", object).await?;
    }
    Ok(())
}

/// Makes the namespaces anew that somebody deleted; those of old count as there until they are gone.
fn follow_namespaces(server: &Arc<ApiServer>) {
    let own = server.clone();
    server.tasks.keep("system-namespaces", move |stop| {
        let own = own.clone();
        async move {
            while stop.or(tokio::time::sleep(own.settings.system_namespaces)).await.is_some() {
                if let Err(status) = namespaces(&own).await {
                    warn!(error = %status, "cannot look after the namespaces of the system");
                }
            }
        }
    });
}

/// Looks after addresses and the `kubernetes` Service while the server runs.
pub fn follow(server: &Arc<ApiServer>) {
    follow_namespaces(server);
    let own = server.clone();
    server.tasks.keep("service-repair", move |stop| {
        let own = own.clone();
        async move {
            loop {
                if let Err(status) = effects::repair_services(&own).await {
                    warn!(error = %status, "cannot repair service addresses");
                }
                if let Err(status) = crate::kubernetes_service::look_after(&own).await {
                    warn!(error = %status, "cannot look after the kubernetes Service");
                }
                if let Err(status) = crate::legacy_tokens::tell_since(&own).await {
                    warn!(error = %status, "cannot tell since when uses of tokens are noted");
                }
                if stop.or(tokio::time::sleep(LOOK_AFTER)).await.is_none() {
                    return;
                }
            }
        }
    });
}

/// Who is said to write the objects that the server starts with.
fn writer(group: &str) -> WriteOptions {
    options(match group {
        "flowcontrol.apiserver.k8s.io" => "api-priority-and-fairness-config-producer-v1",
        _ => "kube-apiserver",
    })
}

/// Creates an object unless one of its name exists.
async fn ensure(
    server: &Arc<ApiServer>,
    group: &str,
    plural: &str,
    namespace: &str,
    object: Value,
) -> Result<(), Status> {
    let resource = server.builtin(group, plural)?;
    if server.cached(&resource, namespace, object.name()).is_some() {
        return Ok(());
    }
    let user = Arc::new(UserInfo::loopback());
    let context = Context::internal(user, resource, "create", namespace, "");
    match server.create_object(&context, object, &writer(group)).await {
        Ok(_) => Ok(()),
        Err(status) if status.code == 409 => Ok(()), // another server was quicker
        Err(status) => Err(status),
    }
}

/// Changes an object with `make`, or creates it.
pub(crate) async fn reconcile(
    server: &Arc<ApiServer>,
    group: &str,
    plural: &str,
    namespace: &str,
    object: Value,
    make: &(dyn Fn(&Value, &Value) -> Value + Send + Sync),
) -> Result<(), Status> {
    let resource = server.builtin(group, plural)?;
    if let Some(entry) = server.cached(&resource, namespace, object.name()) {
        let present = resource.parse(&entry);
        if make(&present, &object) == present {
            return Ok(());
        }
        let user = Arc::new(UserInfo::loopback());
        let context = Context::internal(user, resource, "update", namespace, object.name());
        let wanted = &object;
        server
            .update_object(&context, &writer(group), false, &mut |old| {
                Ok(make(old.ok_or_else(|| context.not_found())?, wanted))
            })
            .await?;
        return Ok(());
    }
    ensure(server, group, plural, namespace, object).await
}

async fn policy(server: &Arc<ApiServer>) -> Result<(), Status> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    for one in default_policy::objects() {
        let mut object = one.object;
        // Aggregated roles start with what their parts hold; the controller keeps them up to date.
        if !object["aggregationRule"].is_null() {
            object["rules"] = json!(aggregate(&object));
        }
        reconcile(server, GROUP, one.resource, &one.namespace, object, &|present, wanted| {
            let mut new = present.clone();
            if present.annotation("rbac.authorization.kubernetes.io/autoupdate") == Some("false") {
                return new;
            }
            if wanted["aggregationRule"].is_null() && !wanted["rules"].is_null() {
                let own: Vec<Rule> = serde_json::from_value(present["rules"].clone()).unwrap_or_default();
                let all: Vec<Rule> = serde_json::from_value(wanted["rules"].clone()).unwrap_or_default();
                let missing = rbac::missing(&own, &all);
                if !missing.is_empty() {
                    let rules: Vec<Rule> = own.into_iter().chain(missing).collect();
                    new["rules"] = json!(rules);
                }
            }
            if let Some(all) = wanted["subjects"].as_array() {
                let same = |one: &Value, two: &Value| {
                    serde_json::from_value::<Subject>(one.clone()).ok()
                        == serde_json::from_value::<Subject>(two.clone()).ok()
                };
                let own = present["subjects"].as_array().cloned().unwrap_or_default();
                let missing: Vec<Value> =
                    all.iter().filter(|one| !own.iter().any(|other| same(one, other))).cloned().collect();
                if !missing.is_empty() {
                    new["subjects"] = Value::Array(own.into_iter().chain(missing).collect());
                }
            }
            new
        })
        .await?;
    }
    Ok(())
}

/// The rules of the default roles that an aggregated default role selects, aggregated ones included.
fn aggregate(role: &Value) -> Vec<Value> {
    let Some(labels) = role["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"].as_object() else {
        return Vec::new();
    };
    let mut rules: Vec<Value> = Vec::new();
    for part in default_policy::objects() {
        if !labels.iter().all(|(key, value)| part.object["metadata"]["labels"].get(key) == Some(value)) {
            continue;
        }
        let own = if part.object["aggregationRule"].is_null() {
            part.object["rules"].as_array().cloned().unwrap_or_default()
        } else {
            aggregate(&part.object)
        };
        for rule in own {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules
}

async fn priority_classes(server: &Arc<ApiServer>) -> Result<(), Status> {
    let classes = [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ];
    for (name, value, description) in classes {
        let object = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        });
        ensure(server, "scheduling.k8s.io", "priorityclasses", "", object).await?;
    }
    Ok(())
}

async fn service_range(server: &Arc<ApiServer>) -> Result<(), Status> {
    let cidrs: Vec<String> = server.service_cidrs.iter().map(ToString::to_string).collect();
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs},
    });
    ensure(server, "networking.k8s.io", "servicecidrs", "", object).await?;
    let resource = server.builtin("networking.k8s.io", "servicecidrs")?;
    let user = Arc::new(UserInfo::loopback());
    let context = Context::internal(user, resource, "update", "", "kubernetes");
    let manager = "kubernetes-service-cidr-controller";
    let options = WriteOptions { subresource: "status".to_owned(), applied: true, ..options(manager) };
    let ready = |old: Option<&Value>| {
        let old = old.ok_or_else(|| context.not_found())?;
        let conditions = old["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        if conditions.iter().any(|one| one["type"] == "Ready") {
            return Ok(old.clone());
        }
        let wanted = json!({
            "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": {"name": old.name()},
            "status": {"conditions": [{
                "type": "Ready", "status": "True", "message": "Kubernetes default Service CIDR is ready",
                "lastTransitionTime": apimachinery::time::seconds(crate::clock::now()),
            }]},
        });
        let wanted = Configuration::new(wanted, &context.resource.definition.schema)
            .map_err(|error| error.to_status())?;
        managed::apply(&context, Some(old), &wanted, manager, "status", true)
    };
    server.update_object(&context, &options, false, &mut |old| ready(old)).await.map(drop)
}

async fn extension_authentication(server: &Arc<ApiServer>) -> Result<(), Status> {
    let mut data = json!({});
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let Some(ca) = &server.extension_config.client_ca {
        data["client-ca-file"] = json!(text(ca));
    }
    if let Some(own) = &server.extension_config.request_header {
        let list = |names: &[String]| json!(serde_json::to_string(names).unwrap_or_default());
        data["requestheader-client-ca-file"] = json!(text(&own.ca));
        data["requestheader-allowed-names"] = list(&own.allowed_names);
        data["requestheader-username-headers"] = list(&own.username_headers);
        data["requestheader-uid-headers"] = list(&own.uid_headers);
        data["requestheader-group-headers"] = list(&own.group_headers);
        data["requestheader-extra-headers-prefix"] = list(&own.extra_prefixes);
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"}, "data": data,
    });
    reconcile(server, "", "configmaps", "kube-system", object, &|present, wanted| {
        let mut new = present.clone();
        new["data"] = wanted["data"].clone();
        new
    })
    .await
}

/// Where a group stands among the groups, and a version among the group's, as clients know it from upstream.
fn priority(group: &str, version: &str) -> (i64, i64) {
    const GROUPS: [(&str, i64); 21] = [
        ("", 18000),
        ("apps", 17800),
        ("events.k8s.io", 17750),
        ("authentication.k8s.io", 17700),
        ("authorization.k8s.io", 17600),
        ("autoscaling", 17500),
        ("batch", 17400),
        ("certificates.k8s.io", 17300),
        ("networking.k8s.io", 17200),
        ("policy", 17100),
        ("rbac.authorization.k8s.io", 17000),
        ("storage.k8s.io", 16800),
        ("apiextensions.k8s.io", 16700),
        ("admissionregistration.k8s.io", 16700),
        ("scheduling.k8s.io", 16600),
        ("coordination.k8s.io", 16500),
        ("node.k8s.io", 16300),
        ("discovery.k8s.io", 16200),
        ("resource.k8s.io", 16200),
        ("flowcontrol.apiserver.k8s.io", 16100),
        ("internal.apiserver.k8s.io", 16000),
    ];
    let own = GROUPS.iter().find(|(name, _)| *name == group).map_or(1000, |(_, priority)| *priority);
    let order = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("resource.k8s.io" | "flowcontrol.apiserver.k8s.io", _) => 21,
        _ => 15,
    };
    (own, order)
}

/// One APIService per served group version, so that clients of the aggregation API see them all.
async fn api_services(server: &Arc<ApiServer>) -> Result<(), Status> {
    let table = server.registry.table();
    for (group, versions) in table.groups.iter().filter(|(group, _)| group != "apiregistration.k8s.io") {
        for version in versions {
            // Those of custom resources come and go with them; see `conditions`.
            if table.of_version(group, version).iter().any(|one| one.definition.custom) {
                continue;
            }
            let name = if group.is_empty() { format!("{version}.") } else { format!("{version}.{group}") };
            let (priority, order) = priority(group, version);
            let mut object = json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": name, "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
                "spec": {"version": version, "groupPriorityMinimum": priority, "versionPriority": order},
            });
            if !group.is_empty() {
                object["spec"]["group"] = json!(group);
            }
            ensure(server, "apiregistration.k8s.io", "apiservices", "", object).await?;
        }
    }
    Ok(())
}
