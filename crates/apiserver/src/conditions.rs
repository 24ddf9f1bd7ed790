//! What this server says about the objects that configure it: whether an APIService is Available, whether a FlowSchema
//! is Dangling; and the APIServices of custom resources, which come and go with them.
//!
//! One task wakes when such an object changes. Only while a remote APIService exists does it also look at Services and
//! their endpoints, and ask the remote server now and then whether it still serves its group version.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use apimachinery::apply::Configuration;
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use apimachinery::time;
use lifecycle::Stop;
use serde_json::{Value, json};
use tracing::warn;

use crate::cache::resource::Subscription;
use crate::context::Context;
use crate::managed;
use crate::server::ApiServer;
use crate::store::WriteOptions;
use crate::user::UserInfo;
use crate::verbs::delete::DeleteOptions;

const REGISTRATION: &str = "apiregistration.k8s.io";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io";
/// Marks the APIServices that follow custom resources.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// How often a remote server is asked when nothing changes.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(6);
/// The pauses between rounds while changes keep coming: the first is short, since a new server is waited for.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(500);
/// After so long without a change the pauses begin anew.
const CALM: Duration = Duration::from_secs(5);

/// A condition without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn new(kind: &'static str, good: bool, reason: &'static str, message: String) -> Self {
        Self { kind, status: if good { "True" } else { "False" }, reason, message }
    }

    fn unavailable(reason: &'static str, message: String) -> Self {
        Self::new("Available", false, reason, message)
    }

    /// Whether an object says so already.
    fn is_told(&self, object: &Value) -> bool {
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|one| {
            one["type"] == self.kind
                && one["status"] == self.status
                && one["reason"] == self.reason
                && one["message"] == self.message.as_str()
        })
    }

    /// Puts the condition into an object; the time changes with the status.
    fn tell(&self, object: &mut Value, now: &str) {
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let (mut others, mut since) = (Vec::new(), now.to_owned());
        for one in conditions {
            if one["type"] != self.kind {
                others.push(one);
            } else if one["status"] == self.status
                && let Some(time) = one["lastTransitionTime"].as_str()
            {
                since = time.to_owned();
            }
        }
        others.push(json!({
            "type": self.kind, "status": self.status, "lastTransitionTime": since,
            "reason": self.reason, "message": self.message,
        }));
        object["status"]["conditions"] = Value::Array(others);
    }
}

/// Starts the task.
pub fn follow(server: &Arc<ApiServer>) {
    let own = server.clone();
    server.tasks.keep("own-conditions", move |stop| set_conditions(own.clone(), stop));
}

async fn set_conditions(own: Arc<ApiServer>, stop: Stop) {
    let mut between = FIRST_PAUSE;
    let mut again = FIRST_PAUSE;
    loop {
        let remote = own.remote_services();
        // Subscribed before looking, so that nothing that changes meanwhile is missed.
        let changes = subscriptions(&own, &remote);
        // A server that does not answer is asked again soon, and ever later the longer that lasts.
        let all_answer = round(&own, &remote).await;
        again = if all_answer { FIRST_PAUSE } else { ASK_AGAIN.min(again * 2) };
        let longest = match (remote.is_empty(), all_answer) {
            (true, _) => Duration::from_secs(86_400),
            (false, true) => ASK_AGAIN,
            (false, false) => again,
        };
        let looked = tokio::time::Instant::now();
        if stop.or(wait(&changes, longest)).await.is_none() {
            return;
        }
        between = if looked.elapsed() > CALM { FIRST_PAUSE } else { PAUSE.min(between * 2) };
        if stop.or(tokio::time::sleep(between)).await.is_none() {
            return;
        }
    }
}

fn subscriptions(server: &ApiServer, remote: &[Value]) -> Vec<Subscription> {
    let mut sources = vec![
        (REGISTRATION, "apiservices"),
        (FLOW_CONTROL, "flowschemas"),
        (FLOW_CONTROL, "prioritylevelconfigurations"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    ];
    if !remote.is_empty() {
        sources.extend([("", "services"), ("discovery.k8s.io", "endpointslices")]);
    }
    let namespaces: Vec<String> = remote.iter().map(|one| service_of(one).0.to_owned()).collect();
    let follow = |(group, plural): (&str, &str)| {
        let resource = server.builtin(group, plural).ok()?;
        let cache = server.hub.cache(&resource.prefix)?;
        let all = !resource.is_namespaced();
        let namespaces = namespaces.clone();
        let filter = Arc::new(move |entry: &crate::cache::entry::Entry| {
            all || namespaces.iter().any(|own| own == entry.namespace())
        });
        Some(cache.watch_from_now(resource.collection(""), filter, server.hub.reached()).1)
    };
    sources.into_iter().filter_map(follow).collect()
}

async fn wait(changes: &[Subscription], longest: Duration) {
    let any = std::future::poll_fn(|context| {
        // Every one is asked, so that every one wakes this task.
        let ready = changes.iter().filter(|one| one.poll_next(context).is_ready()).count();
        if ready > 0 { Poll::Ready(()) } else { Poll::Pending }
    });
    // A timeout is as good a reason to look as a change.
    let _ = tokio::time::timeout(longest, any).await;
}

/// Looks once; whether every remote server answers.
async fn round(server: &Arc<ApiServer>, remote: &[Value]) -> bool {
    if let Err(status) = follow_custom(server).await {
        warn!(error = %status, "cannot keep the APIServices of custom resources");
    }
    let checks = remote.iter().map(|one| async move { (one, availability(server, one).await) });
    let mut all_answer = true;
    for (object, finding) in futures::future::join_all(checks).await {
        all_answer &= finding.status == "True";
        if finding.status != "True" && !finding.is_told(object) && !is_unavailable(object) {
            server.metrics.unavailable.count([object.name(), finding.reason]);
        }
        report(server, REGISTRATION, "apiservices", object, &finding).await;
    }
    for (schema, finding) in dangling(server) {
        report(server, FLOW_CONTROL, "flowschemas", &schema, &finding).await;
    }
    all_answer
}

/// Whether an APIService is said to be usable.
pub(crate) fn is_available(object: &Value) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "Available" && one["status"] == "True")
}

/// Whether it is said already that an APIService cannot be used.
fn is_unavailable(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "Available" && one["status"] == "False")
}

async fn report(server: &Arc<ApiServer>, group: &str, plural: &str, object: &Value, finding: &Finding) {
    if finding.is_told(object) {
        return;
    }
    let Ok(resource) = server.builtin(group, plural) else { return };
    let mut context = internal(&resource, "update", object.name());
    context.info.subresource = "status".to_owned();
    let mut options = options("status");
    // What is found of flow schemas is applied, by a manager of its own.
    if group == FLOW_CONTROL {
        options.applied = true;
        options.manager = "api-priority-and-fairness-config-consumer-v1".to_owned();
    }
    let (applied, manager) = (options.applied, options.manager.clone());
    let mut make = |old: Option<&Value>| {
        let old = old.ok_or_else(|| context.not_found())?;
        let mut new = old.clone();
        finding.tell(&mut new, &time::seconds(crate::clock::now()));
        if !applied {
            return Ok(new);
        }
        let own = |one: &&Value| one["type"] == finding.kind;
        let told = new["status"]["conditions"].as_array().into_iter().flatten().find(own).cloned();
        let wanted = json!({
            "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": {"name": old.name()},
            "status": {"conditions": [told]},
        });
        let schema = &context.resource.definition.schema;
        let wanted = Configuration::new(wanted, schema).map_err(|error| error.to_status())?;
        managed::apply(&context, Some(old), &wanted, &manager, "status", true)
    };
    if let Err(status) = server.update_object(&context, &options, false, &mut make).await
        && status.code != 404
    {
        warn!(error = %status, name = object.name(), "cannot report a condition");
    }
}

fn internal(resource: &Arc<crate::registry::Resource>, verb: &'static str, name: &str) -> Context {
    Context::internal(Arc::new(UserInfo::loopback()), resource.clone(), verb, "", name)
}

fn options(subresource: &str) -> WriteOptions {
    WriteOptions {
        dry_run: false,
        manager: "kube-apiserver".to_owned(),
        subresource: subresource.to_owned(),
        applied: false,
    }
}

/// Namespace, name and port of the Service behind an APIService.
fn service_of(api_service: &Value) -> (&str, &str, u64) {
    let service = &api_service["spec"]["service"];
    let text = |field: &str| service[field].as_str().unwrap_or_default();
    (text("namespace"), text("name"), service["port"].as_u64().unwrap_or(443))
}

async fn availability(server: &Arc<ApiServer>, api_service: &Value) -> Finding {
    let (namespace, name, _) = service_of(api_service);
    let services = server.builtin("", "services");
    let service =
        services.ok().and_then(|own| server.cached(&own, namespace, name)).map(|entry| entry.parse());
    let slices = slices_of(server, namespace, name);
    if let Some(finding) = before_asking(api_service, service.as_ref(), &slices) {
        return finding;
    }
    let spec = service.map(|own| own["spec"].clone()).unwrap_or_default();
    let host = if spec["type"] == "ExternalName" { &spec["externalName"] } else { &spec["clusterIP"] };
    let path = format!(
        "https://{}:{}/apis/{}/{}",
        host.as_str().unwrap_or_default(),
        service_of(api_service).2,
        api_service["spec"]["group"].as_str().unwrap_or_default(),
        api_service["spec"]["version"].as_str().unwrap_or_default()
    );
    let why = match tokio::time::timeout(PATIENCE, server.ask_for_resources(api_service)).await {
        Ok(Ok(_)) => return Finding::new("Available", true, "Passed", "all checks passed".to_owned()),
        Ok(Err(status)) => status.message,
        Err(_) => "context deadline exceeded".to_owned(),
    };
    Finding::unavailable("FailedDiscoveryCheck", format!("failing or missing response from {path}: {why}"))
}

fn slices_of(server: &ApiServer, namespace: &str, service: &str) -> Vec<Value> {
    let Ok(slices) = server.builtin("discovery.k8s.io", "endpointslices") else { return Vec::new() };
    let Some(cache) = server.hub.cache(&slices.prefix) else { return Vec::new() };
    let of_service = |entry: &Arc<crate::cache::entry::Entry>| {
        entry
            .labels()
            .iter()
            .any(|(key, value)| &**key == "kubernetes.io/service-name" && **value == *service)
    };
    let entries = cache.snapshot(&slices.collection(namespace), 0).entries;
    entries.iter().filter(|entry| of_service(entry)).map(|entry| entry.parse()).collect()
}

/// What makes asking the remote server pointless.
fn before_asking(api_service: &Value, service: Option<&Value>, slices: &[Value]) -> Option<Finding> {
    let (namespace, name, port) = service_of(api_service);
    let Some(service) = service else {
        let why = format!("service/{name} in {namespace:?} is not present");
        return Some(Finding::unavailable("ServiceNotFound", why));
    };
    if service["spec"]["type"] == "ExternalName" {
        return None;
    }
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let Some(found) = ports.find(|one| one["port"] == port) else {
        let why = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return Some(Finding::unavailable("ServicePortError", why));
    };
    if slices.is_empty() {
        let why = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Finding::unavailable("EndpointsNotFound", why));
    }
    let port_name = found["name"].as_str().unwrap_or_default();
    let serves = |slice: &Value| {
        let mut ports = slice["ports"].as_array().into_iter().flatten();
        let mut endpoints = slice["endpoints"].as_array().into_iter().flatten();
        ports.any(|one| one["name"].as_str().unwrap_or_default() == port_name)
            && endpoints.any(|one| one["conditions"]["ready"] != false)
    };
    if slices.iter().any(serves) {
        return None;
    }
    let why = format!(
        "endpoints for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
    );
    Some(Finding::unavailable("MissingEndpoints", why))
}

/// FlowSchemas and whether the priority level that they name is there.
fn dangling(server: &ApiServer) -> Vec<(Value, Finding)> {
    let all = |plural: &str| -> Vec<Value> {
        let Ok(resource) = server.builtin(FLOW_CONTROL, plural) else { return Vec::new() };
        let Some(cache) = server.hub.cache(&resource.prefix) else { return Vec::new() };
        cache.snapshot(&resource.prefix, 0).entries.iter().map(|entry| entry.parse()).collect()
    };
    let levels = all("prioritylevelconfigurations");
    let judge = |schema: Value| {
        let wanted = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
        let found = levels.iter().any(|level| level.name() == wanted);
        let finding = dangling_finding(wanted, found);
        (schema, finding)
    };
    all("flowschemas").into_iter().map(judge).collect()
}

fn dangling_finding(level: &str, found: bool) -> Finding {
    let (reason, end) =
        if found { ("Found", "and it exists") } else { ("NotFound", "but there is no such object") };
    let text =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {end}");
    Finding::new("Dangling", !found, reason, text)
}

/// Keeps one APIService per group version of custom resources.
async fn follow_custom(server: &Arc<ApiServer>) -> Result<(), Status> {
    let resource = server.builtin(REGISTRATION, "apiservices")?;
    let Some(cache) = server.hub.cache(&resource.prefix) else { return Ok(()) };
    let present: Vec<Value> =
        cache.snapshot(&resource.prefix, 0).entries.iter().map(|entry| entry.parse()).collect();
    let table = server.registry.table();
    let mut wanted = Vec::new();
    for (group, versions) in table.groups.iter().filter(|(group, _)| !group.is_empty()) {
        for version in versions {
            if table.of_version(group, version).iter().any(|one| one.definition.custom) {
                wanted.push((format!("{version}.{group}"), group, version));
            }
        }
    }
    for (name, group, version) in &wanted {
        if present.iter().any(|own| own.name() == name) {
            continue;
        }
        let object = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": name, "labels": {AUTOMANAGED: "true"}},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 100},
        });
        match server.create_object(&internal(&resource, "create", ""), object, &options("")).await {
            Err(status) if status.code != 409 => return Err(status),
            _ => {}
        }
    }
    for own in &present {
        let automanaged = own["metadata"]["labels"][AUTOMANAGED] == "true";
        if automanaged && !wanted.iter().any(|(name, ..)| name == own.name()) {
            let context = internal(&resource, "delete", own.name());
            match server.delete_object(&context, &DeleteOptions::default()).await {
                Err(status) if status.code != 404 => return Err(status),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_service_is_judged_step_by_step() {
        let remote = json!({"spec": {"service": {"namespace": "n", "name": "s", "port": 443}}});
        let reason = |service: Option<Value>, slices: &[Value]| {
            before_asking(&remote, service.as_ref(), slices).map(|finding| finding.reason)
        };
        let service = |port: u64| Some(json!({"spec": {"ports": [{"name": "https", "port": port}]}}));
        let slice = |ready: bool| json!({"ports": [{"name": "https"}], "endpoints": [{"conditions": {"ready": ready}}]});
        assert_eq!(reason(None, &[]), Some("ServiceNotFound"));
        assert_eq!(reason(service(80), &[]), Some("ServicePortError"));
        assert_eq!(reason(service(443), &[]), Some("EndpointsNotFound"));
        assert_eq!(reason(service(443), &[slice(false)]), Some("MissingEndpoints"));
        assert_eq!(reason(service(443), &[slice(false), slice(true)]), None);
        assert_eq!(reason(Some(json!({"spec": {"type": "ExternalName"}})), &[]), None);
    }

    #[test]
    fn the_time_of_a_condition_changes_with_its_status_only() {
        let mut schema = json!({"status": {"conditions": [{"type": "Other"}]}});
        let missing = dangling_finding("x", false);
        missing.tell(&mut schema, "t1");
        assert!(missing.is_told(&schema));
        let other = Finding { message: "another text".to_owned(), ..missing };
        other.tell(&mut schema, "t2");
        assert_eq!(schema["status"]["conditions"][1]["lastTransitionTime"], "t1");
        dangling_finding("x", true).tell(&mut schema, "t3");
        assert_eq!(schema["status"]["conditions"][1]["lastTransitionTime"], "t3");
        assert_eq!(schema["status"]["conditions"].as_array().map(Vec::len), Some(2));
    }
}
