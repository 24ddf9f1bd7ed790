//! Objects that operands are made of, and how far their rollout is.

use serde_json::{Value, json};

/// A namespace for pods that may do anything on their machine.
pub fn namespace(name: &str, description: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": name,
            "annotations": {"kubernetes.io/description": description, "openshift.io/node-selector": "",
                "workload.openshift.io/allowed": "management"},
            "labels": {"openshift.io/cluster-monitoring": "true", "pod-security.kubernetes.io/enforce": "privileged",
                "pod-security.kubernetes.io/audit": "privileged", "pod-security.kubernetes.io/warn": "privileged"},
        },
    })
}

/// Gives a service account (namespace, name) a role.
pub fn cluster_role_binding(name: &str, role: &str, account: (&str, &str)) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": account.0, "name": account.1}],
    })
}

/// A DaemonSet (namespace, name) of a pod template; the pods are known by the label `app`.
pub fn daemon_set(name: (&str, &str), mut template: Value) -> Value {
    template["metadata"]["labels"]["app"] = json!(name.1);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": name.1, "namespace": name.0},
        "spec": {
            "selector": {"matchLabels": {"app": name.1}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": template,
        },
    })
}

/// How far a workload is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// What is still under way.
    pub progress: Option<String>,
    /// Why it cannot be used.
    pub missing: Option<String>,
}

impl Rollout {
    /// Of a DaemonSet (namespace, name), as found or null. `may_be_nowhere`: there may be no machine for it.
    pub fn of_daemon_set(found: &Value, name: (&str, &str), may_be_nowhere: bool) -> Self {
        let title = format!("DaemonSet \"/{}/{}\"", name.0, name.1);
        if found.is_null() {
            let message = format!("{title} has not been created");
            return Self { progress: Some(message.clone()), missing: Some(message) };
        }
        let status = |field: &str| found["status"][field].as_i64().unwrap_or(0);
        let (desired, updated, available) =
            (status("desiredNumberScheduled"), status("updatedNumberScheduled"), status("numberAvailable"));
        let is_seen = status("observedGeneration") >= found["metadata"]["generation"].as_i64().unwrap_or(0);
        let progress = if !is_seen {
            Some(format!(
                "{title} update is being processed (generation {})",
                found["metadata"]["generation"]
            ))
        } else if updated < desired {
            Some(format!("{title} update is rolling out ({updated} out of {desired} updated)"))
        } else if available < desired {
            Some(format!("{title} is not available (awaiting {} nodes)", desired - available))
        } else if desired == 0 && !may_be_nowhere {
            Some(format!("{title} is waiting for nodes"))
        } else {
            None
        };
        let is_nowhere = desired == 0 && is_seen && may_be_nowhere;
        let missing = (available == 0 && !is_nowhere).then(|| format!("{title} has no available pods"));
        Self { progress, missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_over_when_every_node_has_the_new_pods() {
        let set = |generation: i64, observed: i64, desired: i64, updated: i64, available: i64| {
            let found = json!({"metadata": {"generation": generation}, "status": {
                "observedGeneration": observed, "desiredNumberScheduled": desired,
                "updatedNumberScheduled": updated, "numberAvailable": available,
            }});
            Rollout::of_daemon_set(&found, ("n", "d"), false)
        };
        assert_eq!(set(2, 2, 3, 3, 3), Rollout::default());
        assert!(set(2, 1, 3, 3, 3).progress.unwrap().contains("being processed"));
        assert!(set(2, 2, 3, 1, 2).progress.unwrap().contains("1 out of 3"));
        assert!(set(2, 2, 3, 3, 2).progress.unwrap().contains("awaiting 1 nodes"));
        assert_eq!(set(2, 2, 3, 3, 2).missing, None);
        assert!(set(2, 2, 3, 3, 0).missing.is_some());
        assert!(set(2, 2, 0, 0, 0).progress.is_some());
        assert!(Rollout::of_daemon_set(&Value::Null, ("n", "d"), true).missing.is_some());
        let nowhere = json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1}});
        assert_eq!(Rollout::of_daemon_set(&nowhere, ("n", "d"), true), Rollout::default());
    }
}
