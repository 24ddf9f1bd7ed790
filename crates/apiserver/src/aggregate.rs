//! Aggregation: APIServices whose requests are carried to another server.

use std::sync::Arc;

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use base64::Engine;
use http::header::{HeaderName, HeaderValue};
use http::{Request, Response};
use serde_json::{Value, json};

use crate::body::Body;
use crate::proxy::{self, Backend};
use crate::request_info::RequestInfo;
use crate::server::ApiServer;
use crate::tls;
use crate::user::UserInfo;

impl ApiServer {
    /// APIServices that name a Service.
    fn remote_services(&self) -> Vec<Value> {
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
        Some(self.aggregated_backend(&own))
    }

    fn aggregated_backend(&self, api_service: &Value) -> Result<Backend, Status> {
        let unavailable = |why: String| Status::unavailable(why);
        let service = &api_service["spec"]["service"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&service["namespace"]), text(&service["name"]));
        let port = service["port"].as_u64().unwrap_or(443);
        let services = self.builtin("", "services")?;
        let entry = self.cached(&services, &namespace, &name).ok_or_else(|| {
            unavailable(format!("service {namespace}/{name} of APIService {} is missing", api_service.name()))
        })?;
        let found = entry.parse();
        let host = text(&found["spec"]["clusterIP"]);
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
            port: u16::try_from(port).unwrap_or(443),
            tls: Some(Arc::new(client)),
            server_name: Some(format!("{name}.{namespace}.svc")),
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
        proxy::forward_identified(request, &backend, &path, &self.tasks).await.map_err(|error| {
            Status::unavailable(format!("error trying to reach service: {}", telemetry::chain(&error)))
        })
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

    /// Names aggregated groups in the aggregated form; their resources are asked for by group version.
    pub(crate) fn add_aggregated_discovery(&self, list: &mut Value) {
        for one in self.remote_services() {
            let (group, version) = (&one["spec"]["group"], &one["spec"]["version"]);
            if let Some(items) = list["items"].as_array_mut() {
                items.push(json!({
                    "metadata": {"name": group, "creationTimestamp": null},
                    "versions": [{"version": version, "resources": [], "freshness": "Stale"}],
                }));
            }
        }
    }
}
