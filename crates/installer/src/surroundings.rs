//! What the cluster needs around it and does not make itself: load balancer, DNS records, hosts lines, and a page
//! that says what all the files are.

use std::net::IpAddr;

use crate::graph::{AssetError, AssetFile, Files, Inputs};
use crate::nodes::{Node, Nodes, Role};
use crate::scene::Scene;

fn joined(address: &IpAddr, port: u16) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

/// A port of the load balancer.
struct Frontend {
    name: &'static str,
    port: u16,
    about: &'static str,
    /// How a backend's health is asked for.
    check: &'static [&'static str],
    server_options: &'static str,
    backends: fn(&Node, &Scene<'_>) -> bool,
}

/// Ready API servers only: one that is shutting down fails the check long before it closes.
const READYZ: &[&str] = &[
    "option httpchk",
    "http-check connect ssl alpn h2,http/1.1",
    "http-check send meth GET uri /readyz",
    "http-check expect status 200",
];
const HEALTHZ: &[&str] = &[
    "option httpchk",
    "http-check connect ssl alpn http/1.1",
    "http-check send meth GET uri /healthz",
    "http-check expect status 200",
];

fn carries_api(node: &Node, _: &Scene<'_>) -> bool {
    matches!(node.role, Role::Bootstrap | Role::Master)
}

fn carries_ingress(node: &Node, scene: &Scene<'_>) -> bool {
    node.role == if scene.config.masters_schedulable() { Role::Master } else { Role::Worker }
}

const FRONTENDS: &[Frontend] = &[
    Frontend {
        name: "api",
        port: 6443,
        about: "The Kubernetes API. Remove bootstrap when `kelson wait-for bootstrap-complete` returns.",
        check: READYZ,
        server_options: "check verify none inter 10s fall 2 rise 3",
        backends: carries_api,
    },
    Frontend {
        name: "machine-config",
        port: 22623,
        about: "Ignition files for machines that boot. Not for the world: keep this port inside. Remove bootstrap likewise.",
        check: HEALTHZ,
        server_options: "check verify none inter 10s fall 2 rise 3",
        backends: carries_api,
    },
    Frontend {
        name: "ingress-https",
        port: 443,
        about: "Routes, encrypted end to end.",
        check: &["option tcp-check"],
        server_options: "check inter 10s fall 2 rise 2",
        backends: carries_ingress,
    },
    Frontend {
        name: "ingress-http",
        port: 80,
        about: "Routes, mostly to be sent on to https.",
        check: &["option tcp-check"],
        server_options: "check inter 10s fall 2 rise 2",
        backends: carries_ingress,
    },
];

/// How servers are checked. On this host a look costs nothing, so failures are seen within a second or two.
fn options(frontend: &Frontend, scene: &Scene<'_>) -> String {
    match scene.config.platform.local {
        None => frontend.server_options.to_owned(),
        Some(_) => "check verify none inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions".to_owned(),
    }
}

/// haproxy.cfg.
pub fn generate_haproxy(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let mut out = format!(
        "# Load balancer of {}: TCP all the way, TLS ends at the cluster.\n\
         # Check with `haproxy -c -f haproxy.cfg`; reloading does not cut connections.\n\
         global\n    maxconn 4000\n    log stdout format raw local0 notice\n\n\
         defaults\n    mode tcp\n    log global\n    option dontlognull\n    option tcplog\n    retries 3\n    maxconn 3000\n\
         \x20   timeout queue 1m\n    timeout connect 10s\n    timeout client 1m\n    timeout server 1m\n    timeout check 10s\n\
         # Watches are quiet for long; they must not be cut like idle connections.\n\
         \x20   timeout tunnel 1h\n\n\
         frontend stats\n    mode http\n    bind 127.0.0.1:9000\n    timeout http-request 10s\n    stats enable\n    stats uri /stats\n    stats refresh 10s\n",
        scene.domain()
    );
    for frontend in FRONTENDS {
        let (name, port) = (frontend.name, frontend.port);
        out.push_str(&format!(
            "\n# {}\nfrontend {name}\n    bind :::{port} v4v6\n    default_backend {name}\n\n",
            frontend.about
        ));
        // A client comes back to the server it knows, which keeps its watches in one cache.
        let balance = if port == 6443 { "source" } else { "roundrobin" };
        out.push_str(&format!("backend {name}\n    balance {balance}\n"));
        for line in frontend.check {
            out.push_str(&format!("    {line}\n"));
        }
        for node in scene.nodes.nodes.iter().filter(|node| (frontend.backends)(node, &scene)) {
            if let Some(address) = node.addresses.first() {
                let address = joined(address, port);
                out.push_str(&format!("    server {} {address} {}\n", node.name, options(frontend, &scene)));
            }
        }
    }
    Ok(vec![AssetFile::public("haproxy.cfg", out)])
}

fn record_type(address: &IpAddr) -> &'static str {
    if address.is_ipv6() { "AAAA" } else { "A" }
}

/// Names with their addresses, most important first.
pub fn records(nodes: &Nodes) -> Vec<(String, Vec<IpAddr>)> {
    let mut out = vec![
        ("api".to_owned(), nodes.api_addresses.clone()),
        ("api-int".to_owned(), nodes.api_addresses.clone()),
        ("*.apps".to_owned(), nodes.ingress_addresses.clone()),
    ];
    out.extend(nodes.nodes.iter().map(|node| (node.name.clone(), node.addresses.clone())));
    out
}

/// dns/: a zone, its reverse records, and lines for /etc/hosts.
pub fn generate_dns(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let domain = scene.domain();
    let mut zone = format!(
        "; Forward records of {domain}. api and api-int lead to the load balancer's 6443 and 22623, *.apps to its 80 and 443.\n\
         $ORIGIN {domain}.\n$TTL 300\n\
         @ IN SOA ns.{domain}. hostmaster.{domain}. 1 3600 600 604800 300\n@ IN NS ns.{domain}.\n"
    );
    for server in &scene.nodes.nameservers {
        zone.push_str(&format!("ns IN {} {server}\n", record_type(server)));
    }
    for (name, addresses) in records(&scene.nodes) {
        for address in addresses {
            zone.push_str(&format!("{name} IN {} {address}\n", record_type(&address)));
        }
    }
    let mut reverse = String::from(
        "; Reverse records: a machine without a name of its own takes it from here. Add them to the zones they belong to.\n$TTL 300\n",
    );
    for node in &scene.nodes.nodes {
        for address in &node.addresses {
            reverse.push_str(&format!("{} IN PTR {}.{domain}.\n", reverse_name(address), node.name));
        }
    }
    let mut hosts = String::from(
        "# For machines without DNS. Wildcards do not exist here, so the usual routes are listed.\n",
    );
    for (name, addresses) in records(&scene.nodes) {
        let names = if name == "*.apps" {
            let routes = ["console-openshift-console", "oauth-openshift", "downloads-openshift-console"];
            routes.map(|route| format!("{route}.apps.{domain}")).join(" ")
        } else {
            format!("{name}.{domain}")
        };
        for address in addresses {
            hosts.push_str(&format!("{address} {names}\n"));
        }
    }
    Ok(vec![
        AssetFile::public(format!("dns/{domain}.zone"), zone),
        AssetFile::public("dns/reverse.zone", reverse),
        AssetFile::public("dns/hosts", hosts),
    ])
}

fn reverse_name(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa.")
        }
        IpAddr::V6(address) => {
            let digits: Vec<String> = address
                .octets()
                .iter()
                .rev()
                .flat_map(|byte| [byte & 15, byte >> 4])
                .map(|digit| format!("{digit:x}"))
                .collect();
            format!("{}.ip6.arpa.", digits.join("."))
        }
    }
}

/// metadata.json, which destroying and gathering read.
pub fn generate_metadata(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let mut value = serde_json::json!({
        "clusterName": scene.config.metadata.name,
        "clusterID": scene.identity.cluster_id,
        "infraID": scene.identity.infra_id,
    });
    if let Some(baremetal) = &scene.config.platform.baremetal {
        value["baremetal"] = serde_json::json!({"libvirtURI": baremetal.libvirt_uri});
    }
    if let Some(external) = &scene.config.platform.external {
        value["external"] = serde_json::json!({"platformName": external.platform_name});
    }
    if let Some(local) = &scene.config.platform.local {
        value["local"] = serde_json::to_value(local)?;
    }
    value["featureSet"] = serde_json::json!(scene.config.feature_set);
    if !scene.config.feature_gates.is_empty() {
        value["customFeatureSet"] = serde_json::json!(scene.config.feature_gates);
    }
    Ok(vec![AssetFile::public("metadata.json", serde_json::to_vec(&value)?)])
}

/// README.md of the directory.
pub fn generate_readme(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let domain = scene.domain();
    let (masters, workers) = (scene.config.control_plane_replicas(), scene.config.compute_replicas());
    let machines = |role: Role| {
        let lines = scene.nodes.with_role(role).map(|node| {
            let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
            format!("| {} | {} | {} |\n", node.name, role.name(), addresses.join(", "))
        });
        lines.collect::<String>()
    };
    let text = format!(
        "# {name}\n\n\
Cluster `{domain}` ({topology}): {masters} control plane and {workers} compute machines. Infra ID `{infra}`, cluster ID `{cluster}`.\n\n\
## What is here\n\n\
| file | what it is | keep it secret |\n|---|---|---|\n\
| `bootstrap.ign` | everything the first machine boots from: keys, certificates, manifests, static pods, units | yes |\n\
| `master.ign`, `worker.ign` | pointers: machines fetch the rest from `https://api-int.{domain}:22623` | no |\n\
| `nodes/*.ign` | whole files with host name and static address, made with `--per-node` | yes |\n\
| `auth/kubeconfig` | the administrator's way in | yes |\n\
| `auth/kubeadmin-password` | password of the user kubeadmin | yes |\n\
| `metadata.json` | names of the cluster, for gathering and destroying | no |\n\
| `haproxy.cfg` | load balancer for 6443, 22623, 443 and 80 | no |\n\
| `dns/` | zone, reverse records, lines for /etc/hosts | no |\n\
| `.kelson_install_state.json` | all of the above and every key; the same command makes the same files from it | yes |\n\n\
## Machines\n\n\
| name | role | addresses |\n|---|---|---|\n{bootstrap}{master}{arbiter}{worker}\n\
API `{api}`, ingress `{ingress}`. To change any of this, run `kelson create manifests`, edit `nodes.yaml`, and run\n\
`kelson create ignition-configs` again.\n\n\
## Next\n\n\
1. Put the records of `dns/` into your DNS and `haproxy.cfg` on the load balancer.\n\
2. Boot the bootstrap machine from `bootstrap.ign`, then the masters from `master.ign` (or `nodes/master-N.ign`). The images carry `/usr/local/bin/kelson`.\n\
3. `kelson wait-for bootstrap-complete --dir .`; then take the bootstrap machine out of the load balancer and switch it off.\n\
4. Boot the workers; approve their requests: `kelson get csr`, `kelson certificate approve NAME`.\n\
5. `kelson wait-for install-complete --dir .`, then `export KUBECONFIG=$PWD/auth/kubeconfig`.\n\n\
Boot within 30 days: the certificates that operators replace do not last longer. `kelson pki verify --dir .` proves them.\n\
If it goes wrong: `kelson gather --dir .` collects logs and state without secrets.\n",
        name = scene.config.metadata.name,
        topology = scene.config.control_plane_topology(),
        infra = scene.identity.infra_id,
        cluster = scene.identity.cluster_id,
        bootstrap = machines(Role::Bootstrap),
        master = machines(Role::Master),
        arbiter = machines(Role::Arbiter),
        worker = machines(Role::Worker),
        api = scene.nodes.api_addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        ingress =
            scene.nodes.ingress_addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    );
    Ok(vec![AssetFile::public("README.md", text)])
}
