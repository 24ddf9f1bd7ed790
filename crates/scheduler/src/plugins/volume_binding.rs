//! Sees to it that a pod's volumes can be where the pod goes, and says what has to be bound for that.

use std::borrow::Cow;

use client::Key;

use super::node_affinity;
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Verdict, WakeUp};
use crate::storage::{Binding, Class, Standing, Storage, Volume};
use crate::types::Node;

pub struct VolumeBinding;

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }
}

/// The pod's claims at the start of the cycle, and for those that wait what each node would give them.
struct Claims {
    standings: Vec<Standing>,
    /// One sentence that holds for every node.
    hopeless: Option<Cow<'static, str>>,
    storage: std::sync::Arc<Storage>,
}

impl Filter for VolumeBinding {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::StorageChanged, WakeUp::NodeChanged]
    }

    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) {
        let standings = cache.storage().standings(&pod.pod);
        if standings.is_empty() {
            return;
        }
        let hopeless = standings.iter().find_map(|standing| match standing {
            Standing::Missing { name } => Some(format!("persistentvolumeclaim \"{name}\" not found").into()),
            Standing::Terminating { name } => {
                Some(format!("persistentvolumeclaim \"{name}\" is being deleted").into())
            }
            Standing::Unbound => Some("pod has unbound immediate PersistentVolumeClaims".into()),
            Standing::Bound { .. } | Standing::Waiting { .. } => None,
        });
        cycle.keep(Claims { standings, hopeless, storage: cache.storage().clone() });
    }

    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let Some(claims) = cycle.get::<Claims>() else { return Verdict::Fits };
        if let Some(reason) = &claims.hopeless {
            return Verdict::Never(reason.clone());
        }
        match bindings(&claims.standings, &claims.storage, &node.node) {
            Ok(_) => Verdict::Fits,
            Err(reason) => Verdict::Never(reason.into()),
        }
    }
}

/// What has to be bound for a pod to run on a node, or why it cannot.
pub fn bindings(
    standings: &[Standing],
    storage: &Storage,
    node: &Node,
) -> Result<Vec<Binding>, &'static str> {
    let mut all = Vec::new();
    let mut taken: Vec<Box<str>> = Vec::new();
    for standing in standings {
        match standing {
            Standing::Bound { volume: None, .. } => {
                return Err("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)");
            }
            Standing::Bound { volume: Some(volume), .. } if !suits(volume, node) => {
                return Err("node(s) didn't match PersistentVolume's node affinity");
            }
            Standing::Waiting { claim, class } => {
                let key: Key = claim.metadata.key();
                match storage.match_volume(claim, &taken, |volume| suits(volume, node)) {
                    Some(volume) => {
                        taken.push(volume.clone());
                        all.push(Binding::Volume { claim: key, volume });
                    }
                    None if class.provisions() && allows(class, node) => {
                        all.push(Binding::Provision { claim: key })
                    }
                    None => return Err("node(s) didn't find available persistent volumes to bind"),
                }
            }
            Standing::Bound { .. }
            | Standing::Missing { .. }
            | Standing::Terminating { .. }
            | Standing::Unbound => {}
        }
    }
    Ok(all)
}

fn suits(volume: &Volume, node: &Node) -> bool {
    let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|selector| node_affinity::matches_selector(selector, node))
}

fn allows(class: &Class, node: &Node) -> bool {
    class.allowed_topologies.is_empty()
        || class.allowed_topologies.iter().any(|topology| {
            topology.match_label_expressions.iter().all(|label| {
                let value = node.metadata.labels.get(&label.key);
                value.is_some_and(|value| label.values.iter().any(|allowed| &**allowed == value))
            })
        })
}
