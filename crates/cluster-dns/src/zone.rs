//! The cluster's names: one entry per Service, an index from addresses back to names, and the Namespaces.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use client::Key;

use crate::types::{EndpointSlice, Port, Service};

/// What a Service's name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// One address for all endpoints.
    Cluster { addresses: Vec<IpAddr>, ports: Vec<Port> },
    /// Each endpoint by itself.
    Headless { endpoints: Vec<Endpoint> },
    /// Another name.
    External { name: String },
}

/// An endpoint of a headless Service. Its own name is `label.service.namespace.svc.domain`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub label: String,
    pub address: IpAddr,
    pub ports: Vec<Port>,
}

impl Entry {
    /// The entry of a Service with its slices; `None` if it has no name in DNS (yet).
    pub fn of(service: &Service, slices: &[impl AsRef<EndpointSlice>]) -> Option<Self> {
        let spec = &service.spec;
        if &*spec.kind == "ExternalName" {
            let name = spec.external_name.trim_end_matches('.').to_ascii_lowercase();
            return Some(Self::External { name });
        }
        match &*spec.cluster_ip {
            "" => None,
            "None" => Some(Self::Headless { endpoints: endpoints(slices) }),
            first => {
                let all = if spec.cluster_ips.is_empty() { vec![first] } else { strs(&spec.cluster_ips) };
                let addresses = all.into_iter().filter_map(|text| text.parse().ok()).collect();
                Some(Self::Cluster { addresses, ports: spec.ports.clone() })
            }
        }
    }
}

fn strs(texts: &[Box<str>]) -> Vec<&str> {
    texts.iter().map(AsRef::as_ref).collect()
}

fn endpoints(slices: &[impl AsRef<EndpointSlice>]) -> Vec<Endpoint> {
    let mut all = BTreeSet::new();
    for slice in slices.iter().map(AsRef::as_ref) {
        for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready.unwrap_or(true)) {
            for address in endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok()) {
                let label = match endpoint.hostname.as_deref() {
                    Some(name) if !name.is_empty() => name.to_ascii_lowercase(),
                    _ => dashed(address),
                };
                all.insert(Endpoint { label, address, ports: slice.ports.clone() });
            }
        }
    }
    all.into_iter().collect()
}

/// An address as a label: `10-128-0-5`, or `fd00--5`.
pub fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// All names of the cluster at some moment.
#[derive(Debug)]
pub struct Zone {
    /// Lower case, without the final dot.
    pub domain: String,
    /// Counts the changes.
    pub serial: u32,
    entries: HashMap<Key, Entry>,
    names: HashMap<IpAddr, BTreeSet<String>>,
    namespaces: HashSet<Box<str>>,
}

impl Zone {
    pub fn new(domain: &str) -> Self {
        Self {
            domain: domain.trim_matches('.').to_ascii_lowercase(),
            serial: 1,
            entries: HashMap::new(),
            names: HashMap::new(),
            namespaces: HashSet::new(),
        }
    }

    pub fn get(&self, namespace: &str, service: &str) -> Option<&Entry> {
        self.entries.get(&Key::new(namespace, service))
    }

    /// The names of an address, for `PTR`.
    pub fn names_of(&self, address: IpAddr) -> impl Iterator<Item = &String> {
        self.names.get(&address).into_iter().flatten()
    }

    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        if exists {
            self.namespaces.insert(name.into());
        } else {
            self.namespaces.remove(name);
        }
    }

    /// Puts a Service's entry in the place of its old one.
    pub fn set(&mut self, key: &Key, entry: Option<Entry>) {
        if self.entries.get(key) == entry.as_ref() {
            return;
        }
        self.serial = self.serial.wrapping_add(1);
        if let Some(old) = self.entries.remove(key) {
            for (address, name) in self.reverse(key, &old) {
                if let Some(names) = self.names.get_mut(&address) {
                    names.remove(&name);
                    if names.is_empty() {
                        self.names.remove(&address);
                    }
                }
            }
        }
        if let Some(entry) = entry {
            for (address, name) in self.reverse(key, &entry) {
                self.names.entry(address).or_default().insert(name);
            }
            self.entries.insert(key.clone(), entry);
        }
    }

    fn reverse(&self, key: &Key, entry: &Entry) -> Vec<(IpAddr, String)> {
        let service = self.service_name(&key.namespace, &key.name);
        match entry {
            Entry::Cluster { addresses, .. } => {
                addresses.iter().map(|address| (*address, service.clone())).collect()
            }
            Entry::Headless { endpoints } => endpoints
                .iter()
                .map(|endpoint| (endpoint.address, format!("{}.{service}", endpoint.label)))
                .collect(),
            Entry::External { .. } => Vec::new(),
        }
    }

    pub fn service_name(&self, namespace: &str, service: &str) -> String {
        format!("{service}.{namespace}.svc.{}", self.domain)
    }
}
