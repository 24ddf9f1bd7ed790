//! What to run, from what was asked and what the image says. Pure: values in, specs out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cgroups::Limits;
use cri::{ContainerConfig, MountPropagation, NamespaceMode, PodSandboxConfig, ProfileType};

use crate::caps;
use crate::image::RunConfig;
use crate::seccomp;
use crate::spec::{
    ContainerSpec, Device, IdRange, Mount, PidNamespace, Process, Propagation, Root, SandboxSpec, Source,
};
use crate::user::{self, Accounts, Identity};

/// Where programs are looked for when the image does not say.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Everything that decides a container.
pub struct Inputs<'a> {
    pub id: &'a str,
    pub config: &'a ContainerConfig,
    pub sandbox: &'a PodSandboxConfig,
    pub image: &'a RunConfig,
    pub accounts: &'a Accounts,
    /// The image's layers, topmost first, relative to `layers`.
    pub lower: Vec<String>,
    pub layers: PathBuf,
    pub snapshot: PathBuf,
    /// The pod's group.
    pub cgroup_parent: &'a str,
    /// Where resolv.conf, hosts and hostname of the pod are.
    pub files: &'a Path,
    /// The pod's user namespace, if it has its own.
    pub users: Option<IdRange>,
    /// The seccomp profile that the container names, if it names a file.
    pub seccomp: Option<&'a seccomp::program::Profile>,
    /// Layers of images that are mounted as volumes, topmost first, by reference.
    pub image_volumes: BTreeMap<String, Vec<String>>,
}

/// The spec of a container, and who it runs as.
pub fn container(inputs: &Inputs<'_>) -> cri::Result<(ContainerSpec, Identity)> {
    let Inputs { config, image, .. } = inputs;
    let context = &config.linux.security_context;
    refuse_unsupported(config)?;
    let users = users(context.namespace_options.userns_options.as_ref())?;
    if users != inputs.users {
        return Err(cri::Error::invalid("the container's user namespace", "it is not its sandbox's"));
    }
    let identity = user::resolve(context, &image.user, inputs.accounts)
        .map_err(|reason| cri::Error::invalid("the container's user", reason))?;
    if let Some(range) = users
        && let Some(id) = identity.groups.iter().chain([&identity.uid]).find(|id| **id >= range.length)
    {
        let reason = format!("{id} is not among the {} ids of the pod's user namespace", range.length);
        return Err(cri::Error::invalid("the container's user", reason));
    }
    let capabilities = caps::resolve(&context.capabilities, context.privileged)
        .map_err(|error| cri::Error::invalid("capabilities", error.to_string()))?;
    let profile = context.seccomp.as_ref().map(|profile| profile.profile_type);
    let process = Process {
        args: arguments(config, image)?,
        env: environment(config, image, &identity, inputs.sandbox)?,
        cwd: working_directory(config, image)?,
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.clone(),
        capabilities,
        no_new_privs: context.no_new_privs,
        seccomp: profile == Some(ProfileType::RuntimeDefault) && !context.privileged,
        seccomp_filter: inputs
            .seccomp
            .filter(|_| !context.privileged)
            .map(seccomp::Filter::of)
            .transpose()
            .map_err(|error| cri::Error::invalid("the seccomp profile", error.to_string()))?,
        oom_score_adj: i32::try_from(config.linux.resources.oom_score_adj).ok(),
        terminal: config.tty,
    };
    let paths = |paths: &[String]| paths.iter().map(PathBuf::from).collect();
    let spec = ContainerSpec {
        id: inputs.id.to_owned(),
        root: Root {
            layers: inputs.layers.clone(),
            lower: inputs.lower.clone(),
            snapshot: inputs.snapshot.clone(),
            readonly: context.readonly_rootfs,
        },
        process,
        pid: match context.namespace_options.pid {
            NamespaceMode::Pod => PidNamespace::Pod,
            NamespaceMode::Container => PidNamespace::Own,
            NamespaceMode::Node => PidNamespace::Host,
            NamespaceMode::Target => PidNamespace::Container(context.namespace_options.target_id.clone()),
        },
        mounts: mounts(inputs)?,
        devices: config
            .devices
            .iter()
            .map(|device| Device { source: device.host_path.clone(), target: device.container_path.clone() })
            .collect(),
        privileged: context.privileged,
        masked_paths: paths(&context.masked_paths),
        readonly_paths: paths(&context.readonly_paths),
        cgroup: format!("{}/{}", inputs.cgroup_parent, inputs.id),
        limits: Limits::of(&config.linux.resources),
        log: log_path(config, inputs.sandbox),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
    };
    Ok((spec, identity))
}

/// The ids of a pod with a user namespace of its own: one range for users and one for groups, both from 0 on.
fn users(wanted: Option<&cri::UserNamespace>) -> cri::Result<Option<IdRange>> {
    let Some(wanted) = wanted.filter(|wanted| wanted.mode != NamespaceMode::Node) else { return Ok(None) };
    let bad = |reason: &str| cri::Error::invalid("the user namespace", reason);
    if wanted.mode != NamespaceMode::Pod {
        return Err(bad("it is neither the pod's nor the node's"));
    }
    let ([uids], [gids]) = (&wanted.uids[..], &wanted.gids[..]) else {
        return Err(bad("it needs one range of users and one of groups"));
    };
    for range in [uids, gids] {
        if range.container_id != 0 || range.length == 0 || range.host_id == 0 {
            return Err(bad("a range must start at 0 in the pod, and not at 0 on the host"));
        }
        if range.host_id.checked_add(range.length).is_none() {
            return Err(bad("a range has too many ids"));
        }
    }
    if uids.length != gids.length {
        return Err(bad("it needs as many users as groups"));
    }
    Ok(Some(IdRange { uid: uids.host_id, gid: gids.host_id, length: uids.length }))
}

/// Whether a mount is to be seen with the pod's ids; with others it cannot be.
fn is_idmapped(mount: &cri::Mount, users: Option<IdRange>) -> cri::Result<bool> {
    if mount.uid_mappings.is_empty() && mount.gid_mappings.is_empty() {
        return Ok(false);
    }
    let same = |mappings: &[cri::IdMapping], host_id: u32, length: u32| {
        mappings == [cri::IdMapping { host_id, container_id: 0, length }]
    };
    match users {
        Some(users)
            if same(&mount.uid_mappings, users.uid, users.length)
                && same(&mount.gid_mappings, users.gid, users.length) =>
        {
            Ok(true)
        }
        _ => Err(cri::Error::invalid(
            "a mount's id mappings",
            "they are not those of the pod's user namespace",
        )),
    }
}

fn refuse_unsupported(config: &ContainerConfig) -> cri::Result<()> {
    let context = &config.linux.security_context;
    if context.apparmor.as_ref().is_some_and(|profile| profile.profile_type == ProfileType::Localhost) {
        return Err(cri::Error::Unsupported("AppArmor profiles"));
    }
    Ok(())
}

/// A command replaces entry point and default arguments of the image; arguments alone replace the default ones.
fn arguments(config: &ContainerConfig, image: &RunConfig) -> cri::Result<Vec<String>> {
    let (program, defaults) = match config.command.is_empty() {
        true => (&image.entrypoint, image.cmd.as_slice()),
        false => (&config.command, &[][..]),
    };
    let rest = if config.args.is_empty() { defaults } else { &config.args };
    let args: Vec<String> = program.iter().chain(rest).cloned().collect();
    match args.first() {
        Some(program) if !program.is_empty() => Ok(args),
        _ => Err(cri::Error::invalid(
            "the command",
            "neither the container nor its image names a program to run",
        )),
    }
}

/// The image's variables, then the container's, then PATH, HOME and HOSTNAME where nobody set them.
fn environment(
    config: &ContainerConfig,
    image: &RunConfig,
    identity: &Identity,
    sandbox: &PodSandboxConfig,
) -> cri::Result<Vec<String>> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut set = |key: &str, value: String| match all.iter_mut().find(|(known, _)| known == key) {
        Some(entry) => entry.1 = value,
        None => all.push((key.to_owned(), value)),
    };
    for entry in &image.env {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        set(key, value.to_owned());
    }
    for entry in &config.envs {
        let value = String::from_utf8(entry.value.to_vec());
        let value =
            value.map_err(|_| cri::Error::invalid(format!("variable {}", entry.key), "it is not UTF-8"))?;
        if entry.key.is_empty() || entry.key.contains(['=', '\0']) || value.contains('\0') {
            return Err(cri::Error::invalid(
                format!("variable {:?}", entry.key),
                "name or value can not be passed on",
            ));
        }
        set(&entry.key, value);
    }
    let home = identity.home.clone().filter(|home| !home.is_empty()).unwrap_or_else(|| "/".to_owned());
    let defaults =
        [("PATH", DEFAULT_PATH.to_owned()), ("HOME", home), ("HOSTNAME", sandbox.hostname.clone())];
    for (key, value) in defaults {
        if !value.is_empty() && !all.iter().any(|(known, _)| known == key) {
            all.push((key.to_owned(), value));
        }
    }
    Ok(all.into_iter().map(|(key, value)| format!("{key}={value}")).collect())
}

fn working_directory(config: &ContainerConfig, image: &RunConfig) -> cri::Result<PathBuf> {
    let chosen = [config.working_dir.as_str(), image.working_dir.as_str(), "/"]
        .into_iter()
        .find(|path| !path.is_empty());
    let path = PathBuf::from(chosen.unwrap_or("/"));
    match path.is_absolute() {
        true => Ok(path),
        false => {
            Err(cri::Error::invalid("the working directory", format!("{} is not absolute", path.display())))
        }
    }
}

/// The pod's own files first, unless the container mounts its own there; then its volumes, parents before children.
fn mounts(inputs: &Inputs<'_>) -> cri::Result<Vec<Mount>> {
    let config = inputs.config;
    let mut all = Vec::new();
    for name in ["resolv.conf", "hosts", "hostname"] {
        let target = Path::new("/etc").join(name);
        if !config.mounts.iter().any(|mount| mount.container_path == target) {
            all.push(Mount {
                source: Source::Host(inputs.files.join(name)),
                sub_path: PathBuf::new(),
                target,
                readonly: config.linux.security_context.readonly_rootfs,
                recursive_readonly: false,
                propagation: Propagation::Private,
                idmapped: inputs.users.is_some(),
            });
        }
    }
    for mount in &config.mounts {
        if !mount.container_path.is_absolute() {
            let reason = format!("{} is not absolute", mount.container_path.display());
            return Err(cri::Error::invalid("a mount's path in the container", reason));
        }
        let source = match &mount.image {
            Some(image) => {
                let lower = inputs.image_volumes.get(&image.image).cloned();
                let lower =
                    lower.ok_or_else(|| cri::Error::NotFound { kind: "image", id: image.image.clone() })?;
                Source::Image { lower, path: Path::new("/").join(&mount.image_sub_path) }
            }
            None if mount.host_path.is_absolute() => Source::Host(mount.host_path.clone()),
            None => {
                let reason = format!("{:?} is not absolute", mount.host_path);
                return Err(cri::Error::invalid("a mount's path on the host", reason));
            }
        };
        if mount.host_sub_path.is_absolute() {
            let reason = format!("{} is not relative", mount.host_sub_path.display());
            return Err(cri::Error::invalid("a mount's path below the host's", reason));
        }
        all.push(Mount {
            source,
            sub_path: mount.host_sub_path.clone(),
            target: mount.container_path.clone(),
            readonly: mount.readonly,
            recursive_readonly: mount.recursive_read_only,
            propagation: match mount.propagation {
                MountPropagation::Private => Propagation::Private,
                MountPropagation::HostToContainer => Propagation::Slave,
                MountPropagation::Bidirectional => Propagation::Shared,
            },
            idmapped: mount.image.is_none() && is_idmapped(mount, inputs.users)?,
        });
    }
    all.sort_by_key(|mount| mount.target.components().count());
    Ok(all)
}

/// Where a container's output goes, if anywhere.
pub fn log_path(config: &ContainerConfig, sandbox: &PodSandboxConfig) -> Option<PathBuf> {
    let wanted = !config.log_path.as_os_str().is_empty() && !sandbox.log_directory.as_os_str().is_empty();
    wanted.then(|| sandbox.log_directory.join(&config.log_path))
}

/// The spec of a sandbox.
pub fn sandbox(id: &str, config: &PodSandboxConfig, cgroup_parent: &str) -> cri::Result<SandboxSpec> {
    let context = &config.linux.security_context;
    let namespaces = &context.namespace_options;
    let users = users(namespaces.userns_options.as_ref())?;
    let shared = [namespaces.network, namespaces.ipc, namespaces.pid].contains(&NamespaceMode::Node);
    if users.is_some() && shared {
        let reason = "a pod with its own cannot use the host's network, processes or IPC";
        return Err(cri::Error::invalid("the user namespace", reason));
    }
    let own_network = namespaces.network != NamespaceMode::Node;
    let own_ipc = namespaces.ipc != NamespaceMode::Node;
    let mut sysctls = BTreeMap::new();
    if own_network {
        // As containerd does: binding a low port of one's own network needs no privilege.
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
    }
    for (name, value) in &config.linux.sysctls {
        let name = name.replace('/', ".");
        if !name.split('.').all(|part| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
        }) {
            return Err(cri::Error::invalid(format!("sysctl {name:?}"), "it is not a sysctl's name"));
        }
        let of_ipc = name.starts_with("kernel.shm")
            || name.starts_with("kernel.msg")
            || name == "kernel.sem"
            || name.starts_with("fs.mqueue.");
        let allowed = (own_network && name.starts_with("net.")) || (own_ipc && of_ipc);
        if !allowed && !context.privileged {
            return Err(cri::Error::invalid(format!("sysctl {name}"), "it is not of a namespace of the pod"));
        }
        sysctls.insert(name, value.clone());
    }
    let hostname = own_network.then(|| config.hostname.clone()).filter(|name| !name.is_empty());
    if hostname.as_ref().is_some_and(|name| name.len() > 64) {
        return Err(cri::Error::invalid("the host name", "it is longer than 64 characters"));
    }
    Ok(SandboxSpec {
        id: id.to_owned(),
        own_network,
        own_ipc,
        shared_pid: namespaces.pid == NamespaceMode::Pod,
        hostname,
        sysctls,
        cgroup: format!("{cgroup_parent}/{id}"),
        users,
    })
}

/// The pod's resolv.conf.
pub fn resolv_conf(dns: &cri::DnsConfig) -> String {
    let mut text = String::new();
    for server in &dns.servers {
        text += &format!("nameserver {server}\n");
    }
    for (word, values) in [("search", &dns.searches), ("options", &dns.options)] {
        if !values.is_empty() {
            text += &format!("{word} {}\n", values.join(" "));
        }
    }
    text
}

/// A bandwidth annotation in bits per second, with Kubernetes' decimal and binary suffixes.
pub fn bandwidth(annotations: &BTreeMap<String, String>, key: &str) -> cri::Result<Option<u64>> {
    const SUFFIXES: [(&str, u64); 8] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let Some(text) = annotations.get(key) else { return Ok(None) };
    let (digits, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
        .unwrap_or((text, 1));
    let rate =
        digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).filter(|rate| *rate > 0);
    rate.map(Some).ok_or_else(|| cri::Error::invalid(key, format!("{text:?} is not a bandwidth")))
}

/// A hosts file for containers to which nobody else gives one.
pub fn hosts(hostname: &str, addresses: &[std::net::IpAddr]) -> String {
    let mut text = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    for address in addresses.iter().filter(|_| !hostname.is_empty()) {
        text += &format!("{address}\t{hostname}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn command_and_arguments_merge_as_in_kubernetes() {
        let image = RunConfig { entrypoint: strings(&["/e"]), cmd: strings(&["c"]), ..Default::default() };
        let cases: [(&[&str], &[&str], &[&str]); 4] = [
            (&[], &[], &["/e", "c"]),
            (&["/k"], &[], &["/k"]),
            (&[], &["a"], &["/e", "a"]),
            (&["/k"], &["a"], &["/k", "a"]),
        ];
        for (command, args, expected) in cases {
            let config =
                ContainerConfig { command: strings(command), args: strings(args), ..Default::default() };
            assert_eq!(arguments(&config, &image).unwrap(), strings(expected));
        }
        assert!(arguments(&ContainerConfig::default(), &RunConfig::default()).is_err());
    }

    #[test]
    fn the_containers_variables_win_over_the_images() {
        let image = RunConfig { env: strings(&["A=1", "B=2"]), ..Default::default() };
        let config = ContainerConfig {
            envs: vec![cri::KeyValue { key: "B".into(), value: "3".into() }],
            ..Default::default()
        };
        let identity = Identity { uid: 0, gid: 0, groups: vec![], home: Some("/root".into()) };
        let sandbox = PodSandboxConfig { hostname: "web".into(), ..Default::default() };
        let env = environment(&config, &image, &identity, &sandbox).unwrap();
        assert_eq!(env, ["A=1", "B=3", &format!("PATH={DEFAULT_PATH}"), "HOME=/root", "HOSTNAME=web"]);
        let bad = ContainerConfig {
            envs: vec![cri::KeyValue { key: "B=".into(), value: "3".into() }],
            ..Default::default()
        };
        assert!(environment(&bad, &image, &identity, &sandbox).is_err());
    }

    #[test]
    fn bandwidths_have_suffixes() {
        let rate = |text: &str| bandwidth(&BTreeMap::from([("k".to_owned(), text.to_owned())]), "k");
        assert_eq!(rate("10M").unwrap(), Some(10_000_000));
        assert_eq!(rate("1Gi").unwrap(), Some(1 << 30));
        assert_eq!(rate("5000").unwrap(), Some(5000));
        assert_eq!(bandwidth(&BTreeMap::new(), "k").unwrap(), None);
        for text in ["", "fast", "-1M", "0", "99999999999999999999T"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sysctls_must_belong_to_the_pods_namespaces() {
        let with = |name: &str, host_network: bool| {
            let mut config = PodSandboxConfig::default();
            config.linux.sysctls.insert(name.into(), "1".into());
            if host_network {
                config.linux.security_context.namespace_options.network = NamespaceMode::Node;
            }
            sandbox("s", &config, "/p")
        };
        assert!(with("net.ipv4.ip_forward", false).is_ok());
        assert!(with("kernel.shm_rmid_forced", false).is_ok());
        for (name, host) in
            [("net.ipv4.ip_forward", true), ("kernel.panic", false), ("net/../kernel/panic", false)]
        {
            assert!(with(name, host).is_err(), "{name}");
        }
    }
}
