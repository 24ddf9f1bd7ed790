//! What the levels do not allow, as a table: each check has a level, and the version of the standards that brought it. Some
//! checks of the restricted level stand in for one of the baseline.

use serde_json::Value;

use super::Level;

/// The newest version of the standards.
pub const NEWEST: u16 = 36;

/// What a check finds: in a word, and in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub reason: &'static str,
    pub detail: String,
}

impl Found {
    pub fn told(&self) -> String {
        format!("{} ({})", self.reason, self.detail)
    }
}

type Judge = fn(&Pod<'_>) -> Option<Found>;

struct Check {
    id: &'static str,
    level: Level,
    since: u16,
    /// The check of the baseline that need not be made beside it.
    instead_of: &'static str,
    judge: Judge,
}

const fn check(id: &'static str, level: Level, since: u16, instead_of: &'static str, judge: Judge) -> Check {
    Check { id, level, since, instead_of, judge }
}

/// In the order in which violations are told.
const CHECKS: [Check; 19] = [
    check("appArmorProfile", Level::Baseline, 0, "", app_armor),
    check("capabilities_baseline", Level::Baseline, 0, "", added_capabilities),
    check("hostNamespaces", Level::Baseline, 0, "", host_namespaces),
    check("hostPathVolumes", Level::Baseline, 0, "", host_paths),
    check("hostPorts", Level::Baseline, 0, "", host_ports),
    check("hostProbesAndHostLifecycle", Level::Baseline, 34, "", probe_hosts),
    check("privileged", Level::Baseline, 0, "", privileged),
    check("procMount", Level::Baseline, 0, "", proc_mount_of_host_users),
    check("seLinuxOptions", Level::Baseline, 0, "", selinux),
    check("seccompProfile_baseline", Level::Baseline, 0, "", seccomp),
    check("sysctls", Level::Baseline, 0, "", sysctls),
    check("windowsHostProcess", Level::Baseline, 0, "", host_process),
    check("allowPrivilegeEscalation", Level::Restricted, 8, "", escalation),
    check("capabilities_restricted", Level::Restricted, 22, "capabilities_baseline", dropped_capabilities),
    check("procMount_restricted", Level::Restricted, 35, "procMount", proc_mount),
    check("restrictedVolumes", Level::Restricted, 0, "hostPathVolumes", volumes),
    check("runAsNonRoot", Level::Restricted, 0, "", non_root),
    check("runAsUser", Level::Restricted, 23, "", root_user),
    check("seccompProfile_restricted", Level::Restricted, 19, "seccompProfile_baseline", required_seccomp),
];

/// Everything that a level does not allow in the standards of Kubernetes 1.`minor`.
pub fn violations(pod: &Value, level: Level, minor: u16) -> Vec<Found> {
    let pod = Pod::new(pod, minor.min(NEWEST));
    let counts = |check: &&Check| check.level <= level && check.since <= pod.minor;
    let stands_in = |id: &str| CHECKS.iter().filter(counts).any(|check| check.instead_of == id);
    let counting = CHECKS.iter().filter(counts).filter(|check| !stands_in(check.id));
    counting.filter_map(|check| (check.judge)(&pod)).collect()
}

/// A pod or template in the parts that are looked at.
struct Pod<'a> {
    annotations: &'a Value,
    spec: &'a Value,
    containers: Vec<&'a Value>,
    minor: u16,
}

impl<'a> Pod<'a> {
    fn new(pod: &'a Value, minor: u16) -> Self {
        let spec = &pod["spec"];
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let containers = lists.iter().flat_map(|list| spec[*list].as_array().into_iter().flatten()).collect();
        Self { annotations: &pod["metadata"]["annotations"], spec, containers, minor }
    }

    /// What only Linux has need not be set for Windows.
    fn is_windows(&self) -> bool {
        self.minor >= 25 && self.spec["os"]["name"] == "windows"
    }

    /// Root in a user namespace of its own is nobody outside.
    fn has_own_users(&self) -> bool {
        self.minor >= 35 && self.spec["hostUsers"] == false
    }

    fn context(&self) -> &'a Value {
        &self.spec["securityContext"]
    }

    fn volumes(&self) -> impl Iterator<Item = &'a Value> {
        self.spec["volumes"].as_array().into_iter().flatten()
    }

    /// The names of the containers for which `is` holds.
    fn containers(&self, mut is: impl FnMut(&Value) -> bool) -> Vec<&'a str> {
        let found = self.containers.iter().filter(|one| is(one));
        found.map(|one| one["name"].as_str().unwrap_or_default()).collect()
    }

    /// Who sets something in its security context: the pod, containers.
    fn setters(&self, mut is: impl FnMut(&Value) -> bool) -> Vec<String> {
        let mut setters = Vec::new();
        if is(self.context()) {
            setters.push("pod".to_owned());
        }
        let containers = self.containers(|one| is(&one["securityContext"]));
        if !containers.is_empty() {
            setters.push(named(&containers));
        }
        setters
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn words(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn quoted<T: AsRef<str>>(words: &[T]) -> String {
    words.iter().map(|word| format!("\"{}\"", word.as_ref())).collect::<Vec<_>>().join(", ")
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"` or `containers "a", "b"`.
fn named(containers: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", containers.len()), quoted(containers))
}

fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort_unstable();
    words.dedup();
    words
}

fn found(reason: &'static str, detail: String) -> Option<Found> {
    Some(Found { reason, detail })
}

fn app_armor(pod: &Pod<'_>) -> Option<Found> {
    const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
    let mut values = Vec::new();
    let mut setters = pod.setters(|context| {
        let kind = &context["appArmorProfile"]["type"];
        let bad =
            context["appArmorProfile"].is_object() && !matches!(text(kind), "RuntimeDefault" | "Localhost");
        if bad {
            values.push(text(kind).to_owned());
        }
        bad
    });
    let mut values = sorted(values);
    let good = |value: &str| matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
    let annotations = pod.annotations.as_object().into_iter().flatten();
    let annotations = annotations.filter(|(key, value)| key.starts_with(PREFIX) && !good(text(value)));
    let annotations = sorted(annotations.map(|(key, value)| format!("{key}={:?}", text(value))).collect());
    if !annotations.is_empty() {
        setters.push(plural("annotation", "annotations", annotations.len()).to_owned());
        values.extend(annotations);
    }
    if setters.is_empty() {
        return None;
    }
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    let detail =
        format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(&values));
    found(reason, detail)
}

/// The capabilities that a container adds beyond those that `good` takes; collects them.
fn adds(container: &Value, good: impl Fn(&str) -> bool, all: &mut Vec<String>) -> bool {
    let added = words(&container["securityContext"]["capabilities"]["add"]);
    let bad: Vec<String> = added.filter(|own| !good(own)).map(str::to_owned).collect();
    all.extend_from_slice(&bad);
    !bad.is_empty()
}

fn added_capabilities(pod: &Pod<'_>) -> Option<Found> {
    const ALLOWED: [&str; 13] = [
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
    let mut added = Vec::new();
    let bad = pod.containers(|one| adds(one, |own| ALLOWED.contains(&own), &mut added));
    if bad.is_empty() {
        return None;
    }
    let added = quoted(&sorted(added));
    let detail = format!("{} must not include {added} in securityContext.capabilities.add", named(&bad));
    found("non-default capabilities", detail)
}

fn dropped_capabilities(pod: &Pod<'_>) -> Option<Found> {
    if pod.is_windows() {
        return None;
    }
    let keeping =
        pod.containers(|one| !words(&one["securityContext"]["capabilities"]["drop"]).any(|own| own == "ALL"));
    let mut added = Vec::new();
    let adding = pod.containers(|one| adds(one, |own| own == "NET_BIND_SERVICE", &mut added));
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&keeping)));
    }
    if !adding.is_empty() {
        let added = quoted(&sorted(added));
        details
            .push(format!("{} must not include {added} in securityContext.capabilities.add", named(&adding)));
    }
    if details.is_empty() { None } else { found("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Found> {
    let fields = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| pod.spec[*field] == true);
    let fields: Vec<String> = fields.map(|field| format!("{field}=true")).collect();
    if fields.is_empty() { None } else { found("host namespaces", fields.join(", ")) }
}

fn host_paths(pod: &Pod<'_>) -> Option<Found> {
    let bad: Vec<&str> = pod
        .volumes()
        .filter(|volume| volume["hostPath"].is_object())
        .map(|volume| text(&volume["name"]))
        .collect();
    if bad.is_empty() {
        return None;
    }
    found("hostPath volumes", format!("{} {}", plural("volume", "volumes", bad.len()), quoted(&bad)))
}

fn host_ports(pod: &Pod<'_>) -> Option<Found> {
    let mut ports = Vec::new();
    let bad = pod.containers(|one| {
        let used = one["ports"].as_array().into_iter().flatten().filter_map(|port| port["hostPort"].as_i64());
        let used: Vec<String> = used.filter(|port| *port != 0).map(|port| port.to_string()).collect();
        ports.extend_from_slice(&used);
        !used.is_empty()
    });
    if bad.is_empty() {
        return None;
    }
    let ports = sorted(ports);
    let (verb, word) = (plural("uses", "use", bad.len()), plural("hostPort", "hostPorts", ports.len()));
    found("hostPort", format!("{} {verb} {word} {}", named(&bad), ports.join(", ")))
}

/// Probes and hooks ask the pod itself, no other host.
fn probe_hosts(pod: &Pod<'_>) -> Option<Found> {
    const HANDLERS: [&str; 5] =
        ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"];
    let mut hosts = Vec::new();
    let mut bad = pod.containers(|one| {
        let handlers = HANDLERS.iter().filter_map(|handler| one.pointer(handler));
        let asked = handlers.flat_map(|handler| [&handler["httpGet"]["host"], &handler["tcpSocket"]["host"]]);
        let asked: Vec<String> = asked.map(text).filter(|host| !host.is_empty()).map(str::to_owned).collect();
        hosts.extend_from_slice(&asked);
        !asked.is_empty()
    });
    if bad.is_empty() {
        return None;
    }
    bad.sort_unstable();
    bad.dedup();
    let hosts = sorted(hosts);
    let word = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
    let detail = format!("{} {} {word} {}", named(&bad), plural("uses", "use", bad.len()), quoted(&hosts));
    found("probe or lifecycle host", detail)
}

fn privileged(pod: &Pod<'_>) -> Option<Found> {
    let bad = pod.containers(|one| one["securityContext"]["privileged"] == true);
    if bad.is_empty() {
        return None;
    }
    found("privileged", format!("{} must not set securityContext.privileged=true", named(&bad)))
}

fn proc_mount_of_host_users(pod: &Pod<'_>) -> Option<Found> {
    if pod.has_own_users() { None } else { proc_mount(pod) }
}

fn proc_mount(pod: &Pod<'_>) -> Option<Found> {
    let mut kinds = Vec::new();
    let bad = pod.containers(|one| {
        let kind = one["securityContext"]["procMount"].as_str().filter(|kind| *kind != "Default");
        kinds.extend(kind.map(str::to_owned));
        kind.is_some()
    });
    if bad.is_empty() {
        return None;
    }
    let kinds = quoted(&sorted(kinds));
    found("procMount", format!("{} must not set securityContext.procMount to {kinds}", named(&bad)))
}

fn selinux(pod: &Pod<'_>) -> Option<Found> {
    let (mut kinds, mut users, mut roles) = (Vec::new(), false, false);
    let setters = pod.setters(|context| {
        let own = &context["seLinuxOptions"];
        let kind = match text(&own["type"]) {
            "" | "container_t" | "container_init_t" | "container_kvm_t" => None,
            "container_engine_t" if pod.minor >= 31 => None,
            other => Some(other.to_owned()),
        };
        let (user, role) = (!text(&own["user"]).is_empty(), !text(&own["role"]).is_empty());
        let bad = kind.is_some() || user || role;
        kinds.extend(kind);
        users |= user;
        roles |= role;
        bad
    });
    if setters.is_empty() {
        return None;
    }
    let mut data = Vec::new();
    let kinds = sorted(kinds);
    if !kinds.is_empty() {
        data.push(format!("{} {}", plural("type", "types", kinds.len()), quoted(&kinds)));
    }
    data.extend(users.then(|| "user may not be set".to_owned()));
    data.extend(roles.then(|| "role may not be set".to_owned()));
    let setters = setters.join(" and ");
    let detail = format!("{setters} set forbidden securityContext.seLinuxOptions: {}", data.join("; "));
    found("seLinuxOptions", detail)
}

/// Before there was a field, annotations said it.
fn seccomp_annotations(pod: &Pod<'_>) -> Option<Found> {
    const POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
    let good = |value: &str| {
        matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/")
    };
    let containers = pod.containers.iter().map(|one| format!("{CONTAINER}{}", text(&one["name"])));
    let keys = std::iter::once(POD.to_owned()).chain(containers);
    let bad = keys.filter_map(|key| {
        let value = pod.annotations.get(&key).and_then(Value::as_str).filter(|value| !good(value))?;
        Some(format!("{key}={value:?}"))
    });
    let bad = sorted(bad.collect());
    if bad.is_empty() {
        return None;
    }
    let word = plural("annotation", "annotations", bad.len());
    found("seccompProfile", format!("forbidden {word} {}", bad.join(", ")))
}

fn bad_seccomp(pod: &Pod<'_>) -> Option<Found> {
    let mut kinds = Vec::new();
    let setters = pod.setters(|context| {
        let profile = &context["seccompProfile"];
        let bad = profile.is_object() && !matches!(text(&profile["type"]), "RuntimeDefault" | "Localhost");
        if bad {
            kinds.push(text(&profile["type"]).to_owned());
        }
        bad
    });
    if setters.is_empty() {
        return None;
    }
    let (setters, kinds) = (setters.join(" and "), quoted(&sorted(kinds)));
    found("seccompProfile", format!("{setters} must not set securityContext.seccompProfile.type to {kinds}"))
}

fn seccomp(pod: &Pod<'_>) -> Option<Found> {
    if pod.minor < 19 { seccomp_annotations(pod) } else { bad_seccomp(pod) }
}

fn required_seccomp(pod: &Pod<'_>) -> Option<Found> {
    if pod.is_windows() {
        return None;
    }
    if let Some(bad) = bad_seccomp(pod) {
        return Some(bad);
    }
    if pod.context()["seccompProfile"].is_object() {
        return None;
    }
    let bad = pod.containers(|one| !one["securityContext"]["seccompProfile"].is_object());
    if bad.is_empty() {
        return None;
    }
    let what = "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
    found("seccompProfile", format!("pod or {} {what}", named(&bad)))
}

fn sysctls(pod: &Pod<'_>) -> Option<Found> {
    let since = |name: &str| match name {
        "kernel.shm_rmid_forced"
        | "net.ipv4.ip_local_port_range"
        | "net.ipv4.tcp_syncookies"
        | "net.ipv4.ping_group_range"
        | "net.ipv4.ip_unprivileged_port_start" => Some(0),
        "net.ipv4.ip_local_reserved_ports" => Some(27),
        "net.ipv4.tcp_keepalive_time"
        | "net.ipv4.tcp_fin_timeout"
        | "net.ipv4.tcp_keepalive_intvl"
        | "net.ipv4.tcp_keepalive_probes" => Some(29),
        "net.ipv4.tcp_rmem" | "net.ipv4.tcp_wmem" => Some(32),
        _ => None,
    };
    let names = pod.context()["sysctls"].as_array().into_iter().flatten().map(|one| text(&one["name"]));
    let bad: Vec<&str> = names.filter(|name| since(name).is_none_or(|since| since > pod.minor)).collect();
    if bad.is_empty() { None } else { found("forbidden sysctls", bad.join(", ")) }
}

fn host_process(pod: &Pod<'_>) -> Option<Found> {
    let setters = pod.setters(|context| context["windowsOptions"]["hostProcess"] == true);
    if setters.is_empty() {
        return None;
    }
    let what = "must not set securityContext.windowsOptions.hostProcess=true";
    found("hostProcess", format!("{} {what}", setters.join(" and ")))
}

fn escalation(pod: &Pod<'_>) -> Option<Found> {
    let bad = pod.containers(|one| one["securityContext"]["allowPrivilegeEscalation"] != false);
    if bad.is_empty() || pod.is_windows() {
        return None;
    }
    let what = "must set securityContext.allowPrivilegeEscalation=false";
    found("allowPrivilegeEscalation != false", format!("{} {what}", named(&bad)))
}

fn volumes(pod: &Pod<'_>) -> Option<Found> {
    const ALLOWED: [&str; 9] = [
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
    let (mut bad, mut kinds) = (Vec::new(), Vec::new());
    for volume in pod.volumes().filter(|volume| !ALLOWED.iter().any(|kind| volume[*kind].is_object())) {
        bad.push(text(&volume["name"]));
        let kind = volume.as_object().into_iter().flatten().find(|(_, value)| value.is_object());
        kinds.push(kind.map_or_else(|| "unknown".to_owned(), |(kind, _)| kind.clone()));
    }
    if bad.is_empty() {
        return None;
    }
    let kinds = sorted(kinds);
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", bad.len()),
        quoted(&bad),
        plural("uses", "use", bad.len()),
        plural("restricted volume type", "restricted volume types", kinds.len()),
        quoted(&kinds)
    );
    found("restricted volume types", detail)
}

fn non_root(pod: &Pod<'_>) -> Option<Found> {
    const REASON: &str = "runAsNonRoot != true";
    if pod.has_own_users() {
        return None;
    }
    let setters = pod.setters(|context| context["runAsNonRoot"] == false);
    if !setters.is_empty() {
        let what = "must not set securityContext.runAsNonRoot=false";
        return found(REASON, format!("{} {what}", setters.join(" and ")));
    }
    let bad = pod.containers(|one| one["securityContext"]["runAsNonRoot"] != true);
    if bad.is_empty() || pod.context()["runAsNonRoot"] == true {
        return None;
    }
    found(REASON, format!("pod or {} must set securityContext.runAsNonRoot=true", named(&bad)))
}

fn root_user(pod: &Pod<'_>) -> Option<Found> {
    let setters = pod.setters(|context| context["runAsUser"] == 0);
    if setters.is_empty() || pod.has_own_users() {
        return None;
    }
    found("runAsUser=0", format!("{} must not set runAsUser=0", setters.join(" and ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(pod: &Value, level: Level, minor: u16) -> String {
        violations(pod, level, minor).iter().map(Found::told).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_level_refuses_what_it_must() {
        let plain = json!({"spec": {"containers": [{"name": "a"}]}});
        assert!(violations(&plain, Level::Baseline, NEWEST).is_empty());
        assert_eq!(
            told(&plain, Level::Restricted, NEWEST),
            "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false), \
             unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), \
             runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true), \
             seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
        let good = json!({"spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        }});
        assert!(violations(&good, Level::Restricted, NEWEST).is_empty());
        for (path, value) in [
            ("/spec/hostNetwork", json!(true)),
            ("/spec/containers/0/securityContext", json!({"privileged": true})),
            ("/spec/containers/0/securityContext", json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
            ("/spec/volumes", json!([{"name": "v", "hostPath": {"path": "/"}}])),
            ("/spec/containers/0/ports", json!([{"hostPort": 80}])),
            ("/spec/containers/0/livenessProbe", json!({"httpGet": {"port": 80, "host": "192.0.2.1"}})),
            ("/spec/securityContext", json!({"sysctls": [{"name": "kernel.msgmax"}]})),
            ("/spec/securityContext", json!({"seccompProfile": {"type": "Unconfined"}})),
            ("/spec/securityContext", json!({"appArmorProfile": {"type": "Unconfined"}})),
            ("/spec/securityContext", json!({"seLinuxOptions": {"type": "spc_t"}})),
        ] {
            let mut pod = json!({"spec": {"hostNetwork": false, "securityContext": {}, "volumes": [], "containers": [{"name": "a", "securityContext": {}, "ports": [], "livenessProbe": {}}]}});
            *pod.pointer_mut(path).unwrap() = value;
            assert_eq!(violations(&pod, Level::Baseline, NEWEST).len(), 1, "{path}");
        }
    }

    #[test]
    fn versions_of_the_standards_differ() {
        let with = |context: Value, own: Value| json!({"spec": {"hostUsers": false, "securityContext": context, "containers": [{"name": "a", "securityContext": own}]}});
        let good = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        let cases = [
            (
                with(json!({"sysctls": [{"name": "net.ipv4.tcp_rmem"}]}), json!({})),
                Level::Baseline,
                32,
                false,
            ),
            (
                with(json!({"seLinuxOptions": {"type": "container_engine_t"}}), json!({})),
                Level::Baseline,
                31,
                false,
            ),
            (with(json!({}), json!({"procMount": "Unmasked"})), Level::Baseline, 35, false),
            (
                with(
                    json!({"runAsUser": 0, "runAsNonRoot": true, "seccompProfile": {"type": "Localhost"}}),
                    good.clone(),
                ),
                Level::Restricted,
                35,
                false,
            ),
            (with(json!({"runAsNonRoot": true}), good), Level::Restricted, 19, true),
        ];
        for (pod, level, minor, refused) in cases {
            assert_eq!(violations(&pod, level, minor).is_empty(), !refused, "{pod} since {minor}");
            assert_eq!(violations(&pod, level, minor - 1).is_empty(), refused, "{pod} before {minor}");
        }
        // One check is told, not the one that it stands in for as well.
        let pod = with(json!({}), json!({"capabilities": {"add": ["SYS_TIME"], "drop": ["ALL"]}}));
        let all = told(&pod, Level::Restricted, NEWEST);
        assert!(all.contains("unrestricted capabilities") && !all.contains("non-default"), "{all}");
    }
}
