//! ClusterRoles that are the sum of others: collects the rules of the roles that they select.

use std::sync::Arc;

use controller_runtime::{
    Caches, Change, Context, Controller, Key, Kind, Meta, PatchForm, Plan, Raw, Selector,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kinds::{kind, none};

/// A ClusterRole.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterRole {
    /// Metadata.
    pub metadata: Meta,
    /// What it allows.
    pub rules: Raw,
    /// Which roles it sums up.
    pub aggregation_rule: Option<AggregationRule>,
}
kind!(ClusterRole, CLUSTER_ROLES, keep none);

/// Which roles are summed up.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregationRule {
    /// Any of them fits.
    pub cluster_role_selectors: Vec<Selector>,
}

impl ClusterRole {
    fn sums_up(&self, other: &ClusterRole) -> bool {
        let selectors = self.aggregation_rule.iter().flat_map(|rule| &rule.cluster_role_selectors);
        let mut selectors = selectors.filter(|_| other.metadata.name != self.metadata.name);
        selectors.any(|selector| selector.matches(&other.metadata.labels))
    }
}

/// What one role may depend on.
pub struct View {
    /// The role.
    pub role: Arc<ClusterRole>,
    /// The roles that it sums up, in name order.
    pub parts: Vec<Arc<ClusterRole>>,
}

/// Decides on one role.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let mut rules: Vec<Value> = Vec::new();
    for part in &view.parts {
        for rule in part.rules.value().as_array().into_iter().flatten() {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    let present = view.role.rules.value();
    if present.as_array().map_or(&[][..], Vec::as_slice) != rules {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": view.role.metadata.name}, "rules": rules});
        let form = PatchForm::Apply("clusterrole-aggregation-controller");
        plan.patch_meta(&ClusterRole::RESOURCE, &view.role.metadata, None, form, role);
    }
    plan
}

fn gather(context: &Context) -> Option<View> {
    let role = context.object::<ClusterRole>().filter(|role| role.aggregation_rule.is_some())?;
    let mut parts = context.caches.of::<ClusterRole>().list();
    parts.retain(|part| role.sums_up(part));
    Some(View { role, parts })
}

/// A change concerns the role itself and those that sum it up, now or before.
fn of_role(caches: &Caches, change: &Change<ClusterRole>) -> Vec<Key> {
    let all = caches.of::<ClusterRole>().list();
    let sums_up = |role: &&Arc<ClusterRole>| {
        change.old.iter().chain(change.new.iter()).any(|part| role.sums_up(part))
            || role.metadata.name == change.latest().metadata.name
    };
    let summed = all.iter().filter(|role| role.aggregation_rule.is_some()).filter(sums_up);
    summed.map(|role| Key::cluster(&role.metadata.name)).collect()
}

/// The controller.
pub fn controller() -> Controller {
    Controller::new("clusterrole-aggregation-controller", gather, reconcile)
        .acting_as("clusterrole-aggregation-controller")
        .watching::<ClusterRole>(of_role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn rules_are_summed_once_each() {
        let role = |name: &str, rules: Value| -> Arc<ClusterRole> {
            Arc::new(object(json!({"metadata":{"name":name,"labels":{"sum":"yes"}},"rules":rules,
                "aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"sum":"yes"}}]}})))
        };
        let (a, b) = (json!({"verbs":["get"]}), json!({"verbs":["list"]}));
        let parts = vec![role("p", json!([a])), role("q", json!([a, b]))];
        let plan = reconcile(&View { role: role("total", json!([])), parts: parts.clone() });
        assert_eq!(plan.changes()[0].1["rules"], json!([a, b]));
        assert!(reconcile(&View { role: role("total", json!([a, b])), parts }).is_empty());
        assert!(!role("x", json!([])).sums_up(&role("x", json!([]))), "a role does not sum up itself");
    }
}
