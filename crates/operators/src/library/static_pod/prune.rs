//! Takes away what old revisions left: copies in the API, and directories on the machines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use client::{Key, resources};
use thiserror::Error;
use tracing::info;

use super::rollout::{NodeStatus, machine_pod};
use super::{RESOURCE_DIR, StaticPod, View, by_name, name_of, revisions};
use crate::library::driver::Round;

/// How many revisions are kept of each sort, unless the operator's object says otherwise.
const KEPT: i64 = 5;

pub(super) fn plan(table: &StaticPod, view: &View<'_>, nodes: &[NodeStatus], latest: i64, round: &mut Round) {
    let all: BTreeSet<i64> =
        view.config_maps.iter().filter_map(|map| revisions::number_of(name_of(map))).collect();
    let kept = protected(view, nodes, latest, &all);
    let gone: Vec<i64> =
        all.iter().copied().filter(|revision| *revision < latest && !kept.contains(revision)).collect();
    for revision in &gone {
        for (kind, input) in revisions::inputs(table) {
            let (resource, list) = match kind {
                "secret" => (resources::SECRETS, view.secrets),
                _ => (resources::CONFIG_MAPS, view.config_maps),
            };
            let name = format!("{}-{revision}", input.name);
            if by_name(list, &name).is_some() {
                round.delete.push((resource, Key::new(table.namespace, &name)));
            }
        }
        // Last: while it is there the revision is looked at again.
        let name = format!("revision-status-{revision}");
        round.delete.push((resources::CONFIG_MAPS, Key::new(table.namespace, &name)));
    }
    for pod in view.pods {
        let name = name_of(pod);
        let of = name.strip_prefix("installer-").or_else(|| name.strip_prefix("revision-pruner-"));
        let revision = of.and_then(|rest| rest.split('-').next()?.parse::<i64>().ok());
        let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if ended && revision.is_some_and(|revision| revision < latest && !kept.contains(&revision)) {
            round.delete.push((resources::PODS, Key::new(table.namespace, name)));
        }
    }
    // Machines are cleaned once there is something to clean, when they have reached the newest revision.
    if latest <= KEPT {
        return;
    }
    for node in nodes.iter().filter(|node| node.current_revision == latest && node.target_revision == 0) {
        let name = format!("revision-pruner-{latest}-{}", node.node_name);
        if by_name(view.pods, &name).is_none() {
            let list: Vec<String> = kept.iter().map(ToString::to_string).collect();
            let args = vec![
                "prune".to_owned(),
                "-v=2".to_owned(),
                format!("--max-eligible-revision={latest}"),
                format!("--protected-revisions={}", list.join(",")),
                format!("--resource-dir={RESOURCE_DIR}"),
                format!("--cert-dir={}-certs", table.name),
                format!("--static-pod-name={}", table.pod_config_map()),
            ];
            round.create.push(machine_pod(table, view, &name, &node.node_name, "pruner", args));
        }
    }
}

/// What some node has or is about to have, what failed last, and the newest of each sort.
fn protected(view: &View<'_>, nodes: &[NodeStatus], latest: i64, all: &BTreeSet<i64>) -> BTreeSet<i64> {
    let mut kept: BTreeSet<i64> = nodes
        .iter()
        .flat_map(|node| [node.current_revision, node.target_revision, node.last_failed_revision])
        .chain([latest])
        .filter(|revision| *revision > 0)
        .collect();
    for (field, status) in [("succeededRevisionLimit", "Succeeded"), ("failedRevisionLimit", "Failed")] {
        let limit = match view.resource["spec"][field].as_i64().unwrap_or(0) {
            0 => KEPT,
            negative if negative < 0 => i64::MAX,
            limit => limit,
        };
        let of_status = |revision: &&i64| {
            let map = by_name(view.config_maps, &format!("revision-status-{revision}"));
            map.is_some_and(|map| map["data"]["status"] == status)
        };
        let newest = all.iter().rev().filter(of_status);
        kept.extend(newest.take(usize::try_from(limit).unwrap_or(usize::MAX)));
    }
    kept
}

/// Removes directories of revisions that are not protected
#[derive(Args, Clone, Debug)]
pub struct PruneArgs {
    /// Revisions after this one are left alone
    #[arg(long)]
    max_eligible_revision: i64,
    /// Revisions that stay
    #[arg(long, value_delimiter = ',')]
    protected_revisions: Vec<i64>,
    /// Where the directories are
    #[arg(long, default_value = RESOURCE_DIR)]
    resource_dir: PathBuf,
    /// The directory of certificates, which stays
    #[arg(long)]
    cert_dir: Option<String>,
    /// The name that directories have before the revision
    #[arg(long)]
    static_pod_name: String,
    /// How much to log, from 0 to 10
    #[arg(short, long = "v", default_value_t = 2)]
    verbosity: u8,
}

/// Why directories are not removed.
#[derive(Debug, Error)]
#[error("{path} cannot be {doing}", path = path.display())]
pub struct PruneError {
    doing: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

impl PruneArgs {
    pub fn run(&self) -> Result<(), PruneError> {
        telemetry::log_to_stderr(if self.verbosity > 3 { "debug" } else { "info" });
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| PruneError { doing, path, source }
        };
        let entries = std::fs::read_dir(&self.resource_dir).map_err(failed("read", &self.resource_dir))?;
        for entry in entries {
            let entry = entry.map_err(failed("read", &self.resource_dir))?;
            let name = entry.file_name();
            let revision = name.to_str().and_then(|name| revision_of(name, &self.static_pod_name));
            let old = revision.is_some_and(|revision| {
                revision <= self.max_eligible_revision && !self.protected_revisions.contains(&revision)
            });
            if old && self.cert_dir.as_deref() != name.to_str() {
                let path = entry.path();
                std::fs::remove_dir_all(&path).map_err(failed("removed", &path))?;
                info!(path = %path.display(), "removed");
            }
        }
        Ok(())
    }
}

/// The revision of a directory's name, if it is one of this pod's.
fn revision_of(name: &str, pod: &str) -> Option<i64> {
    name.strip_prefix(pod)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_directories_of_the_pod_go() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["etcd-pod-1", "etcd-pod-2", "etcd-pod-7", "etcd-certs", "kube-apiserver-pod-1"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let args = PruneArgs {
            max_eligible_revision: 6,
            protected_revisions: vec![2],
            resource_dir: dir.path().to_owned(),
            cert_dir: Some("etcd-certs".into()),
            static_pod_name: "etcd-pod".into(),
            verbosity: 2,
        };
        args.run().unwrap();
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["etcd-certs", "etcd-pod-2", "etcd-pod-7", "kube-apiserver-pod-1"]);
    }
}
