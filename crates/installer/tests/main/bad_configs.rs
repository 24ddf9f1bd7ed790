//! Every way to be wrong that we know: the change to a right config, the path that is blamed, the class of fault.

use installer::install_config::{self, ConfigError};
use installer::problem::Class::{self, Duplicate, Forbidden, Invalid, Required, Unknown, Unsupported};

use super::configs;

/// Lines replaced in a right config; an empty pattern appends.
type Case = (&'static str, &'static str, &'static str, Class);

const NONE: &[Case] = &[
    // Form and names.
    ("apiVersion: v1", "apiVersion: v2", "apiVersion", Invalid),
    ("apiVersion: v1\n", "", "apiVersion", Required),
    ("apiVersion: v1", "apiVersion: 1", "apiVersion", Invalid),
    ("", "machinery: {}", "machinery", Unknown),
    ("", "sshkey: x", "sshkey", Unknown),
    ("metadata:\n  name: ocp4", "metadata:\n  name: ocp4\n  nmae: x", "metadata.nmae", Unknown),
    ("  networkType: OVNKubernetes", "  networktype: OVNKubernetes", "networking.networktype", Unknown),
    ("    hostPrefix: 23", "    hostPrefx: 23", "networking.clusterNetwork[0].hostPrefx", Unknown),
    ("  none: {}", "  none: {region: x}", "platform.none.region", Unknown),
    ("  replicas: 3", "  replicas: 3\n  replica: 3", "controlPlane.replica", Unknown),
    ("- replicas: 2", "- replicas: 2\n  size: 3", "compute[0].size", Unknown),
    ("  replicas: 3", "  replicas: three", "controlPlane.replicas", Invalid),
    ("  replicas: 3", "  replicas: 3.5", "controlPlane.replicas", Invalid),
    ("compute:\n- replicas: 2", "compute:\n  replicas: 2", "compute", Invalid),
    ("", "fips: \"yes\"", "fips", Invalid),
    ("", "featureGates: A=true", "featureGates", Invalid),
    ("metadata:\n  name: ocp4", "metadata: ocp4", "metadata", Invalid),
    ("  name: ocp4", "  name: \"\"", "metadata.name", Required),
    ("metadata:\n  name: ocp4\n", "metadata: {}\n", "metadata.name", Required),
    ("  name: ocp4", "  name: OCP4", "metadata.name", Invalid),
    ("  name: ocp4", "  name: ocp_4", "metadata.name", Invalid),
    ("  name: ocp4", "  name: -ocp", "metadata.name", Invalid),
    ("  name: ocp4", "  name: ocp-", "metadata.name", Invalid),
    ("  name: ocp4", "  name: ocp.four", "metadata.name", Invalid),
    (
        "  name: ocp4",
        "  name: a123456789b123456789c123456789d123456789e123456789f12345",
        "metadata.name",
        Invalid,
    ),
    (
        "  name: ocp4",
        "  name: a123456789b123456789c123456789d123456789e123456789f1234567890123",
        "metadata.name",
        Invalid,
    ),
    ("baseDomain: example.com\n", "", "baseDomain", Required),
    ("baseDomain: example.com", "baseDomain: \"\"", "baseDomain", Required),
    ("baseDomain: example.com", "baseDomain: Example.com", "baseDomain", Invalid),
    ("baseDomain: example.com", "baseDomain: example..com", "baseDomain", Invalid),
    ("baseDomain: example.com", "baseDomain: .example.com", "baseDomain", Invalid),
    ("baseDomain: example.com", "baseDomain: exa mple.com", "baseDomain", Invalid),
    (
        "baseDomain: example.com",
        "baseDomain: a23456789b123456789c123456789d123456789e123456789f123456789.a23456789b123456789c123456789d123456789e123456789f123456789.a23456789b123456789c123456789d123456789e123456789f123456789.a23456789b123456789c123456789d123456789e.com",
        "baseDomain",
        Invalid,
    ),
    // Keys, bundles, pull secret.
    ("sshKey: 'ssh-ed25519", "sshKey: 'sh-ed25519", "sshKey", Invalid),
    ("AAAAC3NzaC1lZDI1NTE5", "AAAAB3NzaC1yc2EAAAAD", "sshKey", Invalid),
    ("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAA*", "sshKey", Invalid),
    ("sshKey: 'ssh-ed25519 ", "fips: true\nsshKey: 'ssh-ed25519 ", "sshKey", Invalid),
    ("", "additionalTrustBundle: hello", "additionalTrustBundle", Invalid),
    (
        "",
        "additionalTrustBundle: |\n  -----BEGIN CERTIFICATE-----\n  AAAA\n  -----END CERTIFICATE-----",
        "additionalTrustBundle",
        Invalid,
    ),
    (
        "",
        "additionalTrustBundle: |\n  -----BEGIN PRIVATE KEY-----\n  AAAA\n  -----END PRIVATE KEY-----",
        "additionalTrustBundle",
        Invalid,
    ),
    ("", "additionalTrustBundle: |\n  -----BEGIN CERTIFICATE-----\n  AAAA", "additionalTrustBundle", Invalid),
    ("", "additionalTrustBundlePolicy: Sometimes", "additionalTrustBundlePolicy", Unsupported),
    (
        "pullSecret: '{\"auths\":{\"registry.example.com\":{\"auth\":\"dXNlcjpwYXNz\"}}}'\n",
        "",
        "pullSecret",
        Required,
    ),
    ("pullSecret: '{\"auths\"", "pullSecret: '\"auths\"", "pullSecret", Invalid),
    ("'{\"auths\":{\"registry.example.com\":{\"auth\":\"dXNlcjpwYXNz\"}}}'", "'[]'", "pullSecret", Invalid),
    ("'{\"auths\":{\"registry.example.com\":{\"auth\":\"dXNlcjpwYXNz\"}}}'", "'{}'", "pullSecret", Invalid),
    (
        "'{\"auths\":{\"registry.example.com\":{\"auth\":\"dXNlcjpwYXNz\"}}}'",
        "'{\"auths\":{}}'",
        "pullSecret",
        Invalid,
    ),
    ("{\"auth\":\"dXNlcjpwYXNz\"}", "{}", "pullSecret", Invalid),
    ("dXNlcjpwYXNz", "!!!", "pullSecret", Invalid),
    ("dXNlcjpwYXNz", "dXNlcg==", "pullSecret", Invalid),
    // Networks: syntax, bits, sizes.
    ("  networkType: OVNKubernetes", "  networkType: \"\"", "networking.networkType", Required),
    ("  networkType: OVNKubernetes", "  networkType: OpenShiftSDN", "networking.networkType", Invalid),
    ("  networkType: OVNKubernetes", "  networkType: openshiftsdn", "networking.networkType", Invalid),
    ("  networkType: OVNKubernetes", "  networkType: Kuryr", "networking.networkType", Invalid),
    ("  - cidr: 192.168.126.0/24", "  - cidr: 192.168.126.0", "networking.machineNetwork[0].cidr", Invalid),
    (
        "  - cidr: 192.168.126.0/24",
        "  - cidr: 192.168.126.0/33",
        "networking.machineNetwork[0].cidr",
        Invalid,
    ),
    (
        "  - cidr: 192.168.126.0/24",
        "  - cidr: 192.168.300.0/24",
        "networking.machineNetwork[0].cidr",
        Invalid,
    ),
    ("  - cidr: 192.168.126.0/24", "  - cidr: machine", "networking.machineNetwork[0].cidr", Invalid),
    (
        "  - cidr: 192.168.126.0/24",
        "  - cidr: 192.168.126.5/24",
        "networking.machineNetwork[0].cidr",
        Invalid,
    ),
    ("  - cidr: 192.168.126.0/24", "  - cidr: 0.0.0.0/0", "networking.machineNetwork[0].cidr", Invalid),
    ("  - cidr: 192.168.126.0/24", "  - cidr: \"\"", "networking.machineNetwork[0].cidr", Required),
    (
        "  - cidr: 192.168.126.0/24",
        "  - cidr: 192.168.126.0/29",
        "networking.machineNetwork[0].cidr",
        Invalid,
    ),
    (
        "  machineNetwork:\n  - cidr: 192.168.126.0/24",
        "  machineNetwork: []",
        "networking.machineNetwork",
        Required,
    ),
    ("  - cidr: 10.128.0.0/14", "  - cidr: 10.129.0.0/14", "networking.clusterNetwork[0].cidr", Invalid),
    ("  - cidr: 10.128.0.0/14", "  - cidr: x", "networking.clusterNetwork[0].cidr", Invalid),
    (
        "  clusterNetwork:\n  - cidr: 10.128.0.0/14\n    hostPrefix: 23",
        "  clusterNetwork: []",
        "networking.clusterNetwork",
        Required,
    ),
    ("  serviceNetwork:\n  - 172.30.0.0/16", "  serviceNetwork: []", "networking.serviceNetwork", Required),
    ("  - 172.30.0.0/16", "  - 172.30.0.1/16", "networking.serviceNetwork[0]", Invalid),
    ("  - 172.30.0.0/16", "  - services", "networking.serviceNetwork[0]", Invalid),
    ("  - 172.30.0.0/16", "  - 64.0.0.0/11", "networking.serviceNetwork[0]", Invalid),
    ("  - 172.30.0.0/16", "  - 172.30.0.0/29", "networking.serviceNetwork[0]", Invalid),
    ("  - 172.30.0.0/16", "  - 172.30.0.0/16\n  - 172.31.0.0/16", "networking.serviceNetwork", Invalid),
    // hostPrefix.
    ("    hostPrefix: 23", "    hostPrefix: -1", "networking.clusterNetwork[0].hostPrefix", Invalid),
    ("    hostPrefix: 23", "    hostPrefix: 13", "networking.clusterNetwork[0].hostPrefix", Invalid),
    ("    hostPrefix: 23", "    hostPrefix: 0", "networking.clusterNetwork[0].hostPrefix", Required),
    ("    hostPrefix: 23", "    hostPrefix: 31", "networking.clusterNetwork[0].hostPrefix", Invalid),
    (
        "  - cidr: 10.128.0.0/14\n    hostPrefix: 23",
        "  - cidr: 10.128.0.0/22\n    hostPrefix: 23",
        "networking.clusterNetwork[0].hostPrefix",
        Invalid,
    ),
    (
        "    hostPrefix: 23",
        "    hostPrefix: 23\n  - cidr: 10.132.0.0/14\n    hostPrefix: 24",
        "networking.clusterNetwork[1].hostPrefix",
        Invalid,
    ),
    // Overlaps.
    (
        "  - cidr: 192.168.126.0/24",
        "  - cidr: 192.168.126.0/24\n  - cidr: 192.168.0.0/16",
        "networking.machineNetwork[1].cidr",
        Invalid,
    ),
    ("  - 172.30.0.0/16", "  - 192.168.126.0/25", "networking.serviceNetwork[0]", Invalid),
    ("  - cidr: 10.128.0.0/14", "  - cidr: 192.168.0.0/16", "networking.clusterNetwork[0].cidr", Invalid),
    ("  - cidr: 10.128.0.0/14", "  - cidr: 172.30.0.0/15", "networking.clusterNetwork[0].cidr", Invalid),
    (
        "    hostPrefix: 23",
        "    hostPrefix: 23\n  - cidr: 10.130.0.0/16\n    hostPrefix: 23",
        "networking.clusterNetwork[1].cidr",
        Invalid,
    ),
    ("  - cidr: 192.168.126.0/24", "  - cidr: 100.64.1.0/24", "networking.machineNetwork[0].cidr", Invalid),
    ("  - cidr: 192.168.126.0/24", "  - cidr: 100.88.0.0/24", "networking.machineNetwork[0].cidr", Invalid),
    ("  - cidr: 192.168.126.0/24", "  - cidr: 169.254.0.0/20", "networking.machineNetwork[0].cidr", Invalid),
    ("  - 172.30.0.0/16", "  - 100.64.0.0/16", "networking.serviceNetwork[0]", Invalid),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  ovnKubernetesConfig: {ipv4: {internalJoinSubnet: 192.168.0.0/16}}",
        "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet",
        Invalid,
    ),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  ovnKubernetesConfig: {ipv4: {internalJoinSubnet: 100.70.0.0/24}}",
        "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet",
        Invalid,
    ),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  ovnKubernetesConfig: {ipv4: {internalJoinSubnet: join}}",
        "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet",
        Invalid,
    ),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  ovnKubernetesConfig: {ipv4: {internalJoinSubnet: \"fd00::/64\"}}",
        "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet",
        Invalid,
    ),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  ovnKubernetesConfig: {ipv4: {internalJoinSubnet: 100.88.0.0/16}}",
        "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet",
        Invalid,
    ),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  clusterNetworkMTU: 1400",
        "networking.clusterNetworkMTU",
        Invalid,
    ),
    // Dual stack.
    ("  - 172.30.0.0/16", "  - 172.30.0.0/16\n  - fd02::/112", "networking.clusterNetwork", Invalid),
    ("  - 172.30.0.0/16", "  - 172.30.0.0/16\n  - fd02::/112", "networking.machineNetwork", Invalid),
    (
        "    hostPrefix: 23",
        "    hostPrefix: 23\n  - cidr: fd01::/48\n    hostPrefix: 64",
        "networking.serviceNetwork",
        Invalid,
    ),
    ("  - cidr: 192.168.126.0/24", "  - cidr: fd03::/64", "networking.machineNetwork", Invalid),
    (
        "    hostPrefix: 23",
        "    hostPrefix: 23\n  - cidr: fd01::/48\n    hostPrefix: 60",
        "networking.clusterNetwork[1].hostPrefix",
        Invalid,
    ),
    ("  - 172.30.0.0/16", "  - fd02::/64", "networking.serviceNetwork[0]", Invalid),
    // Deprecated fields that contradict today's.
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  type: Other",
        "networking.type",
        Invalid,
    ),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  machineCIDR: 10.0.0.0/16",
        "networking.machineCIDR",
        Invalid,
    ),
    (
        "  networkType: OVNKubernetes",
        "  networkType: OVNKubernetes\n  serviceCIDR: 172.31.0.0/16",
        "networking.serviceCIDR",
        Invalid,
    ),
    (
        "    hostPrefix: 23",
        "    hostPrefix: 23\n    hostSubnetLength: 8",
        "networking.clusterNetwork[0].hostSubnetLength",
        Invalid,
    ),
    (
        "",
        "imageContentSources: [{source: a.b/c}]\nimageDigestSources: [{source: a.b/d}]",
        "imageContentSources",
        Invalid,
    ),
    // Platforms.
    ("  none: {}", "  {}", "platform", Invalid),
    ("platform:\n  none: {}\n", "", "platform", Invalid),
    ("  none: {}", "  none: {}\n  external: {}", "platform", Invalid),
    ("  none: {}", "  aws: {region: us-east-1}", "platform.aws", Unknown),
    ("  none: {}", "  local: {memoryMiB: 10}", "platform.local.memoryMiB", Invalid),
    ("  none: {}", "  local: {cpus: 0}", "platform.local.cpus", Invalid),
    ("  none: {}", "  local: {bridgeCIDR: bridge}", "platform.local.bridgeCIDR", Invalid),
    ("  none: {}", "  local: {bridgeCIDR: 10.9.0.0/24}", "platform.local.bridgeCIDR", Invalid),
    (
        "  none: {}",
        "  external: {cloudControllerManager: Internal}",
        "platform.external.cloudControllerManager",
        Unsupported,
    ),
    // Machines and topologies.
    (
        "controlPlane:\n  replicas: 3",
        "controlPlane:\n  name: controller\n  replicas: 3",
        "controlPlane.name",
        Unsupported,
    ),
    ("controlPlane:\n  replicas: 3", "controlPlane:\n  replicas: 0", "controlPlane.replicas", Invalid),
    ("controlPlane:\n  replicas: 3", "controlPlane:\n  replicas: -3", "controlPlane.replicas", Invalid),
    ("controlPlane:\n  replicas: 3", "controlPlane:\n  replicas: 2", "controlPlane.replicas", Invalid),
    ("controlPlane:\n  replicas: 3", "controlPlane:\n  replicas: 6", "controlPlane.replicas", Invalid),
    ("  replicas: 3", "  replicas: 3\n  architecture: mips", "controlPlane.architecture", Unsupported),
    ("  replicas: 3", "  replicas: 3\n  hyperthreading: On", "controlPlane.hyperthreading", Unsupported),
    ("  replicas: 3", "  replicas: 3\n  fencing: {credentials: []}", "controlPlane.fencing", Forbidden),
    (
        "  replicas: 3",
        "  replicas: 2\n  fencing: {credentials: [{hostName: a, address: x, username: u, password: p}]}",
        "controlPlane.replicas",
        Invalid,
    ),
    (
        "  replicas: 3",
        "  replicas: 2\n  fencing: {credentials: [{hostName: a, address: x, username: u, password: p}, {hostName: b, address: x, username: u, password: p}]}",
        "controlPlane.fencing.credentials[1].address",
        Duplicate,
    ),
    (
        "  replicas: 3",
        "  replicas: 2\n  fencing: {credentials: [{hostName: a, address: x, username: u}, {hostName: b, address: y, username: u, password: p}]}",
        "controlPlane.fencing.credentials[0].password",
        Required,
    ),
    ("- replicas: 2", "- replicas: -1", "compute[0].replicas", Invalid),
    ("- replicas: 2", "- name: edge\n  replicas: 2", "compute[0].name", Unsupported),
    ("- replicas: 2", "- replicas: 2\n- replicas: 1", "compute[1].name", Duplicate),
    ("- replicas: 2", "- replicas: 2\n  architecture: arm64", "compute[0].architecture", Invalid),
    ("- replicas: 2", "- replicas: 2\n  fencing: {credentials: []}", "compute[0].fencing", Forbidden),
    ("- replicas: 2", "- replicas: 600", "networking.machineNetwork[0].cidr", Invalid),
    ("", "arbiter: {replicas: 0}", "arbiter.replicas", Invalid),
    ("", "arbiter: {replicas: 2}", "arbiter.replicas", Invalid),
    ("", "arbiter: {name: judge, replicas: 1}", "arbiter.name", Unsupported),
    (
        "controlPlane:\n  replicas: 3",
        "controlPlane:\n  replicas: 1\narbiter: {replicas: 1}",
        "controlPlane.replicas",
        Invalid,
    ),
    ("  none: {}", "  external: {}\narbiter: {replicas: 1}", "arbiter", Forbidden),
    ("", "bootstrapInPlace: {installationDisk: /dev/sda}", "controlPlane.replicas", Invalid),
    ("", "bootstrapInPlace: {installationDisk: /dev/sda}", "compute[0].replicas", Invalid),
    ("", "bootstrapInPlace: {}", "bootstrapInPlace.installationDisk", Required),
    ("", "bootstrapInPlace: {installationDisk: sda}", "bootstrapInPlace.installationDisk", Invalid),
    // Proxy.
    ("", "proxy: {noProxy: example.com}", "proxy", Required),
    ("", "proxy: {httpProxy: proxy}", "proxy.httpProxy", Invalid),
    ("", "proxy: {httpProxy: 'https://proxy'}", "proxy.httpProxy", Unsupported),
    ("", "proxy: {httpsProxy: 'ftp://proxy'}", "proxy.httpsProxy", Unsupported),
    ("", "proxy: {httpProxy: 'http://'}", "proxy.httpProxy", Invalid),
    ("", "proxy: {httpProxy: 'http://proxy:port'}", "proxy.httpProxy", Invalid),
    ("", "proxy: {httpProxy: 'http://10.128.0.9:3128'}", "proxy.httpProxy", Invalid),
    ("", "proxy: {httpsProxy: 'http://172.30.0.9:3128'}", "proxy.httpsProxy", Invalid),
    ("", "proxy: {httpProxy: 'http://proxy', noProxy: 'a.com, b.com'}", "proxy.noProxy", Invalid),
    ("", "proxy: {httpProxy: 'http://proxy', noProxy: '*,b.com'}", "proxy.noProxy", Invalid),
    ("", "proxy: {httpProxy: 'http://proxy', noProxy: 'b.com,,c.com'}", "proxy.noProxy", Invalid),
    ("", "proxy: {httpProxy: 'http://proxy', noProxy: '10.0.0.0/99'}", "proxy.noProxy", Invalid),
    // Images.
    ("", "imageDigestSources: [{mirrors: [a.b/c]}]", "imageDigestSources[0].source", Required),
    ("", "imageDigestSources: [{source: 'a.b/c:latest'}]", "imageDigestSources[0].source", Invalid),
    ("", "imageDigestSources: [{source: 'a.b/c@sha256:00'}]", "imageDigestSources[0].source", Invalid),
    (
        "",
        "imageDigestSources: [{source: 'a.b/c', mirrors: ['A b']}]",
        "imageDigestSources[0].mirrors[0]",
        Invalid,
    ),
    ("", "imageDigestSources: [{source: a.b/c}, {source: a.b/c}]", "imageDigestSources[1].source", Duplicate),
    (
        "",
        "imageDigestSources: [{source: a.b/c, sourcePolicy: Maybe}]",
        "imageDigestSources[0].sourcePolicy",
        Unsupported,
    ),
    (
        "",
        "imageDigestSources: [{source: a.b/c, sourcePolicy: NeverContactSource}]",
        "imageDigestSources[0].sourcePolicy",
        Invalid,
    ),
    // Features, capabilities, publishing.
    ("", "featureSet: Everything", "featureSet", Unsupported),
    ("", "featureGates: [A=true]", "featureGates", Forbidden),
    ("", "featureSet: CustomNoUpgrade\nfeatureGates: [A]", "featureGates[0]", Invalid),
    ("", "featureSet: CustomNoUpgrade\nfeatureGates: ['=true']", "featureGates[0]", Invalid),
    ("", "featureSet: CustomNoUpgrade\nfeatureGates: [A=maybe]", "featureGates[0]", Invalid),
    ("", "featureSet: CustomNoUpgrade\nfeatureGates: [A=true, A=false]", "featureGates[1]", Duplicate),
    ("", "osImageStream: rhel-10", "osImageStream", Forbidden),
    ("", "osImageStream: windows", "osImageStream", Unsupported),
    ("", "capabilities: {baselineCapabilitySet: v3.11}", "capabilities.baselineCapabilitySet", Unsupported),
    (
        "",
        "capabilities: {additionalEnabledCapabilities: [Magic]}",
        "capabilities.additionalEnabledCapabilities[0]",
        Unsupported,
    ),
    (
        "",
        "capabilities: {additionalEnabledCapabilities: [Build, Build]}",
        "capabilities.additionalEnabledCapabilities[1]",
        Duplicate,
    ),
    (
        "",
        "capabilities: {baselineCapabilitySet: None}",
        "capabilities.additionalEnabledCapabilities",
        Invalid,
    ),
    (
        "",
        "capabilities: {baselineCapabilitySet: None, additionalEnabledCapabilities: [Ingress, marketplace]}",
        "capabilities.additionalEnabledCapabilities",
        Invalid,
    ),
    (
        "",
        "capabilities: {baselineCapabilitySet: None, additionalEnabledCapabilities: [Ingress, baremetal]}",
        "capabilities.additionalEnabledCapabilities",
        Invalid,
    ),
    ("", "publish: Internal", "publish", Invalid),
    ("", "publish: Mixed", "publish", Invalid),
    ("", "publish: Nowhere", "publish", Unsupported),
    ("", "credentialsMode: Mint", "credentialsMode", Invalid),
    ("", "credentialsMode: Other", "credentialsMode", Unsupported),
    ("", "cpuPartitioningMode: Some", "cpuPartitioningMode", Unsupported),
];

const BAREMETAL: &[Case] = &[
    ("    apiVIPs: [192.168.126.5]\n", "", "platform.baremetal.apiVIPs", Required),
    ("    ingressVIPs: [192.168.126.6]\n", "", "platform.baremetal.ingressVIPs", Required),
    ("apiVIPs: [192.168.126.5]", "apiVIPs: [here]", "platform.baremetal.apiVIPs[0]", Invalid),
    ("apiVIPs: [192.168.126.5]", "apiVIPs: [10.1.1.5]", "platform.baremetal.apiVIPs[0]", Invalid),
    ("apiVIPs: [192.168.126.5]", "apiVIPs: [192.168.126.0]", "platform.baremetal.apiVIPs[0]", Invalid),
    (
        "apiVIPs: [192.168.126.5]",
        "apiVIPs: [192.168.126.5, 192.168.126.7]",
        "platform.baremetal.apiVIPs",
        Invalid,
    ),
    (
        "apiVIPs: [192.168.126.5]",
        "apiVIPs: [192.168.126.5, 192.168.126.7, 'fd00::1']",
        "platform.baremetal.apiVIPs",
        Invalid,
    ),
    (
        "ingressVIPs: [192.168.126.6]",
        "ingressVIPs: [192.168.126.5]",
        "platform.baremetal.ingressVIPs[0]",
        Invalid,
    ),
    (
        "apiVIPs: [192.168.126.5]",
        "apiVIPs: [192.168.126.5]\n    apiVIP: 192.168.126.9",
        "platform.baremetal.apiVIP",
        Invalid,
    ),
    ("- replicas: 2", "- replicas: 4", "platform.baremetal.hosts", Required),
    (
        "    - name: worker-4\n      role: worker",
        "    - name: worker-3\n      role: worker",
        "platform.baremetal.hosts[4].name",
        Duplicate,
    ),
    ("    - name: worker-4\n", "    - name: Worker_4\n", "platform.baremetal.hosts[4].name", Invalid),
    (
        "    - name: worker-4\n      role: worker",
        "    - role: worker",
        "platform.baremetal.hosts[4].name",
        Required,
    ),
    (
        "    - name: worker-4\n      role: worker",
        "    - name: worker-4\n      role: king",
        "platform.baremetal.hosts[4].role",
        Unsupported,
    ),
    (
        "role: master\n      bootMACAddress: 52:54:00:00:00:00",
        "role: worker\n      bootMACAddress: 52:54:00:00:00:00",
        "platform.baremetal.hosts",
        Invalid,
    ),
    (
        "bootMACAddress: 52:54:00:00:00:04",
        "bootMACAddress: 52:54:00:00:00:03",
        "platform.baremetal.hosts[4].bootMACAddress",
        Duplicate,
    ),
    (
        "bootMACAddress: 52:54:00:00:00:04",
        "bootMACAddress: 52-54-00",
        "platform.baremetal.hosts[4].bootMACAddress",
        Invalid,
    ),
    ("      bootMACAddress: 52:54:00:00:00:04\n", "", "platform.baremetal.hosts[4].bootMACAddress", Required),
    ("redfish://10.9.9.4/1", "redfish://10.9.9.3/1", "platform.baremetal.hosts[4].bmc.address", Duplicate),
    ("address: 'redfish://10.9.9.4/1', ", "", "platform.baremetal.hosts[4].bmc.address", Required),
    (
        "{address: 'redfish://10.9.9.4/1', username: admin, password: bmc-secret}",
        "{address: 'redfish://10.9.9.4/1', username: admin}",
        "platform.baremetal.hosts[4].bmc.password",
        Required,
    ),
    (
        "    hosts:",
        "    provisioningNetwork: Perhaps\n    hosts:",
        "platform.baremetal.provisioningNetwork",
        Unsupported,
    ),
    (
        "    hosts:",
        "    provisioningNetworkCIDR: 172.22.0.1/24\n    hosts:",
        "platform.baremetal.provisioningNetworkCIDR",
        Invalid,
    ),
    (
        "    hosts:",
        "    provisioningNetworkCIDR: 192.168.126.0/25\n    hosts:",
        "platform.baremetal.provisioningNetworkCIDR",
        Invalid,
    ),
    (
        "    hosts:",
        "    bootstrapProvisioningIP: 10.0.0.2\n    hosts:",
        "platform.baremetal.bootstrapProvisioningIP",
        Invalid,
    ),
    (
        "    hosts:",
        "    clusterProvisioningIP: 172.22.0.20\n    hosts:",
        "platform.baremetal.clusterProvisioningIP",
        Invalid,
    ),
    (
        "    hosts:",
        "    clusterProvisioningIP: 172.22.0.2\n    hosts:",
        "platform.baremetal.clusterProvisioningIP",
        Duplicate,
    ),
    (
        "    hosts:",
        "    provisioningDHCPRange: 172.22.0.10\n    hosts:",
        "platform.baremetal.provisioningDHCPRange",
        Invalid,
    ),
    (
        "    hosts:",
        "    provisioningDHCPRange: 172.22.0.90,172.22.0.10\n    hosts:",
        "platform.baremetal.provisioningDHCPRange",
        Invalid,
    ),
    (
        "    hosts:",
        "    provisioningDHCPRange: 172.22.0.10,172.23.0.10\n    hosts:",
        "platform.baremetal.provisioningDHCPRange",
        Invalid,
    ),
    (
        "    hosts:",
        "    loadBalancer: {type: Mine}\n    hosts:",
        "platform.baremetal.loadBalancer.type",
        Unsupported,
    ),
    (
        "",
        "capabilities: {baselineCapabilitySet: None, additionalEnabledCapabilities: [Ingress]}",
        "capabilities.additionalEnabledCapabilities",
        Invalid,
    ),
    ("", "bootstrapInPlace: {installationDisk: /dev/sda}", "platform", Invalid),
];

fn check(base: &str, cases: &[Case]) {
    let mut failures = Vec::new();
    for (pattern, replacement, path, class) in cases {
        let text = if pattern.is_empty() {
            format!("{base}{replacement}\n")
        } else {
            assert!(base.contains(pattern), "the right config has no {pattern:?}");
            base.replacen(pattern, replacement, 1)
        };
        let problems = match install_config::load(&text) {
            Ok(_) => {
                failures.push(format!("accepted: {pattern:?} → {replacement:?}"));
                continue;
            }
            Err(ConfigError::Invalid(problems)) => problems,
            Err(other) => {
                failures.push(format!("{replacement:?}: {other}"));
                continue;
            }
        };
        if !problems.iter().any(|problem| problem.path == *path && problem.class == *class) {
            failures.push(format!("{replacement:?}: wanted {class:?} at {path}, found {problems:#?}"));
        }
        if problems.iter().any(|problem| problem.remedy.is_empty()) {
            failures.push(format!("{replacement:?}: a problem without a remedy"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn each_fault_is_found_at_its_path_with_its_class() {
    assert!(NONE.len() + BAREMETAL.len() >= 120, "{} cases", NONE.len() + BAREMETAL.len());
    check(&configs::ha(), NONE);
    check(&configs::baremetal(), BAREMETAL);
}

#[test]
fn all_faults_are_reported_at_once_by_path() {
    let text = configs::ha()
        .replace("  name: ocp4", "  name: OCP4")
        .replace("192.168.126.0/24", "192.168.126.1/24")
        .replace("  replicas: 3", "  replicas: 0");
    let Err(ConfigError::Invalid(problems)) = install_config::load(&text) else { panic!("accepted") };
    let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(paths, ["controlPlane.replicas", "metadata.name", "networking.machineNetwork[0].cidr"]);
}

#[test]
fn no_fault_repeats_a_secret() {
    let secret = "hunter2hunter2";
    let texts = [
        configs::ha().replace("dXNlcjpwYXNz", secret),
        configs::ha().replace(configs::PULL_SECRET, &format!("{{{secret}")),
        format!("{}proxy: {{httpProxy: 'ftp://user:{secret}@proxy'}}\n", configs::ha()),
        configs::baremetal().replace("192.168.126.6", "x").replace("bmc-secret", secret),
    ];
    for text in texts {
        let error = install_config::load(&text).unwrap_err().to_string();
        assert!(!error.contains(secret), "{error}");
    }
}

#[test]
fn a_key_that_stands_twice_and_broken_yaml_are_refused() {
    assert!(matches!(
        install_config::load(&format!("{}apiVersion: v1\n", configs::ha())),
        Err(ConfigError::Yaml(_))
    ));
    assert!(matches!(install_config::load("a: [b"), Err(ConfigError::Yaml(_))));
    assert!(matches!(install_config::load(""), Err(ConfigError::Invalid(_))));
}

#[test]
fn warnings_do_not_refuse() {
    let text =
        configs::ha().replace("- replicas: 2", "- replicas: 1").replace("172.30.0.0/16", "172.17.0.0/16");
    let (_, warnings) = install_config::load(&text).unwrap();
    let paths: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(paths, ["compute[0].replicas", "networking.serviceNetwork[0]"]);
}
