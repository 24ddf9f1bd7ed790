//! Security settings of pod and container as the runtime takes them. Pure.

use std::path::Path;

use cri::{
    Capability, LinuxContainerSecurityContext, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    ProfileType, SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy,
};
use thiserror::Error;

use crate::pod::{Container, Pod, Profile, Role, SeLinux};

/// Hidden from containers that are neither privileged nor `procMount: Unmasked`.
const MASKED_PATHS: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[derive(Debug, Error, PartialEq)]
pub enum SecurityError {
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RootUser { pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    RootImage { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod:?}, container: {container})"
    )]
    NamedUser { pod: String, container: String, user: String },
}

/// Which namespaces the pod shares with what.
pub fn namespaces(pod: &Pod) -> NamespaceOption {
    let node = |shared| if shared { NamespaceMode::Node } else { NamespaceMode::Pod };
    NamespaceOption {
        network: node(pod.spec.host_network),
        ipc: node(pod.spec.host_ipc),
        pid: if pod.spec.host_pid {
            NamespaceMode::Node
        } else if pod.spec.share_process_namespace == Some(true) {
            NamespaceMode::Pod
        } else {
            NamespaceMode::Container
        },
        ..NamespaceOption::default()
    }
}

pub fn sandbox(pod: &Pod) -> LinuxSandboxSecurityContext {
    let context = &pod.spec.security_context;
    LinuxSandboxSecurityContext {
        namespace_options: namespaces(pod),
        run_as_user: context.run_as_user,
        run_as_group: context.run_as_group.filter(|_| context.run_as_user.is_some()),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        privileged: pod
            .containers()
            .any(|(_, container)| container.security_context.privileged == Some(true)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        seccomp: Some(SecurityProfile {
            profile_type: ProfileType::RuntimeDefault,
            ..SecurityProfile::default()
        }),
        ..LinuxSandboxSecurityContext::default()
    }
}

fn groups(pod: &Pod) -> Vec<i64> {
    let context = &pod.spec.security_context;
    context.supplemental_groups.iter().copied().chain(context.fs_group).collect()
}

fn groups_policy(pod: &Pod) -> SupplementalGroupsPolicy {
    match pod.spec.security_context.supplemental_groups_policy.as_deref() {
        Some("Strict") => SupplementalGroupsPolicy::Strict,
        _ => SupplementalGroupsPolicy::Merge,
    }
}

fn selinux(options: &SeLinux) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone(),
        role: options.role.clone(),
        r#type: options.r#type.clone(),
        level: options.level.clone(),
    }
}

fn profile(wanted: Option<&Profile>, localhost_root: Option<&Path>) -> Option<SecurityProfile> {
    let wanted = wanted?;
    let name = wanted.localhost_profile.clone().unwrap_or_default();
    Some(match wanted.r#type.as_str() {
        "RuntimeDefault" => {
            SecurityProfile { profile_type: ProfileType::RuntimeDefault, ..SecurityProfile::default() }
        }
        "Localhost" => SecurityProfile {
            profile_type: ProfileType::Localhost,
            localhost_ref: match localhost_root {
                Some(root) => root.join(&name).display().to_string(),
                None => name,
            },
        },
        _ => SecurityProfile { profile_type: ProfileType::Unconfined, ..SecurityProfile::default() },
    })
}

/// What the image says about its user.
#[derive(Debug, Clone, Default)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub name: String,
}

/// The settings of one container. `target` is the container whose processes an ephemeral container joins.
pub fn container(
    pod: &Pod,
    role: Role,
    container: &Container,
    seccomp_root: &Path,
    target: Option<&str>,
) -> LinuxContainerSecurityContext {
    let of_pod = &pod.spec.security_context;
    let own = &container.security_context;
    let privileged = own.privileged == Some(true);
    // `procMount: Unmasked` is for user namespaces only, where the whole of /proc is the pod's; admission refuses it elsewhere.
    let unmasked = privileged;
    let list =
        |paths: &[&str]| if unmasked { Vec::new() } else { paths.iter().map(ToString::to_string).collect() };
    let mut namespace_options = namespaces(pod);
    if let (Role::Ephemeral, Some(target), NamespaceMode::Container) = (role, target, namespace_options.pid) {
        namespace_options.pid = NamespaceMode::Target;
        namespace_options.target_id = target.to_owned();
    }
    let run_as_user = own.run_as_user.or(of_pod.run_as_user);
    LinuxContainerSecurityContext {
        capabilities: Capability {
            add_capabilities: own.capabilities.add.clone(),
            drop_capabilities: own.capabilities.drop.clone(),
            ..Capability::default()
        },
        privileged,
        namespace_options,
        selinux_options: own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref()).map(selinux),
        run_as_user,
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        run_as_username: String::new(),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: list(MASKED_PATHS),
        readonly_paths: list(READONLY_PATHS),
        seccomp: profile(
            own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref()),
            Some(seccomp_root),
        ),
        apparmor: profile(own.app_armor_profile.as_ref().or(of_pod.app_armor_profile.as_ref()), None),
    }
}

/// Enforces `runAsNonRoot` against the user asked for, or else the image's.
pub fn check_user(pod: &Pod, container: &Container, image: &ImageUser) -> Result<(), SecurityError> {
    let of_pod = &pod.spec.security_context;
    let own = &container.security_context;
    if !own.run_as_non_root.or(of_pod.run_as_non_root).unwrap_or(false) {
        return Ok(());
    }
    let (name, container) = (pod.full_name(), container.name.clone());
    match (own.run_as_user.or(of_pod.run_as_user), image.uid, image.name.as_str()) {
        (Some(0), ..) => Err(SecurityError::RootUser { pod: name, container }),
        (Some(_), ..) => Ok(()),
        (None, Some(0), _) | (None, None, "") => Err(SecurityError::RootImage { pod: name, container }),
        (None, Some(_), _) => Ok(()),
        (None, None, user) => Err(SecurityError::NamedUser { pod: name, container, user: user.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_container_wins_over_the_pod() {
        let pod = pod(json!({
            "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4],
                                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "securityContext": {"runAsUser": 9, "procMount": "Unmasked",
                "seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"},
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}));
        let context = container(&pod, Role::App, &pod.spec.containers[0], Path::new("/s"), None);
        assert_eq!((context.run_as_user, context.run_as_group), (Some(9), Some(2)));
        assert_eq!(context.supplemental_groups, [4, 3]);
        assert_eq!(context.seccomp.unwrap().localhost_ref, "/s/a.json");
        assert!(context.no_new_privs);
        assert!(!context.masked_paths.is_empty(), "the host's /proc is never unmasked");
    }

    #[test]
    fn non_root_is_enforced() {
        let check = |spec: serde_json::Value, uid, name: &str| {
            let pod = pod(spec);
            check_user(&pod, &pod.spec.containers[0], &ImageUser { uid, name: name.into() }).is_ok()
        };
        let non_root = json!({"securityContext": {"runAsNonRoot": true}, "containers": [{"name": "c"}]});
        assert!(!check(non_root.clone(), Some(0), ""));
        assert!(!check(non_root.clone(), None, ""));
        assert!(!check(non_root.clone(), None, "www"));
        assert!(check(non_root, Some(5), ""));
        assert!(!check(
            json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}, "containers": [{}]}),
            Some(5),
            ""
        ));
    }

    #[test]
    fn an_ephemeral_container_joins_its_target() {
        let pod = pod(json!({"ephemeralContainers": [{"name": "e"}]}));
        let context =
            container(&pod, Role::Ephemeral, &pod.spec.ephemeral_containers[0], Path::new("/"), Some("id"));
        assert_eq!(context.namespace_options.pid, NamespaceMode::Target);
        assert_eq!(context.namespace_options.target_id, "id");
    }
}
