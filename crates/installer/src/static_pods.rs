//! Pods that start before there is an API server: four of the control plane and the version operator on the
//! bootstrap machine, the service proxy on masters.
//!
//! Every flag stands beside its reason, and the reasons go into the files as comments.

use serde_json::{Value, json};

use crate::graph::{AssetError, AssetFile, Files, Inputs};
use crate::nodes::Role;
use crate::scene::Scene;

/// A flag, its value, and why it is there.
struct Flag(&'static str, String, &'static str);

fn flag(name: &'static str, value: impl Into<String>, why: &'static str) -> Flag {
    Flag(name, value.into(), why)
}

/// Where secrets are inside the pods.
const SECRETS: &str = "/etc/kubernetes/secrets";
/// Where kubeconfigs are, on the machine and inside the pods.
const KUBECONFIGS: &str = "/etc/kubernetes/kubeconfigs";

fn crt(name: &str) -> String {
    format!("{SECRETS}/{name}.crt")
}

fn key(name: &str) -> String {
    format!("{SECRETS}/{name}.key")
}

/// What all of these pods have in common is written once, in [`render`].
struct StaticPod {
    file: &'static str,
    name: &'static str,
    container: &'static str,
    image: String,
    command: &'static [&'static str],
    flags: Vec<Flag>,
    env: Vec<Value>,
    /// Name and number of each port, for whoever reads the pod.
    ports: &'static [(&'static str, u16)],
    requests: (&'static str, &'static str),
    startup: Option<Value>,
    liveness: Option<Value>,
    readiness: Option<Value>,
    /// Name, path on the machine, path inside, whether it may be written.
    mounts: Vec<(&'static str, &'static str, &'static str, bool)>,
}

fn https_get(port: u16, path: &str, delay: u32) -> Value {
    json!({
        "httpGet": {"host": "localhost", "scheme": "HTTPS", "port": port, "path": path},
        "initialDelaySeconds": delay, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 8,
    })
}

fn read_secrets() -> (&'static str, &'static str, &'static str, bool) {
    ("secrets", "/etc/kubernetes/bootstrap-secrets", SECRETS, false)
}

fn read_kubeconfigs() -> (&'static str, &'static str, &'static str, bool) {
    ("kubeconfigs", KUBECONFIGS, KUBECONFIGS, false)
}

/// bootstrap-manifests/.
pub fn generate_bootstrap(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let pods = [
        etcd(&scene),
        kube_apiserver(&scene),
        kube_controller_manager(&scene),
        kube_scheduler(&scene),
        cluster_version_operator(&scene),
    ];
    pods.iter().map(|pod| render("bootstrap-manifests", pod)).collect()
}

/// master-manifests/.
pub fn generate_master(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    Ok(vec![render("master-manifests", &kube_proxy(&scene))?])
}

fn bootstrap_address(scene: &Scene<'_>) -> String {
    let mut bootstrap = scene.nodes.with_role(Role::Bootstrap);
    bootstrap.find_map(|node| node.addresses.first()).map(ToString::to_string).unwrap_or_default()
}

fn in_url(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

fn etcd(scene: &Scene<'_>) -> StaticPod {
    let address = in_url(&bootstrap_address(scene));
    let peer_url = format!("https://{address}:2380");
    let any = if address.starts_with('[') { "[::]" } else { "0.0.0.0" };
    StaticPod {
        file: "etcd-pod.yaml",
        name: "etcd-bootstrap",
        container: "etcd",
        image: scene.release.image_of("etcd").to_owned(),
        command: &["etcd"],
        flags: vec![
            flag("name", "etcd-bootstrap", "how other members know this one"),
            flag("data-dir", "/var/lib/etcd", "a directory of the machine: the data outlives the pod"),
            flag(
                "listen-client-urls",
                format!("https://{any}:2379"),
                "masters' API servers connect from elsewhere",
            ),
            flag(
                "advertise-client-urls",
                format!("https://{address}:2379"),
                "what members tell clients to use",
            ),
            flag("listen-peer-urls", format!("https://{any}:2380"), "members on masters join from elsewhere"),
            flag("initial-advertise-peer-urls", peer_url.clone(), "where those members find this one"),
            flag(
                "initial-cluster",
                format!("etcd-bootstrap={peer_url}"),
                "alone at first; masters are added one by one",
            ),
            flag("initial-cluster-state", "new", "nothing to join yet"),
            flag("initial-cluster-token", "openshift-etcd", "keeps members of another cluster out"),
            flag("cert-file", crt("etcd-server"), "shown to clients"),
            flag("key-file", key("etcd-server"), "key of the above"),
            flag("trusted-ca-file", crt("etcd-ca"), "who vouches for clients"),
            flag(
                "client-cert-auth",
                "true",
                "everything in the cluster is in here: nobody without a certificate",
            ),
            flag("peer-cert-file", crt("etcd-peer"), "shown to members"),
            flag("peer-key-file", key("etcd-peer"), "key of the above"),
            flag("peer-trusted-ca-file", crt("etcd-ca"), "who vouches for members"),
            flag("peer-client-cert-auth", "true", "members are clients of one another"),
            flag(
                "listen-metrics-urls",
                "http://localhost:2381",
                "health for the probes, without a certificate, on this machine only",
            ),
            flag(
                "quota-backend-bytes",
                "8589934592",
                "8 GiB: beyond it etcd refuses writes instead of filling the disk",
            ),
            flag("snapshot-count", "100000", "fewer pauses under the write load of an installation"),
        ],
        env: Vec::new(),
        ports: &[("client", 2379), ("peer", 2380)],
        requests: ("300m", "600Mi"),
        startup: None,
        liveness: Some(json!({
            "httpGet": {"host": "localhost", "scheme": "HTTP", "port": 2381, "path": "/health?serializable=true"},
            "initialDelaySeconds": 45, "periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 8,
        })),
        readiness: Some(json!({
            "httpGet": {"host": "localhost", "scheme": "HTTP", "port": 2381, "path": "/health"},
            "initialDelaySeconds": 3, "periodSeconds": 5, "timeoutSeconds": 10,
        })),
        mounts: vec![read_secrets(), ("data", "/var/lib/etcd", "/var/lib/etcd", true)],
    }
}

fn kube_apiserver(scene: &Scene<'_>) -> StaticPod {
    let issuer = "https://kubernetes.default.svc";
    let sni = |name: &str| format!("{},{}", crt(name), key(name));
    StaticPod {
        file: "kube-apiserver-pod.yaml",
        name: "kube-apiserver-bootstrap",
        container: "kube-apiserver",
        image: scene.release.image_of("kube-apiserver").to_owned(),
        command: &["kube-apiserver"],
        flags: vec![
            flag("advertise-address", bootstrap_address(scene), "the endpoint behind the kubernetes Service"),
            flag("secure-port", "6443", "what the load balancer sends to"),
            flag("etcd-servers", "https://localhost:2379", "the member beside it"),
            flag("etcd-cafile", crt("etcd-ca"), "who vouches for etcd"),
            flag("etcd-certfile", crt("etcd-client"), "etcd lets nobody else in"),
            flag("etcd-keyfile", key("etcd-client"), "key of the above"),
            flag(
                "tls-cert-file",
                crt("kube-apiserver-service-network-server"),
                "for pods, which come by address and so without a name to choose by",
            ),
            flag("tls-private-key-file", key("kube-apiserver-service-network-server"), "key of the above"),
            flag("tls-sni-cert-key", sni("kube-apiserver-localhost-server"), "for clients on this machine"),
            flag(
                "tls-sni-cert-key",
                sni("kube-apiserver-lb-server"),
                "for administrators, who ask for api.<domain>",
            ),
            flag(
                "tls-sni-cert-key",
                sni("kube-apiserver-internal-lb-server"),
                "for nodes and operators, who ask for api-int.<domain>",
            ),
            flag("client-ca-file", crt("kube-apiserver-client-ca"), "who vouches for users, nodes included"),
            flag("kubelet-certificate-authority", crt("kubelet-serving-ca"), "who vouches for kubelets"),
            flag(
                "kubelet-client-certificate",
                crt("kube-apiserver-to-kubelet-client"),
                "who asks kubelets for logs and exec",
            ),
            flag("kubelet-client-key", key("kube-apiserver-to-kubelet-client"), "key of the above"),
            flag("kubelet-preferred-address-types", "InternalIP,Hostname", "addresses work before names do"),
            flag(
                "proxy-client-cert-file",
                crt("aggregator-client"),
                "who speaks for users to aggregated servers",
            ),
            flag("proxy-client-key-file", key("aggregator-client"), "key of the above"),
            flag("requestheader-client-ca-file", crt("aggregator-ca"), "who vouches for such speakers"),
            flag(
                "requestheader-allowed-names",
                pki::table::FRONT_PROXY_NAME,
                "exactly the name in the certificate above",
            ),
            flag("requestheader-username-headers", "X-Remote-User", "where the speaker puts the user"),
            flag("requestheader-group-headers", "X-Remote-Group", "where it puts the groups"),
            flag("requestheader-extra-headers-prefix", "X-Remote-Extra-", "where it puts the rest"),
            flag("service-account-issuer", issuer, "who made a token, as written in it"),
            flag("api-audiences", issuer, "for whom tokens are made"),
            flag(
                "service-account-key-file",
                format!("{SECRETS}/service-account.pub"),
                "checks tokens of the controller manager",
            ),
            flag(
                "service-account-key-file",
                format!("{SECRETS}/bound-service-account-signing-key.pub"),
                "checks tokens that this server signs",
            ),
            flag(
                "service-account-signing-key-file",
                key("bound-service-account-signing-key"),
                "signs tokens that pods get projected",
            ),
            flag(
                "service-cluster-ip-range",
                scene.config.networking.service_network.join(","),
                "serviceNetwork of install-config.yaml",
            ),
            flag(
                "authorization-mode",
                "Node,RBAC",
                "nodes see what their pods need; everyone else what roles say",
            ),
            flag(
                "enable-admission-plugins",
                "NodeRestriction",
                "a node changes itself and its pods, nothing else",
            ),
            flag(
                "node-registration-labels",
                "node-role.kubernetes.io/master,node-role.kubernetes.io/control-plane,\
                 node-role.kubernetes.io/arbiter,node-role.kubernetes.io/worker",
                "machines say what they are for when they join; they cannot change it later",
            ),
            flag("allow-privileged", "true", "network and storage pods need the machine"),
            flag("enable-bootstrap-token-auth", "true", "machines may also join by token"),
            flag(
                "anonymous-auth",
                "true",
                "health checks of load balancers come without identity; RBAC grants them no more",
            ),
            flag(
                "endpoint-reconciler-type",
                "lease",
                "several API servers share the endpoints of one Service",
            ),
            flag("shutdown-delay-duration", "70s", "longer than the load balancer needs to notice"),
            flag("feature-gates", "", "none: FeatureGate/cluster decides once operators run"),
        ]
        .into_iter()
        .filter(|flag| !flag.1.is_empty())
        .collect(),
        env: Vec::new(),
        ports: &[("https", 6443)],
        requests: ("500m", "1Gi"),
        startup: None,
        liveness: Some(https_get(6443, "/livez", 45)),
        readiness: Some(https_get(6443, "/readyz", 10)),
        mounts: vec![read_secrets()],
    }
}

fn kube_controller_manager(scene: &Scene<'_>) -> StaticPod {
    let networking = &scene.config.networking;
    let kubeconfig = format!("{KUBECONFIGS}/controller-manager.kubeconfig");
    let cidrs: Vec<&str> = networking.cluster_network.iter().map(|n| n.cidr.as_str()).collect();
    let prefix = |six: bool| {
        let mut entries = networking.cluster_network.iter().filter(|n| n.cidr.contains(':') == six);
        entries.next().map(|entry| entry.host_prefix.to_string()).unwrap_or_default()
    };
    let (v4, v6) = (prefix(false), prefix(true));
    let dual = !v4.is_empty() && !v6.is_empty();
    let single = if v4.is_empty() { v6.clone() } else { v4.clone() };
    let only = |condition: bool, value: &str| if condition { value.to_owned() } else { String::new() };
    StaticPod {
        file: "kube-controller-manager-pod.yaml",
        name: "kube-controller-manager-bootstrap",
        container: "kube-controller-manager",
        image: scene.release.image_of("kube-controller-manager").to_owned(),
        command: &["kube-controller-manager"],
        flags: vec![
            flag("kubeconfig", kubeconfig.clone(), "who it is"),
            flag("authentication-kubeconfig", kubeconfig.clone(), "whom it asks about its callers"),
            flag("authorization-kubeconfig", kubeconfig, "whom it asks what they may"),
            flag("cluster-cidr", cidrs.join(","), "clusterNetwork of install-config.yaml"),
            flag(
                "service-cluster-ip-range",
                networking.service_network.join(","),
                "not to be given to nodes",
            ),
            flag("allocate-node-cidrs", "true", "each node gets its part of the above"),
            flag(
                "node-cidr-mask-size",
                only(!dual, &single),
                "hostPrefix of install-config.yaml; upstream's default would disagree",
            ),
            flag("node-cidr-mask-size-ipv4", only(dual, &v4), "hostPrefix of the IPv4 network"),
            flag("node-cidr-mask-size-ipv6", only(dual, &v6), "hostPrefix of the IPv6 network"),
            flag(
                "cluster-signing-cert-file",
                crt("kubelet-signer"),
                "signs nodes' certificates; in the API server's client CA bundle",
            ),
            flag("cluster-signing-key-file", key("kubelet-signer"), "key of the above"),
            flag("cluster-signing-duration", "720h", "nodes renew monthly"),
            flag("root-ca-file", crt("kube-apiserver-server-ca"), "put beside every service account token"),
            flag("service-account-private-key-file", key("service-account"), "signs long-lived tokens"),
            flag("use-service-account-credentials", "true", "each controller may only do its own work"),
            flag("controllers", "*,bootstrapsigner,tokencleaner", "those that joining by token needs, too"),
            flag("leader-elect", "true", "hands over to the masters' without two acting at once"),
            flag("leader-elect-resource-lock", "leases", "the lock that upstream's use too"),
            flag("leader-elect-retry-period", "3s", "a pause of the API server costs no leadership"),
        ]
        .into_iter()
        .filter(|flag| !flag.1.is_empty())
        .collect(),
        env: Vec::new(),
        ports: &[("https", 10257)],
        requests: ("200m", "256Mi"),
        startup: None,
        liveness: Some(https_get(10257, "/healthz", 45)),
        readiness: None,
        mounts: vec![read_secrets(), read_kubeconfigs()],
    }
}

fn kube_scheduler(scene: &Scene<'_>) -> StaticPod {
    let kubeconfig = format!("{KUBECONFIGS}/scheduler.kubeconfig");
    StaticPod {
        file: "kube-scheduler-pod.yaml",
        name: "kube-scheduler-bootstrap",
        container: "kube-scheduler",
        image: scene.release.image_of("kube-scheduler").to_owned(),
        command: &["kube-scheduler"],
        flags: vec![
            flag("kubeconfig", kubeconfig.clone(), "who it is"),
            flag("authentication-kubeconfig", kubeconfig.clone(), "whom it asks about its callers"),
            flag("authorization-kubeconfig", kubeconfig, "whom it asks what they may"),
            flag("leader-elect", "true", "hands over to the masters' without two acting at once"),
            flag("leader-elect-resource-lock", "leases", "the lock that upstream's use too"),
        ],
        env: Vec::new(),
        ports: &[("https", 10259)],
        requests: ("100m", "128Mi"),
        startup: None,
        liveness: Some(https_get(10259, "/healthz", 45)),
        readiness: None,
        mounts: vec![read_kubeconfigs()],
    }
}

fn cluster_version_operator(scene: &Scene<'_>) -> StaticPod {
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    StaticPod {
        file: "cluster-version-operator-pod.yaml",
        name: "cluster-version-operator",
        container: "cluster-version-operator",
        // Only the release image holds the release's manifests.
        image: scene.release.image.clone(),
        command: &["cluster-version-operator", "start"],
        flags: vec![
            flag("release-image", scene.release.image.clone(), "what it rolls out"),
            flag("enable-auto-update", "false", "an installation ends at the release it began with"),
            flag(
                "kubeconfig",
                format!("{KUBECONFIGS}/localhost.kubeconfig"),
                "the API server beside it, before any load balancer works",
            ),
            flag("listen", " ", "no metrics port: the one on masters will need it"),
        ]
        .into_iter()
        .map(|Flag(name, value, why)| Flag(name, value.trim().to_owned(), why))
        .collect(),
        env: vec![
            value("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
            value("KUBERNETES_SERVICE_PORT", "6443"),
            value("CLUSTER_PROFILE", "self-managed-high-availability"),
            json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
        ],
        ports: &[],
        requests: ("20m", "50Mi"),
        startup: None,
        liveness: None,
        readiness: None,
        mounts: vec![
            read_kubeconfigs(),
            ("trust", "/etc/ssl/certs", "/etc/ssl/certs", false),
            ("updatepayloads", "/etc/cvo/updatepayloads", "/etc/cvo/updatepayloads", true),
        ],
    }
}

fn kube_proxy(scene: &Scene<'_>) -> StaticPod {
    let cidrs: Vec<&str> = scene.config.networking.cluster_network.iter().map(|n| n.cidr.as_str()).collect();
    StaticPod {
        file: "kube-proxy-pod.yaml",
        name: "kube-proxy",
        container: "kube-proxy",
        image: scene.release.image_of("kube-proxy").to_owned(),
        command: &["kube-proxy"],
        flags: vec![
            flag(
                "kubeconfig",
                "/etc/kubernetes/kube-proxy.kubeconfig",
                "may see Services and their endpoints, and nothing else",
            ),
            flag("cluster-cidr", cidrs.join(","), "tells traffic of pods from other traffic"),
            flag("proxy-mode", "nftables", "one lookup per packet, however many Services there are"),
            flag("healthz-bind-address", "0.0.0.0:10256", "load balancers ask here"),
            flag("metrics-bind-address", "127.0.0.1:10249", "for the machine's own monitoring"),
        ],
        env: Vec::new(),
        ports: &[("healthz", 10256)],
        requests: ("100m", "100Mi"),
        startup: None,
        liveness: Some(json!({
            "httpGet": {"host": "localhost", "scheme": "HTTP", "port": 10256, "path": "/healthz"},
            "initialDelaySeconds": 30, "periodSeconds": 10, "failureThreshold": 8,
        })),
        readiness: None,
        mounts: vec![
            (
                "kubeconfig",
                "/etc/kubernetes/kube-proxy.kubeconfig",
                "/etc/kubernetes/kube-proxy.kubeconfig",
                false,
            ),
            ("modules", "/lib/modules", "/lib/modules", false),
        ],
    }
}

fn render(directory: &str, pod: &StaticPod) -> Result<AssetFile, AssetError> {
    let arguments = pod.flags.iter().map(|Flag(name, value, _)| json!(format!("--{name}={value}")));
    let command: Vec<Value> = pod.command.iter().map(|part| json!(part)).chain(arguments).collect();
    let mut container = json!({
        "name": pod.container,
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"requests": {"cpu": pod.requests.0, "memory": pod.requests.1}},
        // The host's files and network are theirs to change.
        "securityContext": {"privileged": true},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if !pod.env.is_empty() {
        container["env"] = json!(pod.env);
    }
    if !pod.ports.is_empty() {
        let port = |(name, number): &(&str, u16)| json!({"name": name, "containerPort": number, "hostPort": number, "protocol": "TCP"});
        container["ports"] = pod.ports.iter().map(port).collect();
    }
    for (name, probe) in
        [("startupProbe", &pod.startup), ("livenessProbe", &pod.liveness), ("readinessProbe", &pod.readiness)]
    {
        if let Some(probe) = probe {
            container[name] = probe.clone();
        }
    }
    container["volumeMounts"] = pod
        .mounts
        .iter()
        .map(|(name, _, inside, writable)| json!({"name": name, "mountPath": inside, "readOnly": !writable}))
        .collect();
    let volume = |(name, outside, _, writable): &(&str, &str, &str, bool)| {
        let kind = match (*writable, outside.ends_with(".kubeconfig")) {
            (true, _) => "DirectoryOrCreate",
            (false, true) => "File",
            (false, false) => "Directory",
        };
        json!({"name": name, "hostPath": {"path": outside, "type": kind}})
    };
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod.name, "namespace": "kube-system",
            "labels": {"app": pod.name, "tier": "control-plane"},
        },
        "spec": {
            "hostNetwork": true,
            // Nothing is evicted before these.
            "priorityClassName": "system-node-critical", "priority": 2000001000,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": if pod.container == "kube-apiserver" { 135 } else { 30 },
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            "volumes": pod.mounts.iter().map(volume).collect::<Vec<_>>(),
        },
    });
    let text = with_reasons(&serde_yaml_ng::to_string(&manifest)?, &pod.flags);
    Ok(AssetFile::public(format!("{directory}/{}", pod.file), text))
}

/// Puts each flag's reason above it.
fn with_reasons(yaml: &str, flags: &[Flag]) -> String {
    let mut out = String::with_capacity(yaml.len() * 2);
    let mut flags = flags.iter().peekable();
    for line in yaml.lines() {
        let text = line.trim_start();
        let is_next = flags.peek().is_some_and(|Flag(name, _, _)| {
            let item = text.strip_prefix("- ").unwrap_or_default().trim_start_matches(['\'', '"']);
            item.strip_prefix("--").is_some_and(|rest| rest.starts_with(&format!("{name}=")))
        });
        if let Some(Flag(_, _, why)) = is_next.then(|| flags.next()).flatten() {
            let indent = &line[..line.len() - text.len()];
            out.push_str(&format!("{indent}# {why}\n"));
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}
