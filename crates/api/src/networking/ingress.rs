//! Ingresses and their classes.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names,
};
use serde_json::Value;

use crate::{Change, Column, Definition, MetaCheck, Rules, checks, print};

/// Which controller serves an Ingress.
pub fn class() -> Definition {
    Definition::cluster("networking.k8s.io", "v1", "IngressClass", "ingressclasses")
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
        .generation()
        .columns(vec![
            Column::path("Controller", "spec.controller"),
            Column::new("Parameters", |class, _| match get(class, "spec.parameters") {
                None => "<none>".into(),
                Some(parameters) => {
                    let kind = get_str(parameters, "kind");
                    let kind = match get_str(parameters, "apiGroup") {
                        "" => kind.to_owned(),
                        group => format!("{kind}.{group}"),
                    };
                    format!("{kind}/{}", get_str(parameters, "name")).into()
                }
            }),
            Column::age(),
        ])
        .rules(Class)
}

/// Routes from outside to Services.
pub fn ingress() -> Definition {
    Definition::namespaced("networking.k8s.io", "v1", "Ingress", "ingresses")
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
        .short(&["ing"])
        .stored_at("/registry/ingress")
        .status()
        .generation()
        .columns(vec![
            Column::new("Class", |ingress, _| {
                let annotated = ingress.annotation("kubernetes.io/ingress.class").unwrap_or_default();
                print::or(print::or(get_str(ingress, "spec.ingressClassName"), annotated), "<none>").into()
            }),
            Column::new("Hosts", |ingress, _| hosts(ingress).into()),
            Column::new("Address", |ingress, _| {
                let list = get_list(ingress, "status.loadBalancer.ingress").iter();
                let texts = list.map(|entry| print::or(get_str(entry, "ip"), get_str(entry, "hostname")));
                print::join(texts).into()
            }),
            Column::new("Ports", |ingress, _| {
                if get_list(ingress, "spec.tls").is_empty() { "80" } else { "80, 443" }.into()
            }),
            Column::age(),
        ])
        .rules(Ingress)
}

fn hosts(ingress: &Value) -> String {
    let list: Vec<&str> = get_list(ingress, "spec.rules")
        .iter()
        .map(|rule| get_str(rule, "host"))
        .filter(|host| !host.is_empty())
        .collect();
    match list.len() {
        0 => "*".into(),
        1..=3 => list.join(","),
        more => format!("{} + {} more...", list[..3].join(","), more - 3),
    }
}

struct Class;

impl Rules for Class {
    fn set_defaults(&self, class: &mut Value) {
        crate::defaults::apply(
            class,
            &[("spec.parameters.scope", crate::defaults::Constant::Text("Cluster"))],
        );
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let controller = get_str(change.new, "spec.controller");
        if change.old.is_some_and(|old| get_str(old, "spec.controller") != controller) {
            problems.invalid(&path.child("controller"), controller, crate::metadata::IMMUTABLE);
        }
        if controller.len() > 250 {
            problems.too_long(&path.child("controller"), 250);
        }
        checks::domain_path(controller, &path.child("controller"), problems);
        if let Some(parameters) = get(change.new, "spec.parameters") {
            let at = path.child("parameters");
            typed_reference(parameters, &at, problems);
            checks::one_of_given(parameters, "scope", &["Cluster", "Namespace"], &at, problems);
            let namespace = parameters.get("namespace");
            match get_str(parameters, "scope") {
                "Namespace" if namespace.is_none() => {
                    problems.required(&at.child("namespace"), "`parameters.scope` is set to 'Namespace'");
                }
                "Namespace" => {
                    checks::syntax(parameters, "namespace", names::is_dns1123_label, &at, problems)
                }
                "Cluster" if namespace.is_some() => {
                    problems.forbidden(&at.child("namespace"), "`parameters.scope` is set to 'Cluster'");
                }
                _ => {}
            }
        }
    }
}

struct Ingress;

impl Rules for Ingress {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let ingress = change.new;
        if change.subresource == "status" {
            checks::load_balancer(ingress, change.old.unwrap_or(&Value::Null), problems);
            return;
        }
        let path = Path::new("spec");
        let spec = &ingress["spec"];
        let rules = get_list(spec, "rules");
        if rules.is_empty() && spec.get("defaultBackend").is_none() {
            problems.invalid(
                &path,
                spec.get("rules").cloned().unwrap_or_default(),
                "either `defaultBackend` or `rules` must be specified",
            );
        }
        if let Some(value) = spec.get("defaultBackend") {
            backend(value, &path.child("defaultBackend"), problems);
        }
        let list = path.child("rules");
        for (index, rule) in rules.iter().enumerate() {
            let at = list.index(index);
            host(get_str(rule, "host"), &at.child("host"), problems);
            let Some(http) = rule.get("http") else { continue };
            let http_path = at.child("http");
            let paths = http_path.child("paths");
            if get_list(http, "paths").is_empty() {
                problems.required(&paths, "");
            }
            for (number, entry) in get_list(http, "paths").iter().enumerate() {
                http_path_rules(entry, &paths.index(number), problems);
            }
        }
        let list = path.child("tls");
        for (index, tls) in get_list(spec, "tls").iter().enumerate() {
            let at = list.index(index);
            let hosts = at.child("hosts");
            for (number, name) in get_list(tls, "hosts").iter().enumerate() {
                let name = name.as_str().unwrap_or_default();
                let check = if name.contains('*') {
                    names::is_wildcard_dns1123_subdomain
                } else {
                    names::is_dns1123_subdomain
                };
                problems.invalid_each(&hosts.index(number), name, check(name));
            }
            checks::syntax(tls, "secretName", names::is_dns1123_subdomain, &at, problems);
        }
        checks::syntax(spec, "ingressClassName", names::is_dns1123_subdomain, &path, problems);
        if change.old.is_none()
            && let Some(annotated) = ingress.annotation("kubernetes.io/ingress.class")
            && get(spec, "ingressClassName").is_some_and(|class| class != annotated)
        {
            let path = Path::new("annotations");
            problems.invalid(
                &path.child("kubernetes.io/ingress.class"),
                annotated,
                "must match `ingressClassName` when both are specified",
            );
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        match change.new.annotation("kubernetes.io/ingress.class") {
            Some(_) => vec![
                "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
                    .into(),
            ],
            None => Vec::new(),
        }
    }
}

fn host(host: &str, path: &Path<'_>, problems: &mut Problems) {
    if host.is_empty() {
        return;
    }
    if names::parse_ip_sloppy(host).is_some() {
        problems.invalid(path, host, "must be a DNS name, not an IP address");
    } else if host.contains('*') {
        problems.invalid_each(path, host, names::is_wildcard_dns1123_subdomain(host));
    } else {
        problems.invalid_each(path, host, names::is_dns1123_subdomain(host));
    }
}

fn http_path_rules(entry: &Value, path: &Path<'_>, problems: &mut Problems) {
    let text = get_str(entry, "path");
    let Some(kind) = entry.get("pathType").and_then(Value::as_str) else {
        problems.required(&path.child("pathType"), "pathType must be specified");
        return;
    };
    match kind {
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                problems.invalid(&path.child("path"), text, "must be an absolute path");
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.contains(bad) {
                    problems.invalid(&path.child("path"), text, format!("must not contain '{bad}'"));
                }
            }
            for bad in ["/..", "/."] {
                if text.ends_with(bad) {
                    problems.invalid(&path.child("path"), text, format!("cannot end with '{bad}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                problems.invalid(&path.child("path"), text, "must be an absolute path");
            }
        }
        other => problems.not_supported(
            &path.child("pathType"),
            other,
            &["Exact", "ImplementationSpecific", "Prefix"],
        ),
    }
    backend(&entry["backend"], &path.child("backend"), problems);
}

/// The group is optional, kind and name are not.
fn typed_reference(reference: &Value, path: &Path<'_>, problems: &mut Problems) {
    checks::syntax(reference, "apiGroup", names::is_dns1123_subdomain, path, problems);
    for field in ["kind", "name"] {
        checks::required_syntax(reference, field, names::is_path_segment_name, path, problems);
    }
}

fn backend(backend: &Value, path: &Path<'_>, problems: &mut Problems) {
    match (backend.get("service"), backend.get("resource")) {
        (Some(_), Some(_)) => problems.invalid(path, "", "cannot set both resource and service backends"),
        (None, None) => problems.invalid(path, "", "resource or service backend is required"),
        (None, Some(resource)) => {
            let at = path.child("resource");
            typed_reference(resource, &at, problems);
        }
        (Some(service), None) => {
            let at = path.child("service");
            checks::required_syntax(service, "name", names::is_dns1123_label, &at, problems);
            let port = &service["port"];
            let (name, number) = (get_str(port, "name"), port["number"].as_i64().unwrap_or(0));
            let port_path = at.child("port");
            match (name.is_empty(), number) {
                (true, 0) => problems.required(path, "port name or number is required"),
                (false, 0) => {
                    problems.invalid_each(&port_path.child("name"), name, names::is_port_name(name))
                }
                (false, _) => problems.invalid(path, "", "cannot set both port name & port number"),
                (true, number) => {
                    for complaint in names::is_port_number(number) {
                        problems.invalid(&port_path.child("number"), number, complaint);
                    }
                }
            }
        }
    }
}
