//! The plugins, one file each, and the list of them with upstream's default order and weights.
//!
//! A plugin of another crate is put on the same footing with [`Registry::with`].

mod default_binder;
mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources;
mod node_unschedulable;
mod node_volume_limits;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;
mod topology_spread;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::framework::{Framework, Plugin};
use crate::preemption::DefaultPreemption;

pub use node_affinity::matches_selector;
pub use node_ports::host_ports;

/// Arguments of a plugin that cannot be used.
#[derive(Debug, Error)]
#[error("{field}: {problem}")]
pub struct ArgsError {
    pub field: String,
    pub problem: String,
}

impl ArgsError {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

/// Reads a plugin's arguments strictly; none at all means the defaults.
pub fn decode_args<T: DeserializeOwned + Default>(args: &Value) -> Result<T, ArgsError> {
    if args.is_null() {
        return Ok(T::default());
    }
    let mut args = args.clone();
    if let Some(fields) = args.as_object_mut() {
        fields.shift_remove("apiVersion");
        fields.shift_remove("kind");
    }
    serde_json::from_value(args)
        .map_err(|error| ArgsError::new("args", format!("strict decoding error: {error}")))
}

/// Makes a plugin of its arguments.
pub type Make = Arc<dyn Fn(&Value) -> Result<Arc<dyn Plugin>, ArgsError> + Send + Sync>;

/// Plugins by name.
#[derive(Clone)]
pub struct Registry {
    makers: BTreeMap<&'static str, Make>,
    /// The default profile: names in order, with the weights of scores.
    pub defaults: Vec<(&'static str, i64)>,
}

fn plain<P: Plugin>(plugin: P) -> Make {
    let plugin: Arc<dyn Plugin> = Arc::new(plugin);
    Arc::new(move |args| match args {
        Value::Null => Ok(plugin.clone()),
        _ => Err(ArgsError::new("args", format!("{} takes no arguments", plugin.name()))),
    })
}

impl Default for Registry {
    fn default() -> Self {
        fn with(make: fn(&Value) -> Result<Arc<dyn Plugin>, ArgsError>) -> Make {
            Arc::new(make)
        }
        let all: [(&'static str, i64, Make); 19] = [
            ("SchedulingGates", 0, plain(scheduling_gates::SchedulingGates)),
            ("PrioritySort", 0, plain(priority_sort::PrioritySort)),
            ("NodeUnschedulable", 0, plain(node_unschedulable::NodeUnschedulable)),
            ("NodeName", 0, plain(node_name::NodeName)),
            ("TaintToleration", 3, plain(taint_toleration::TaintToleration)),
            ("NodeAffinity", 2, with(node_affinity::NodeAffinity::from_args)),
            ("NodePorts", 0, plain(node_ports::NodePorts)),
            ("NodeResourcesFit", 1, with(node_resources::Fit::from_args)),
            ("VolumeRestrictions", 0, plain(volume_restrictions::VolumeRestrictions)),
            ("NodeVolumeLimits", 0, plain(node_volume_limits::NodeVolumeLimits)),
            ("VolumeBinding", 0, with(volume_binding::VolumeBinding::from_args)),
            ("VolumeZone", 0, plain(volume_zone::VolumeZone)),
            ("PodTopologySpread", 2, with(topology_spread::PodTopologySpread::from_args)),
            ("InterPodAffinity", 2, with(inter_pod_affinity::InterPodAffinity::from_args)),
            ("DynamicResources", 2, with(dynamic_resources::from_args)),
            ("DefaultPreemption", 0, with(DefaultPreemption::from_args)),
            ("NodeResourcesBalancedAllocation", 1, with(node_resources::BalancedAllocation::from_args)),
            ("ImageLocality", 1, plain(image_locality::ImageLocality)),
            ("DefaultBinder", 0, plain(default_binder::DefaultBinder)),
        ];
        let defaults = all.iter().map(|(name, weight, _)| (*name, *weight)).collect();
        Self { makers: all.into_iter().map(|(name, _, make)| (name, make)).collect(), defaults }
    }
}

impl Registry {
    /// Makes another plugin known; a profile has to enable it.
    #[must_use]
    pub fn with(mut self, name: &'static str, make: Make) -> Self {
        self.makers.insert(name, make);
        self
    }

    pub fn knows(&self, name: &str) -> bool {
        self.makers.contains_key(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.makers.keys().copied()
    }

    pub fn make(&self, name: &str, args: &Value) -> Option<Result<Arc<dyn Plugin>, ArgsError>> {
        self.makers.get(name).map(|make| make(args))
    }
}

/// All plugins with their default order, weights and arguments.
pub fn default_framework() -> Framework {
    crate::config::Settings::default().profiles.remove(0).framework
}
