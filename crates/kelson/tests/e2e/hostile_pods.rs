//! What pods and other users of the machine must not be able to do with the files of the kubelet.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::first_light::{create, exec, pod, ready};
use crate::harness::{Cluster, eventually, in_own_network};

const NOBODY: u32 = 65534;

/// The mounts below a directory of the host: file system and place.
fn mounts_below(dir: &Path) -> Vec<(String, PathBuf)> {
    let table = std::fs::read_to_string("/proc/self/mounts").expect("the mount table");
    let fields = table.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, place, kind) = (words.next()?, words.next()?, words.next()?);
        Some((kind.to_owned(), PathBuf::from(place)))
    });
    fields.filter(|(_, place)| place.starts_with(dir)).collect()
}

#[test]
fn files_of_the_kubelet_are_out_of_reach() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let maps = Api::<ConfigMap>::default_namespaced(client.clone());
        let secrets = Api::<Secret>::default_namespaced(client.clone());
        let map = json!({"metadata": {"name": "c"}, "data": {"key": "one"}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"key": "very secret"}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();

        let pods = Api::<Pod>::default_namespaced(client.clone());
        let spec = json!({
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000},
            "containers": [{"volumeMounts": [
                {"name": "config", "mountPath": "/config"},
                {"name": "secret", "mountPath": "/secret"},
                {"name": "pod", "mountPath": "/pod"},
                {"name": "memory", "mountPath": "/memory"},
                {"name": "disk", "mountPath": "/disk"},
                {"name": "disk", "mountPath": "/below", "subPath": "a/b"},
                {"name": "config", "mountPath": "/one-file", "subPath": "key"},
            ]}],
            "volumes": [
                {"name": "config", "configMap": {"name": "c"}},
                {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
                {"name": "pod", "downwardAPI": {"items": [
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
                {"name": "disk", "emptyDir": {}},
            ],
        });
        create(&pods, &pod("p", spec)).await;
        let uid = ready(&pods, "p").await.metadata.uid.unwrap();
        let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
        for file in ["/config/new", "/config/..data/key", "/secret/key", "/pod/name", token] {
            let attempt = exec_all(&pods, "p", &["write", file, "x"]).await;
            assert!(attempt.contains("Read-only file system"), "{file}: {attempt}");
        }
        for file in ["/memory/new", "/disk/new", "/below/new"] {
            assert_eq!(exec_all(&pods, "p", &["write", file, "x"]).await, "", "{file}");
        }
        assert_eq!(exec(&pods, "p", &["cat", "/secret/key", "/pod/name"]).await, "very secretp");
        assert_eq!(exec(&pods, "p", &["cat", "/one-file", "/disk/a/b/new"]).await, "onex\n");

        // In memory, all but the ConfigMap's and the ordinary emptyDir.
        let volumes = cluster.data_dir().join("kubelet/pods").join(&uid).join("volumes");
        let mut in_memory: Vec<String> = mounts_below(&volumes)
            .into_iter()
            .map(|(kind, place)| format!("{kind} {}", place.strip_prefix(&volumes).unwrap().display()))
            .map(|line| line.split("kube-api-access").next().unwrap().to_owned())
            .collect();
        in_memory.sort();
        assert_eq!(
            in_memory,
            [
                "tmpfs kubernetes.io~downward-api/pod",
                "tmpfs kubernetes.io~empty-dir/memory",
                "tmpfs kubernetes.io~projected/",
                "tmpfs kubernetes.io~secret/secret",
            ]
        );

        // `..data` replaced by a link to a directory of the host: the next update leaves that alone.
        let victim = tempfile::tempdir().unwrap();
        std::fs::write(victim.path().join("kept"), "x").unwrap();
        let data = volumes.join("kubernetes.io~configmap/config/..data");
        std::fs::remove_file(&data).unwrap();
        symlink(victim.path(), &data).unwrap();
        change(&maps, "two").await;
        sees(&pods, "two").await;
        assert_eq!(std::fs::read_to_string(victim.path().join("kept")).unwrap(), "x");

        // The tmpfs of a pod outlives us, and is found again.
        let pid = rustix::process::Pid::from_raw(cluster.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        eventually("the process is gone", || async {
            if cluster.status()["running"] == false { Ok(()) } else { Err("still running".to_owned()) }
        })
        .await;
        cluster.up();
        let client = cluster.client().await;
        let (maps, pods) = (Api::default_namespaced(client.clone()), Api::default_namespaced(client));
        change(&maps, "three").await;
        sees(&pods, "three").await;
        assert_eq!(mounts_below(&volumes).len(), 4, "mounted once");
        assert_eq!(exec(&pods, "p", &["cat", "/memory/new"]).await, "x\n");

        unreadable_to_others(&cluster);

        // A link of the pod's own to the host goes with the pod; what it names stays.
        symlink(victim.path(), volumes.join("kubernetes.io~empty-dir/disk/link")).unwrap();
        pods.delete("p", &DeleteParams::default()).await.unwrap();
        eventually("the pod's directory is gone", || async {
            match volumes.parent().unwrap().exists() {
                true => Err(format!("{:?}", mounts_below(&volumes))),
                false => Ok(()),
            }
        })
        .await;
        assert_eq!(mounts_below(&cluster.data_dir().join("kubelet")), []);
        assert_eq!(std::fs::read_to_string(victim.path().join("kept")).unwrap(), "x");
    });
}

async fn change(maps: &Api<ConfigMap>, value: &str) {
    let patch = json!({"data": {"key": value}});
    maps.patch("c", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

async fn sees(pods: &Api<Pod>, value: &str) {
    eventually("the new value is in the volume", || async {
        let seen = exec(pods, "p", &["cat", "/config/key"]).await;
        if seen == value { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Both outputs of a command.
async fn exec_all(pods: &Api<Pod>, name: &str, words: &[&str]) -> String {
    use tokio::io::AsyncReadExt;
    let parameters = kube::api::AttachParams::default();
    let mut attached = pods.exec(name, words.to_vec(), &parameters).await.expect("exec starts");
    let mut text = String::new();
    attached.stdout().expect("stdout").read_to_string(&mut text).await.expect("text");
    attached.stderr().expect("stderr").read_to_string(&mut text).await.expect("text");
    let _ = attached.join().await;
    text
}

/// Walks the tree of the running cluster as a user who is nobody in particular.
fn unreadable_to_others(cluster: &Cluster) {
    let data = cluster.data_dir();
    // The test's own directory hides everything; open it, so that the cluster's have to.
    std::fs::set_permissions(data.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let find = |what: &str| {
        let mut find = Command::new("find");
        find.arg(data.parent().unwrap()).args(["-mindepth", "1", what]).uid(NOBODY).gid(NOBODY);
        let output = find.output().expect("find runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(find("-readable"), "", "readable to others");
    assert_eq!(find("-writable"), "", "writable to others");
    // Deeper too, for those who put the data directory somewhere and open it: what pods are given stays closed.
    let kubelet = data.join("kubelet");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&kubelet.join("pods")), 0o750);
    for pod in std::fs::read_dir(kubelet.join("pods")).unwrap().flatten() {
        assert_eq!(mode(&pod.path()), 0o750, "{:?}", pod.path());
    }
}

/// Who may only read through the proxy of a node runs nothing on it: not by a GET, at neither of the two doors.
#[test]
fn reading_a_node_runs_no_command() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        create(&pods, &pod("p", json!({}))).await;
        ready(&pods, "p").await;
        let accounts = Api::<ServiceAccount>::default_namespaced(client.clone());
        let account = json!({"metadata": {"name": "reader"}});
        accounts.create(&PostParams::default(), &serde_json::from_value(account).unwrap()).await.unwrap();
        let role = json!({"metadata": {"name": "reader"}, "rules": [
            {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}]});
        Api::<ClusterRole>::all(client.clone())
            .create(&PostParams::default(), &serde_json::from_value(role).unwrap())
            .await
            .unwrap();
        let binding = json!({"metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]});
        Api::<ClusterRoleBinding>::all(client.clone())
            .create(&PostParams::default(), &serde_json::from_value(binding).unwrap())
            .await
            .unwrap();
        let request = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
        let token = accounts.create_token_request("reader", &PostParams::default(), &request).await.unwrap();
        let token = token.status.unwrap().token.unwrap_or_default();

        let node = Api::<Node>::all(client).list(&ListParams::default()).await.unwrap().items.remove(0);
        let addresses = node.status.unwrap().addresses.unwrap();
        let address = &addresses.iter().find(|one| one.type_ == "InternalIP").unwrap().address;
        let kubeconfig = kube::config::Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        config.auth_info = kube::config::AuthInfo { token: Some(token.into()), ..Default::default() };
        let mut direct = config.clone();
        direct.cluster_url = format!("https://{address}:10250").parse().unwrap();
        direct.accept_invalid_certs = true;
        let proxy = format!("/api/v1/nodes/{}/proxy", node.metadata.name.unwrap());
        for (config, prefix) in [(config, proxy.as_str()), (direct, "")] {
            let client = kube::Client::try_from(config).unwrap();
            let ask = async |method: &str, path: &str, upgrade: Option<&str>| {
                let mut request = http::Request::builder().method(method).uri(format!("{prefix}{path}"));
                if let Some(protocol) = upgrade {
                    request = request
                        .header("connection", "Upgrade")
                        .header("upgrade", protocol)
                        .header("sec-websocket-version", "13")
                        .header("sec-websocket-protocol", "v5.channel.k8s.io")
                        .header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==");
                }
                client
                    .send(request.body(kube::client::Body::empty()).unwrap())
                    .await
                    .unwrap()
                    .status()
                    .as_u16()
            };
            assert_eq!(ask("GET", "/pods", None).await, 200, "{prefix}: reading is allowed");
            let exec = "/exec/default/p/main?command=id&output=1";
            assert_eq!(ask("GET", exec, Some("websocket")).await, 403, "{prefix}");
            assert_eq!(ask("GET", exec, Some("SPDY/3.1")).await, 403, "{prefix}");
            assert_eq!(
                ask("GET", "/portForward/default/p?port=80", Some("websocket")).await,
                403,
                "{prefix}"
            );
            let run = ask("GET", "/run/default/p/main?cmd=id", None).await;
            assert!(run == 403 || run == 405, "{prefix}: {run}");
            assert_eq!(ask("POST", "/run/default/p/main?cmd=id", None).await, 403, "{prefix}");
        }
    });
}
