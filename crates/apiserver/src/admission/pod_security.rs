//! Pod Security Standards: what pods may ask of their node, by level, as labels of the namespace say.
//!
//! `enforce` refuses pods, `warn` tells the client (also about pod templates), `audit` notes it in the audit log.

use std::collections::BTreeMap;

use apimachinery::field::{Path, Problems};
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde::Deserialize;
use serde_json::Value;

pub mod checks;

use super::{Operation, Plugin, Request};
use crate::server::ApiServer;
use checks::{Found, violations};

const LABEL: &str = "pod-security.kubernetes.io/";

/// How strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Self {
        match text {
            "privileged" | "" => Self::Privileged,
            "baseline" => Self::Baseline,
            // What is not understood is judged by the strictest.
            _ => Self::Restricted,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// What holds in namespaces that do not say it themselves, by the label's name.
#[derive(Clone, Debug, Default)]
pub struct Defaults(BTreeMap<String, String>);

impl Defaults {
    /// Levels and versions by mode. The error is a field and what stands in it.
    pub fn parse(fields: &BTreeMap<String, String>) -> Result<Self, (String, String)> {
        for (field, value) in fields {
            let (mode, version) = field.split_once('-').unwrap_or((field, ""));
            let known = match version {
                "" => matches!(value.as_str(), "privileged" | "baseline" | "restricted"),
                "version" => value == "latest" || value.starts_with("v1."),
                _ => false,
            };
            if !known || !MODES.contains(&mode) {
                return Err((field.clone(), value.clone()));
            }
        }
        Ok(Self(fields.clone()))
    }
}

/// Who is not judged.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Exemptions {
    /// Users who ask.
    pub usernames: Vec<String>,
    /// Runtime classes of pods.
    pub runtime_classes: Vec<String>,
    /// Namespaces.
    pub namespaces: Vec<String>,
}

impl Exemptions {
    /// What the request is exempt by.
    fn find(&self, user: &str, namespace: &str, pod: &Value) -> Option<&'static str> {
        let has = |list: &[String], own: &str| list.iter().any(|one| one == own);
        if has(&self.namespaces, namespace) {
            return Some("namespace");
        }
        if has(&self.usernames, user) {
            return Some("user");
        }
        let class = pod["spec"]["runtimeClassName"].as_str().unwrap_or_default();
        (!class.is_empty() && has(&self.runtime_classes, class)).then_some("runtimeClass")
    }
}

/// The labels of a namespace say levels and versions that there are. What was odd before may stay.
fn namespace_labels(namespace: &Value, old: Option<&Value>) -> Result<(), Status> {
    let mut problems = Problems::new();
    let path = Path::new("metadata");
    let path = path.child("labels");
    for mode in MODES {
        for (label, is_level) in [(format!("{LABEL}{mode}"), true), (format!("{LABEL}{mode}-version"), false)]
        {
            let value = |object: &Value| object["metadata"]["labels"][&label].as_str().map(str::to_owned);
            let Some(text) = value(namespace) else { continue };
            if old.and_then(value).as_deref() == Some(&*text) {
                continue;
            }
            if is_level && !matches!(text.as_str(), "privileged" | "baseline" | "restricted") {
                let why = "must be one of privileged, baseline, restricted";
                problems.invalid(&path.key(&label), text.as_str(), why);
            } else if !is_level && !is_version(&text) {
                problems.invalid(&path.key(&label), text.as_str(), "must be \"latest\" or \"v1.x\"");
            }
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid("", "Namespace", namespace.name(), &problems))
    }
}

fn is_version(text: &str) -> bool {
    let minor = text.strip_prefix("v1.").filter(|minor| *minor == "0" || !minor.starts_with('0'));
    text == "latest" || minor.is_some_and(|minor| minor.parse::<u16>().is_ok())
}

const MODES: [&str; 3] = ["enforce", "audit", "warn"];

/// The plug-in.
pub struct PodSecurity {
    pub defaults: Defaults,
    pub exemptions: Exemptions,
}

impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) =
            object.filter(|_| matches!(request.operation, Operation::Create | Operation::Update))
        else {
            return Ok(());
        };
        let resource = &request.context.resource;
        if resource.group().is_empty() && resource.plural() == "namespaces" && request.subresource.is_empty()
        {
            namespace_labels(object, old)?;
            return self.existing_pods(server, request, object, old);
        }
        let is_pod = resource.group().is_empty() && resource.plural() == "pods";
        if !matches!(request.subresource, "" | "ephemeralcontainers") {
            return Ok(());
        }
        let Some(template) = pod_of(resource.group(), resource.plural(), object) else { return Ok(()) };
        if is_pod && old.is_some_and(|old| !is_significant(object, old)) {
            return Ok(());
        }
        let context = request.context;
        let operation = if request.operation == Operation::Create { "create" } else { "update" };
        let sort = if is_pod { "pod" } else { "controller" };
        let metrics = &server.metrics.admission;
        if let Some(by) = self.exemptions.find(&context.user.name, &context.info.namespace, template) {
            context.audit("pod-security.kubernetes.io/exempt", by.to_owned());
            metrics.pod_exemptions.count([operation, sort, request.subresource]);
            return Ok(());
        }
        let namespaces = server.builtin("", "namespaces")?;
        let Some(namespace) = server.cached(&namespaces, "", &request.context.info.namespace) else {
            return Ok(());
        };
        let namespace = namespace.parsed();
        let labels = &namespace["metadata"]["labels"];
        let mut refused = None;
        for mode in MODES {
            let (level, version) = self.policy(labels, mode);
            let enforces = mode == "enforce";
            // Who is refused needs no warning; the audit log is told nevertheless.
            let vain = mode == "warn" && refused.is_some();
            if vain || enforces && !is_pod || level == Level::Privileged && !enforces {
                continue;
            }
            if enforces {
                let policy = format!("{}:{version}", level.as_str());
                context.audit("pod-security.kubernetes.io/enforce-policy", policy);
            }
            let wrong = violations(template, level, minor(&version));
            let judged = |decision: &str| {
                let of = [decision, mode, level.as_str(), &version, operation, sort, request.subresource];
                metrics.pod_security.count(of);
            };
            // As upstream: what is only told is counted if there is something to tell.
            if wrong.is_empty() {
                if enforces {
                    judged("allow");
                }
                continue;
            }
            judged("deny");
            let told: Vec<String> = wrong.iter().map(Found::told).collect();
            let text = format!("PodSecurity \"{}:{version}\": {}", level.as_str(), told.join(", "));
            match mode {
                "enforce" => refused = Some(request.forbid(object.name(), &format!("violates {text}"))),
                "warn" => request.context.warn(format!("would violate {text}")),
                _ => request
                    .context
                    .audit("pod-security.kubernetes.io/audit-violations", format!("would violate {text}")),
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

impl PodSecurity {
    /// The level and version that labels give for `mode`. What is not understood is enforced as the strictest and told of
    /// not at all. Who enforces is warned of the same, unless the labels say otherwise.
    fn policy(&self, labels: &Value, mode: &str) -> (Level, String) {
        let own = |name: &str| labels.get(format!("{LABEL}{name}")).and_then(Value::as_str);
        let or_default = |name: &str| {
            own(name).or_else(|| self.defaults.0.get(name).map(String::as_str)).unwrap_or_default()
        };
        let version = |mode: &str| {
            let version = or_default(&format!("{mode}-version"));
            if is_version(version) { version.to_owned() } else { "latest".to_owned() }
        };
        let known = |level: &str| matches!(level, "privileged" | "baseline" | "restricted");
        let level = match own(mode) {
            Some(level) if mode != "enforce" && !known(level) => Level::Privileged,
            _ => Level::parse(or_default(mode)),
        };
        let enforced = own("enforce").filter(|enforced| known(enforced)).map(Level::parse);
        match enforced.filter(|enforced| mode == "warn" && own("warn").is_none() && *enforced > level) {
            Some(enforced) if own("warn-version").is_none() => (enforced, version("enforce")),
            Some(enforced) => (enforced, version(mode)),
            None => (level, version(mode)),
        }
    }

    /// Warns of pods that are there already and would not be let in any more.
    fn existing_pods(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let labels = &new["metadata"]["labels"];
        let (level, version) = self.policy(labels, "enforce");
        let before = old.map(|old| self.policy(&old["metadata"]["labels"], "enforce"));
        let exempt = self.exemptions.namespaces.iter().any(|own| own == new.name());
        let relaxed =
            |(old_level, old_version): &(Level, String)| *old_version == version && level <= *old_level;
        if exempt && (before.is_none() || level != Level::Privileged && !before.as_ref().is_some_and(relaxed))
        {
            let policies = MODES.iter().map(|mode| (mode, self.policy(labels, mode)));
            let policies = policies.filter(|(_, (level, _))| *level != Level::Privileged);
            let told: Vec<String> = policies
                .map(|(mode, (level, version))| format!("{mode}={}:{version}", level.as_str()))
                .collect();
            if !told.is_empty() {
                request.context.warn(format!(
                    "namespace {:?} is exempt from Pod Security, and the policy ({}) will be ignored",
                    new.name(),
                    told.join(", ")
                ));
            }
            return Ok(());
        }
        if exempt || level == Level::Privileged || before.is_none_or(|before| relaxed(&before)) {
            return Ok(());
        }
        let pods = server.builtin("", "pods")?;
        let Some(cache) = server.hub.cache(&pods.prefix) else { return Ok(()) };
        let entries = cache.snapshot(&pods.collection(new.name()), 0).entries;
        let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for entry in entries.iter().take(CHECK_AT_MOST) {
            let pod = pods.parse(entry);
            let class = pod["spec"]["runtimeClassName"].as_str().unwrap_or_default();
            if self.exemptions.runtime_classes.iter().any(|own| own == class) {
                continue;
            }
            let wrong = violations(&pod, level, minor(&version));
            if wrong.is_empty() {
                continue;
            }
            let reasons: Vec<&str> = wrong.iter().map(|one| one.reason).collect();
            let (first, count) =
                found.entry(reasons.join(", ")).or_insert_with(|| (pod.name().to_owned(), 0));
            if pod.name() < first.as_str() {
                *first = pod.name().to_owned();
            }
            *count += 1;
        }
        if entries.len() > CHECK_AT_MOST {
            request.context.warn(format!(
                "new PodSecurity enforce level only checked against the first {CHECK_AT_MOST} of {} existing pods",
                entries.len()
            ));
        }
        if !found.is_empty() {
            request.context.warn(format!(
                "existing pods in namespace {:?} violate the new PodSecurity enforce level \"{}:{version}\"",
                new.name(),
                level.as_str()
            ));
        }
        let mut warnings: Vec<String> = found
            .into_iter()
            .map(|(reasons, (first, count))| match count {
                1 => format!("{first}: {reasons}"),
                2 => format!("{first} (and 1 other pod): {reasons}"),
                more => format!("{first} (and {} other pods): {reasons}", more - 1),
            })
            .collect();
        warnings.sort_unstable();
        warnings.into_iter().for_each(|warning| request.context.warn(warning));
        Ok(())
    }
}

/// The most pods that a change of a namespace looks at.
const CHECK_AT_MOST: usize = 3000;

/// The minor version that a label names; the newest if it names none that there is.
fn minor(version: &str) -> u16 {
    let minor = version.strip_prefix("v1.").and_then(|minor| minor.parse().ok());
    minor.unwrap_or(checks::NEWEST)
}

/// Whether containers came or changed their image: nothing else of a pod's spec that may change is judged.
fn is_significant(new: &Value, old: &Value) -> bool {
    let images = |pod: &Value, list: &str| -> Vec<Value> {
        pod["spec"][list].as_array().into_iter().flatten().map(|one| one["image"].clone()).collect()
    };
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    lists.iter().any(|list| images(new, list) != images(old, list))
}

/// The pod, or the pod template of a workload.
pub(super) fn pod_of<'a>(group: &str, plural: &str, object: &'a Value) -> Option<&'a Value> {
    match (group, plural) {
        ("", "pods") => Some(object),
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => Some(&object["spec"]["template"]),
        ("", "podtemplates") => Some(&object["template"]),
        ("batch", "cronjobs") => Some(&object["spec"]["jobTemplate"]["spec"]["template"]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_say_what_is_enforced_and_what_is_warned_of() {
        let plugin = PodSecurity { defaults: Defaults::default(), exemptions: Exemptions::default() };
        let policy = |labels: Value, mode: &str| {
            let labels: Value = labels
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, value)| (format!("{LABEL}{key}"), value.clone()))
                .collect();
            let (level, version) = plugin.policy(&labels, mode);
            format!("{}:{version}", level.as_str())
        };
        for (labels, mode, wanted) in [
            (json!({}), "enforce", "privileged:latest"),
            (json!({"enforce": "baseline", "enforce-version": "v1.20"}), "enforce", "baseline:v1.20"),
            (json!({"enforce": "odd", "enforce-version": "odd"}), "enforce", "restricted:latest"),
            (json!({"enforce": "baseline", "enforce-version": "v1.20"}), "warn", "baseline:v1.20"),
            (json!({"enforce": "baseline", "warn": "privileged"}), "warn", "privileged:latest"),
            (json!({"enforce": "odd"}), "warn", "privileged:latest"),
            (json!({"warn": "odd"}), "warn", "privileged:latest"),
            (json!({"enforce": "restricted"}), "audit", "privileged:latest"),
        ] {
            assert_eq!(policy(labels.clone(), mode), wanted, "{mode} of {labels}");
        }
    }
}
