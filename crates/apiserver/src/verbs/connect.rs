//! Connections to what runs: logs, exec, attach, port-forward through the kubelet; proxies to pods, services, nodes.

use std::net::IpAddr;
use std::sync::Arc;

use api::Subresource;
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use http::header::{HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use crate::admission::{self, Operation};
use crate::authz::Attributes;
use crate::body::Body;
use crate::context::Context;
use crate::options;
use crate::proxy::{self, Backend, rewrite};
use crate::request_info::encode_query;
use crate::server::ApiServer;
use crate::verbs::socket;

/// The kubelet's port if a node does not say.
const KUBELET_PORT: u16 = 10250;

impl ApiServer {
    /// Carries a request to a pod, service or node.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        context: &Context,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let definition = &context.resource.definition;
        let Some(subresource) = definition.subresource(&context.info.subresource) else {
            return Err(Status::no_such_path());
        };
        if !matches!(subresource, Subresource::Log) {
            let mut judged =
                admission::Request::new(context, Operation::Connect, &context.info.subresource, false);
            let options = connect_options(context, subresource);
            self.admission.validate(self, &mut judged, Some(&options), None).await?;
        }
        match subresource {
            Subresource::Proxy => self.proxy(context, request).await,
            Subresource::Log => self.log(context, request).await,
            Subresource::Exec | Subresource::Attach | Subresource::PortForward => {
                self.may_create(context).await?;
                self.stream(context, request).await
            }
            _ => Err(Status::no_such_path()),
        }
    }

    /// Who runs something in a pod needs the right to create, whatever the method: a WebSocket begins with a GET.
    async fn may_create(&self, context: &Context) -> Result<(), Status> {
        const VERB: &str = "create";
        let info = &context.info;
        if info.verb == VERB {
            return Ok(());
        }
        let asked = Attributes { verb: VERB, ..Attributes::of(&context.user, info, "", "") };
        let decision = self.authorize(&asked).await;
        if decision.is_allowed() {
            return Ok(());
        }
        Err(Status::forbidden(&info.group, &info.resource, &info.name, &decision.reason()))
    }

    async fn pod(&self, context: &Context) -> Result<Value, Status> {
        let (namespace, name) = (&context.info.namespace, context.info.name.as_str());
        let entry =
            self.entry(&context.resource, namespace, name).await?.ok_or_else(|| context.not_found())?;
        Ok(context.resource.parse(&entry))
    }

    /// The kubelet of a pod's node.
    fn kubelet_of(&self, pod: &Value) -> Result<Backend, Status> {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if node.is_empty() {
            return Err(Status::bad_request(format!("pod {} does not have a host assigned", pod.name())));
        }
        self.kubelet(node)
    }

    fn kubelet(&self, name: &str) -> Result<Backend, Status> {
        let nodes = self.builtin("", "nodes")?;
        let entry = self.cached(&nodes, "", name).ok_or_else(|| Status::not_found("", "nodes", name))?;
        let node = entry.parse();
        let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
        let address = self
            .kubelet_address_types
            .iter()
            .find_map(|kind| addresses.iter().find(|one| one["type"] == kind.as_str()))
            .and_then(|one| one["address"].as_str())
            .ok_or_else(|| Status::internal(format!("no preferred addresses found for node {name}")))?;
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port =
            port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0).unwrap_or(KUBELET_PORT);
        Ok(self.kubelet_backend(address.to_owned(), port))
    }

    /// GET of `pods/NAME/log`.
    async fn log(
        self: &Arc<Self>,
        context: &Context,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let query = &context.query;
        options::numbers(query, &["sinceSeconds", "tailLines", "limitBytes"])?;
        for (field, least, why) in [
            ("sinceSeconds", 1, "must be greater than 0"),
            ("tailLines", 0, "must be greater than or equal to 0"),
            ("limitBytes", 1, "must be greater than 0"),
        ] {
            let number = query.get(field).and_then(|text| text.parse::<i64>().ok());
            if let Some(number) = number.filter(|number| *number < least) {
                let mut problems = apimachinery::field::Problems::new();
                problems.invalid(&apimachinery::field::Path::new(field), number, why);
                return Err(Status::invalid("", "PodLogOptions", context.info.name.as_str(), &problems));
            }
        }
        if query.get("sinceSeconds").is_some() && query.get("sinceTime").is_some() {
            let mut problems = apimachinery::field::Problems::new();
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            problems.forbidden(&apimachinery::field::Path::new("[]"), why);
            return Err(Status::invalid("", "PodLogOptions", context.info.name.as_str(), &problems));
        }
        let pod = self.pod(context).await?;
        let container = container_of(context, &pod)?;
        let mut path = format!("/containerLogs/{}/{}/{container}?", pod.namespace(), pod.name());
        for field in [
            "follow",
            "previous",
            "timestamps",
            "sinceSeconds",
            "sinceTime",
            "tailLines",
            "limitBytes",
            "stream",
        ] {
            if let Some(value) = query.get(field) {
                let value = if value.is_empty() { "true" } else { value };
                path.push_str(&format!("{field}={}&", encode_query(value)));
            }
        }
        if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
            // Nothing ran yet, so nothing was said.
            let mut nothing = Response::new(Body::Empty);
            *nothing.status_mut() = StatusCode::NO_CONTENT;
            return Ok(nothing);
        }
        let backend = self.kubelet_of(&pod)?;
        let (mut parts, body) = request.into_parts();
        let client = socket::take(&parts.headers, &mut parts.extensions);
        if client.is_some() {
            socket::forget(&mut parts.headers);
        }
        let request = Request::from_parts(parts, body);
        let answer = proxy::forward(request, &backend, path.trim_end_matches(['&', '?']), &self.tasks)
            .await
            .map_err(|error| {
                Status::internal(format!(
                    "Get \"https://{}{path}\": {}",
                    backend.authority(),
                    telemetry::chain(&error)
                ))
            })?;
        if answer.status().is_success() {
            return match client {
                Some(client) => self.into_socket(client, &context.headers, answer, None),
                None => Ok(answer),
            };
        }
        // The kubelet says in plain text what is wrong; clients expect a Status.
        let code = answer.status();
        let text = answer.into_body().read(64 << 10).await.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        Err(match code {
            StatusCode::NOT_FOUND => {
                Status::not_found("", "pods", &format!("{}/log: {text}", context.info.name))
            }
            StatusCode::BAD_REQUEST => Status::bad_request(text),
            _ => Status::internal(text),
        })
    }

    /// exec, attach and port-forward: an upgrade that is passed on.
    async fn stream(
        self: &Arc<Self>,
        context: &Context,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let pod = self.pod(context).await?;
        let query = &context.query;
        let mut path = match context.info.subresource.as_str() {
            "portforward" => format!("/portForward/{}/{}?", pod.namespace(), pod.name()),
            what => {
                let container = container_of(context, &pod)?;
                if matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
                    return Err(Status::bad_request(format!(
                        "cannot {what} in a container in a completed pod; current phase is {}",
                        pod["status"]["phase"].as_str().unwrap_or_default()
                    )));
                }
                if what == "exec" && query.get("command").is_none() {
                    return Err(Status::bad_request("you must specify at least 1 command for the container"));
                }
                format!("/{what}/{}/{}/{container}?", pod.namespace(), pod.name())
            }
        };
        for (key, value) in query.pairs() {
            let kubelet_key = match key.as_str() {
                "stdin" => "input",
                "stdout" => "output",
                "stderr" => "error",
                "tty" | "command" | "port" | "ports" => key.as_str(),
                _ => continue,
            };
            let value = if matches!(kubelet_key, "input" | "output" | "error" | "tty") {
                if !query.flag(key) {
                    continue;
                }
                "1"
            } else {
                value
            };
            path.push_str(&format!("{kubelet_key}={}&", encode_query(value)));
        }
        let backend = self.kubelet_of(&pod)?;
        if !proxy::wants_upgrade(request.headers()) {
            return Err(Status::bad_request("Upgrade request required"));
        }
        // The kubelet takes these as POST or as a WebSocket's GET.
        if !is_websocket(&request) {
            *request.method_mut() = Method::POST;
        }
        let answer =
            proxy::forward(request, &backend, path.trim_end_matches(['&', '?']), &self.tasks).await.map_err(
                |error| Status::internal(format!("error dialing backend: {}", telemetry::chain(&error))),
            )?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS || answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status().as_u16();
        let text = answer.into_body().read(64 << 10).await.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        let mut status = Status::internal(format!("error dialing backend: {text}"));
        if code == 404 || code == 400 {
            status = Status::bad_request(text);
        }
        Err(status)
    }

    /// `pods/…/proxy`, `services/…/proxy` and `nodes/…/proxy`.
    async fn proxy(
        self: &Arc<Self>,
        context: &Context,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let path = request.uri().path();
        // A directory needs its slash, or relative links lead out of it.
        if !path.contains("/proxy/")
            && matches!(*request.method(), Method::GET | Method::HEAD)
            && !proxy::wants_upgrade(request.headers())
        {
            let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            let to = format!("{}/{query}", path.trim_end_matches('/'));
            if let Ok(value) = HeaderValue::from_str(&to) {
                response.headers_mut().insert(LOCATION, value);
            }
            return Ok(response);
        }
        let (scheme, name, port) = split_name(&info.name).ok_or_else(|| {
            Status::bad_request(format!("invalid {} request {:?}", info.resource, info.name))
        })?;
        if info.resource == "nodes" && proxy::wants_upgrade(request.headers()) {
            // The kubelet trusts us, and its upgrades are commands.
            self.may_create(context).await?;
        }
        let backend = match info.resource.as_str() {
            "nodes" => self.node_backend(scheme, name, port)?,
            "pods" => self.pod_backend(&info.namespace, scheme, name, port)?,
            _ => {
                let backend = self.service_backend(&info.namespace, scheme, name, port)?;
                check_proxyable(&backend.host)?;
                backend
            }
        };
        let prefix = path.split_once("/proxy/").map_or(path, |(start, _)| start).to_owned() + "/proxy";
        let mut target = format!("/{}", info.rest);
        if let Some(query) = request.uri().query() {
            target.push('?');
            target.push_str(query);
        }
        let mut request = request;
        for (name, value) in [("x-forwarded-uri", prefix.as_str()), ("x-forwarded-proto", "https")] {
            if let Ok(value) = HeaderValue::from_str(value) {
                request.headers_mut().insert(name, value);
            }
        }
        let upgrade = proxy::wants_upgrade(request.headers());
        let answer = proxy::forward(request, &backend, &target, &self.tasks)
            .await
            .map_err(|error| error.to_status(&format!("service: {}", backend.authority())))?;
        if upgrade {
            return Ok(answer);
        }
        Ok(rewrite::response(answer, &prefix, &backend.authority()).await)
    }

    fn node_backend(&self, scheme: &str, name: &str, port: &str) -> Result<Backend, Status> {
        let mut backend = self.kubelet(name)?;
        if let Ok(port) = port.parse::<u16>() {
            if port != backend.port {
                check_proxyable(&backend.host)?;
                backend.tls = (scheme == "https").then(|| self.insecure_tls.clone());
            }
            backend.port = port;
        }
        Ok(backend)
    }

    fn pod_backend(&self, namespace: &str, scheme: &str, name: &str, port: &str) -> Result<Backend, Status> {
        let pods = self.builtin("", "pods")?;
        let entry = self.cached(&pods, namespace, name).ok_or_else(|| Status::not_found("", "pods", name))?;
        let pod = entry.parse();
        let address = pod["status"]["podIP"].as_str().unwrap_or_default();
        if address.is_empty() {
            return Err(Status::bad_request("address not allowed"));
        }
        check_proxyable(address)?;
        let ports = || {
            pod["spec"]["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|one| one["ports"].as_array().into_iter().flatten())
        };
        let number = if port.is_empty() {
            ports().find_map(|one| one["containerPort"].as_u64()).unwrap_or(80)
        } else if let Ok(number) = port.parse::<u64>() {
            number
        } else {
            ports()
                .find(|one| one["name"] == port)
                .and_then(|one| one["containerPort"].as_u64())
                .ok_or_else(|| Status::bad_request(format!("no port {port:?} found for pod {name:?}")))?
        };
        Ok(self.plain_backend(scheme, address, number))
    }

    pub(crate) fn service_backend(
        &self,
        namespace: &str,
        scheme: &str,
        name: &str,
        port: &str,
    ) -> Result<Backend, Status> {
        let services = self.builtin("", "services")?;
        let entry =
            self.cached(&services, namespace, name).ok_or_else(|| Status::not_found("", "services", name))?;
        let service = entry.parse();
        let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
        let wanted = match port {
            "" if ports.len() == 1 => ports.first(),
            "" => {
                ports.iter().find(|one| one["name"].as_str().unwrap_or_default().is_empty()).or(ports.first())
            }
            port => ports.iter().find(|one| one["name"] == port || one["port"].as_u64() == port.parse().ok()),
        };
        let missing = || Status::unavailable(format!("no endpoints available for service {name:?}"));
        let wanted = wanted.ok_or_else(|| {
            Status::unavailable(format!("no service port {port:?} found for service {name:?}"))
        })?;
        let port_name = wanted["name"].as_str().unwrap_or_default();
        let slices = self.builtin("discovery.k8s.io", "endpointslices")?;
        let cache = self.hub.cache(&slices.prefix).ok_or_else(missing)?;
        let mut found = Vec::new();
        for entry in cache.snapshot(&slices.collection(namespace), 0).entries {
            if !entry
                .labels()
                .iter()
                .any(|(key, value)| &**key == "kubernetes.io/service-name" && **value == *name)
            {
                continue;
            }
            let slice = entry.parse();
            let number = slice["ports"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|one| one["name"].as_str().unwrap_or_default() == port_name)
                .and_then(|one| one["port"].as_u64());
            let Some(number) = number else { continue };
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                if endpoint["conditions"]["ready"] != false
                    && let Some(address) = endpoint["addresses"][0].as_str()
                {
                    found.push((address.to_owned(), number));
                }
            }
        }
        if found.is_empty() {
            return Err(missing());
        }
        let (address, number) = &found[self.random_u32() as usize % found.len()];
        Ok(self.plain_backend(scheme, address, *number))
    }

    fn plain_backend(&self, scheme: &str, address: &str, port: u64) -> Backend {
        Backend {
            host: address.to_owned(),
            port: u16::try_from(port).unwrap_or(0),
            tls: (scheme == "https").then(|| self.insecure_tls.clone()),
            server_name: None,
            reach: self.reach(),
        }
    }
}

/// Refuses to be led to ourselves and to what only our machine may ask: addresses in objects are their writers' to choose.
fn check_proxyable(host: &str) -> Result<(), Status> {
    let allowed = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_unspecified()
                || ip.is_broadcast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast() || ip.is_unspecified())
        }
    };
    match host.parse::<IpAddr>() {
        Ok(ip) if allowed(ip) => Ok(()),
        Ok(_) => Err(Status::bad_request("address not allowed")),
        // The name of a node: what it resolves to is checked as far as it can be told from the name.
        Err(_)
            if host.eq_ignore_ascii_case("localhost")
                || host.to_ascii_lowercase().ends_with(".localhost") =>
        {
            Err(Status::bad_request("address not allowed"))
        }
        Err(_) => Ok(()),
    }
}

fn is_websocket(request: &Request<Body>) -> bool {
    request
        .headers()
        .get(http::header::UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// What is wished of a connection, as an object: what admission judges.
fn connect_options(context: &Context, subresource: &Subresource) -> Value {
    let (query, info) = (&context.query, &context.info);
    let mut options = json!({"apiVersion": "v1"});
    if let Some(kind) = subresource.kind() {
        options["kind"] = json!(kind.kind);
    }
    match subresource {
        Subresource::Exec | Subresource::Attach => {
            for field in ["stdin", "stdout", "stderr", "tty"] {
                if query.flag(field) {
                    options[field] = json!(true);
                }
            }
            if let Some(container) = query.get("container").filter(|name| !name.is_empty()) {
                options["container"] = json!(container);
            }
            if matches!(subresource, Subresource::Exec) {
                let words = query.pairs().iter().filter(|(key, _)| key == "command");
                options["command"] = words.map(|(_, value)| json!(value)).collect();
            }
        }
        Subresource::PortForward => {
            let ports = query.pairs().iter().filter(|(key, _)| key == "ports");
            let ports: Vec<Value> = ports
                .flat_map(|(_, value)| value.split(','))
                .filter_map(|port| port.parse::<i64>().ok().map(Value::from))
                .collect();
            if !ports.is_empty() {
                options["ports"] = Value::Array(ports);
            }
        }
        Subresource::Proxy => {
            options["kind"] = json!(format!("{}ProxyOptions", context.resource.kind()));
            if !info.rest.is_empty() {
                options["path"] = json!(format!("/{}", info.rest));
            }
        }
        _ => {}
    }
    options
}

/// Cuts `[scheme:]name[:port]`.
fn split_name(text: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [name] => Some(("http", name, "")),
        [name, port] => Some(("http", name, port)),
        [scheme @ ("http" | "https" | ""), name, port] => {
            Some((if *scheme == "https" { "https" } else { "http" }, name, port))
        }
        _ => None,
    }
}

/// The container that is meant: the named one, or the only one.
fn container_of(context: &Context, pod: &Value) -> Result<String, Status> {
    let names = |field: &str| -> Vec<String> {
        let list = pod["spec"][field].as_array().into_iter().flatten();
        list.filter_map(|one| one["name"].as_str()).map(str::to_owned).collect()
    };
    let (main, init, ephemeral) =
        (names("containers"), names("initContainers"), names("ephemeralContainers"));
    match context.query.get("container").filter(|name| !name.is_empty()) {
        Some(name) => {
            let known = [&main, &init, &ephemeral].into_iter().flatten().any(|own| own == name);
            if known {
                Ok(name.to_owned())
            } else {
                Err(Status::bad_request(format!("container {name} is not valid for pod {}", pod.name())))
            }
        }
        None => match main.as_slice() {
            [only] => Ok(only.clone()),
            [] => {
                Err(Status::bad_request(format!("a container name must be specified for pod {}", pod.name())))
            }
            _ => {
                let all: Vec<&str> =
                    [&init, &main, &ephemeral].into_iter().flatten().map(String::as_str).collect();
                Err(Status::bad_request(format!(
                    "a container name must be specified for pod {}, choose one of: [{}]",
                    pod.name(),
                    all.join(" ")
                )))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_lead_to_ordinary_addresses_only() {
        for address in ["10.0.0.1", "172.30.0.1", "2001:db8::1", "node-1", "::ffff:10.0.0.1"] {
            assert!(check_proxyable(address).is_ok(), "{address}");
        }
        for address in [
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "localhost",
        ] {
            assert!(check_proxyable(address).is_err(), "{address}");
        }
    }

    #[test]
    fn proxy_names_are_cut() {
        assert_eq!(split_name("web"), Some(("http", "web", "")));
        assert_eq!(split_name("web:80"), Some(("http", "web", "80")));
        assert_eq!(split_name("https:web:443"), Some(("https", "web", "443")));
        assert_eq!(split_name("http:web:"), Some(("http", "web", "")));
        assert_eq!(split_name("ftp:web:21"), None);
    }
}
