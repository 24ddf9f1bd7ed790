//! ResourceQuota: what a namespace may use. Charged in the store before the object is written, by compare-and-swap, so
//! that no number of concurrent creates can pass the limit; given back if the write fails.

use std::collections::BTreeMap;

use api::core::pod_spec::amounts;
use apimachinery::meta::Meta;
use apimachinery::quantity::Quantity;
use apimachinery::status::Status;
use etcd::{Committed, Precondition};
use serde_json::{Value, json};
use tracing::warn;

use super::configuration::LimitedResource;
use super::{Operation, Request};
use crate::server::ApiServer;
use crate::verbs::read::store_failure;

/// Amounts by resource name.
pub type Usage = BTreeMap<String, Quantity>;

/// What was added to a quota.
pub struct Charge {
    namespace: String,
    quota: String,
    delta: Usage,
}

/// A charge that keeps losing against others gives up after so many turns.
const TURNS: usize = 100;

/// Charges every quota that the write concerns.
pub async fn charge(
    server: &ApiServer,
    request: &Request<'_>,
    new: Option<&Value>,
    old: Option<&Value>,
) -> Result<Vec<Charge>, Status> {
    let context = request.context;
    let (Some(new), true) = (new, context.resource.is_namespaced()) else { return Ok(Vec::new()) };
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return Ok(Vec::new());
    }
    if !request.subresource.is_empty() && request.subresource != "resize" {
        return Ok(Vec::new());
    }
    let quotas = server.builtin("", "resourcequotas")?;
    let namespace = context.info.namespace.as_str();
    let Some(cache) = server.hub.cache(&quotas.prefix) else { return Ok(Vec::new()) };
    let entries = cache.snapshot(&quotas.collection(namespace), 0).entries;
    let limited = &server.settings.admission.limited;
    if entries.is_empty() && limited.is_empty() {
        return Ok(Vec::new());
    }
    let (group, plural) = (context.resource.group(), context.resource.plural());
    let after = usage(group, plural, new);
    let before = old.map(|old| usage(group, plural, old)).unwrap_or_default();
    if !limited.is_empty() && request.operation == Operation::Create {
        let quotas: Vec<&Value> = entries.iter().map(|entry| entry.parsed()).collect();
        let own: Vec<_> =
            limited.iter().filter(|one| one.api_group == group && one.resource == plural).collect();
        let lacking = uncovered(&own, &quotas, plural, new, &after);
        if !lacking.is_empty() {
            let why = format!("insufficient quota to consume: {}", lacking.join(","));
            return Err(request.forbid(new.name(), &why));
        }
    }
    let mut charges: Vec<Charge> = Vec::new();
    for entry in entries {
        let quota = entry.parsed();
        match Box::pin(charge_one(server, request, quota, new, old, &after, &before)).await {
            Ok(None) => {}
            Ok(Some(charge)) => charges.push(charge),
            Err(status) => {
                release(server, charges).await;
                return Err(status);
            }
        }
    }
    Ok(charges)
}

/// What an object uses, or which scopes it is in, although that needs a quota and none of these allows it.
fn uncovered(
    limited: &[&LimitedResource],
    quotas: &[&Value],
    plural: &str,
    object: &Value,
    used: &Usage,
) -> Vec<String> {
    let contains = |name: &String| {
        let mut texts = limited.iter().flat_map(|one| &one.match_contains);
        texts.any(|text| name.contains(text.as_str()))
    };
    let covering: Vec<&&Value> = quotas.iter().filter(|quota| in_scope(quota, plural, object)).collect();
    let names =
        used.iter().filter(|(name, amount)| !amount.is_zero() && contains(name)).map(|(name, _)| name);
    let names =
        names.filter(|name| !covering.iter().any(|quota| !quota["spec"]["hard"][name.as_str()].is_null()));
    let scopes = limited.iter().flat_map(|one| &one.match_scopes).filter(|scope| {
        let values: Vec<&str> = scope.values.iter().map(String::as_str).collect();
        let covered = |quota: &Value| {
            let selected =
                quota["spec"]["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
            let listed = quota["spec"]["scopes"].as_array().into_iter().flatten();
            selected.map(|one| &one["scopeName"]).chain(listed).any(|name| name == scope.scope_name.as_str())
        };
        matches_scope(&scope.scope_name, &scope.operator, &values, plural, object)
            && !covering.iter().any(|quota| covered(quota))
    });
    names.cloned().chain(scopes.map(|scope| scope.scope_name.clone())).collect()
}

async fn charge_one(
    server: &ApiServer,
    request: &Request<'_>,
    quota: &Value,
    new: &Value,
    old: Option<&Value>,
    after: &Usage,
    before: &Usage,
) -> Result<Option<Charge>, Status> {
    let plural = request.context.resource.plural();
    let was_in = old.is_some_and(|old| in_scope(quota, plural, old));
    let is_in = in_scope(quota, plural, new);
    let hard = amounts::read(&quota["status"]["hard"]);
    let spec = amounts::read(&quota["spec"]["hard"]);
    let limited: Vec<&String> =
        spec.keys().filter(|name| after.contains_key(*name) || before.contains_key(*name)).collect();
    if is_in && request.operation == Operation::Create {
        must_specify(request, quota, &spec, new)?;
    }
    if limited.is_empty() || (!is_in && !was_in) {
        return Ok(None);
    }
    let mut delta: Usage = BTreeMap::new();
    for name in limited {
        let zero = Quantity::ZERO;
        let now = if is_in { after.get(name).copied().unwrap_or(zero) } else { zero };
        let then = if was_in { before.get(name).copied().unwrap_or(zero) } else { zero };
        let change = now.minus(then);
        if !change.is_zero() {
            delta.insert(name.clone(), change);
        }
    }
    if delta.is_empty() {
        return Ok(None);
    }
    if let Some(unknown) = delta.keys().find(|name| !hard.contains_key(*name)) {
        let why = format!("status unknown for quota: {}, resources: {unknown}", quota.name());
        return Err(request.forbid(new.name(), &why));
    }
    if request.dry_run {
        let used = amounts::read(&quota["status"]["used"]);
        check(request, quota, &hard, &used, &delta, new)?;
        return Ok(None);
    }
    for _ in 0..TURNS {
        let quotas = server.builtin("", "resourcequotas")?;
        let Some(entry) = server.entry(&quotas, quota.namespace(), quota.name()).await? else {
            return Ok(None);
        };
        let mut current = quotas.parse(&entry);
        let hard = amounts::read(&current["status"]["hard"]);
        let used = amounts::read(&current["status"]["used"]);
        check(request, &current, &hard, &used, &delta, new)?;
        add(&mut current, &used, &delta);
        let value = quotas.encode(&current);
        let sealed = server.seal(&quotas, &entry.key, &value)?;
        let when = Precondition::ModRevision(entry.revision);
        match server
            .hub
            .store()
            .put(entry.key.clone(), sealed, 0, when)
            .await
            .map_err(|error| store_failure(&error))?
        {
            Committed::Done { .. } => {
                return Ok(Some(Charge {
                    namespace: quota.namespace().to_owned(),
                    quota: quota.name().to_owned(),
                    delta,
                }));
            }
            Committed::Conflict { .. } => {}
        }
    }
    Err(Status::conflict(
        "",
        "resourcequotas",
        quota.name(),
        "too many others are charging the quota; please try again",
    ))
}

/// Refuses what would pass the limit.
fn check(
    request: &Request<'_>,
    quota: &Value,
    hard: &Usage,
    used: &Usage,
    delta: &Usage,
    new: &Value,
) -> Result<(), Status> {
    let mut over: Vec<&String> = Vec::new();
    for (name, change) in delta {
        let (Some(limit), zero) = (hard.get(name), Quantity::ZERO) else { continue };
        let total = used.get(name).copied().unwrap_or(zero).plus(*change);
        if total > *limit && *change > zero {
            over.push(name);
        }
    }
    if over.is_empty() {
        return Ok(());
    }
    let list = |from: &Usage| {
        over.iter()
            .map(|name| format!("{name}={}", from.get(*name).copied().unwrap_or(Quantity::ZERO)))
            .collect::<Vec<_>>()
            .join(",")
    };
    let why = format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.name(),
        list(delta),
        list(used),
        list(hard)
    );
    let name = if new.name().is_empty() { new.generate_name() } else { new.name() };
    Err(request.forbid(name, &why))
}

fn add(quota: &mut Value, used: &Usage, delta: &Usage) {
    for (name, change) in delta {
        let total = used.get(name).copied().unwrap_or(Quantity::ZERO).plus(*change).max(Quantity::ZERO);
        quota["status"]["used"][name.as_str()] = json!(total.to_string());
    }
}

/// Gives charges back.
pub async fn release(server: &ApiServer, charges: Vec<Charge>) {
    for charge in charges {
        if let Err(status) = Box::pin(release_one(server, &charge)).await {
            // The quota controller counts anew before long.
            warn!(quota = charge.quota, error = %status, "cannot give back a quota charge");
        }
    }
}

async fn release_one(server: &ApiServer, charge: &Charge) -> Result<(), Status> {
    let quotas = server.builtin("", "resourcequotas")?;
    let back: Usage =
        charge.delta.iter().map(|(name, change)| (name.clone(), Quantity::ZERO.minus(*change))).collect();
    for _ in 0..TURNS {
        let Some(entry) = server.entry(&quotas, &charge.namespace, &charge.quota).await? else {
            return Ok(());
        };
        let mut current = quotas.parse(&entry);
        let used = amounts::read(&current["status"]["used"]);
        add(&mut current, &used, &back);
        let sealed = server.seal(&quotas, &entry.key, &quotas.encode(&current))?;
        let when = Precondition::ModRevision(entry.revision);
        let put = server.hub.store().put(entry.key.clone(), sealed, 0, when).await;
        if let Committed::Done { .. } = put.map_err(|error| store_failure(&error))? {
            return Ok(());
        }
    }
    Err(Status::conflict("", "resourcequotas", &charge.quota, "too many others are charging the quota"))
}

/// A quota on compute resources makes every pod say what it needs.
fn must_specify(request: &Request<'_>, quota: &Value, hard: &Usage, pod: &Value) -> Result<(), Status> {
    if !request.is("", "pods") {
        return Ok(());
    }
    let mut missing: Vec<String> = Vec::new();
    for name in hard.keys() {
        let (kind, resource) = match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => ("requests", name.as_str()),
            other => match other.split_once('.') {
                Some((kind @ ("requests" | "limits"), resource))
                    if matches!(resource, "cpu" | "memory" | "ephemeral-storage") =>
                {
                    (kind, resource)
                }
                _ => continue,
            },
        };
        if !pod["spec"]["resources"][kind][resource].is_null() {
            continue;
        }
        let lacking: Vec<&str> = ["initContainers", "containers"]
            .iter()
            .flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
            .filter(|container| container["resources"][kind][resource].is_null())
            .filter_map(|container| container["name"].as_str())
            .collect();
        if !lacking.is_empty() {
            missing.push(format!("{name} for: {}", lacking.join(",")));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let why = format!("failed quota: {}: must specify {}", quota.name(), missing.join("; "));
    let name = if pod.name().is_empty() { pod.generate_name() } else { pod.name() };
    Err(request.forbid(name, &why))
}

/// What an object uses.
pub fn usage(group: &str, plural: &str, object: &Value) -> Usage {
    let mut used = Usage::new();
    let one = Quantity::new(1);
    let count = if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") };
    used.insert(count, one);
    match (group, plural) {
        ("", "pods") => pod_usage(object, &mut used),
        ("", "services") => {
            used.insert("services".to_owned(), one);
            let ports = object["spec"]["ports"].as_array().map_or(0, Vec::len) as i64;
            let kind = object["spec"]["type"].as_str().unwrap_or_default();
            let node_ports = match kind {
                "NodePort" => ports,
                "LoadBalancer" if object["spec"]["allocateLoadBalancerNodePorts"] != false => ports,
                _ => 0,
            };
            used.insert("services.nodeports".to_owned(), Quantity::new(node_ports));
            used.insert(
                "services.loadbalancers".to_owned(),
                Quantity::new(i64::from(kind == "LoadBalancer")),
            );
        }
        ("", "persistentvolumeclaims") => {
            used.insert("persistentvolumeclaims".to_owned(), one);
            let class = object["spec"]["storageClassName"].as_str().unwrap_or_default();
            let size = object["spec"]["resources"]["requests"]["storage"]
                .as_str()
                .and_then(|text| text.parse().ok());
            if let Some(size) = size {
                used.insert("requests.storage".to_owned(), size);
            }
            if !class.is_empty() {
                let name = |what: &str| format!("{class}.storageclass.storage.k8s.io/{what}");
                used.insert(name("persistentvolumeclaims"), one);
                if let Some(size) = size {
                    used.insert(name("requests.storage"), size);
                }
            }
        }
        ("", "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas") => {
            used.insert(plural.to_owned(), one);
        }
        _ => {}
    }
    used
}

fn pod_usage(pod: &Value, used: &mut Usage) {
    // What has ended uses nothing but its place in the count.
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if ended {
        return;
    }
    used.insert("pods".to_owned(), Quantity::new(1));
    let total = |kind: &str| -> Usage {
        let mut sum = amounts::of_containers(&pod["spec"], kind);
        sum.extend(amounts::read(&pod["spec"]["resources"][kind]));
        let mut overhead = amounts::read(&pod["spec"]["overhead"]);
        overhead.retain(|name, _| kind == "requests" || sum.contains_key(name));
        amounts::add(&mut sum, &overhead);
        sum
    };
    for (name, amount) in total("requests") {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-") {
            used.insert(name.clone(), amount);
        }
        used.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in total("limits") {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), amount);
        }
    }
}

/// Whether a quota counts an object.
fn in_scope(quota: &Value, plural: &str, object: &Value) -> bool {
    let spec = &quota["spec"];
    let scopes = spec["scopes"].as_array().into_iter().flatten();
    let plain =
        scopes.filter_map(Value::as_str).all(|scope| matches_scope(scope, "Exists", &[], plural, object));
    let selected = spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten().all(|one| {
        let values: Vec<&str> =
            one["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let (scope, operator) =
            (one["scopeName"].as_str().unwrap_or_default(), one["operator"].as_str().unwrap_or_default());
        matches_scope(scope, operator, &values, plural, object)
    });
    plain && selected
}

fn matches_scope(scope: &str, operator: &str, values: &[&str], plural: &str, object: &Value) -> bool {
    if scope == "VolumeAttributesClass" {
        let class = object["spec"]["volumeAttributesClassName"].as_str();
        return plural == "persistentvolumeclaims" && compare(class, operator, values);
    }
    if plural != "pods" {
        return false;
    }
    match scope {
        "Terminating" => object["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0),
        "NotTerminating" => object["spec"]["activeDeadlineSeconds"].is_null(),
        "BestEffort" => is_best_effort(object),
        "NotBestEffort" => !is_best_effort(object),
        "PriorityClass" => compare(
            object["spec"]["priorityClassName"].as_str().filter(|name| !name.is_empty()),
            operator,
            values,
        ),
        "CrossNamespacePodAffinity" => crosses_namespaces(object),
        _ => false,
    }
}

fn compare(own: Option<&str>, operator: &str, values: &[&str]) -> bool {
    match operator {
        "In" => own.is_some_and(|own| values.contains(&own)),
        "NotIn" => own.is_none_or(|own| !values.contains(&own)),
        "DoesNotExist" => own.is_none(),
        _ => own.is_some(),
    }
}

fn is_best_effort(pod: &Value) -> bool {
    let asks = |container: &Value| {
        ["requests", "limits"].iter().any(|kind| {
            ["cpu", "memory"].iter().any(|name| {
                container["resources"][*kind][*name]
                    .as_str()
                    .and_then(|text| text.parse::<Quantity>().ok())
                    .is_some_and(|own| !own.is_zero())
            })
        })
    };
    !["containers", "initContainers"]
        .iter()
        .any(|list| pod["spec"][*list].as_array().into_iter().flatten().any(asks))
}

fn crosses_namespaces(pod: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &pod["spec"]["affinity"][*kind];
        let required =
            affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        let preferred =
            affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        required.chain(preferred.map(|one| &one["podAffinityTerm"])).any(|term| {
            term["namespaces"].as_array().is_some_and(|list| !list.is_empty())
                || !term["namespaceSelector"].is_null()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(usage: &Usage, name: &str) -> Option<String> {
        usage.get(name).map(ToString::to_string)
    }

    #[test]
    fn what_needs_a_quota_is_told() {
        let limited = LimitedResource {
            resource: "pods".to_owned(),
            match_contains: vec!["cpu".to_owned()],
            match_scopes: vec![super::super::configuration::Scope {
                scope_name: "PriorityClass".to_owned(),
                operator: "In".to_owned(),
                values: vec!["high".to_owned()],
            }],
            ..LimitedResource::default()
        };
        let pod = json!({"spec": {"priorityClassName": "high", "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}});
        let used = usage("", "pods", &pod);
        let lacking = |quotas: &[&Value]| uncovered(&[&limited], quotas, "pods", &pod, &used);
        assert!(lacking(&[]).contains(&"requests.cpu".to_owned()), "{:?}", lacking(&[]));
        assert!(lacking(&[]).contains(&"PriorityClass".to_owned()));
        let quota = json!({"spec": {
            "hard": {"cpu": "10", "requests.cpu": "10"},
            "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]},
        }});
        assert!(lacking(&[&quota]).is_empty(), "{:?}", lacking(&[&quota]));
    }

    #[test]
    fn objects_use_what_upstream_counts() {
        let pod = json!({"spec": {
            "containers": [{"resources": {"requests": {"cpu": "100m", "example.com/gpu": "1"}, "limits": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "200m"}}}],
            "initContainers": [{"resources": {"requests": {"cpu": "1"}}}],
        }});
        let used = usage("", "pods", &pod);
        assert_eq!(shown(&used, "pods").as_deref(), Some("1"));
        assert_eq!(shown(&used, "requests.cpu").as_deref(), Some("1"));
        assert_eq!(shown(&used, "cpu").as_deref(), Some("1"));
        assert_eq!(shown(&used, "limits.cpu").as_deref(), Some("1"));
        assert_eq!(shown(&used, "requests.example.com/gpu").as_deref(), Some("1"));
        let service = json!({"spec": {"type": "LoadBalancer", "ports": [{}, {}]}});
        let used = usage("", "services", &service);
        assert_eq!(shown(&used, "services.nodeports").as_deref(), Some("2"));
        assert_eq!(shown(&used, "services.loadbalancers").as_deref(), Some("1"));
        assert_eq!(
            shown(&usage("apps", "replicasets", &json!({})), "count/replicasets.apps").as_deref(),
            Some("1")
        );
        let claim =
            json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(
            shown(
                &usage("", "persistentvolumeclaims", &claim),
                "gold.storageclass.storage.k8s.io/requests.storage"
            )
            .as_deref(),
            Some("1Gi")
        );
    }

    #[test]
    fn scopes_divide_pods() {
        let best = json!({"spec": {"containers": [{}]}});
        let timed = json!({"spec": {"activeDeadlineSeconds": 5, "containers": [{"resources": {"requests": {"cpu": "1"}}}]}});
        let quota = |scope: &str| json!({"spec": {"scopes": [scope]}});
        for (scope, on_best, on_timed) in [
            ("BestEffort", true, false),
            ("NotBestEffort", false, true),
            ("Terminating", false, true),
            ("NotTerminating", true, false),
        ] {
            assert_eq!(in_scope(&quota(scope), "pods", &best), on_best, "{scope}");
            assert_eq!(in_scope(&quota(scope), "pods", &timed), on_timed, "{scope}");
        }
        assert!(!in_scope(&quota("BestEffort"), "services", &best));
    }
}
