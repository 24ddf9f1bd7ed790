//! Configs that are right, for every topology, and what the tests share.

use std::path::Path;

use installer::assets::Target;
use installer::create::{self, Options, Outcome};
use installer::install_config;
use jiff::Timestamp;

pub const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJhc2U2NGtleWJhc2U2NGtleWJhc2U2NGtleTEyMzQ1 me@example.com";
pub const PULL_SECRET: &str = r#"{"auths":{"registry.example.com":{"auth":"dXNlcjpwYXNz"}}}"#;

/// A highly available cluster on machines of the user's own.
pub fn ha() -> String {
    format!(
        "apiVersion: v1
baseDomain: example.com
metadata:
  name: ocp4
networking:
  networkType: OVNKubernetes
  clusterNetwork:
  - cidr: 10.128.0.0/14
    hostPrefix: 23
  serviceNetwork:
  - 172.30.0.0/16
  machineNetwork:
  - cidr: 192.168.126.0/24
platform:
  none: {{}}
controlPlane:
  replicas: 3
compute:
- replicas: 2
pullSecret: '{PULL_SECRET}'
sshKey: '{SSH_KEY}'
"
    )
}

pub fn compact() -> String {
    ha().replace("compute:\n- replicas: 2", "compute:\n- replicas: 0")
}

pub fn single_node() -> String {
    compact().replace("controlPlane:\n  replicas: 3", "controlPlane:\n  replicas: 1")
}

pub fn dual_stack() -> String {
    ha().replace("    hostPrefix: 23\n", "    hostPrefix: 23\n  - cidr: fd01::/48\n    hostPrefix: 64\n")
        .replace("  - 172.30.0.0/16\n", "  - 172.30.0.0/16\n  - fd02::/112\n")
        .replace("  - cidr: 192.168.126.0/24\n", "  - cidr: 192.168.126.0/24\n  - cidr: fd03::/64\n")
}

pub fn arbiter() -> String {
    ha().replace("controlPlane:\n  replicas: 3", "controlPlane:\n  replicas: 2\narbiter:\n  replicas: 1")
}

/// Two control plane machines that can switch each other off.
pub fn fenced() -> String {
    let credential = |index: u8| {
        format!(
            "    - {{hostName: master-{index}, address: 'redfish://10.9.9.{index}/1', username: admin, password: bmc-secret}}\n"
        )
    };
    ha().replace(
        "controlPlane:\n  replicas: 3\n",
        &format!(
            "controlPlane:\n  replicas: 2\n  fencing:\n    credentials:\n{}{}",
            credential(0),
            credential(1)
        ),
    )
}

pub fn local() -> String {
    ha().replace("  none: {}", "  local:\n    memoryMiB: 1024")
        .replace(&format!("pullSecret: '{PULL_SECRET}'\n"), "")
}

pub fn external() -> String {
    ha().replace("  none: {}", "  external:\n    platformName: cloudy\n    cloudControllerManager: External")
}

pub fn baremetal() -> String {
    let mut hosts = String::new();
    for (index, role) in ["master", "master", "master", "worker", "worker"].iter().enumerate() {
        hosts.push_str(&format!(
            "    - name: {role}-{index}
      role: {role}
      bootMACAddress: 52:54:00:00:00:0{index}
      bmc: {{address: 'redfish://10.9.9.{index}/1', username: admin, password: bmc-secret}}
"
        ));
    }
    ha().replace(
        "  none: {}",
        &format!(
            "  baremetal:
    apiVIPs: [192.168.126.5]
    ingressVIPs: [192.168.126.6]
    hosts:
{hosts}"
        ),
    )
}

/// A name for failures, and the config.
type Example = (&'static str, fn() -> String);

pub const ALL: &[Example] = &[
    ("ha", ha),
    ("compact", compact),
    ("single node", single_node),
    ("dual stack", dual_stack),
    ("arbiter", arbiter),
    ("fenced", fenced),
    ("local", local),
    ("external", external),
    ("baremetal", baremetal),
];

pub fn write(dir: &Path, config: &str) {
    std::fs::write(dir.join("install-config.yaml"), config).unwrap();
}

pub fn create(dir: &Path, target: Target) -> Outcome {
    try_create(dir, target).unwrap()
}

pub fn try_create(dir: &Path, target: Target) -> Result<Outcome, create::CreateError> {
    create::create(dir, target, &Options::default(), Timestamp::now())
}

#[test]
fn every_topology_is_accepted() {
    for (name, config) in ALL {
        if let Err(error) = install_config::load(&config()) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn replicas_decide_the_topology() {
    let cases = [
        (ha(), "HighlyAvailable", "HighlyAvailable", false),
        (compact(), "HighlyAvailable", "HighlyAvailable", true),
        (single_node(), "SingleReplica", "SingleReplica", true),
        (arbiter(), "HighlyAvailableArbiter", "HighlyAvailable", false),
        (fenced(), "DualReplica", "HighlyAvailable", false),
    ];
    for (config, control_plane, infrastructure, schedulable) in cases {
        let (config, _) = install_config::load(&config).unwrap();
        assert_eq!(config.control_plane_topology(), control_plane);
        assert_eq!(config.infrastructure_topology(), infrastructure);
        assert_eq!(config.masters_schedulable(), schedulable);
    }
}

#[test]
fn the_shortest_config_gets_its_defaults() {
    let text = format!(
        "apiVersion: v1\nbaseDomain: example.com\nmetadata: {{name: a}}\nplatform: {{none: {{}}}}\npullSecret: '{PULL_SECRET}'\n"
    );
    let (config, warnings) = install_config::load(&text).unwrap();
    assert!(warnings.is_empty());
    assert_eq!(config.control_plane_replicas(), 3);
    assert_eq!(config.compute_replicas(), 3);
    assert_eq!(config.networking.machine_network[0].cidr, "10.0.0.0/16");
    assert_eq!(config.networking.cluster_network[0].host_prefix, 23);
    assert_eq!(config.api_service_ips()[0].to_string(), "172.30.0.1");
    assert_eq!(config.dns_service_ips()[0].to_string(), "172.30.0.10");
    assert_eq!(config.networking.network_type, "OVNKubernetes");
}
