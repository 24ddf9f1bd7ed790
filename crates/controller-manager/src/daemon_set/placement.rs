//! On which nodes a daemon's pod may start or stay.

use controller_runtime::Raw;
use serde_json::{Value, json};

use crate::kinds::{DaemonSet, Node, Taint, Toleration};
use crate::pods;

/// Taints that a daemon's pod bears by itself: it is there to mend what they complain of.
const BORNE: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const NO_NETWORK: &str = "node.kubernetes.io/network-unavailable";

/// Whether a pod may start, and whether it may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// A new pod may start.
    pub may_start: bool,
    /// A present pod may stay.
    pub may_stay: bool,
}

/// What of a template decides about nodes.
pub struct Daemon {
    node_name: Option<String>,
    selector: Vec<(String, String)>,
    terms: Option<Vec<Value>>,
    tolerations: Vec<Toleration>,
}

impl Daemon {
    /// Reads a template.
    pub fn of(template: &Raw) -> Self {
        let template = template.value();
        let spec = &template["spec"];
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let selector = spec["nodeSelector"].as_object();
        let terms = spec.pointer(
            "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
        );
        let mut tolerations: Vec<Toleration> =
            serde_json::from_value(spec["tolerations"].clone()).unwrap_or_default();
        let no_network = (spec["hostNetwork"] == true).then_some((NO_NETWORK, "NoSchedule"));
        for (key, effect) in BORNE.into_iter().chain(no_network) {
            tolerations.push(Toleration {
                key: key.into(),
                operator: "Exists".into(),
                effect: effect.into(),
                ..Toleration::default()
            });
        }
        Self {
            node_name: spec["nodeName"].as_str().map(str::to_owned),
            selector: selector
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), text(value)))
                .collect(),
            terms: terms.and_then(Value::as_array).cloned(),
            tolerations,
        }
    }

    /// Judges one node.
    pub fn fits(&self, node: &Node) -> Fit {
        let right_name = self.node_name.as_ref().is_none_or(|name| **name == *node.metadata.name);
        let selected = self.selector.iter().all(|(name, value)| node.metadata.label(name) == Some(value));
        let near = self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term_fits(term, node)));
        if !(right_name && selected && near) {
            return Fit { may_start: false, may_stay: false };
        }
        let borne = |taint: &Taint| self.tolerations.iter().any(|toleration| toleration.tolerates(taint));
        let hurts = |effects: &[&str]| {
            node.spec.taints.iter().any(|taint| effects.contains(&&*taint.effect) && !borne(taint))
        };
        Fit { may_start: !hurts(&["NoSchedule", "NoExecute"]), may_stay: !hurts(&["NoExecute"]) }
    }
}

/// An empty term fits nothing.
fn term_fits(term: &Value, node: &Node) -> bool {
    let list = |name: &str| term[name].as_array().cloned().unwrap_or_default();
    let (expressions, fields) = (list("matchExpressions"), list("matchFields"));
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let by_label = |rule: &Value| rule_fits(rule, node.metadata.label(rule["key"].as_str().unwrap_or("")));
    let by_field =
        |rule: &Value| rule["key"] == "metadata.name" && rule_fits(rule, Some(&node.metadata.name));
    expressions.iter().all(by_label) && fields.iter().all(by_field)
}

fn rule_fits(rule: &Value, found: Option<&str>) -> bool {
    let values = || rule["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let among = |found: &str| values().any(|value| value == found);
    let compare = |order: std::cmp::Ordering| {
        let limit = values().next().and_then(|value| value.parse::<i64>().ok());
        found
            .and_then(|found| found.parse::<i64>().ok())
            .zip(limit)
            .is_some_and(|(found, limit)| found.cmp(&limit) == order)
    };
    match rule["operator"].as_str().unwrap_or("") {
        "In" => found.is_some_and(among),
        "NotIn" => !found.is_some_and(among),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compare(std::cmp::Ordering::Greater),
        "Lt" => compare(std::cmp::Ordering::Less),
        _ => false,
    }
}

/// The pod of a node: the template's, pinned to the node, bearing what daemons bear.
pub fn pod_for(set: &DaemonSet, node: &str) -> Value {
    let mut pod = pods::from_template(set, &set.spec.template);
    let spec = &mut pod["spec"];
    let pin = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"].as_array().cloned();
    let pinned: Vec<Value> = match terms {
        Some(terms) if !terms.is_empty() => {
            let with_pin = |mut term: Value| {
                term["matchFields"] = pin.clone();
                term
            };
            terms.into_iter().map(with_pin).collect()
        }
        _ => vec![json!({"matchFields": pin})],
    };
    spec["affinity"]["nodeAffinity"][required] = json!({"nodeSelectorTerms": pinned});
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let no_network = (spec["hostNetwork"] == true).then_some((NO_NETWORK, "NoSchedule"));
    for (key, effect) in BORNE.into_iter().chain(no_network) {
        let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    spec["tolerations"] = json!(tolerations);
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn fit(spec: Value, node: Value) -> Fit {
        Daemon::of(&Raw::from(&json!({"spec": spec}))).fits(&object(node))
    }

    const YES: Fit = Fit { may_start: true, may_stay: true };
    const NO: Fit = Fit { may_start: false, may_stay: false };

    #[test]
    fn labels_names_and_taints_decide() {
        let node = |taints: Value| json!({"metadata":{"name":"a","labels":{"disk":"ssd","size":"5"}},"spec":{"taints":taints}});
        let affinity = |rule: Value| {
            json!({"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms":[{"matchExpressions":[rule]}]}}}})
        };
        let plain = || node(json!([]));
        assert_eq!(fit(json!({}), plain()), YES);
        assert_eq!(fit(json!({"nodeName":"b"}), plain()), NO);
        assert_eq!(fit(json!({"nodeSelector":{"disk":"ssd"}}), plain()), YES);
        assert_eq!(fit(json!({"nodeSelector":{"disk":"hdd"}}), plain()), NO);
        assert_eq!(fit(affinity(json!({"key":"size","operator":"Gt","values":["4"]})), plain()), YES);
        assert_eq!(fit(affinity(json!({"key":"size","operator":"Lt","values":["4"]})), plain()), NO);
        assert_eq!(fit(affinity(json!({"key":"gpu","operator":"Exists"})), plain()), NO);
        let busy = node(json!([{"key":"x","effect":"NoSchedule"}]));
        assert_eq!(fit(json!({}), busy.clone()), Fit { may_start: false, may_stay: true });
        assert_eq!(fit(json!({"tolerations":[{"key":"x","operator":"Exists"}]}), busy), YES);
        assert_eq!(fit(json!({}), node(json!([{"key":"x","effect":"NoExecute"}]))), NO);
        assert_eq!(
            fit(json!({}), node(json!([{"key":"node.kubernetes.io/not-ready","effect":"NoExecute"}]))),
            YES
        );
    }
}
