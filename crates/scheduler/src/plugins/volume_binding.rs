//! Sees to it that a pod's volumes can be where the pod goes, and has them bound there before the pod is.

use std::sync::Arc;
use std::time::Duration;

use client::{Key, Patch, resources};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::node_resources::{Shape, ShapePoint};
use super::{ArgsError, decode_args, node_affinity};
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, Plugin, PreBind, PreFilter, Prepared, Reasons, Reserve, Verdict};
use crate::handle::Handle;
use crate::storage::{Binding, Class, Standing, Storage, Volume};
use crate::types::{Node, Pod};

#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    bind_timeout_seconds: i64,
    shape: Vec<ShapePoint>,
}

impl Default for Args {
    fn default() -> Self {
        Self { bind_timeout_seconds: 600, shape: Vec::new() }
    }
}

pub struct VolumeBinding {
    timeout: Duration,
}

impl VolumeBinding {
    pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, ArgsError> {
        let args: Args = decode_args(args)?;
        let seconds = u64::try_from(args.bind_timeout_seconds).map_err(|_| {
            let text = format!(
                "Invalid value: {}: invalid BindTimeoutSeconds, should not be a negative value",
                args.bind_timeout_seconds
            );
            ArgsError::new("bindTimeoutSeconds", text)
        })?;
        // The shape is checked; without the gate for scoring by capacity upstream does not use it either.
        if !args.shape.is_empty() {
            Shape::new("shape", &args.shape)?;
        }
        Ok(Arc::new(Self { timeout: Duration::from_secs(seconds) }))
    }
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }
    fn wakes_on(&self) -> Events {
        let storage = Events::CLAIM.and(Events::VOLUME).and(Events::CLASS);
        storage.and(Events::CSI_NODE).and(Events::CSI_DRIVER).and(Events::CAPACITY).and(Events::NODE)
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::ClaimChanged { new, .. } => {
                new.metadata.namespace == pod.metadata.namespace
                    && pod.claim_names().any(|name| *name == *new.metadata.name)
            }
            ClusterEvent::NodeChanged { old, new } => old.metadata.labels != new.metadata.labels,
            _ => true,
        }
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
    fn pre_bind(&self) -> Option<&dyn PreBind> {
        Some(self)
    }
}

/// The pod's claims at the start of the cycle.
struct Claims(Vec<Standing>);

/// What has to be bound on the chosen node.
struct Bindings(Vec<Binding>);

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        let standings = cache.storage.standings(&pod.pod);
        if standings.is_empty() {
            return Prepared::Skip;
        }
        for standing in &standings {
            let reason = match standing {
                Standing::Missing { name, ephemeral: false } => {
                    format!("persistentvolumeclaim \"{name}\" not found")
                }
                Standing::Missing { name, ephemeral: true } => format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                ),
                Standing::Terminating { name } => {
                    format!("persistentvolumeclaim \"{name}\" is being deleted")
                }
                Standing::NotOwned { name } => format!(
                    "PVC {}/{name} was not created for pod {} (pod is not owner)",
                    pod.pod.metadata.namespace,
                    pod.pod.metadata.key()
                ),
                _ => continue,
            };
            return Prepared::Never(reason.into());
        }
        if standings.iter().any(|standing| matches!(standing, Standing::Unbound)) {
            return Prepared::Never("pod has unbound immediate PersistentVolumeClaims".into());
        }
        cycle.keep(Claims(standings));
        Prepared::Check
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let Some(Claims(standings)) = cycle.get::<Claims>() else { return Verdict::Fits };
        match bindings(standings, &cache.storage, &node.node) {
            Ok(_) => Verdict::Fits,
            Err(reason) => Verdict::never(reason),
        }
    }

    fn heeds_pods(&self) -> bool {
        false
    }
}

impl Reserve for VolumeBinding {
    fn reserve(
        &self,
        cycle: &mut Cycle,
        _pod: &PlacedPod,
        node: &str,
        cache: &mut Cache,
    ) -> Result<(), Reasons> {
        let Some(Claims(standings)) = cycle.get::<Claims>() else { return Ok(()) };
        let node = cache.node(node).ok_or("the chosen node is gone")?;
        let bindings = bindings(standings, &cache.storage, &node.node)?;
        cache.storage.promise(&bindings);
        cycle.keep(Bindings(bindings));
        Ok(())
    }

    fn unreserve(&self, cycle: &Cycle, _pod: &Pod, _node: &str, cache: &mut Cache) {
        if let Some(Bindings(bindings)) = cycle.get::<Bindings>() {
            cache.storage.release(bindings);
        }
    }
}

impl PreBind for VolumeBinding {
    fn pre_bind<'a>(
        &'a self,
        cycle: &'a Cycle,
        _pod: &'a Pod,
        node: &'a str,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<(), Reasons>> {
        Box::pin(async move {
            let Some(Bindings(bindings)) = cycle.get::<Bindings>() else { return Ok(()) };
            if bindings.is_empty() {
                return Ok(());
            }
            for binding in bindings {
                order(binding, node, handle).await?;
            }
            let bound = handle.until(|cache| all_bound(bindings, node, cache));
            match tokio::time::timeout(self.timeout, bound).await {
                Ok(outcome) => outcome?,
                Err(_) => return Err("binding volumes: context deadline exceeded".into()),
            }
            handle.with_cache(|cache| cache.storage.release(bindings));
            Ok(())
        })
    }

    fn takes_time(&self, cycle: &Cycle, _pod: &Pod) -> bool {
        cycle.get::<Bindings>().is_some_and(|Bindings(bindings)| !bindings.is_empty())
    }
}

/// Writes what makes the volume controller, or a provisioner, bind a claim.
async fn order(binding: &Binding, node: &str, handle: &Handle) -> Result<(), Reasons> {
    let told = |error: client::Error| Reasons::from(format!("binding volumes: {}", telemetry::chain(&error)));
    match binding {
        Binding::Volume { claim, volume } => {
            let known = handle.with_cache(|cache| cache.storage.claims.get(claim).cloned());
            let claim = known.ok_or("binding volumes: the claim is gone")?;
            let patch = json!({
                "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
                "spec": {"claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": claim.metadata.uid,
                    "namespace": claim.metadata.namespace, "name": claim.metadata.name,
                }},
            });
            let api = handle.client.api(&resources::PERSISTENT_VOLUMES);
            api.patch::<IgnoredAny>(volume, Patch::Merge(&patch)).await.map_err(told)?;
        }
        Binding::Provision { claim } => {
            let chosen = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
            let api = handle.client.api(&resources::PERSISTENT_VOLUME_CLAIMS).within(&claim.namespace);
            api.patch::<IgnoredAny>(&claim.name, Patch::Merge(&chosen)).await.map_err(told)?;
        }
    }
    Ok(())
}

/// Whether every claim has its volume; `None` while some have not.
fn all_bound(bindings: &[Binding], node: &str, cache: &Cache) -> Option<Result<(), Reasons>> {
    let info = cache.node(node);
    for binding in bindings {
        let (Binding::Volume { claim, .. } | Binding::Provision { claim }) = binding;
        let Some(found) = cache.storage.claims.get(claim) else {
            return Some(Err(format!("binding volumes: claim {claim} is gone").into()));
        };
        if found.spec.volume_name.is_empty() {
            return None;
        }
        // A volume that was made elsewhere is of no use here.
        let volume = cache.storage.volumes.get(&found.spec.volume_name);
        if let (Some(volume), Some(info)) = (volume, info)
            && !suits(volume, &info.node)
        {
            let text = format!(
                "binding volumes: pv {:?} node affinity doesn't match node {node:?}",
                volume.metadata.name
            );
            return Some(Err(text.into()));
        }
    }
    Some(Ok(()))
}

/// What has to be bound for a pod to run on a node, or why it cannot.
fn bindings(standings: &[Standing], storage: &Storage, node: &Node) -> Result<Vec<Binding>, &'static str> {
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
                        if !storage.has_room(claim, class, &node.metadata.labels) {
                            return Err("node(s) did not have enough free storage");
                        }
                        all.push(Binding::Provision { claim: key });
                    }
                    None => return Err("node(s) didn't find available persistent volumes to bind"),
                }
            }
            _ => {}
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
