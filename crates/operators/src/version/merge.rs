//! What a release owns of an object: required fields are restored, those of others are left alone.
//!
//! Which fields of which kind stands in the tables below. Both sides are first brought into the form in which an API
//! server keeps them, so that a default or another spelling of a quantity is no difference.

use std::collections::HashMap;

use api::Definition;
use apimachinery::decode::{self, FieldValidation};
use serde_json::{Map, Value};

/// Set by whoever asks for the cluster's CA bundle to be put into an object.
const INJECT_CA_BUNDLE: &str = "service.beta.openshift.io/inject-cabundle";

/// How a field follows the required one.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// It is what is required; silence takes it away.
    Exact,
    /// It is what is required, where that says something itself.
    IfSet,
    /// Required entries of the map win, others stay.
    Entries,
    /// Required items are in the list, others stay.
    Contains,
    /// Required items are in the list as they are required, told apart by a field; others stay.
    ContainsBy(&'static str),
    /// The list has just the required items, told apart by a field; each follows a rule.
    ItemsBy(&'static str, &'static Rule),
    /// An object: each named field follows its rule, others stay; silence takes the object away.
    Fields(Fields),
    /// The same, but silence leaves the object alone.
    FieldsIfSet(Fields),
}

type Fields = &'static [(&'static str, Rule)];

use Rule::{Contains, ContainsBy, Entries, Exact, Fields as Object, FieldsIfSet, IfSet, ItemsBy};

const METADATA: Fields =
    &[("labels", Entries), ("annotations", Entries), ("ownerReferences", ContainsBy("uid"))];

const SE_LINUX: Rule = Object(&[("user", IfSet), ("role", IfSet), ("type", IfSet), ("level", IfSet)]);

const CONTAINER: Rule = Object(&[
    ("image", IfSet),
    ("command", Exact),
    ("args", Exact),
    ("env", Exact),
    ("envFrom", Exact),
    ("workingDir", IfSet),
    ("resources", FieldsIfSet(&[("limits", Exact), ("requests", Exact)])),
    ("ports", ItemsBy("name", &Exact)),
    ("volumeMounts", ItemsBy("mountPath", &Exact)),
    ("livenessProbe", Exact),
    ("readinessProbe", Exact),
    (
        "securityContext",
        Object(&[
            ("capabilities", Object(&[("add", Contains), ("drop", Contains)])),
            ("seLinuxOptions", SE_LINUX),
            ("privileged", Exact),
            ("runAsUser", Exact),
            ("runAsNonRoot", Exact),
            ("readOnlyRootFilesystem", Exact),
            ("allowPrivilegeEscalation", Exact),
            ("seccompProfile", Exact),
        ]),
    ),
]);

const POD_SPEC: Fields = &[
    ("initContainers", ItemsBy("name", &CONTAINER)),
    ("containers", ItemsBy("name", &CONTAINER)),
    ("volumes", ItemsBy("name", &Exact)),
    ("restartPolicy", IfSet),
    ("automountServiceAccountToken", Exact),
    ("serviceAccountName", IfSet),
    ("hostNetwork", Exact),
    ("hostUsers", Exact),
    ("nodeSelector", Entries),
    (
        "securityContext",
        Object(&[
            ("seLinuxOptions", SE_LINUX),
            ("runAsUser", Exact),
            ("runAsGroup", Exact),
            ("runAsNonRoot", Exact),
            ("seccompProfile", Exact),
            ("supplementalGroups", Contains),
            ("fsGroup", Exact),
            ("sysctls", ContainsBy("name")),
        ]),
    ),
    ("affinity", FieldsIfSet(&[("nodeAffinity", Exact), ("podAffinity", Exact), ("podAntiAffinity", Exact)])),
    ("tolerations", Contains),
    ("priorityClassName", IfSet),
    ("priority", Exact),
    ("shareProcessNamespace", Exact),
    ("dnsPolicy", Exact),
    ("terminationGracePeriodSeconds", Exact),
];

const TEMPLATE: Rule = Object(&[("metadata", FieldsIfSet(METADATA)), ("spec", Object(POD_SPEC))]);

const JOB_SPEC: Fields = &[
    ("parallelism", Exact),
    ("completions", Exact),
    ("activeDeadlineSeconds", Exact),
    ("backoffLimit", Exact),
    ("manualSelector", Exact),
    ("ttlSecondsAfterFinished", Exact),
    ("suspend", Exact),
    ("template", TEMPLATE),
    ("completionMode", Exact),
    ("podFailurePolicy", Exact),
];

const fn of(
    group: &'static str,
    kind: &'static str,
    fields: Fields,
) -> ((&'static str, &'static str), Fields) {
    ((group, kind), fields)
}

/// What is owned beside the metadata, by kind. Kinds that are not here are owned whole but for their status.
const OWNED: &[((&str, &str), Fields)] = &[
    of("", "Namespace", &[]),
    of("", "ConfigMap", &[("data", Entries), ("binaryData", Entries)]),
    of("", "ServiceAccount", &[("automountServiceAccountToken", Exact)]),
    of(
        "",
        "Service",
        &[(
            "spec",
            Object(&[("ports", ItemsBy("name", &SERVICE_PORT)), ("type", Exact), ("selector", Exact)]),
        )],
    ),
    of(
        "apps",
        "Deployment",
        &[(
            "spec",
            Object(&[
                ("replicas", Exact),
                ("selector", Exact),
                ("paused", Exact),
                ("minReadySeconds", Exact),
                ("revisionHistoryLimit", IfSet),
                ("progressDeadlineSeconds", IfSet),
                ("strategy", Exact),
                ("template", TEMPLATE),
            ]),
        )],
    ),
    of("apps", "DaemonSet", &[("spec", Object(&[("selector", Exact), ("template", TEMPLATE)]))]),
    of("batch", "Job", &[("spec", Object(JOB_SPEC))]),
    of(
        "batch",
        "CronJob",
        &[(
            "spec",
            Object(&[
                ("startingDeadlineSeconds", Exact),
                ("suspend", Exact),
                ("successfulJobsHistoryLimit", Exact),
                ("failedJobsHistoryLimit", Exact),
                ("schedule", Exact),
                ("timeZone", Exact),
                ("concurrencyPolicy", Exact),
                ("jobTemplate", Object(&[("metadata", FieldsIfSet(METADATA)), ("spec", Object(JOB_SPEC))])),
            ]),
        )],
    ),
    of("rbac.authorization.k8s.io", "Role", &[("rules", Exact)]),
    of("rbac.authorization.k8s.io", "RoleBinding", BINDING),
    of("rbac.authorization.k8s.io", "ClusterRoleBinding", BINDING),
    of("rbac.authorization.k8s.io", "ClusterRole", &[("aggregationRule", Exact), ("rules", Exact)]),
    of("apiextensions.k8s.io", "CustomResourceDefinition", &[("spec", Exact)]),
    of("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", &[("webhooks", Exact)]),
    of("config.openshift.io", "ClusterOperator", &[]),
];

const BINDING: Fields = &[("subjects", Exact), ("roleRef", Exact)];

/// The API server chooses the node port where the release does not.
const SERVICE_PORT: Rule = Object(&[
    ("name", Exact),
    ("protocol", Exact),
    ("appProtocol", Exact),
    ("port", Exact),
    ("targetPort", Exact),
    ("nodePort", IfSet),
]);

/// The forms in which objects are kept.
pub struct Forms(HashMap<(String, String, String), Definition>);

impl Default for Forms {
    fn default() -> Self {
        Self(
            api::builtins()
                .into_iter()
                .map(|definition| {
                    let names = &definition.names;
                    ((names.group.to_string(), names.version.to_string(), names.kind.to_string()), definition)
                })
                .collect(),
        )
    }
}

impl Forms {
    /// The object as an API server would keep it. What is not a valid object stays as it is: the server will say so.
    fn kept(&self, object: &Value) -> Value {
        let (group, version, kind) = names_of(object);
        let Some(definition) = self.0.get(&(group.to_owned(), version.to_owned(), kind.to_owned())) else {
            return object.clone();
        };
        match decode::value(object.clone(), &definition.schema, FieldValidation::Ignore) {
            Ok(decoded) => {
                let mut object = decoded.value;
                definition.set_defaults(&mut object);
                object
            }
            Err(_) => object.clone(),
        }
    }

    /// The existing object with everything restored that is required, `None` when nothing is to be done.
    pub fn merge(&self, existing: &Value, required: &Value) -> Option<Value> {
        let (group, _, kind) = names_of(required);
        let required = with_injected_bundles(existing, required);
        let full = self.kept(&required);
        let now = self.kept(existing);
        let mut merged = now.clone();
        let owned = OWNED.iter().find(|(names, _)| *names == (group, kind)).map(|(_, fields)| *fields);
        match owned {
            Some(fields) => {
                let aggregated = kind == "ClusterRole" && !is_nothing(&full["aggregationRule"]);
                for (name, rule) in fields {
                    // The server itself fills in the rules of an aggregated role.
                    if !(aggregated && *name == "rules") {
                        follow_field(&mut merged, name, &full, &required, rule);
                    }
                }
            }
            None => {
                for (name, value) in full.as_object().into_iter().flatten() {
                    if !["apiVersion", "kind", "metadata", "status"].contains(&name.as_str())
                        && !same(&merged[name], value)
                    {
                        merged[name.as_str()] = value.clone();
                    }
                }
            }
        }
        let (given, to) = (&required["metadata"], &full["metadata"]);
        follow(&mut merged["metadata"], to, given, &FieldsIfSet(METADATA));
        (!same(&merged, &now)).then_some(merged)
    }
}

fn names_of(object: &Value) -> (&str, &str, &str) {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    (group, version, object["kind"].as_str().unwrap_or_default())
}

/// Someone else puts the CA bundle into webhooks and conversions that ask for it: then it is theirs.
fn with_injected_bundles(existing: &Value, required: &Value) -> Value {
    let mut required = required.clone();
    if existing["metadata"]["annotations"][INJECT_CA_BUNDLE] != "true" {
        return required;
    }
    match names_of(&required).2 {
        "CustomResourceDefinition" => {
            let path = "/spec/conversion/webhook/clientConfig";
            if let (Some(config), Some(bundle)) =
                (required.pointer_mut(path), existing.pointer(&format!("{path}/caBundle")))
            {
                config["caBundle"] = bundle.clone();
            }
        }
        "ValidatingWebhookConfiguration" => {
            let bundle = &existing["webhooks"][0]["clientConfig"]["caBundle"];
            for webhook in required["webhooks"].as_array_mut().into_iter().flatten() {
                if !bundle.is_null() {
                    webhook["clientConfig"]["caBundle"] = bundle.clone();
                }
            }
        }
        _ => {}
    }
    required
}

/// Absent, or as good as absent.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_nothing),
        _ => false,
    }
}

/// Equal, where what is empty counts as absent.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let absent = |key: &String, in_it: &Map<String, Value>| in_it.get(key).is_none_or(is_nothing);
            one.iter().all(|(key, value)| match other.get(key) {
                Some(opposite) => same(value, opposite),
                None => is_nothing(value),
            }) && other.keys().all(|key| one.contains_key(key) || absent(key, other))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        _ => one == other || is_nothing(one) && is_nothing(other),
    }
}

fn follow_field(existing: &mut Value, name: &str, full: &Value, given: &Value, rule: &Rule) {
    let mut field = existing[name].take();
    follow(&mut field, &full[name], &given[name], rule);
    match (existing, field) {
        (Value::Object(fields), Value::Null) => {
            fields.shift_remove(name);
        }
        (existing, field) => existing[name] = field,
    }
}

/// Makes `existing` follow what is required: `full` as the server would keep it, `given` as the release says it.
fn follow(existing: &mut Value, full: &Value, given: &Value, rule: &Rule) {
    match rule {
        Exact => {
            if !same(existing, full) {
                *existing = full.clone();
            }
        }
        IfSet => {
            if !is_nothing(given) && !same(existing, full) {
                *existing = full.clone();
            }
        }
        Entries => {
            for (key, value) in full.as_object().into_iter().flatten() {
                if existing[key] != *value {
                    existing[key.as_str()] = value.clone();
                }
            }
        }
        Contains => add_missing(existing, full, same),
        ContainsBy(key) => {
            for item in full.as_array().into_iter().flatten() {
                if let Some(found) = item_of(existing, key, &item[*key]) {
                    follow(found, item, item, &Exact);
                }
            }
            add_missing(existing, full, |one, other| one[*key] == other[*key]);
        }
        ItemsBy(key, rule) => items(existing, full, given, key, rule),
        Object(fields) | FieldsIfSet(fields) => {
            if is_nothing(full) {
                if matches!(rule, Object(_)) && !is_nothing(existing) {
                    *existing = Value::Null;
                }
            } else if is_nothing(existing) {
                *existing = full.clone();
            } else {
                for (name, rule) in *fields {
                    follow_field(existing, name, full, given, rule);
                }
            }
        }
    }
}

fn item_of<'a>(list: &'a mut Value, key: &str, wanted: &Value) -> Option<&'a mut Value> {
    list.as_array_mut()?.iter_mut().find(|item| item[key] == *wanted)
}

fn add_missing(existing: &mut Value, full: &Value, alike: impl Fn(&Value, &Value) -> bool) {
    for item in full.as_array().into_iter().flatten() {
        if !existing.is_array() {
            *existing = Value::Array(Vec::new());
        }
        let list = existing.as_array_mut().into_iter().next();
        if let Some(list) = list.filter(|list| !list.iter().any(|have| alike(have, item))) {
            list.push(item.clone());
        }
    }
}

/// Just the required items: those that are there keep their order and what the rule leaves alone.
fn items(existing: &mut Value, full: &Value, given: &Value, key: &str, rule: &Rule) {
    let empty = Vec::new();
    let wanted = full.as_array().unwrap_or(&empty);
    let given_of = |name: &Value| {
        given.as_array().into_iter().flatten().find(|item| item[key] == *name).unwrap_or(&Value::Null)
    };
    if let Some(list) = existing.as_array_mut() {
        list.retain_mut(|item| {
            let required = wanted.iter().find(|required| required[key] == item[key]);
            if let Some(required) = required {
                follow(item, required, given_of(&required[key]), rule);
            }
            required.is_some()
        });
    }
    add_missing(existing, full, |one, other| one[key] == other[key]);
}

#[cfg(test)]
mod tests;
