//! Has CSI volumes attached to the nodes whose pods use them, and detached when nobody there does.
//!
//! What is wanted is a VolumeAttachment per volume and node; the driver's own attacher does the work and tells in its
//! status. A volume is not taken from a node that still has it mounted, unless the node is surely dead: tainted as out of
//! service, or silent for longer than [`Forcing`] allows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Meta, Plan};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::json;

use crate::kinds::{AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod, kind, none};

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// When a volume is taken from a node that does not answer.
#[derive(Clone, Copy, Debug)]
pub struct Forcing {
    /// How long an unmount is waited for; nothing to wait for ever.
    pub after: Option<SignedDuration>,
}

impl Default for Forcing {
    fn default() -> Self {
        Self { after: Some(SignedDuration::from_mins(6)) }
    }
}

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    metadata: Meta,
    spec: AttachmentSpec,
    status: AttachmentStatus,
}
kind!(VolumeAttachment, VOLUME_ATTACHMENTS, keep none,
    index |attachment, add| add("node", &attachment.spec.node_name));

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSpec {
    node_name: Box<str>,
    source: AttachmentSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSource {
    persistent_volume_name: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentStatus {
    attached: bool,
    attach_error: Option<AttachError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AttachError {
    message: Box<str>,
}

/// A CSIDriver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    metadata: Meta,
    spec: CsiDriverSpec,
}
kind!(CsiDriver, CSI_DRIVERS, keep none);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CsiDriverSpec {
    attach_required: Option<bool>,
}

/// A volume that pods of a node use.
pub struct Wanted {
    volume: Arc<PersistentVolume>,
    pods: Vec<Arc<Pod>>,
    /// The other node that has it, if it can only be at one.
    elsewhere: Option<Box<str>>,
}

/// What one node's volumes depend on.
pub struct View {
    name: Box<str>,
    /// The node, unless it is gone.
    node: Option<Arc<Node>>,
    wanted: Vec<Wanted>,
    /// The node's attachments with their volumes.
    attachments: Vec<(Arc<VolumeAttachment>, Option<Arc<PersistentVolume>>)>,
    /// Since when attachments are not wanted, by name.
    unwanted: HashMap<Box<str>, Timestamp>,
    forcing: Forcing,
    now: Timestamp,
}

impl PersistentVolume {
    /// The name of a CSI volume in nodes' statuses.
    fn unique_name(&self) -> Option<String> {
        let csi = self.spec.csi.as_ref()?;
        Some(format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle))
    }

    fn is_exclusive(&self) -> bool {
        let shared = |mode: &str| matches!(mode, "ReadOnlyMany" | "ReadWriteMany");
        !self.spec.access_modes.is_empty() && !self.spec.access_modes.iter().any(|mode| shared(mode))
    }
}

/// The name of an attachment, as upstream makes it.
fn attachment_name(volume: &PersistentVolume, node: &str) -> Option<String> {
    let csi = volume.spec.csi.as_ref()?;
    let text = format!("{}{}{node}", csi.volume_handle, csi.driver);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    Some(digest.as_ref().iter().fold("csi-".to_owned(), |name, byte| name + &format!("{byte:02x}")))
}

/// Whether this controller made it, by its name: attachments that others make are theirs to delete.
fn is_own(attachment: &VolumeAttachment) -> bool {
    let digits = attachment.metadata.name.strip_prefix("csi-");
    digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Decides on one node.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    for wanted in &view.wanted {
        attach(view, wanted, &mut plan);
    }
    let is_wanted = |attachment: &VolumeAttachment| {
        let source = attachment.spec.source.persistent_volume_name.as_deref();
        view.wanted.iter().any(|wanted| source == Some(&*wanted.volume.metadata.name))
    };
    for (attachment, volume) in &view.attachments {
        if is_own(attachment) && !is_wanted(attachment) && !attachment.metadata.is_terminating() {
            detach(view, attachment, volume.as_deref(), &mut plan);
        }
    }
    if let Some(node) = &view.node {
        let mut attached: Vec<AttachedVolume> = view
            .attachments
            .iter()
            .filter(|(attachment, _)| attachment.status.attached)
            .filter_map(|(_, volume)| volume.as_ref()?.unique_name())
            .map(|name| AttachedVolume { name: name.into(), ..AttachedVolume::default() })
            .collect();
        attached.sort();
        if attached != node.status.volumes_attached {
            tell_attached(view, node, &attached, &mut plan);
            let list = if attached.is_empty() { json!(null) } else { json!(attached) };
            plan.update_sub(&**node, "status", json!({"status": {"volumesAttached": list}}));
        }
    }
    plan
}

fn attach(view: &View, wanted: &Wanted, plan: &mut Plan) {
    let volume = &*wanted.volume;
    let (Some(csi), Some(name)) = (&volume.spec.csi, attachment_name(volume, &view.name)) else { return };
    let own = view.attachments.iter().find(|(attachment, _)| *attachment.metadata.name == *name);
    if let Some((attachment, _)) = own {
        if let Some(error) = attachment.status.attach_error.as_ref().filter(|_| !attachment.status.attached) {
            let text = format!(
                "AttachVolume.Attach failed for volume {:?} : {}",
                volume.metadata.name, error.message
            );
            for pod in &wanted.pods {
                plan.warn(&**pod, "FailedAttachVolume", text.clone());
            }
        }
        return;
    }
    if wanted.elsewhere.is_some() {
        let text = format!(
            "Multi-Attach error for volume {:?} Volume is already exclusively attached to one node and can't be attached to another",
            volume.metadata.name
        );
        for pod in &wanted.pods {
            plan.warn(&**pod, "FailedAttachVolume", text.clone());
        }
        // The detach of the other node brings us here again.
        return;
    }
    let attachment = json!({
        "metadata": {"name": name},
        "spec": {"attacher": csi.driver, "nodeName": view.name,
            "source": {"persistentVolumeName": volume.metadata.name}},
    });
    plan.create(&VolumeAttachment::RESOURCE, attachment).tolerant();
}

fn detach(view: &View, attachment: &VolumeAttachment, volume: Option<&PersistentVolume>, plan: &mut Plan) {
    let in_use = view.node.as_ref().is_some_and(|node| {
        let name = volume.and_then(PersistentVolume::unique_name);
        name.is_some_and(|name| node.status.volumes_in_use.iter().any(|own| **own == *name))
    });
    if in_use && let Some(node) = &view.node {
        let out_of_service = node.spec.taints.iter().any(|taint| &*taint.key == OUT_OF_SERVICE);
        let since = view.unwanted.get(&attachment.metadata.name).copied().unwrap_or(view.now);
        let due = view.forcing.after.map(|after| since.checked_add(after).unwrap_or(Timestamp::MAX));
        let forced = !node.is_ready() && due.is_some_and(|due| due <= view.now);
        if !out_of_service && !forced {
            if let Some(due) = due.filter(|due| *due > view.now) {
                plan.look_again(due);
            }
            return;
        }
    }
    plan.delete(attachment);
}

fn tell_attached(view: &View, node: &Node, attached: &[AttachedVolume], plan: &mut Plan) {
    for wanted in &view.wanted {
        let Some(name) = wanted.volume.unique_name() else { continue };
        let has = |list: &[AttachedVolume]| list.iter().any(|own| *own.name == *name);
        if has(attached) && !has(&node.status.volumes_attached) {
            let text = format!("AttachVolume.Attach succeeded for volume {:?} ", wanted.volume.metadata.name);
            for pod in &wanted.pods {
                plan.event(&**pod, "SuccessfulAttachVolume", text.clone());
            }
        }
    }
}

fn gather(context: &Context, forcing: Forcing, unwanted: &mut HashMap<Box<str>, Timestamp>) -> Option<View> {
    let name = context.key.name.clone();
    let caches = &context.caches;
    let (volumes, claims) = (caches.of::<PersistentVolume>(), caches.of::<PersistentVolumeClaim>());
    let drivers = caches.of::<CsiDriver>();
    let everywhere = caches.of::<VolumeAttachment>();
    let mut wanted: Vec<Wanted> = Vec::new();
    for pod in caches.of::<Pod>().indexed("node", &name) {
        if pod.is_finished() {
            continue;
        }
        for claim in pod.claim_names() {
            let Some(claim) = claims.get(&Key::new(&pod.metadata.namespace, &claim)) else { continue };
            let Some(volume) = volumes.get(&Key::cluster(&claim.spec.volume_name)) else { continue };
            let Some(csi) = &volume.spec.csi else { continue };
            let required = drivers.get(&Key::cluster(&csi.driver)).and_then(|own| own.spec.attach_required);
            if required == Some(false) {
                continue;
            }
            let known = wanted.iter_mut().find(|own| own.volume.metadata.name == volume.metadata.name);
            match known {
                Some(own) => own.pods.push(pod.clone()),
                None => {
                    let elsewhere = || {
                        let other = everywhere.list().into_iter().find(|own| {
                            own.spec.node_name != name
                                && own.spec.source.persistent_volume_name.as_ref()
                                    == Some(&volume.metadata.name)
                        });
                        other.map(|own| own.spec.node_name.clone())
                    };
                    let elsewhere = if volume.is_exclusive() { elsewhere() } else { None };
                    wanted.push(Wanted { volume, pods: vec![pod.clone()], elsewhere });
                }
            }
        }
    }
    let mut attachments: Vec<_> = everywhere
        .indexed("node", &name)
        .into_iter()
        .map(|attachment| {
            let source = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = source.and_then(|source| volumes.get(&Key::cluster(source)));
            (attachment, volume)
        })
        .collect();
    attachments.sort_by(|a, b| a.0.metadata.name.cmp(&b.0.metadata.name));
    let node = caches.of::<Node>().get(&context.key);
    if wanted.is_empty()
        && attachments.is_empty()
        && node.as_ref().is_none_or(|node| node.status.volumes_attached.is_empty())
    {
        return None;
    }
    let mut since = HashMap::new();
    for (attachment, volume) in &attachments {
        let used = volume
            .as_ref()
            .is_some_and(|volume| wanted.iter().any(|own| own.volume.metadata.name == volume.metadata.name));
        let own = &attachment.metadata.name;
        if used {
            unwanted.remove(own);
        } else {
            since.insert(own.clone(), *unwanted.entry(own.clone()).or_insert(context.now));
        }
    }
    unwanted.retain(|own, _| everywhere.get(&Key::cluster(own)).is_some());
    Some(View { name, node, wanted, attachments, unwanted: since, forcing, now: context.now })
}

/// The nodes whose pods use a volume, and those that have it.
fn of_attachment(caches: &Caches, change: &Change<VolumeAttachment>) -> Vec<Key> {
    let attachment = change.latest();
    let mut keys = vec![Key::cluster(&attachment.spec.node_name)];
    if change.new.is_none() {
        // Another node may have waited for it.
        let source = attachment.spec.source.persistent_volume_name.as_deref();
        let volume = source.and_then(|source| caches.of::<PersistentVolume>().get(&Key::cluster(source)));
        if let Some(own) = volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref()) {
            let pods = caches.of::<Pod>().in_namespace(&own.namespace);
            let uses = |pod: &&Arc<Pod>| pod.claim_names().iter().any(|name| **name == *own.name);
            keys.extend(pods.iter().filter(uses).map(|pod| Key::cluster(&pod.spec.node_name)));
        }
    }
    keys.retain(|key| !key.name.is_empty());
    keys
}

fn of_pod(_: &Caches, change: &Change<Pod>) -> Vec<Key> {
    let pod = change.latest();
    if pod.spec.node_name.is_empty() || pod.claim_names().is_empty() {
        return Vec::new();
    }
    vec![Key::cluster(&pod.spec.node_name)]
}

fn of_claim(caches: &Caches, change: &Change<PersistentVolumeClaim>) -> Vec<Key> {
    let bound = |claim: &Option<Arc<PersistentVolumeClaim>>| {
        claim.as_ref().is_some_and(|claim| !claim.spec.volume_name.is_empty())
    };
    if bound(&change.old) == bound(&change.new) {
        return Vec::new();
    }
    let metadata = &change.latest().metadata;
    let pods = caches.of::<Pod>().in_namespace(&metadata.namespace);
    let uses = |pod: &&Arc<Pod>| {
        !pod.spec.node_name.is_empty() && pod.claim_names().iter().any(|name| **name == *metadata.name)
    };
    pods.iter().filter(uses).map(|pod| Key::cluster(&pod.spec.node_name)).collect()
}

/// The controller.
pub fn controller(forcing: Forcing) -> Controller {
    let unwanted: Mutex<HashMap<Box<str>, Timestamp>> = Mutex::default();
    let gather = move |context: &Context| {
        gather(context, forcing, &mut unwanted.lock().unwrap_or_else(PoisonError::into_inner))
    };
    Controller::new("persistentvolume-attach-detach-controller", gather, reconcile)
        .acting_as("attachdetach-controller")
        .workers(1)
        .for_kind::<Node>()
        .watching::<Pod>(of_pod)
        .watching::<VolumeAttachment>(of_attachment)
        .watching::<PersistentVolumeClaim>(of_claim)
        .reading_kind::<PersistentVolume>()
        .reading_kind::<CsiDriver>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};
    use serde_json::Value;

    fn volume(modes: Value) -> Arc<PersistentVolume> {
        Arc::new(object(
            json!({"metadata":{"name":"v"},"spec":{"accessModes":modes,"csi":{"driver":"d.example","volumeHandle":"h1"}}}),
        ))
    }

    fn wanted(elsewhere: Option<&str>) -> Wanted {
        let volume = volume(json!(["ReadWriteOnce"]));
        Wanted { volume, pods: vec![Arc::new(pod("p", json!({})))], elsewhere: elsewhere.map(Into::into) }
    }

    fn attachment(more: Value) -> (Arc<VolumeAttachment>, Option<Arc<PersistentVolume>>) {
        let volume = volume(json!(["ReadWriteOnce"]));
        let mut value = json!({"metadata":{"name":attachment_name(&volume, "a"),"uid":"va"},
            "spec":{"nodeName":"a","source":{"persistentVolumeName":"v"}}});
        controller_runtime::merge(&mut value, &more);
        (Arc::new(object(value)), Some(volume))
    }

    fn view(
        node: Value,
        wanted: Vec<Wanted>,
        attachments: Vec<(Arc<VolumeAttachment>, Option<Arc<PersistentVolume>>)>,
    ) -> View {
        let mut value =
            json!({"metadata":{"name":"a"},"status":{"conditions":[{"type":"Ready","status":"True"}]}});
        controller_runtime::merge(&mut value, &node);
        let unwanted = attachments.iter().map(|(own, _)| (own.metadata.name.clone(), now())).collect();
        View {
            name: "a".into(),
            node: Some(Arc::new(object(value))),
            wanted,
            attachments,
            unwanted,
            forcing: Forcing::default(),
            now: now(),
        }
    }

    #[test]
    fn a_used_volume_is_attached_once_and_told() {
        let first = reconcile(&view(json!({}), vec![wanted(None)], vec![]));
        let made = first.creates()[0];
        assert_eq!(
            made["spec"],
            json!({"attacher":"d.example","nodeName":"a","source":{"persistentVolumeName":"v"}})
        );
        assert_eq!(made["metadata"]["name"].as_str().unwrap().len(), 4 + 64);
        assert!(reconcile(&view(json!({}), vec![wanted(None)], vec![attachment(json!({}))])).is_empty());
        let done = attachment(json!({"status":{"attached":true}}));
        let told = reconcile(&view(json!({}), vec![wanted(None)], vec![done.clone()]));
        let list = &told.changes()[0].1["status"]["volumesAttached"];
        assert_eq!(list, &json!([{"name":"kubernetes.io/csi/d.example^h1","devicePath":""}]));
        assert_eq!(told.events()[0].reason, "SuccessfulAttachVolume");
        let settled = json!({"status":{"volumesAttached":list}});
        assert!(reconcile(&view(settled, vec![wanted(None)], vec![done])).is_empty());
    }

    #[test]
    fn an_exclusive_volume_waits_until_the_other_node_let_it_go() {
        let plan = reconcile(&view(json!({}), vec![wanted(Some("b"))], vec![]));
        assert!(plan.creates().is_empty());
        assert!(plan.events()[0].message.starts_with("Multi-Attach error for volume \"v\""));
        let failed = attachment(json!({"status":{"attachError":{"message":"no"}}}));
        let plan = reconcile(&view(json!({}), vec![wanted(None)], vec![failed]));
        assert_eq!(plan.events()[0].message, "AttachVolume.Attach failed for volume \"v\" : no");
    }

    #[test]
    fn an_unused_volume_is_detached_when_it_is_not_mounted() {
        let in_use = json!({"status":{"volumesInUse":["kubernetes.io/csi/d.example^h1"]}});
        let silent = |mut node: Value| {
            node["status"]["conditions"] = json!([{"type":"Ready","status":"Unknown"}]);
            node
        };
        let later = now().checked_add(SignedDuration::from_mins(7)).unwrap();
        let mut tainted = in_use.clone();
        tainted["spec"] = json!({"taints":[{"key":OUT_OF_SERVICE,"effect":"NoExecute"}]});
        let cases = [
            ("not mounted", json!({}), now(), true),
            ("mounted", in_use.clone(), now(), false),
            ("mounted on a node that is well, for long", in_use.clone(), later, false),
            ("mounted on a silent node", silent(in_use.clone()), now(), false),
            ("mounted on a silent node, for long", silent(in_use), later, true),
            ("out of service", tainted, now(), true),
        ];
        for (name, node, at, detached) in cases {
            let mut view = view(node, vec![], vec![attachment(json!({}))]);
            view.now = at;
            assert_eq!(!reconcile(&view).deletes().is_empty(), detached, "{name}");
        }
        let mut gone = view(json!({}), vec![], vec![attachment(json!({}))]);
        gone.node = None;
        assert_eq!(reconcile(&gone).deletes().len(), 1, "the node is gone");
        let foreign = attachment(json!({"metadata":{"name":"made-by-hand"}}));
        assert!(reconcile(&view(json!({}), vec![], vec![foreign])).deletes().is_empty(), "somebody else's");
    }
}
