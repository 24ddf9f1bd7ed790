//! What all pod workers share: the seams to API server, runtime and disk, and facts about the machine.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use client::{Informer, Metadata, Projection};
use cri::{LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol};
use serde::Deserialize;

use crate::config::Config;
use crate::dns::{self, Resolvers};
use crate::downward::PodFacts;
use crate::environment::{Service, ServicePort};
use crate::events::Events;
use crate::groups::PodGroups;
use crate::images::Images;
use crate::machine::Machine;
use crate::pod::Pod;
use crate::volumes::Volumes;
use crate::{labels, qos, resources, security};

pub struct Host {
    /// The pods' cgroups, where the runtime is another program.
    pub groups: Option<PodGroups>,
    pub config: Config,
    pub machine: Machine,
    pub runtime_name: String,
    pub volumes: Volumes,
    pub events: Events,
    pub images: Images,
    /// None without an API server.
    pub services: Option<Informer<ServiceObject>>,
}

/// A Service as the cache keeps it.
#[derive(Debug, Deserialize)]
pub struct ServiceObject {
    metadata: Metadata,
    #[serde(default)]
    spec: ServiceSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Box<str>,
    ports: Vec<ServicePortObject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServicePortObject {
    name: Box<str>,
    port: u16,
    protocol: Box<str>,
}

impl Projection for ServiceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl ServiceObject {
    fn to_service(&self) -> Service {
        Service {
            namespace: self.metadata.namespace.to_string(),
            name: self.metadata.name.to_string(),
            cluster_ip: self.spec.cluster_ip.to_string(),
            ports: self
                .spec
                .ports
                .iter()
                .map(|port| ServicePort {
                    name: port.name.to_string(),
                    port: port.port,
                    protocol: if port.protocol.is_empty() { "TCP".into() } else { port.protocol.to_string() },
                })
                .collect(),
        }
    }
}

impl Host {
    /// Services whose variables a pod may get: those of its namespace, and the API server's.
    pub fn services_for(&self, pod: &Pod) -> Vec<Service> {
        let Some(services) = &self.services else { return Vec::new() };
        let mut all: Vec<Service> =
            services.in_namespace(&pod.metadata.namespace).iter().map(|one| one.to_service()).collect();
        if pod.metadata.namespace != "default"
            && let Some(master) = services.get(&client::Key::new("default", "kubernetes"))
        {
            all.push(master.to_service());
        }
        all
    }

    pub fn facts<'a>(&'a self, pod: &Pod, pod_ips: &'a [IpAddr]) -> PodFacts<'a> {
        PodFacts {
            node_name: &self.config.node_name,
            host_ips: &self.config.node_ips,
            pod_ips: if pod.spec.host_network { &self.config.node_ips } else { pod_ips },
            allocatable_cpu: self.machine.allocatable_cpu(&self.config),
            allocatable_memory: self.machine.allocatable_memory(&self.config),
        }
    }

    pub fn log_directory(&self, pod: &Pod) -> PathBuf {
        let metadata = &pod.metadata;
        self.config.pod_logs_dir.join(format!("{}_{}_{}", metadata.namespace, metadata.name, metadata.uid))
    }

    /// The host's resolvers, read now: people edit that file.
    pub fn resolvers(&self) -> Resolvers {
        let text = std::fs::read_to_string(&self.config.resolv_conf).unwrap_or_default();
        Resolvers {
            cluster_dns: self.config.cluster_dns.clone(),
            cluster_domain: self.config.cluster_domain.clone(),
            host: dns::parse(&text),
        }
    }

    /// What a pod's sandbox shall be.
    /// The pod's user namespace, if it asks for one of its own.
    pub fn users(&self, pod: &Pod) -> std::io::Result<Option<cri::UserNamespace>> {
        if pod.spec.host_users != Some(false) {
            return Ok(None);
        }
        let directory = self.volumes.pod_dir(&pod.metadata.uid);
        crate::volumes::open_pod_dir(&directory)?;
        crate::userns::of_pod(&directory).map(Some)
    }

    pub fn sandbox_config(&self, pod: &Pod, attempt: u32) -> PodSandboxConfig {
        let spec = &pod.spec;
        let (name, domain) = dns::hostname(pod, &self.config.cluster_domain);
        let hostname = match (spec.host_network, spec.set_hostname_as_fqdn && !domain.is_empty()) {
            (true, _) => String::new(),
            (false, true) => format!("{name}.{domain}"),
            (false, false) => name,
        };
        let port_mappings = spec
            .containers
            .iter()
            .chain(&spec.init_containers)
            .flat_map(|container| &container.ports)
            .filter(|port| port.host_port != 0 && !spec.host_network)
            .map(|port| PortMapping {
                protocol: match port.protocol.as_str() {
                    "UDP" => Protocol::Udp,
                    "SCTP" => Protocol::Sctp,
                    _ => Protocol::Tcp,
                },
                container_port: port.container_port,
                host_port: port.host_port,
                host_ip: port.host_ip.clone(),
            })
            .collect();
        PodSandboxConfig {
            metadata: PodSandboxMetadata {
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
                namespace: pod.metadata.namespace.clone(),
                attempt,
            },
            hostname,
            log_directory: self.log_directory(pod),
            dns_config: Some(dns::config(pod, &self.resolvers())),
            port_mappings,
            labels: labels::of_pod(pod),
            annotations: pod.metadata.annotations.clone(),
            linux: LinuxPodSandboxConfig {
                cgroup_parent: match &self.groups {
                    Some(groups) => groups.of(pod),
                    None => qos::cgroup_parent(pod),
                },
                security_context: security::sandbox(pod),
                sysctls: spec
                    .security_context
                    .sysctls
                    .iter()
                    .map(|one| (one.name.clone(), one.value.clone()))
                    .collect(),
                overhead: resources::overhead(pod),
                resources: Some(resources::of_pod(pod)),
            },
            runtime_handler: String::new(),
        }
    }
}

/// Shared by reference everywhere.
pub type SharedHost = Arc<Host>;
