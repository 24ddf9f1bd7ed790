//! A container's environment: literal values, references, services, and `$(NAME)` in values, commands and arguments.
//! Pure: the objects referred to are handed in.

use std::collections::{BTreeMap, HashMap};

use thiserror::Error;

use crate::downward::{self, DownwardError, PodFacts};
use crate::pod::{Container, Pod};

/// Values of a ConfigMap or Secret.
pub type Data = BTreeMap<String, Vec<u8>>;

/// The objects that the environment refers to; `None` for one that does not exist.
#[derive(Debug, Default)]
pub struct References {
    pub config_maps: HashMap<String, Option<Data>>,
    pub secrets: HashMap<String, Option<Data>>,
}

#[derive(Debug, Error, PartialEq)]
pub enum EnvironmentError {
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("couldn't find key {key} in ConfigMap {namespace}/{name}")]
    NoConfigKey { namespace: String, name: String, key: String },
    #[error("couldn't find key {key} in Secret {namespace}/{name}")]
    NoSecretKey { namespace: String, name: String, key: String },
    #[error("environment variable {name} has a source that this node does not support: {kind}")]
    Unsupported { name: String, kind: &'static str },
    #[error(transparent)]
    Downward(#[from] DownwardError),
}

/// A Service as environment variables need it.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ServicePort {
    pub name: String,
    pub port: u16,
    pub protocol: String,
}

/// Replaces `$(NAME)` by a value, leaves unknown names as they stand, and turns `$$` into `$`.
pub fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(inner) = tail.strip_prefix('(')
            && let Some(end) = inner.find(')')
        {
            let name = &inner[..end];
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = &inner[end + 1..];
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

/// The variables of a container, in the order in which they are set.
pub fn variables(
    pod: &Pod,
    container: &Container,
    facts: &PodFacts<'_>,
    references: &References,
    services: &[Service],
) -> Result<Vec<(String, Vec<u8>)>, EnvironmentError> {
    let mut set = Variables::default();
    for source in &container.env_from {
        let (found, what, optional) = if let Some(map) = &source.config_map_ref {
            let found = references.config_maps.get(&map.name).and_then(Option::as_ref);
            (found, EnvironmentError::NoConfigMap(map.name.clone()), map.optional)
        } else if let Some(secret) = &source.secret_ref {
            let found = references.secrets.get(&secret.name).and_then(Option::as_ref);
            (found, EnvironmentError::NoSecret(secret.name.clone()), secret.optional)
        } else {
            continue;
        };
        let Some(data) = found else {
            if optional == Some(true) {
                continue;
            }
            return Err(what);
        };
        for (key, value) in data {
            let name = format!("{}{key}", source.prefix);
            if is_variable_name(&name) {
                set.put(name, value.clone());
            }
        }
    }
    let service_variables = service_variables(pod, services);
    for variable in &container.env {
        let value = match &variable.value_from {
            None => {
                let lookup = |name: &str| set.get(name).or_else(|| service_variables.get(name).cloned());
                Some(expand(&variable.value, &lookup).into_bytes())
            }
            Some(source) => {
                if let Some(field) = &source.field_ref {
                    Some(downward::field(pod, facts, &field.field_path)?.into_bytes())
                } else if let Some(resource) = &source.resource_field_ref {
                    Some(downward::resource(pod, Some(container), facts, resource)?.into_bytes())
                } else if let Some(key) = &source.config_map_key_ref {
                    let data = references.config_maps.get(&key.name).and_then(Option::as_ref);
                    match (data, data.and_then(|data| data.get(&key.key))) {
                        (_, Some(value)) => Some(value.clone()),
                        _ if key.optional == Some(true) => None,
                        (None, _) => return Err(EnvironmentError::NoConfigMap(key.name.clone())),
                        (Some(_), None) => {
                            return Err(EnvironmentError::NoConfigKey {
                                namespace: pod.metadata.namespace.clone(),
                                name: key.name.clone(),
                                key: key.key.clone(),
                            });
                        }
                    }
                } else if let Some(key) = &source.secret_key_ref {
                    let data = references.secrets.get(&key.name).and_then(Option::as_ref);
                    match (data, data.and_then(|data| data.get(&key.key))) {
                        (_, Some(value)) => Some(value.clone()),
                        _ if key.optional == Some(true) => None,
                        (None, _) => return Err(EnvironmentError::NoSecret(key.name.clone())),
                        (Some(_), None) => {
                            return Err(EnvironmentError::NoSecretKey {
                                namespace: pod.metadata.namespace.clone(),
                                name: key.name.clone(),
                                key: key.key.clone(),
                            });
                        }
                    }
                } else {
                    let kind = if source.file_key_ref.is_some() { "fileKeyRef" } else { "unknown" };
                    return Err(EnvironmentError::Unsupported { name: variable.name.clone(), kind });
                }
            }
        };
        if let Some(value) = value {
            set.put(variable.name.clone(), value);
        }
    }
    // The pod's own variables win over those of services.
    for (name, value) in service_variables {
        if set.get(&name).is_none() {
            set.put(name, value.into_bytes());
        }
    }
    Ok(set.0)
}

/// Variables in order; a later value of a name replaces the earlier one in its place.
#[derive(Default)]
struct Variables(Vec<(String, Vec<u8>)>);

impl Variables {
    fn put(&mut self, name: String, value: Vec<u8>) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }
}

/// Kubernetes takes any printable name without `=`.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

/// `NAME_SERVICE_HOST` and its family. The API server's own service is there even without `enableServiceLinks`.
fn service_variables(pod: &Pod, services: &[Service]) -> BTreeMap<String, String> {
    let links = pod.spec.enable_service_links.unwrap_or(true);
    let mut all = BTreeMap::new();
    for service in services {
        let master = service.namespace == "default" && service.name == "kubernetes";
        let linked = links && service.namespace == pod.metadata.namespace;
        let addressed = !matches!(service.cluster_ip.as_str(), "" | "None");
        if !(master || linked) || !addressed {
            continue;
        }
        let Some(first) = service.ports.first() else { continue };
        let prefix = service.name.to_uppercase().replace('-', "_");
        let mut put = |name: String, value: String| {
            all.insert(name, value);
        };
        put(format!("{prefix}_SERVICE_HOST"), service.cluster_ip.clone());
        put(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        for port in &service.ports {
            if !port.name.is_empty() {
                let name = port.name.to_uppercase().replace('-', "_");
                put(format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string());
            }
        }
        let url = |port: &ServicePort| {
            let host = if service.cluster_ip.contains(':') {
                format!("[{}]", service.cluster_ip)
            } else {
                service.cluster_ip.clone()
            };
            format!("{}://{host}:{}", port.protocol.to_lowercase(), port.port)
        };
        put(format!("{prefix}_PORT"), url(first));
        for port in &service.ports {
            let family = format!("{prefix}_PORT_{}_{}", port.port, port.protocol.to_uppercase());
            put(format!("{family}_PROTO"), port.protocol.to_lowercase());
            put(format!("{family}_PORT"), port.port.to_string());
            put(format!("{family}_ADDR"), service.cluster_ip.clone());
            put(family, url(port));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_expand_as_upstream_does() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, wanted) in [
            ("$(A)", "1"),
            ("x$(A)y$(B)", "x1y$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A $", "$A $"),
            ("$(A", "$(A"),
        ] {
            assert_eq!(expand(text, &lookup), wanted, "{text}");
        }
    }

    fn pod(container: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"serviceAccountName": "sa", "containers": [container]},
        }))
        .unwrap()
    }

    fn text(variables: &[(String, Vec<u8>)]) -> Vec<String> {
        variables.iter().map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value))).collect()
    }

    #[test]
    fn values_come_from_everywhere_in_order() {
        let pod = pod(json!({
            "name": "c",
            "resources": {"limits": {"cpu": "1500m"}},
            "envFrom": [{"prefix": "M_", "configMapRef": {"name": "map"}}],
            "env": [
                {"name": "A", "value": "a"},
                {"name": "B", "value": "$(A)$(M_x)-$(WEB_SERVICE_HOST)"},
                {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "K", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "k"}}},
                {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}},
                {"name": "A", "value": "last"},
            ],
        }));
        let references = References {
            config_maps: [("map".into(), Some([("x".into(), b"X".to_vec()), ("b=d".into(), vec![])].into()))]
                .into(),
            secrets: [("sec".into(), Some([("k".into(), b"s3".to_vec())].into()))].into(),
        };
        let port = ServicePort { name: "http".into(), port: 80, protocol: "TCP".into() };
        let services = [
            Service {
                namespace: "n".into(),
                name: "web".into(),
                cluster_ip: "10.0.0.1".into(),
                ports: vec![port.clone()],
            },
            Service {
                namespace: "m".into(),
                name: "far".into(),
                cluster_ip: "10.0.0.2".into(),
                ports: vec![port],
            },
        ];
        let facts = PodFacts::default();
        let variables = variables(&pod, &pod.spec.containers[0], &facts, &references, &services).unwrap();
        let text = text(&variables);
        assert_eq!(text[..6], ["M_x=X", "A=last", "B=aX-10.0.0.1", "NS=n", "CPU=2", "K=s3"]);
        assert!(text.contains(&"WEB_PORT_80_TCP=tcp://10.0.0.1:80".to_owned()));
        assert!(text.contains(&"WEB_SERVICE_PORT_HTTP=80".to_owned()));
        assert!(!text.iter().any(|line| line.starts_with("FAR_")));
    }

    #[test]
    fn a_missing_object_is_named() {
        let missing =
            pod(json!({"env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]}));
        let run = |references: &References| {
            variables(&missing, &missing.spec.containers[0], &PodFacts::default(), references, &[])
                .unwrap_err()
                .to_string()
        };
        assert_eq!(run(&References::default()), "configmap \"m\" not found");
        let empty =
            References { config_maps: [("m".into(), Some(Data::new()))].into(), ..References::default() };
        assert_eq!(run(&empty), "couldn't find key k in ConfigMap n/m");
    }
}
