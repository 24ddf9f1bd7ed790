//! Users, capabilities, filesystems, namespaces, seccomp.

use cri::{
    ContainerConfig, Mount, MountPropagation, NamespaceMode, PodSandboxConfig, ProfileType, RuntimeService,
    SecurityProfile,
};

use crate::fixture::{DEADLINE, Fixture, eventually};

crate::tests![
    users_come_from_the_pod_or_the_image,
    capabilities_are_what_was_asked_for,
    a_read_only_root_is_read_only,
    volumes_are_mounted,
    links_in_the_container_do_not_lead_mounts_out,
    a_path_below_a_volume_is_resolved_inside_it,
    mounts_of_the_host_propagate,
    devices_are_only_the_allowed_ones,
    proc_is_masked,
    privileged_sees_the_hosts_devices,
    containers_of_a_pod_share_what_they_should,
    the_pods_processes_can_be_shared,
    host_namespaces_can_be_used,
    seccomp_refuses_what_it_should,
    seccomp_profiles_come_from_files,
    the_working_directory_is_made,
    sysctls_are_set,
    bad_requests_are_refused,
    the_network_gets_the_pods_namespace,
    a_container_sees_its_own_limits_and_no_others,
    cgroups_of_version_two_work_alike,
];

/// Runs a command in a container made with `change`; gives its output.
async fn output(fixture: &Fixture, args: &[&str], change: impl FnOnce(&mut ContainerConfig)) -> String {
    let mut config = fixture.container_config(args);
    change(&mut config);
    let (_, id) = fixture.run(&config).await;
    fixture.ended(&id).await;
    let text = fixture.log_text("main.log");
    std::fs::remove_file(fixture.directory.path().join("logs/main.log")).unwrap();
    text
}

async fn users_come_from_the_pod_or_the_image(fixture: &Fixture) {
    assert_eq!(output(fixture, &["id"], |_| {}).await, "uid=0 gid=0 groups=0\n");
    let by_name =
        output(fixture, &["id"], |config| config.linux.security_context.run_as_username = "demo".into());
    assert_eq!(by_name.await, "uid=1000 gid=1000 groups=50,1000\n");
    let by_number = output(fixture, &["id"], |config| {
        let context = &mut config.linux.security_context;
        (context.run_as_user, context.run_as_group) = (Some(4000), Some(5000));
        context.supplemental_groups = vec![6000];
    });
    assert_eq!(by_number.await, "uid=4000 gid=5000 groups=5000,6000\n");
    // Streams belong to the user: they can be opened by name.
    let text = output(fixture, &["write", "/dev/stdout", "mine"], |config| {
        config.linux.security_context.run_as_user = Some(4000);
    });
    assert_eq!(text.await, "mine\n");
}

fn capability_line(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{status}"));
    u64::from_str_radix(line.trim(), 16).unwrap()
}

async fn capabilities_are_what_was_asked_for(fixture: &Fixture) {
    let status = output(fixture, &["cat", "/proc/self/status"], |_| {}).await;
    assert_eq!(capability_line(&status, "CapEff:"), 0xa80425fb);
    assert_eq!(capability_line(&status, "CapBnd:"), 0xa80425fb);
    assert_eq!(capability_line(&status, "CapInh:"), 0);
    let status = output(fixture, &["cat", "/proc/self/status"], |config| {
        let context = &mut config.linux.security_context;
        context.capabilities.drop_capabilities = vec!["ALL".into()];
        context.capabilities.add_capabilities = vec!["NET_ADMIN".into()];
        context.no_new_privs = true;
    })
    .await;
    assert_eq!(capability_line(&status, "CapEff:"), 1 << 12);
    assert!(status.contains("NoNewPrivs:\t1"));
    let status = output(fixture, &["cat", "/proc/self/status"], |config| {
        config.linux.security_context.run_as_user = Some(1000);
    })
    .await;
    assert_eq!(capability_line(&status, "CapEff:"), 0);
}

async fn a_read_only_root_is_read_only(fixture: &Fixture) {
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.linux.security_context.readonly_rootfs = true;
    let (sandbox, id) = fixture.run(&config).await;
    let (code, _, error) = fixture.exec(&id, &["write", "/new", "x"]).await;
    assert!(code == 1 && error.contains("Read-only"), "{error}");
    assert_eq!(fixture.exec(&id, &["write", "/dev/shm/new", "x"]).await.0, 0);
    let id = fixture.run_in(&sandbox, &fixture.container_config(&["sleep", "infinity"])).await;
    assert_eq!(fixture.exec(&id, &["write", "/new", "x"]).await.0, 0);
    assert_eq!(fixture.exec(&id, &["cat", "/dev/shm/new"]).await.1, "x\n", "a pod shares /dev/shm");
}

fn volume(fixture: &Fixture, name: &str) -> Mount {
    let path = fixture.directory.path().join(name);
    std::fs::create_dir_all(&path).unwrap();
    Mount { host_path: path, container_path: "/data".into(), ..Default::default() }
}

async fn volumes_are_mounted(fixture: &Fixture) {
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    let outer = volume(fixture, "outer");
    std::fs::write(outer.host_path.join("file"), "from the host\n").unwrap();
    let inner = Mount { container_path: "/data/inner".into(), readonly: true, ..volume(fixture, "inner") };
    let file = Mount {
        host_path: outer.host_path.join("file"),
        container_path: "/etc/deep/file".into(),
        ..Default::default()
    };
    let missing = fixture.directory.path().join("missing");
    let made = Mount { host_path: missing.clone(), container_path: "/made".into(), ..Default::default() };
    let image = Mount {
        image: Some("kelson.local/demo".into()),
        image_sub_path: "etc".into(),
        container_path: "/image".into(),
        ..Default::default()
    };
    // Given inside out: the outer one must not hide the inner one.
    config.mounts = vec![inner, outer.clone(), file, made, image];
    let (_, id) = fixture.run(&config).await;
    assert_eq!(fixture.exec(&id, &["cat", "/data/file"]).await.1, "from the host\n");
    assert_eq!(fixture.exec(&id, &["cat", "/etc/deep/file"]).await.1, "from the host\n");
    assert_eq!(fixture.exec(&id, &["write", "/data/new", "from the container"]).await.0, 0);
    assert_eq!(std::fs::read_to_string(outer.host_path.join("new")).unwrap(), "from the container\n");
    assert!(fixture.exec(&id, &["write", "/data/inner/new", "x"]).await.2.contains("Read-only"));
    assert!(missing.is_dir());
    assert!(fixture.exec(&id, &["ls", "/image"]).await.1.contains("passwd"));
    assert!(fixture.exec(&id, &["write", "/image/new", "x"]).await.2.contains("Read-only"));
}

/// A process that shares the volume puts links in the place of directories between the check and the mount.
async fn a_path_below_a_volume_is_resolved_inside_it(fixture: &Fixture) {
    use std::os::unix::fs::symlink;
    let shared = volume(fixture, "shared-below");
    let outside = volume(fixture, "outside");
    std::fs::write(outside.host_path.join("file"), "of the host\n").unwrap();
    let at = |name: &str| shared.host_path.join(name);
    std::fs::create_dir_all(at("real/deep")).unwrap();
    std::fs::write(at("real/deep/file"), "of the volume\n").unwrap();
    symlink("real/deep", at("inner")).unwrap();
    symlink(&outside.host_path, at("absolute")).unwrap();
    symlink("../outside", at("upwards")).unwrap();
    symlink("/proc/1/root", at("root")).unwrap();
    let below = |sub_path: &str| Mount { host_sub_path: sub_path.into(), ..shared.clone() };
    for (sub_path, file) in [("real/deep", "/data/file"), ("inner", "/data/file"), ("inner/file", "/data")] {
        let text = output(fixture, &["cat", file], |config| config.mounts = vec![below(sub_path)]).await;
        assert_eq!(text, "of the volume\n", "{sub_path}");
    }
    let sandbox = fixture.sandbox().await;
    for sub_path in ["absolute", "upwards", "upwards/file", "root/etc", "../outside", "missing"] {
        let mut config = fixture.container_config(&["true"]);
        config.mounts = vec![below(sub_path)];
        let sandbox_config = fixture.sandbox_config("pod");
        let id = fixture.runtime.create_container(&sandbox, &config, &sandbox_config).await.unwrap();
        let error = fixture.runtime.start_container(&id).await.expect_err(sub_path);
        assert!(format!("{error:?}").contains("find in the volume"), "{sub_path}: {error:?}");
    }
}

async fn links_in_the_container_do_not_lead_mounts_out(fixture: &Fixture) {
    let shared = volume(fixture, "shared");
    std::os::unix::fs::symlink("/", shared.host_path.join("link")).unwrap();
    let secret = volume(fixture, "secret");
    std::fs::write(secret.host_path.join("file"), "x\n").unwrap();
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    let through = Mount { container_path: "/data/link/inside".into(), ..secret };
    config.mounts = vec![shared, through];
    let (_, id) = fixture.run(&config).await;
    assert_eq!(
        fixture.exec(&id, &["cat", "/inside/file"]).await.1,
        "x\n",
        "resolved in the container's root"
    );
    assert!(!std::path::Path::new("/inside").exists(), "not in the host's");
}

async fn mounts_of_the_host_propagate(fixture: &Fixture) {
    // In a mount namespace of a thread's own there is nothing to propagate to, so this is the host's.
    let base = volume(fixture, "base");
    let (base_path, late) = (base.host_path.clone(), base.host_path.join("late"));
    std::fs::create_dir(&late).unwrap();
    rustix::mount::mount_bind(&base_path, &base_path).unwrap();
    rustix::mount::mount_change(&base_path, rustix::mount::MountPropagationFlags::SHARED).unwrap();
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    let slave = Mount {
        propagation: MountPropagation::HostToContainer,
        container_path: "/slave".into(),
        ..base.clone()
    };
    config.mounts = vec![base, slave];
    let (_, id) = fixture.run(&config).await;
    rustix::mount::mount("tmpfs", &late, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    std::fs::write(late.join("file"), "x\n").unwrap();
    let seen =
        (fixture.exec(&id, &["ls", "/slave/late"]).await.1, fixture.exec(&id, &["ls", "/data/late"]).await.1);
    for path in [&late, &base_path] {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    assert_eq!(seen, ("file\n".to_owned(), String::new()));
}

async fn devices_are_only_the_allowed_ones(fixture: &Fixture) {
    let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let listed = fixture.exec(&id, &["ls", "/dev"]).await.1;
    let expected = [
        "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero",
    ];
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
    assert_eq!(fixture.exec(&id, &["write", "/dev/null", "x"]).await.0, 0);
    // A node that the container makes for itself opens nothing, wherever it makes it.
    let pid = fixture.runtime.container_status(&id).await.unwrap().pid.unwrap();
    for directory in ["dev", "tmp", "dev/shm"] {
        let path = format!("/proc/{pid}/root/{directory}/zero2");
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::CharacterDevice,
            mode,
            rustix::fs::makedev(1, 5),
        )
        .unwrap();
        let (code, _, error) = fixture.exec(&id, &["cat", &format!("/{directory}/zero2")]).await;
        assert!(code == 1 && error.contains("Permission denied"), "{directory}: {error}");
    }
}

async fn proc_is_masked(fixture: &Fixture) {
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    let context = &mut config.linux.security_context;
    context.masked_paths = ["/proc/kcore", "/proc/scsi", "/proc/keys", "/no/such"].map(String::from).to_vec();
    context.readonly_paths = ["/proc/sys", "/proc/bus"].map(String::from).to_vec();
    let (_, id) = fixture.run(&config).await;
    assert_eq!(fixture.exec(&id, &["cat", "/proc/keys"]).await.1, "");
    assert!(fixture.exec(&id, &["write", "/proc/sys/kernel/panic", "1"]).await.2.contains("Read-only"));
    assert!(fixture.exec(&id, &["write", "/sys/kernel/mm/ksm/run", "1"]).await.2.contains("Read-only"));
    assert_eq!(
        fixture.exec(&id, &["cat", "/proc/1/comm"]).await.1,
        "kelson\n",
        "number 1 is the container's own"
    );
}

async fn privileged_sees_the_hosts_devices(fixture: &Fixture) {
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.linux.security_context.privileged = true;
    config.linux.security_context.masked_paths = vec!["/proc/keys".into()];
    let (_, id) = fixture.run(&config).await;
    let status = fixture.exec(&id, &["cat", "/proc/self/status"]).await.1;
    let ours = std::fs::read_to_string("/proc/self/status").unwrap();
    assert_eq!(capability_line(&status, "CapEff:"), capability_line(&ours, "CapEff:"));
    let listed = fixture.exec(&id, &["ls", "/dev"]).await.1;
    assert!(listed.lines().count() > 14, "{listed}");
}

async fn containers_of_a_pod_share_what_they_should(fixture: &Fixture) {
    let sandbox = fixture.sandbox().await;
    let one = fixture.run_in(&sandbox, &fixture.container_config(&["serve", "--port", "8080"])).await;
    let two = fixture.run_in(&sandbox, &fixture.container_config(&["sleep", "infinity"])).await;
    let namespace = async |id: &str, name: &str| {
        let pid = fixture.runtime.container_status(id).await.unwrap().pid.unwrap();
        std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap()
    };
    let host = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
    for name in ["net", "ipc", "uts"] {
        assert_eq!(namespace(&one, name).await, namespace(&two, name).await, "{name}");
        assert_ne!(namespace(&one, name).await, host(name), "{name}");
    }
    for name in ["pid", "mnt"] {
        assert_ne!(namespace(&one, name).await, namespace(&two, name).await, "{name}");
    }
    eventually("the server is up", || fixture.log_text("main.log").contains("serves")).await;
    assert_eq!(fixture.exec(&two, &["wget", "http://127.0.0.1:8080/healthz"]).await.1, "ok\n");
}

async fn the_pods_processes_can_be_shared(fixture: &Fixture) {
    let mut pod = fixture.sandbox_config("pod");
    pod.linux.security_context.namespace_options.pid = NamespaceMode::Pod;
    let sandbox = fixture.runtime.run_pod_sandbox(&pod).await.unwrap();
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.linux.security_context.namespace_options.pid = NamespaceMode::Pod;
    let one = fixture.run_in(&sandbox, &config).await;
    let two = fixture.run_in(&sandbox, &config).await;
    let processes = fixture.exec(&two, &["ls", "/proc"]).await.1;
    let count = processes.lines().filter(|name| name.parse::<u32>().is_ok()).count();
    assert_eq!(count, 4, "pause, two sleeps and ls: {processes}");
    // Number 1 is the pause process; its root shows nothing of the host.
    let (code, listed, _) = fixture.exec(&two, &["ls", "/proc/1/root"]).await;
    assert!(code == 1 || listed.is_empty(), "{listed}");
    fixture.runtime.stop_container(&one, DEADLINE).await.unwrap();
    assert_eq!(fixture.ended(&one).await.exit_code, 143);
    assert_eq!(fixture.exec(&two, &["true"]).await.0, 0);
    // An ephemeral container looks into another one's processes.
    let mut debug = fixture.container_config(&["sleep", "infinity"]);
    debug.linux.security_context.namespace_options.pid = NamespaceMode::Target;
    debug.linux.security_context.namespace_options.target_id = two;
    let id = fixture.run_in(&sandbox, &debug).await;
    assert_eq!(fixture.exec(&id, &["true"]).await.0, 0);
}

async fn host_namespaces_can_be_used(fixture: &Fixture) {
    let mut pod = PodSandboxConfig { hostname: String::new(), ..fixture.sandbox_config("pod") };
    let options = &mut pod.linux.security_context.namespace_options;
    (options.network, options.pid, options.ipc) =
        (NamespaceMode::Node, NamespaceMode::Node, NamespaceMode::Node);
    let sandbox = fixture.runtime.run_pod_sandbox(&pod).await.unwrap();
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.linux.security_context.namespace_options = pod.linux.security_context.namespace_options.clone();
    let id = fixture.run_in(&sandbox, &config).await;
    let pid = fixture.runtime.container_status(&id).await.unwrap().pid.unwrap();
    for name in ["net", "pid", "ipc", "uts"] {
        let link = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
        assert_eq!(link(&pid.to_string()), link("self"), "{name}");
    }
    assert!(fixture.exec(&id, &["cat", &format!("/proc/{pid}/comm")]).await.1.starts_with("kelson"));
    fixture.runtime.stop_container(&id, DEADLINE).await.unwrap();
}

async fn seccomp_refuses_what_it_should(fixture: &Fixture) {
    let profile = |profile_type| Some(SecurityProfile { profile_type, localhost_ref: String::new() });
    let status = output(fixture, &["cat", "/proc/self/status"], |config| {
        config.linux.security_context.seccomp = profile(ProfileType::RuntimeDefault);
    })
    .await;
    assert!(status.contains("Seccomp:\t2"), "{status}");
    let status = output(fixture, &["cat", "/proc/self/status"], |config| {
        config.linux.security_context.seccomp = profile(ProfileType::RuntimeDefault);
        config.linux.security_context.no_new_privs = true;
        config.linux.security_context.run_as_user = Some(1000);
    })
    .await;
    assert!(status.contains("Seccomp:\t2"), "{status}");
    let status = output(fixture, &["cat", "/proc/self/status"], |config| {
        config.linux.security_context.seccomp = profile(ProfileType::Unconfined);
    })
    .await;
    assert!(status.contains("Seccomp:\t0"), "{status}");
}

async fn seccomp_profiles_come_from_files(fixture: &Fixture) {
    let path = fixture.directory.path().join("profile.json");
    let with = |config: &mut ContainerConfig| {
        let localhost_ref = path.to_string_lossy().into_owned();
        config.linux.security_context.seccomp =
            Some(SecurityProfile { profile_type: ProfileType::Localhost, localhost_ref });
    };
    let refuse = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["uname"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]}"#;
    std::fs::write(&path, refuse).unwrap();
    let text = output(fixture, &["hostname"], with).await;
    assert!(text.contains("os error 95") || text.contains("not supported"), "{text}");
    for bad in ["{}", "no profile"] {
        std::fs::write(&path, bad).unwrap();
        let mut config = fixture.container_config(&["true"]);
        with(&mut config);
        let sandbox = fixture.sandbox().await;
        let sandbox_config = fixture.sandbox_config("pod");
        let error = fixture.runtime.create_container(&sandbox, &config, &sandbox_config).await.unwrap_err();
        assert!(error.to_string().contains("profile"), "{error}");
    }
}

async fn the_working_directory_is_made(fixture: &Fixture) {
    let text = output(fixture, &["write", "here", "x"], |config| config.working_dir = "/a/b".into()).await;
    assert_eq!(text, "");
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.working_dir = "/etc".into();
    let (_, id) = fixture.run(&config).await;
    assert!(fixture.exec(&id, &["cat", "hostname"]).await.1.starts_with("pod"));
}

async fn sysctls_are_set(fixture: &Fixture) {
    let mut pod = fixture.sandbox_config("pod");
    pod.linux.sysctls.insert("net.ipv4.ip_default_ttl".into(), "77".into());
    pod.linux.sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    let sandbox = fixture.runtime.run_pod_sandbox(&pod).await.unwrap();
    let id = fixture.run_in(&sandbox, &fixture.container_config(&["sleep", "infinity"])).await;
    assert_eq!(fixture.exec(&id, &["cat", "/proc/sys/net/ipv4/ip_default_ttl"]).await.1, "77\n");
    assert_eq!(fixture.exec(&id, &["cat", "/proc/sys/kernel/shm_rmid_forced"]).await.1, "1\n");
    assert_eq!(fixture.exec(&id, &["cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start"]).await.1, "0\n");
    assert_ne!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap(), "77\n");
}

async fn bad_requests_are_refused(fixture: &Fixture) {
    let sandbox = fixture.sandbox().await;
    type Change = fn(&mut ContainerConfig);
    let refusals: [(&str, Change); 7] = [
        ("capability", |config| {
            config.linux.security_context.capabilities.add_capabilities = vec!["FLY".into()]
        }),
        ("ghost", |config| config.linux.security_context.run_as_username = "ghost".into()),
        ("absolute", |config| config.working_dir = "here".into()),
        ("absolute", |config| {
            config.mounts = vec![Mount { container_path: "x".into(), ..Default::default() }]
        }),
        ("absolute", |config| {
            config.mounts =
                vec![Mount { container_path: "/x".into(), host_path: "y".into(), ..Default::default() }]
        }),
        ("image reference", |config| config.image = "Not An Image".into()),
        ("user namespace", |config| {
            config.linux.security_context.namespace_options.userns_options = Some(Default::default());
        }),
    ];
    for (word, change) in refusals {
        let mut config = fixture.container_config(&["true"]);
        change(&mut config);
        let error = fixture
            .runtime
            .create_container(&sandbox, &config, &fixture.sandbox_config("pod"))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    let mut pod = fixture.sandbox_config("pod");
    pod.runtime_handler = "gvisor".into();
    assert!(fixture.runtime.run_pod_sandbox(&pod).await.unwrap_err().to_string().contains("gvisor"));
    assert_eq!(std::fs::read_dir(fixture.directory.path().join("root/snapshots")).unwrap().count(), 0);
}

/// Enters the namespace that it is told, as a network does to put an interface there.
#[derive(Default)]
struct Visitor(std::sync::Mutex<Vec<(cni::PodRef, std::path::PathBuf)>>);

impl cni::Network for Visitor {
    fn add<'a>(&'a self, pod: &'a cni::PodRef) -> cni::BoxFuture<'a, cni::Result<cni::Attachment>> {
        Box::pin(async move {
            let path = pod.netns.clone();
            let visit = move || {
                let namespace = std::fs::File::open(path).unwrap();
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)
                    .unwrap();
                std::fs::read_link("/proc/thread-self/ns/net").unwrap()
            };
            let seen = std::thread::spawn(visit).join().unwrap();
            self.0.lock().unwrap().push((pod.clone(), seen));
            let addresses = vec!["10.1.2.3".parse().unwrap(), "fd00::3".parse().unwrap()];
            Ok(cni::Attachment { addresses, gateway: None, interface: "eth0".into() })
        })
    }

    fn del<'a>(&'a self, pod: &'a cni::PodRef) -> cni::BoxFuture<'a, cni::Result<()>> {
        // The pod is dead, but its namespace is kept until this is over: plug-ins take their interfaces out of it.
        let told = std::fs::read_link(&pod.netns).unwrap();
        assert_eq!(told, self.0.lock().unwrap()[0].1, "the namespace that it was connected in, and no other");
        Box::pin(async { Ok(()) })
    }

    fn check<'a>(&'a self, _: &'a cni::PodRef) -> cni::BoxFuture<'a, cni::Result<Option<cni::Attachment>>> {
        Box::pin(async { Ok(None) })
    }

    fn status(&self) -> cni::BoxFuture<'_, cni::Result<()>> {
        Box::pin(async { Err(cni::Error::NotReady { reason: "no range yet".into() }) })
    }
}

async fn the_network_gets_the_pods_namespace(fixture: &Fixture) {
    let visitor = std::sync::Arc::new(Visitor::default());
    let directory = fixture.directory.path().join("networked");
    std::fs::create_dir(&directory).unwrap();
    let config = container_runtime::Config { network: visitor.clone(), ..crate::fixture::config(&directory) };
    let runtime = container_runtime::Runtime::open(config).await.unwrap();
    let mut pod = fixture.sandbox_config("pod");
    pod.annotations.insert("kubernetes.io/egress-bandwidth".into(), "1M".into());
    pod.port_mappings = vec![cri::PortMapping { container_port: 80, host_port: 8080, ..Default::default() }];
    let sandbox = runtime.run_pod_sandbox(&pod).await.unwrap();
    let status = runtime.pod_sandbox_status(&sandbox).await.unwrap();
    let (seen, namespace) = visitor.0.lock().unwrap()[0].clone();
    assert_eq!(namespace, std::fs::read_link(format!("/proc/{}/ns/net", status.pid.unwrap())).unwrap());
    assert_eq!(
        (seen.name.as_str(), seen.host_ports[0].host_port, seen.bandwidth.egress),
        ("pod", 8080, Some(1_000_000))
    );
    assert_eq!(status.network.ip, Some("10.1.2.3".parse().unwrap()));
    assert_eq!(status.network.additional_ips, ["fd00::3".parse::<std::net::IpAddr>().unwrap()]);
    let hosts = std::fs::read_to_string(directory.join("state").join(&sandbox).join("hosts")).unwrap();
    assert!(hosts.contains("10.1.2.3\tpod\n"), "{hosts}");
    let network = runtime.status().await.unwrap().condition("NetworkReady").unwrap().clone();
    assert!(!network.status && network.message.contains("no range yet"), "{network:?}");
    runtime.purge().await.unwrap();
    runtime.close().await;
}

/// The hierarchy of version 2, where the host has one beside the controllers of version 1.
async fn a_container_sees_its_own_limits_and_no_others(fixture: &Fixture) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let file = match table.lines().any(|line| line.contains(" - cgroup ") && line.contains("memory")) {
        true => "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        false => "/sys/fs/cgroup/memory.max",
    };
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.linux.resources.memory_limit_in_bytes = 64 << 20;
    let (_, id) = fixture.run(&config).await;
    assert_eq!(fixture.exec(&id, &["cat", file]).await.1, format!("{}\n", 64 << 20));
    let (code, _, error) = fixture.exec(&id, &["write", file, "99999999"]).await;
    assert!(code == 1 && error.contains("Read-only"), "{error}");
    let (code, _, error) = fixture.exec(&id, &["write", "/sys/fs/cgroup/new", "x"]).await;
    assert!(code == 1 && !error.is_empty(), "{error}");
    // A change is seen at once.
    let change = cri::LinuxContainerResources { memory_limit_in_bytes: 96 << 20, ..Default::default() };
    fixture.runtime.update_container_resources(&id, &change).await.unwrap();
    assert_eq!(fixture.exec(&id, &["cat", file]).await.1, format!("{}\n", 96 << 20));
}

async fn cgroups_of_version_two_work_alike(_: &Fixture) {
    use cgroups::Cgroups;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount_point = line.and_then(|line| line.split(' ').nth(4));
    testing::found("cgroup2", mount_point.is_some(), "it is not mounted");
    let Some(mount_point) = mount_point else { return };
    let cgroups = Cgroups::V2(mount_point.into());
    let group = format!("/kelson-test-{}/a/b", std::process::id());
    assert_eq!(cgroups.create(&group), Vec::<String>::new());
    let mut child =
        std::process::Command::new("/proc/self/exe").args(["demo", "sleep", "infinity"]).spawn().unwrap();
    assert_eq!(cgroups.join(&group, child.id() as i32), Vec::<String>::new());
    assert_eq!(cgroups.processes(&group), [child.id() as i32]);
    assert!(!cgroups.remove(&group), "it is in use");
    assert!(cgroups.usage(&group).cpu_nanoseconds.is_some());
    cgroups.kill(&group);
    assert!(!child.wait().unwrap().success());
    assert!(cgroups.remove(group.trim_end_matches("/a/b")));
}
