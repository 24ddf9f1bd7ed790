//! The file of `--admission-control-config-file`: what plug-ins are told, each in a document of its own or inline.
//!
//! A plug-in whose configuration is not understood is refused by name: rules that are not applied would let through what
//! they forbid.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_yaml_ng::Value;

use super::pod_security::{Defaults, Exemptions};

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// A file.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not YAML, or not in the right form.
    #[error("{what} is malformed")]
    Malformed {
        /// Which part.
        what: String,
        /// Why.
        #[source]
        source: serde_yaml_ng::Error,
    },
    /// Another document than wanted.
    #[error("{what} is of kind {kind:?} and version {version:?}, which is not understood")]
    Kind {
        /// Which part.
        what: String,
        /// What it is.
        kind: String,
        /// In which version.
        version: String,
    },
    /// A plug-in that cannot be told anything.
    #[error("the plug-in {0:?} takes no configuration here")]
    Plugin(String),
    /// A field.
    #[error("{field}: {value:?} is not understood")]
    Field {
        /// Which one.
        field: String,
        /// What stands there.
        value: String,
    },
}

/// What the plug-ins are told.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// PodSecurity: what holds in namespaces without labels.
    pub defaults: Defaults,
    /// PodSecurity: who is not judged.
    pub exemptions: Exemptions,
    /// ResourceQuota: what may only be used if a quota allows it.
    pub limited: Vec<LimitedResource>,
}

/// A resource whose use needs a quota.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LimitedResource {
    /// The group of the objects.
    #[serde(default)]
    pub api_group: String,
    /// Their plural name.
    pub resource: String,
    /// Names of what they use contain one of these.
    #[serde(default)]
    pub match_contains: Vec<String>,
    /// Or they are in one of these scopes.
    #[serde(default)]
    pub match_scopes: Vec<Scope>,
}

/// A scope as quotas select it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Scope {
    /// Its name.
    pub scope_name: String,
    /// In, NotIn, Exists, DoesNotExist.
    #[serde(default)]
    pub operator: String,
    /// What it is compared with.
    #[serde(default)]
    pub values: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    plugins: Vec<Plugin>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plugin {
    name: String,
    #[serde(default)]
    path: PathBuf,
    configuration: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Quota {
    #[serde(default)]
    limited_resources: Vec<LimitedResource>,
}

#[derive(Deserialize)]
struct Security {
    #[serde(default)]
    defaults: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    exemptions: Exemptions,
}

impl Configuration {
    /// Reads the file and those that it names, relative to it.
    pub fn load(path: &Path) -> Result<Self, ConfigurationError> {
        let file: File = document("the file", &yaml(path)?, &[("AdmissionConfiguration", "apiserver")])?;
        let mut all = Self::default();
        for plugin in file.plugins {
            let what = format!("the configuration of {}", plugin.name);
            let value = match plugin.configuration {
                Some(value) => value,
                None if plugin.path.as_os_str().is_empty() => continue,
                None => yaml(&path.parent().unwrap_or(Path::new("")).join(&plugin.path))?,
            };
            match plugin.name.as_str() {
                "PodSecurity" => {
                    let kinds = [("PodSecurityConfiguration", "pod-security.admission.config")];
                    let own: Security = document(&what, &value, &kinds)?;
                    all.defaults = Defaults::parse(&own.defaults)
                        .map_err(|(field, value)| ConfigurationError::Field { field, value })?;
                    all.exemptions = own.exemptions;
                }
                "ResourceQuota" => {
                    let kinds = [
                        ("ResourceQuotaConfiguration", "apiserver.config"),
                        ("Configuration", "resourcequota"),
                    ];
                    all.limited = document::<Quota>(&what, &value, &kinds)?.limited_resources;
                }
                _ => return Err(ConfigurationError::Plugin(plugin.name)),
            }
        }
        Ok(all)
    }
}

fn yaml(path: &Path) -> Result<Value, ConfigurationError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigurationError::Read { path: path.to_owned(), source })?;
    serde_yaml_ng::from_str(&text)
        .map_err(|source| ConfigurationError::Malformed { what: path.display().to_string(), source })
}

fn document<T: serde::de::DeserializeOwned>(
    what: &str,
    value: &Value,
    kinds: &[(&str, &str)],
) -> Result<T, ConfigurationError> {
    let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, version) = (field("kind"), field("apiVersion"));
    if !kinds.iter().any(|(own, group)| *own == kind && version.starts_with(group)) {
        return Err(ConfigurationError::Kind { what: what.to_owned(), kind, version });
    }
    serde_yaml_ng::from_value(value.clone())
        .map_err(|source| ConfigurationError::Malformed { what: what.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";

    fn load(text: &str) -> Result<Configuration, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        std::fs::write(&path, format!("{HEAD}{text}")).unwrap();
        let quota = "apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\n\
                     limitedResources: [{resource: pods, matchContains: [cpu]}]\n";
        std::fs::write(dir.path().join("quota.yaml"), quota).unwrap();
        Configuration::load(&path).map_err(|error| telemetry::chain(&error).to_string())
    }

    #[test]
    fn known_plug_ins_are_told_and_others_refused() {
        let security = "- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    \
                        kind: PodSecurityConfiguration\n    defaults: {enforce: baseline, warn: restricted}\n    \
                        exemptions: {usernames: [ann], namespaces: [kube-system]}\n";
        let all =
            load(&format!("{security}- name: ResourceQuota\n  path: quota.yaml\n- name: NodeRestriction\n"))
                .unwrap();
        assert_eq!(all.exemptions.namespaces, ["kube-system"]);
        assert_eq!((all.limited[0].resource.as_str(), all.limited[0].match_contains.len()), ("pods", 1));
        assert!(load(&security.replace("baseline", "basic")).unwrap_err().contains("basic"));
        assert!(
            load("- name: EventRateLimit\n  configuration: {}\n").unwrap_err().contains("EventRateLimit")
        );
        assert!(load(&security.replace("PodSecurityConfiguration", "Pod")).unwrap_err().contains("Pod"));
        assert!(load("- name: PodSecurity\n  path: missing\n").unwrap_err().contains("missing"));
    }
}
