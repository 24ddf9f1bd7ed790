//! Pods whose root is nobody on the host.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use cri::{
    ContainerConfig, IdMapping, Mount, NamespaceMode, PodSandboxConfig, RuntimeService, UserNamespace,
};

use crate::fixture::{DEADLINE, Fixture};

crate::tests![
    root_in_the_pod_is_nobody_on_the_host,
    volumes_show_the_pods_ids,
    the_pods_namespaces_are_its_own,
    ids_beyond_the_range_are_refused,
    bad_ranges_are_refused,
];

const FIRST: u32 = 327_680;
const LENGTH: u32 = 65_536;

fn mapping() -> Vec<IdMapping> {
    vec![IdMapping { host_id: FIRST, container_id: 0, length: LENGTH }]
}

fn users() -> Option<UserNamespace> {
    Some(UserNamespace { mode: NamespaceMode::Pod, uids: mapping(), gids: mapping() })
}

fn sandbox_config(fixture: &Fixture) -> PodSandboxConfig {
    let mut config = fixture.sandbox_config("pod");
    config.linux.security_context.namespace_options.userns_options = users();
    config
}

fn container_config(fixture: &Fixture, args: &[&str]) -> ContainerConfig {
    let mut config = fixture.container_config(args);
    config.linux.security_context.namespace_options.userns_options = users();
    config
}

async fn run(fixture: &Fixture, sandbox: &str, config: &ContainerConfig) -> String {
    let id = fixture.runtime.create_container(sandbox, config, &sandbox_config(fixture)).await.unwrap();
    fixture.runtime.start_container(&id).await.unwrap();
    id
}

async fn root_in_the_pod_is_nobody_on_the_host(fixture: &Fixture) {
    for shared in [false, true] {
        let mut pod = sandbox_config(fixture);
        let mut config = container_config(fixture, &["sleep", "infinity"]);
        if shared {
            pod.linux.security_context.namespace_options.pid = NamespaceMode::Pod;
            config.linux.security_context.namespace_options.pid = NamespaceMode::Pod;
        }
        config.tty = shared;
        let sandbox = fixture.runtime.run_pod_sandbox(&pod).await.unwrap();
        let id = run(fixture, &sandbox, &config).await;
        let map = fixture.exec(&id, &["cat", "/proc/self/uid_map", "/proc/self/gid_map"]).await.1;
        let words: Vec<&str> = map.split_whitespace().collect();
        let line = ["0".to_owned(), FIRST.to_string(), LENGTH.to_string()];
        assert_eq!(words, [&line[..], &line[..]].concat());
        assert_eq!(fixture.exec(&id, &["id"]).await.1, "uid=0 gid=0 groups=0\n");
        let pid = fixture.runtime.container_status(&id).await.unwrap().pid.unwrap();
        let owner = std::fs::metadata(format!("/proc/{pid}")).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (FIRST, FIRST));
        // The image is the root's, as seen from inside, and can be written to.
        assert!(fixture.exec(&id, &["stat", "/etc/passwd"]).await.1.contains(" 0:0"));
        assert!(fixture.exec(&id, &["stat", "/"]).await.1.contains(" 0:0"));
        assert_eq!(fixture.exec(&id, &["write", "/new", "x"]).await.0, 0);
        assert!(fixture.exec(&id, &["stat", "/new"]).await.1.contains(" 0:0"));
        assert_eq!(fixture.exec(&id, &["write", "/etc/passwd", "x"]).await.0, 0, "copied up");
        assert_eq!(fixture.exec(&id, &["write", "/dev/null", "x"]).await.0, 0);
        assert_eq!(fixture.exec(&id, &["write", "/dev/shm/x", "x"]).await.0, 0);
        // What is the host's root's is not the pod's.
        for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches"] {
            let (code, _, error) = fixture.exec(&id, &["write", path, "x"]).await;
            assert!(code == 1 && error.contains("denied"), "{path}: {error}");
        }
        let mut plain = container_config(fixture, &["id"]);
        plain.linux.security_context.run_as_user = Some(1000);
        plain.linux.security_context.namespace_options.pid =
            config.linux.security_context.namespace_options.pid;
        plain.log_path = "plain.log".into();
        let id = run(fixture, &sandbox, &plain).await;
        fixture.ended(&id).await;
        assert!(fixture.log_text("plain.log").starts_with("uid=1000 "), "{}", fixture.log("plain.log"));
        std::fs::remove_file(fixture.directory.path().join("logs/plain.log")).unwrap();
    }
}

async fn volumes_show_the_pods_ids(fixture: &Fixture) {
    let (volume, secret) = (fixture.directory.path().join("volume"), fixture.directory.path().join("secret"));
    for directory in [&volume, &secret] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("file"), "of the host\n").unwrap();
        std::fs::set_permissions(directory.join("file"), PermissionsExt::from_mode(0o600)).unwrap();
    }
    let mount = |path: &Path, target: &str| Mount {
        host_path: path.to_owned(),
        container_path: target.into(),
        ..Default::default()
    };
    let mapped = |path: &Path, target: &str| Mount {
        uid_mappings: mapping(),
        gid_mappings: mapping(),
        ..mount(path, target)
    };
    let mut config = container_config(fixture, &["sleep", "infinity"]);
    let image = Mount { image: Some("kelson.local/demo".into()), ..mount(Path::new(""), "/image") };
    config.mounts = vec![
        mapped(&volume, "/data"),
        mount(&secret, "/secret"),
        mapped(&secret, "/data/made/inside"),
        image,
    ];
    let sandbox = fixture.runtime.run_pod_sandbox(&sandbox_config(fixture)).await.unwrap();
    let id = run(fixture, &sandbox, &config).await;
    assert_eq!(fixture.exec(&id, &["cat", "/data/file"]).await.1, "of the host\n");
    assert_eq!(fixture.exec(&id, &["write", "/data/new", "x"]).await.0, 0);
    let made = std::fs::metadata(volume.join("new")).unwrap();
    assert_eq!((made.uid(), made.gid()), (0, 0), "on disk the ids are the pod's");
    assert_eq!(std::fs::metadata(volume.join("made")).unwrap().uid(), 0);
    assert!(
        fixture.exec(&id, &["cat", "/secret/file"]).await.2.contains("denied"),
        "not mapped, not the pod's"
    );
    assert_eq!(fixture.exec(&id, &["cat", "/data/made/inside/file"]).await.1, "of the host\n");
    assert!(fixture.exec(&id, &["stat", "/image/etc/passwd"]).await.1.contains(" 0:0"));

    // Mappings that are not the pod's.
    let other = vec![IdMapping { host_id: 1, container_id: 0, length: LENGTH }];
    config.mounts =
        vec![Mount { uid_mappings: other.clone(), gid_mappings: other, ..mount(&volume, "/data") }];
    let refused = fixture.runtime.create_container(&sandbox, &config, &sandbox_config(fixture)).await;
    assert!(refused.unwrap_err().to_string().contains("mappings"));
}

async fn the_pods_namespaces_are_its_own(fixture: &Fixture) {
    let sandbox = fixture.runtime.run_pod_sandbox(&sandbox_config(fixture)).await.unwrap();
    let mut config = container_config(fixture, &["sleep", "infinity"]);
    config.linux.security_context.capabilities.add_capabilities = vec!["NET_ADMIN".into()];
    let id = run(fixture, &sandbox, &config).await;
    let pid = fixture.runtime.container_status(&id).await.unwrap().pid.unwrap();
    for name in ["user", "net", "ipc", "uts", "pid", "mnt"] {
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
        assert_ne!(of(&pid.to_string()), of("self"), "{name}");
    }
    assert_eq!(fixture.exec(&id, &["hostname"]).await.1, "pod\n");
    // The network is the pod's: who administers it in the pod may set what is set there.
    assert_eq!(fixture.exec(&id, &["write", "/proc/sys/net/ipv4/ip_default_ttl", "77"]).await.0, 0);
    // A container without the user namespace does not belong in the pod.
    let config = fixture.container_config(&["true"]);
    let refused = fixture.runtime.create_container(&sandbox, &config, &sandbox_config(fixture)).await;
    assert!(refused.unwrap_err().to_string().contains("user namespace"));
    // The next runtime finds the pod as it was.
    let runtime = fixture.reopened().await;
    let output = runtime.exec_sync(&id, &["id".to_owned()], DEADLINE).await.unwrap();
    assert_eq!(&output.stdout[..], b"uid=0 gid=0 groups=0\n");
    runtime.close().await;
}

async fn ids_beyond_the_range_are_refused(fixture: &Fixture) {
    let sandbox = fixture.runtime.run_pod_sandbox(&sandbox_config(fixture)).await.unwrap();
    let mut config = container_config(fixture, &["true"]);
    config.linux.security_context.run_as_user = Some(LENGTH.into());
    let refused = fixture.runtime.create_container(&sandbox, &config, &sandbox_config(fixture)).await;
    assert!(refused.unwrap_err().to_string().contains("not among"));
}

async fn bad_ranges_are_refused(fixture: &Fixture) {
    let with = |change: &dyn Fn(&mut PodSandboxConfig, &mut UserNamespace)| {
        let mut config = sandbox_config(fixture);
        let mut users = users().unwrap();
        change(&mut config, &mut users);
        config.linux.security_context.namespace_options.userns_options = Some(users);
        config
    };
    let cases: [&dyn Fn(&mut PodSandboxConfig, &mut UserNamespace); 6] = [
        &|_, users| users.uids.clear(),
        &|_, users| users.uids[0].host_id = 0,
        &|_, users| users.uids[0].container_id = 1,
        &|_, users| users.gids[0].length = 1,
        &|_, users| users.gids[0].host_id = u32::MAX,
        &|config, _| config.linux.security_context.namespace_options.network = NamespaceMode::Node,
    ];
    for change in cases {
        let refused = fixture.runtime.run_pod_sandbox(&with(change)).await.unwrap_err();
        assert!(refused.to_string().contains("user namespace"), "{refused}");
    }
}
