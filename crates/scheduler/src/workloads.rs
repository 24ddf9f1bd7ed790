//! Services and controllers, as far as they say which pods belong together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use client::{Key, Labels, Metadata, Projection, Word};
use controller_runtime::Selector;
use serde::Deserialize;

use crate::types::Pod;

/// A Service or ReplicationController: its selector is a plain map.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Mapped {
    pub metadata: Metadata,
    pub spec: MappedSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MappedSpec {
    pub selector: Labels,
}

/// A ReplicaSet or StatefulSet.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Selecting {
    pub metadata: Metadata,
    pub spec: SelectingSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SelectingSpec {
    pub selector: Selector,
}

impl Projection for Mapped {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Projection for Selecting {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What is known of workloads.
#[derive(Debug, Default)]
pub struct Workloads {
    pub services: HashMap<Word, BTreeMap<Box<str>, Arc<Mapped>>>,
    pub replication_controllers: HashMap<Key, Arc<Mapped>>,
    pub replica_sets: HashMap<Key, Arc<Selecting>>,
    pub stateful_sets: HashMap<Key, Arc<Selecting>>,
}

impl Workloads {
    pub fn set_service(&mut self, key: &Key, service: Option<Arc<Mapped>>) {
        match service.filter(|service| !service.spec.selector.is_empty()) {
            Some(service) => {
                self.services.entry(key.namespace.clone()).or_default().insert(key.name.clone(), service);
            }
            None => {
                if let Some(services) = self.services.get_mut(&key.namespace) {
                    services.remove(&key.name);
                    if services.is_empty() {
                        self.services.remove(&key.namespace);
                    }
                }
            }
        }
    }

    /// What a pod's Services and its controller select, taken together; `None` if nothing selects it.
    pub fn selector_for(&self, pod: &Pod) -> Option<Selector> {
        let meta = &pod.metadata;
        let mut labels: BTreeMap<&str, &str> = BTreeMap::new();
        for service in self.services.get(&meta.namespace).into_iter().flat_map(BTreeMap::values) {
            let selector = &service.spec.selector;
            if selector.iter().all(|(key, value)| meta.labels.get(key) == Some(value)) {
                labels.extend(selector.iter());
            }
        }
        let mut chosen: Option<&Selector> = None;
        if let Some(owner) = meta.controller() {
            let key = Key::new(&meta.namespace, &owner.name);
            match (&*owner.api_version, &*owner.kind) {
                ("v1", "ReplicationController") => {
                    if let Some(controller) = self.replication_controllers.get(&key) {
                        labels.extend(controller.spec.selector.iter());
                    }
                }
                ("apps/v1", "ReplicaSet") => {
                    chosen = self.replica_sets.get(&key).map(|set| &set.spec.selector)
                }
                ("apps/v1", "StatefulSet") => {
                    chosen = self.stateful_sets.get(&key).map(|set| &set.spec.selector);
                }
                _ => {}
            }
        }
        let of_labels = Selector::of_labels(&labels.into_iter().collect());
        let selector = match chosen {
            Some(chosen) if !chosen.is_nothing() => of_labels.and_selector(chosen),
            _ => of_labels,
        };
        (!selector.is_everything()).then_some(selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn decode<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn services_and_the_controller_select_together() {
        let mut workloads = Workloads::default();
        let service =
            |selector: Value| Some(Arc::new(decode::<Mapped>(json!({"spec": {"selector": selector}}))));
        workloads.set_service(&Key::new("n", "web"), service(json!({"app": "web"})));
        workloads.set_service(&Key::new("n", "db"), service(json!({"app": "db"})));
        workloads.set_service(&Key::new("n", "all"), service(json!({})));
        let set = decode(json!({"spec": {"selector": {"matchLabels": {"hash": "1"}}}}));
        workloads.replica_sets.insert(Key::new("n", "web-1"), Arc::new(set));
        let owned = |kind: &str| -> Pod {
            decode(json!({"metadata": {"namespace": "n", "labels": {"app": "web", "hash": "1"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "web-1", "controller": true}]}}))
        };
        let selected = |pod: &Pod| workloads.selector_for(pod).map(|selector| selector.to_query());
        assert_eq!(selected(&owned("ReplicaSet")), Some("app=web,hash=1".into()));
        assert_eq!(selected(&owned("Job")), Some("app=web".into()));
        let stranger = decode(json!({"metadata": {"namespace": "other", "labels": {"app": "web"}}}));
        assert_eq!(selected(&stranger), None);
    }
}
