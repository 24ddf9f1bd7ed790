//! Pod Security Standards: what pods may ask of their node, by level, as labels of the namespace say.
//!
//! `enforce` refuses pods, `warn` tells the client (also about pod templates), `audit` notes it in the audit log.

use std::collections::BTreeMap;

use apimachinery::field::{Path, Problems};
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde::Deserialize;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::server::ApiServer;

const LABEL: &str = "pod-security.kubernetes.io/";

/// How strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
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
            return namespace_labels(object, old);
        }
        let is_pod = resource.group().is_empty() && resource.plural() == "pods";
        if !matches!(request.subresource, "" | "ephemeralcontainers") {
            return Ok(());
        }
        let Some(template) = pod_of(resource.group(), resource.plural(), object) else { return Ok(()) };
        if let Some(before) = old.and_then(|old| pod_of(resource.group(), resource.plural(), old))
            && before["spec"] == template["spec"]
        {
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
        let labels = namespace.labels();
        let label = |name: &str| {
            let key = format!("{LABEL}{name}");
            labels
                .iter()
                .find(|(own, _)| **own == *key)
                .map(|(_, value)| value.to_string())
                .or_else(|| self.defaults.0.get(name).cloned())
                .unwrap_or_default()
        };
        let mut refused = None;
        for mode in MODES {
            let level = Level::parse(&label(mode));
            let enforces = mode == "enforce";
            // Who is refused needs no warning; the audit log is told nevertheless.
            let vain = mode == "warn" && refused.is_some();
            if vain || enforces && !is_pod || level == Level::Privileged && !enforces {
                continue;
            }
            let version = label(&format!("{mode}-version"));
            let version = if version.is_empty() { "latest".to_owned() } else { version };
            let wrong = violations(template, level);
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
            let text = format!("PodSecurity \"{}:{version}\": {}", level.as_str(), wrong.join(", "));
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

fn containers(pod: &Value) -> Vec<&Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
        .collect()
}

/// `container "a"` or `containers "a", "b"`.
fn named(list: &[&Value]) -> String {
    let names: Vec<String> =
        list.iter().map(|one| format!("{:?}", one["name"].as_str().unwrap_or_default())).collect();
    format!("container{} {}", if names.len() == 1 { "" } else { "s" }, names.join(", "))
}

fn quoted<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
    let mut values: Vec<&str> = values.into_iter().collect();
    values.sort_unstable();
    values.dedup();
    values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ")
}

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SYSCTLS: [&str; 11] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
];
const SELINUX_TYPES: [&str; 4] = ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
const VOLUMES: [&str; 10] = [
    "name",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Everything that a level does not allow.
fn violations(pod: &Value, level: Level) -> Vec<String> {
    let mut wrong = Vec::new();
    if level >= Level::Baseline {
        baseline(pod, &mut wrong);
    }
    if level >= Level::Restricted {
        restricted(pod, &mut wrong);
    }
    wrong
}

/// Probes and hooks ask the pod itself, no other host.
fn probe_hosts(all: &[&Value], wrong: &mut Vec<String>) {
    const HANDLERS: [&str; 5] =
        ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"];
    let (mut bad, mut hosts) = (Vec::new(), Vec::new());
    for one in all {
        let handlers = HANDLERS.iter().filter_map(|handler| one.pointer(handler));
        let asked = handlers.flat_map(|handler| [&handler["httpGet"]["host"], &handler["tcpSocket"]["host"]]);
        let asked: Vec<&str> = asked.filter_map(Value::as_str).filter(|host| !host.is_empty()).collect();
        if !asked.is_empty() {
            bad.push(*one);
            hosts.extend(asked);
        }
    }
    if !bad.is_empty() {
        let verb = if bad.len() == 1 { "uses" } else { "use" };
        hosts.sort_unstable();
        hosts.dedup();
        let word = if hosts.len() == 1 { "host" } else { "hosts" };
        wrong.push(format!(
            "probe or lifecycle host ({} {verb} probe or lifecycle {word} {})",
            named(&bad),
            quoted(hosts)
        ));
    }
}

fn baseline(pod: &Value, wrong: &mut Vec<String>) {
    let spec = &pod["spec"];
    let all = containers(pod);
    let hosts: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| spec[**field] == true)
        .map(|field| format!("{field}=true"))
        .collect();
    if !hosts.is_empty() {
        wrong.push(format!("host namespaces ({})", hosts.join(", ")));
    }
    let privileged: Vec<&Value> =
        all.iter().copied().filter(|one| one["securityContext"]["privileged"] == true).collect();
    if !privileged.is_empty() {
        wrong.push(format!(
            "privileged ({} must not set securityContext.privileged=true)",
            named(&privileged)
        ));
    }
    let mut bad = Vec::new();
    let mut values = Vec::new();
    for one in &all {
        let added = one["securityContext"]["capabilities"]["add"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let extra: Vec<&str> = added.filter(|name| !CAPABILITIES.contains(name)).collect();
        if !extra.is_empty() {
            bad.push(*one);
            values.extend(extra);
        }
    }
    if !bad.is_empty() {
        wrong.push(format!(
            "non-default capabilities ({} must not include {} in securityContext.capabilities.add)",
            named(&bad),
            quoted(values)
        ));
    }
    let paths: Vec<&str> = spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|volume| volume["hostPath"].is_object())
        .filter_map(|volume| volume["name"].as_str())
        .collect();
    if !paths.is_empty() {
        let word = if paths.len() == 1 { "volume" } else { "volumes" };
        wrong.push(format!("hostPath volumes ({word} {})", quoted(paths)));
    }
    let mut bad = Vec::new();
    let mut ports = Vec::new();
    for one in &all {
        let used = one["ports"].as_array().into_iter().flatten().filter_map(|port| port["hostPort"].as_i64());
        let used: Vec<String> = used.filter(|port| *port != 0).map(|port| port.to_string()).collect();
        if !used.is_empty() {
            bad.push(*one);
            ports.extend(used);
        }
    }
    if !bad.is_empty() {
        wrong.push(format!(
            "hostPort ({} uses hostPort{} {})",
            named(&bad),
            if ports.len() == 1 { "" } else { "s" },
            ports.join(", ")
        ));
    }
    probe_hosts(&all, wrong);
    let contexts = || {
        std::iter::once((&spec["securityContext"], None))
            .chain(all.iter().map(|one| (&one["securityContext"], Some(*one))))
    };
    if contexts().any(|(context, _)| context["appArmorProfile"]["type"] == "Unconfined") {
        wrong.push("forbidden AppArmor profile (appArmorProfile.type must not be \"Unconfined\")".to_owned());
    }
    let selinux = contexts().any(|(context, _)| {
        let own = &context["seLinuxOptions"];
        let text = |field: &str| own[field].as_str().unwrap_or_default();
        (!text("type").is_empty() && !SELINUX_TYPES.contains(&text("type")))
            || !text("user").is_empty()
            || !text("role").is_empty()
    });
    if selinux {
        wrong.push("seLinuxOptions (type, user or role may not be set)".to_owned());
    }
    let masks: Vec<&Value> = all
        .iter()
        .copied()
        .filter(|one| one["securityContext"]["procMount"].as_str().is_some_and(|own| own != "Default"))
        .collect();
    if !masks.is_empty() {
        wrong.push(format!(
            "procMount ({} must not set securityContext.procMount to \"Unmasked\")",
            named(&masks)
        ));
    }
    let unconfined: Vec<&Value> = all
        .iter()
        .copied()
        .filter(|one| one["securityContext"]["seccompProfile"]["type"] == "Unconfined")
        .collect();
    if spec["securityContext"]["seccompProfile"]["type"] == "Unconfined" {
        wrong.push(
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")"
                .to_owned(),
        );
    } else if !unconfined.is_empty() {
        wrong.push(format!(
            "seccompProfile ({} must not set securityContext.seccompProfile.type to \"Unconfined\")",
            named(&unconfined)
        ));
    }
    let sysctls: Vec<&str> = spec["securityContext"]["sysctls"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["name"].as_str())
        .filter(|name| !SYSCTLS.contains(name) && *name != "net.ipv4.tcp_wmem")
        .collect();
    if !sysctls.is_empty() {
        wrong.push(format!("forbidden sysctls ({})", sysctls.join(", ")));
    }
    if contexts().any(|(context, _)| context["windowsOptions"]["hostProcess"] == true) {
        wrong.push(
            "hostProcess (pod and containers must not set securityContext.windowsOptions.hostProcess=true)"
                .to_owned(),
        );
    }
}

fn restricted(pod: &Value, wrong: &mut Vec<String>) {
    let spec = &pod["spec"];
    let all = containers(pod);
    let mut kinds = Vec::new();
    let mut names = Vec::new();
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        for kind in volume.as_object().into_iter().flatten().map(|(kind, _)| kind.as_str()) {
            if !VOLUMES.contains(&kind) {
                kinds.push(kind);
                names.extend(volume["name"].as_str());
            }
        }
    }
    if !kinds.is_empty() {
        let word = if names.len() == 1 { "volume" } else { "volumes" };
        wrong.push(format!(
            "restricted volume types ({word} {} uses restricted volume type {})",
            quoted(names),
            quoted(kinds)
        ));
    }
    let escalating: Vec<&Value> = all
        .iter()
        .copied()
        .filter(|one| one["securityContext"]["allowPrivilegeEscalation"] != false)
        .collect();
    if !escalating.is_empty() {
        wrong.push(format!(
            "allowPrivilegeEscalation != false ({} must set securityContext.allowPrivilegeEscalation=false)",
            named(&escalating)
        ));
    }
    let capability = |one: &Value, list: &str, wanted: &str| {
        one["securityContext"]["capabilities"][list].as_array().into_iter().flatten().any(|own| own == wanted)
    };
    let keeping: Vec<&Value> = all.iter().copied().filter(|one| !capability(one, "drop", "ALL")).collect();
    let adding: Vec<&Value> = all
        .iter()
        .copied()
        .filter(|one| {
            let added = one["securityContext"]["capabilities"]["add"].as_array().into_iter().flatten();
            added.into_iter().any(|own| own != "NET_BIND_SERVICE")
        })
        .collect();
    let mut parts = Vec::new();
    if !keeping.is_empty() {
        parts.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&keeping)));
    }
    if !adding.is_empty() {
        parts.push(format!(
            "{} must not include other than \"NET_BIND_SERVICE\" in securityContext.capabilities.add",
            named(&adding)
        ));
    }
    if !parts.is_empty() {
        wrong.push(format!("unrestricted capabilities ({})", parts.join("; ")));
    }
    let pod_context = &spec["securityContext"];
    let rooted: Vec<&Value> = all
        .iter()
        .copied()
        .filter(|one| match one["securityContext"]["runAsNonRoot"].as_bool() {
            Some(own) => !own,
            None => pod_context["runAsNonRoot"] != true,
        })
        .collect();
    if !rooted.is_empty() {
        wrong.push(format!(
            "runAsNonRoot != true (pod or {} must set securityContext.runAsNonRoot=true)",
            named(&rooted)
        ));
    }
    let zero: Vec<&Value> =
        all.iter().copied().filter(|one| one["securityContext"]["runAsUser"] == 0).collect();
    if pod_context["runAsUser"] == 0 {
        wrong.push("runAsUser=0 (pod must not set runAsUser=0)".to_owned());
    } else if !zero.is_empty() {
        wrong.push(format!("runAsUser=0 ({} must not set runAsUser=0)", named(&zero)));
    }
    let good = |kind: &Value| matches!(kind.as_str(), Some("RuntimeDefault" | "Localhost"));
    let open: Vec<&Value> = all
        .iter()
        .copied()
        .filter(|one| {
            let own = &one["securityContext"]["seccompProfile"]["type"];
            if own.is_null() { !good(&pod_context["seccompProfile"]["type"]) } else { !good(own) }
        })
        .collect();
    if !open.is_empty() {
        wrong.push(format!(
            "seccompProfile (pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            named(&open)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_level_refuses_what_it_must() {
        let plain = json!({"spec": {"containers": [{"name": "a"}]}});
        assert!(violations(&plain, Level::Baseline).is_empty());
        let found = violations(&plain, Level::Restricted);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("container \"a\" must set securityContext.allowPrivilegeEscalation=false"));
        let good = json!({"spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        }});
        assert!(violations(&good, Level::Restricted).is_empty());
        for (path, value) in [
            ("/spec/hostNetwork", json!(true)),
            ("/spec/containers/0/securityContext", json!({"privileged": true})),
            ("/spec/containers/0/securityContext", json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
            ("/spec/volumes", json!([{"name": "v", "hostPath": {"path": "/"}}])),
            ("/spec/containers/0/ports", json!([{"hostPort": 80}])),
            ("/spec/containers/0/livenessProbe", json!({"httpGet": {"port": 80, "host": "192.0.2.1"}})),
            ("/spec/securityContext", json!({"sysctls": [{"name": "kernel.msgmax"}]})),
            ("/spec/securityContext", json!({"seccompProfile": {"type": "Unconfined"}})),
        ] {
            let mut pod = json!({"spec": {"hostNetwork": false, "securityContext": {}, "volumes": [], "containers": [{"name": "a", "securityContext": {}, "ports": [], "livenessProbe": {}}]}});
            *pod.pointer_mut(path).unwrap() = value;
            assert_eq!(violations(&pod, Level::Baseline).len(), 1, "{path}");
        }
    }
}
