//! Aggregation: APIServices whose requests are carried to another server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use base64::Engine;
use http::header::{HeaderName, HeaderValue};
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use crate::body::Body;
use crate::proxy::{self, Backend, Reach};
use crate::request_info::RequestInfo;
use crate::server::ApiServer;
use crate::tls;
use crate::user::UserInfo;

/// How long an aggregated server may take to say what it serves.
const DISCOVERY_PATIENCE: Duration = Duration::from_secs(3);
/// How long its answer is believed, and how long it is left alone after none.
const FOUND_FOR: Duration = Duration::from_secs(60);
const MISSED_FOR: Duration = Duration::from_secs(5);
const DISCOVERY_LIMIT: usize = 8 << 20;

/// What aggregated servers said that they serve, by APIService and revision, and until when that is believed.
pub(crate) type Discovered = Mutex<HashMap<String, (Instant, Option<Vec<Value>>)>>;

impl ApiServer {
    /// APIServices that name a Service.
    pub(crate) fn remote_services(&self) -> Vec<Value> {
        let Ok(resource) = self.builtin("apiregistration.k8s.io", "apiservices") else { return Vec::new() };
        let Some(cache) = self.hub.cache(&resource.prefix) else { return Vec::new() };
        let entries = cache.snapshot(&resource.prefix, 0).entries;
        entries.iter().map(|entry| entry.parse()).filter(|one| one["spec"]["service"].is_object()).collect()
    }

    /// The server behind a group version, if it is not this one. The inner error says why it cannot be used.
    pub(crate) fn aggregated(&self, _user: &UserInfo, info: &RequestInfo) -> Option<Result<Backend, Status>> {
        let own = self.remote_services().into_iter().find(|one| {
            one["spec"]["group"] == info.group.as_str() && one["spec"]["version"] == info.version.as_str()
        })?;
        // Nobody is sent to a server of which nothing is known yet, or nothing good.
        if !crate::conditions::is_available(&own) {
            return Some(Err(Status::unavailable("service unavailable".to_owned())));
        }
        Some(self.aggregated_backend(&own))
    }

    /// Where a port of a Service is reached from here: its own address, or one of its endpoints if so wanted.
    pub(crate) fn service_address(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<(String, u16), Status> {
        let services = self.builtin("", "services")?;
        let entry = self
            .cached(&services, namespace, name)
            .ok_or_else(|| Status::unavailable(format!("service {namespace}/{name} is missing")))?;
        let found = entry.parse();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if found["spec"]["type"] == "ExternalName" {
            return Ok((text(&found["spec"]["externalName"]), port));
        }
        if self.settings.route_to_endpoints {
            let own = self.service_backend(namespace, "https", name, &port.to_string())?;
            return Ok((own.host, own.port));
        }
        Ok((text(&found["spec"]["clusterIP"]), port))
    }

    fn aggregated_backend(&self, api_service: &Value) -> Result<Backend, Status> {
        let unavailable = |why: String| Status::unavailable(why);
        let service = &api_service["spec"]["service"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&service["namespace"]), text(&service["name"]));
        let port = service["port"].as_u64().unwrap_or(443);
        let (host, port) = self.service_address(&namespace, &name, u16::try_from(port).unwrap_or(443))?;
        let identity = match &self.proxy_identity {
            Some(pair) => Some(
                tls::certified_key(&pair.certificate, &pair.key, "the proxy client certificate")
                    .map_err(|error| Status::internal(telemetry::chain(&error)))?,
            ),
            None => None,
        };
        let client = if api_service["spec"]["insecureSkipTLSVerify"] == true {
            tls::unverified_client_config(identity)
        } else {
            let ca = base64::engine::general_purpose::STANDARD
                .decode(text(&api_service["spec"]["caBundle"]))
                .map_err(|_| unavailable("the caBundle is malformed".to_owned()))?;
            tls::roots(&ca, "the caBundle").and_then(|roots| tls::client_config(roots, identity))
        }
        .map_err(|error| unavailable(telemetry::chain(&error).to_string()))?;
        Ok(Backend {
            host,
            port,
            tls: Some(Arc::new(client)),
            server_name: Some(format!("{name}.{namespace}.svc")),
            reach: Reach { rate: 0, ..self.reach() },
        })
    }

    /// Carries a request on, saying who the user is.
    pub(crate) async fn aggregate(
        self: &Arc<Self>,
        user: &UserInfo,
        mut request: Request<Body>,
        backend: Backend,
    ) -> Result<Response<Body>, Status> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let stale: Vec<HeaderName> =
            request.headers().keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
        stale.iter().for_each(|name| drop(request.headers_mut().remove(name)));
        let headers = request.headers_mut();
        let mut add = |name: &str, value: &str| {
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
            {
                headers.append(name, value);
            }
        };
        add("x-remote-user", &user.name);
        if !user.uid.is_empty() {
            add("x-remote-uid", &user.uid);
        }
        user.groups.iter().for_each(|group| add("x-remote-group", group));
        for (key, values) in &user.extra {
            let key = format!("x-remote-extra-{}", crate::request_info::encode_query(key));
            values.iter().for_each(|value| add(&key, value));
        }
        let answer =
            proxy::forward_identified(request, &backend, &path, &self.tasks).await.map_err(|error| {
                Status::unavailable(format!("error trying to reach service: {}", telemetry::chain(&error)))
            })?;
        if self.settings.reject_redirects
            && answer.status().is_redirection()
            && answer.headers().contains_key(http::header::LOCATION)
        {
            let why = "the backend attempted to redirect this request, which is not permitted\n".to_owned();
            let mut refused = Response::new(Body::from(why));
            *refused.status_mut() = http::StatusCode::BAD_GATEWAY;
            return Ok(refused);
        }
        Ok(answer)
    }

    /// The group of an aggregated server.
    pub(crate) fn aggregated_group(&self, name: &str) -> Option<Value> {
        let versions: Vec<String> = self
            .remote_services()
            .iter()
            .filter(|one| one["spec"]["group"] == name)
            .filter_map(|one| one["spec"]["version"].as_str().map(str::to_owned))
            .collect();
        let first = versions.first()?.clone();
        let one = |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
        Some(json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": name,
            "versions": versions.iter().map(one).collect::<Vec<_>>(), "preferredVersion": one(&first),
        }))
    }

    /// Adds aggregated groups to the list of groups.
    pub(crate) fn add_aggregated_groups(&self, list: &mut Value) {
        let mut names: Vec<String> = Vec::new();
        for one in self.remote_services() {
            let name = one["spec"]["group"].as_str().unwrap_or_default().to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        for name in names {
            if let (Some(mut group), Some(groups)) =
                (self.aggregated_group(&name), list["groups"].as_array_mut())
            {
                if let Some(map) = group.as_object_mut() {
                    map.shift_remove("kind");
                    map.shift_remove("apiVersion");
                }
                groups.push(group);
            }
        }
    }

    /// Adds the groups of aggregated servers to the aggregated form, with what those servers say that they serve. A server
    /// that does not answer leaves its version stale, and is not asked again at once.
    pub(crate) async fn add_aggregated_discovery(&self, list: &mut Value) {
        let found = self.remote_services().into_iter().map(|one| async move {
            let resources = self.discovered_resources(&one).await;
            let freshness = if resources.is_some() { "Current" } else { "Stale" };
            json!({
                "metadata": {"name": one["spec"]["group"], "creationTimestamp": null},
                "versions": [{
                    "version": one["spec"]["version"], "resources": resources.unwrap_or_default(),
                    "freshness": freshness,
                }],
            })
        });
        let found = futures::future::join_all(found).await;
        if let Some(items) = list["items"].as_array_mut() {
            items.extend(found);
        }
    }

    /// What a version of an aggregated server offers, in the aggregated form.
    async fn discovered_resources(&self, api_service: &Value) -> Option<Vec<Value>> {
        let key = format!("{}@{}", api_service.name(), api_service["metadata"]["resourceVersion"]);
        let known = {
            let mut cache = self.discovered.lock().unwrap_or_else(PoisonError::into_inner);
            cache.retain(|_, (until, _)| *until > Instant::now());
            cache.get(&key).map(|(_, found)| found.clone())
        };
        if let Some(known) = known {
            return known;
        }
        let asked = tokio::time::timeout(DISCOVERY_PATIENCE, self.ask_for_resources(api_service)).await;
        let found = match asked {
            Ok(Ok(list)) => Some(aggregated_resources(&list)),
            Ok(Err(status)) => {
                debug!(service = %api_service.name(), why = %status.message, "no discovery");
                None
            }
            Err(_) => None,
        };
        let until = Instant::now() + if found.is_some() { FOUND_FOR } else { MISSED_FOR };
        let mut cache = self.discovered.lock().unwrap_or_else(PoisonError::into_inner);
        cache.insert(key, (until, found.clone()));
        found
    }

    pub(crate) async fn ask_for_resources(&self, api_service: &Value) -> Result<Value, Status> {
        let backend = self.aggregated_backend(api_service)?;
        let spec = &api_service["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let path = format!("/apis/{}/{}", text(&spec["group"]), text(&spec["version"]));
        let unavailable = |why: String| Status::unavailable(why);
        let request = Request::get(path)
            .header(http::header::HOST, backend.authority())
            .header(http::header::ACCEPT, "application/json")
            .header("x-remote-user", "system:kube-aggregator")
            .header("x-remote-group", "system:masters")
            .body(Body::Empty)
            .map_err(|error| unavailable(error.to_string()))?;
        let answer = backend.send(request, &self.tasks).await;
        let answer = answer.map_err(|error| unavailable(telemetry::chain(&error).to_string()))?;
        if !answer.status().is_success() {
            return Err(unavailable(format!("it answered {}", answer.status())));
        }
        let body = answer.into_body().read(DISCOVERY_LIMIT).await;
        let body = body.map_err(|error| unavailable(telemetry::chain(&error).to_string()))?;
        serde_json::from_slice(&body).map_err(|error| unavailable(error.to_string()))
    }
}

/// Turns an APIResourceList into the aggregated form: subresources stand under their resource.
fn aggregated_resources(list: &Value) -> Vec<Value> {
    let (group, version) =
        list["groupVersion"].as_str().unwrap_or_default().split_once('/').unwrap_or_default();
    let kind = |one: &Value| {
        let own = |field: &str, other: &str| match one[field].as_str() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => other.to_owned(),
        };
        json!({"group": own("group", group), "version": own("version", version), "kind": one["kind"]})
    };
    let all = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |one: &Value| one["name"].as_str().unwrap_or_default().to_owned();
    let mut resources = Vec::new();
    for one in all.iter().filter(|one| !name(one).contains('/')) {
        let mut resource = json!({
            "resource": one["name"], "responseKind": kind(one),
            "scope": if one["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": one["singularName"], "verbs": one["verbs"],
        });
        for field in ["shortNames", "categories"] {
            if one[field].is_array() {
                resource[field] = one[field].clone();
            }
        }
        let prefix = format!("{}/", name(one));
        let below = all.iter().filter(|other| name(other).starts_with(&prefix));
        let below: Vec<Value> = below
            .map(|other| {
                let sub = name(other)[prefix.len()..].to_owned();
                json!({"subresource": sub, "responseKind": kind(other), "verbs": other["verbs"]})
            })
            .collect();
        if !below.is_empty() {
            resource["subresources"] = json!(below);
        }
        resources.push(resource);
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_list_becomes_the_aggregated_form() {
        let list = json!({"groupVersion":"metrics.k8s.io/v1beta1","resources":[
            {"name":"pods","singularName":"","namespaced":true,"kind":"PodMetrics","verbs":["get","list"],"shortNames":["p"]},
            {"name":"pods/status","namespaced":true,"kind":"Other","group":"g","version":"v1","verbs":["get"]}]});
        assert_eq!(
            aggregated_resources(&list),
            [json!({
            "resource":"pods","responseKind":{"group":"metrics.k8s.io","version":"v1beta1","kind":"PodMetrics"},
            "scope":"Namespaced","singularResource":"","verbs":["get","list"],"shortNames":["p"],
            "subresources":[{"subresource":"status","responseKind":{"group":"g","version":"v1","kind":"Other"},"verbs":["get"]}]})]
        );
    }
}
