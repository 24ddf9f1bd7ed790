//! The FlowSchemas and priority levels that every cluster starts with.

use serde_json::{Value, json};

/// The objects that every cluster starts with: resource and object.
pub fn default_objects() -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    // name, shares, lendable percent, queues, hand size; no queues: requests are refused.
    let levels = [
        ("catch-all", 5, 0, 0, 0),
        ("system", 30, 33, 64, 6),
        ("node-high", 40, 25, 64, 6),
        ("leader-election", 10, 0, 16, 4),
        ("workload-high", 40, 50, 128, 6),
        ("workload-low", 100, 90, 128, 6),
        ("global-default", 20, 50, 128, 6),
    ];
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}},
            "spec": spec,
        })
    };
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    found.push(("prioritylevelconfigurations", object("PriorityLevelConfiguration", "exempt", exempt)));
    for (name, shares, lendable, queues, hand) in levels {
        let response = if queues == 0 {
            json!({"type": "Reject"})
        } else {
            json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}})
        };
        let spec = json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response,
        }});
        found.push(("prioritylevelconfigurations", object("PriorityLevelConfiguration", name, spec)));
    }
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let account = |name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": name}});
    let resources = |verbs: Value, groups: Value, names: Value, cluster: bool, namespaces: Value| {
        let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": names});
        if cluster {
            rule["clusterScope"] = json!(true);
        }
        if namespaces != json!([]) {
            rule["namespaces"] = namespaces;
        }
        rule
    };
    let everything = || resources(json!(["*"]), json!(["*"]), json!(["*"]), true, json!(["*"]));
    let any_url = || json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
    let both = || vec![group("system:unauthenticated"), group("system:authenticated")];
    type Rule = (Vec<Value>, Vec<Value>, Vec<Value>);
    let schemas: Vec<(&str, i64, &str, Option<&str>, Vec<Rule>)> = vec![
        (
            "exempt",
            1,
            "exempt",
            None,
            vec![(vec![group("system:masters")], vec![everything()], vec![any_url()])],
        ),
        (
            "probes",
            2,
            "exempt",
            None,
            vec![(
                both(),
                vec![],
                vec![json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]})],
            )],
        ),
        (
            "system-leader-election",
            100,
            "leader-election",
            Some("ByUser"),
            vec![(
                vec![user("system:kube-controller-manager"), user("system:kube-scheduler"), account("*")],
                vec![resources(
                    json!(["get", "create", "update"]),
                    json!(["coordination.k8s.io"]),
                    json!(["leases"]),
                    false,
                    json!(["*"]),
                )],
                vec![],
            )],
        ),
        (
            "system-node-high",
            400,
            "node-high",
            Some("ByUser"),
            vec![(
                vec![group("system:nodes")],
                vec![
                    resources(
                        json!(["*"]),
                        json!([""]),
                        json!(["nodes", "nodes/status"]),
                        true,
                        json!(["*"]),
                    ),
                    resources(
                        json!(["*"]),
                        json!(["coordination.k8s.io"]),
                        json!(["leases"]),
                        false,
                        json!(["*"]),
                    ),
                ],
                vec![],
            )],
        ),
        (
            "system-nodes",
            500,
            "system",
            Some("ByUser"),
            vec![(vec![group("system:nodes")], vec![everything()], vec![any_url()])],
        ),
        (
            "kube-controller-manager",
            800,
            "workload-high",
            Some("ByNamespace"),
            vec![(vec![user("system:kube-controller-manager")], vec![everything()], vec![any_url()])],
        ),
        (
            "kube-scheduler",
            800,
            "workload-high",
            Some("ByNamespace"),
            vec![(vec![user("system:kube-scheduler")], vec![everything()], vec![any_url()])],
        ),
        (
            "kube-system-service-accounts",
            900,
            "workload-high",
            Some("ByNamespace"),
            vec![(vec![account("*")], vec![everything()], vec![any_url()])],
        ),
        (
            "service-accounts",
            9000,
            "workload-low",
            Some("ByUser"),
            vec![(vec![group("system:serviceaccounts")], vec![everything()], vec![any_url()])],
        ),
        (
            "global-default",
            9900,
            "global-default",
            Some("ByUser"),
            vec![(both(), vec![everything()], vec![any_url()])],
        ),
        (
            "catch-all",
            10000,
            "catch-all",
            Some("ByUser"),
            vec![(both(), vec![everything()], vec![any_url()])],
        ),
    ];
    for (name, precedence, level, distinguisher, rules) in schemas {
        let rules: Vec<Value> = rules
            .into_iter()
            .map(|(subjects, resource_rules, urls)| {
                let mut rule = json!({"subjects": subjects});
                if !resource_rules.is_empty() {
                    rule["resourceRules"] = json!(resource_rules);
                }
                if !urls.is_empty() {
                    rule["nonResourceRules"] = json!(urls);
                }
                rule
            })
            .collect();
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": rules,
        });
        if let Some(kind) = distinguisher {
            spec["distinguisherMethod"] = json!({"type": kind});
        }
        found.push(("flowschemas", object("FlowSchema", name, spec)));
    }
    found
}
