//! Type-checks ValidatingAdmissionPolicies: says in their status what does not fit the kinds that they name.
//!
//! Types of built-in kinds are known; those of custom ones are read from the server's OpenAPI documents, as any client
//! would. A warning refuses nothing: the policy may be about fields that come with the next version.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::admissionregistration::policy::type_check;
use apimachinery::meta::{get_list, get_str};
use cel::Type;
use cel::schema::{from_node, from_openapi};
use cel::types::ObjectType;
use client::{Client, Error};
use controller_runtime::{Context, Controller, Meta, Plan, Raw};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kinds::{kind, none};

/// At most so many kinds are looked at, as upstream.
const KINDS: usize = 10;

/// A policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidatingAdmissionPolicy {
    /// Metadata.
    pub metadata: Meta,
    /// What it says.
    pub spec: Raw,
    /// What was found.
    pub status: Status,
}
kind!(ValidatingAdmissionPolicy, VALIDATING_ADMISSION_POLICIES, keep none);

/// What was found.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation that was checked.
    pub observed_generation: i64,
}

/// What the status of one policy depends on.
pub struct View {
    /// The policy.
    pub policy: Arc<ValidatingAdmissionPolicy>,
    /// The kinds that it names, with their types.
    pub kinds: Vec<(String, Type)>,
}

/// Decides on one policy.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let warnings: Vec<Value> = type_check(&view.policy.spec.value(), &view.kinds)
        .into_iter()
        .map(|(field, warning)| json!({"fieldRef": field, "warning": warning}))
        .collect();
    let checking = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    let status = json!({"observedGeneration": view.policy.metadata.generation, "typeChecking": checking});
    plan.set_status(&*view.policy, status);
    plan
}

/// The resources that a policy names without wildcards: group, version, plural.
fn named(spec: &Value) -> Vec<(String, String, String)> {
    let mut out = Vec::new();
    for rule in get_list(spec, "matchConstraints.resourceRules") {
        let texts = |field: &str| -> Vec<String> {
            let list = get_list(rule, field).iter().filter_map(Value::as_str);
            list.filter(|text| !text.contains(['*', '/'])).map(str::to_owned).collect()
        };
        for group in texts("apiGroups") {
            for version in texts("apiVersions") {
                for plural in texts("resources") {
                    out.push((group.clone(), version.clone(), plural));
                }
            }
        }
    }
    out.dedup();
    out.truncate(KINDS);
    out
}

fn gather(context: Context) -> BoxFuture<'static, Result<Option<View>, Error>> {
    Box::pin(async move {
        let Some(policy) = context.object::<ValidatingAdmissionPolicy>() else { return Ok(None) };
        if policy.status.observed_generation >= policy.metadata.generation {
            return Ok(None);
        }
        let mut kinds = Vec::new();
        for (group, version, plural) in named(&policy.spec.value()) {
            let found = match built_in(&group, &version, &plural) {
                Some(found) => Some(found),
                None => custom(&context.reader, &group, &version, &plural).await?,
            };
            if let Some((kind, object)) = found {
                let api_version = if group.is_empty() { version } else { format!("{group}/{version}") };
                kinds.push((format!("{api_version}, Kind={kind}"), object));
            }
        }
        Ok(Some(View { policy, kinds }))
    })
}

fn built_in(group: &str, version: &str, plural: &str) -> Option<(String, Type)> {
    let definition = api::builtins().into_iter().find(|definition| {
        let names = &definition.names;
        names.group == group && names.version == version && names.plural == plural
    })?;
    Some((definition.names.kind.to_string(), from_node(definition.schema.node())))
}

/// The kind and type of a custom resource; nothing if it is not served (yet).
async fn custom(
    reader: &Client,
    group: &str,
    version: &str,
    plural: &str,
) -> Result<Option<(String, Type)>, Error> {
    let listed: Value = match reader.get_path(&format!("/apis/{group}/{version}")).await {
        Ok(listed) => listed,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let resource = get_list(&listed, "resources").iter().find(|resource| get_str(resource, "name") == plural);
    let Some(kind) = resource.map(|resource| get_str(resource, "kind").to_owned()) else { return Ok(None) };
    let document: Value = match reader.get_path(&format!("/openapi/v3/apis/{group}/{version}")).await {
        Ok(document) => document,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let own = json!({"group": group, "version": version, "kind": kind});
    let schemas = document["components"]["schemas"].as_object();
    let schema = schemas
        .into_iter()
        .flatten()
        .map(|(_, schema)| schema)
        .find(|schema| get_list(schema, "x-kubernetes-group-version-kind").contains(&own));
    Ok(schema.and_then(of_document).map(|object| (kind, object)))
}

/// The type of a published schema. Metadata is a reference there, and left to the run.
fn of_document(schema: &Value) -> Option<Type> {
    let Type::Object(object) = from_openapi(schema, false)? else { return None };
    let mut fields: BTreeMap<String, Type> = object.fields.clone();
    for name in ["apiVersion", "kind"] {
        fields.insert(name.to_owned(), Type::String);
    }
    fields.insert("metadata".to_owned(), Type::Dyn);
    Some(Type::Object(Arc::new(ObjectType {
        name: object.name.clone(),
        fields,
        open: false,
        raw_names: true,
    })))
}

/// The controller.
pub fn controller() -> Controller {
    Controller::reading("validatingadmissionpolicy-status-controller", gather, reconcile)
        .for_kind::<ValidatingAdmissionPolicy>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn policy(expression: &str, message: &str) -> Arc<ValidatingAdmissionPolicy> {
        Arc::new(object(json!({"metadata": {"name": "p", "generation": 3}, "spec": {
            "matchConstraints": {"resourceRules": [{"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "*/scale"]}]},
            "validations": [{"expression": expression, "messageExpression": message}]}})))
    }

    #[test]
    fn confused_types_are_told_and_good_ones_are_not() {
        let kinds = vec![(
            "apps/v1, Kind=Deployment".to_owned(),
            built_in("apps", "v1", "deployments").expect("is built in").1,
        )];
        let view = View {
            policy: policy("object.spec.replicas > 1 && object.metadata.namespace != ''", "'a'"),
            kinds: kinds.clone(),
        };
        let plan = reconcile(&view);
        assert_eq!(plan.status_change(), Some(&json!({"observedGeneration": 3, "typeChecking": {}})));
        let view =
            View { policy: policy("object.spec.replicas > '1'", "'got ' + object.spec.replicas"), kinds };
        let plan = reconcile(&view);
        let status = plan.status_change().expect("a status");
        let warnings = status["typeChecking"]["expressionWarnings"].as_array().expect("warnings");
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
        let text = warnings[0]["warning"].as_str().expect("text");
        assert!(text.starts_with("apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'"), "{text}");
        assert_eq!(warnings[1]["fieldRef"], "spec.validations[0].messageExpression");
    }

    #[test]
    fn only_what_is_named_is_looked_up() {
        let spec = policy("true", "").spec.value();
        assert_eq!(named(&spec), [("apps".to_owned(), "v1".to_owned(), "deployments".to_owned())]);
    }

    #[test]
    fn published_schemas_of_custom_resources_have_types() {
        let schema = json!({"type": "object", "properties": {"metadata": {"allOf": [{"$ref": "#/x"}]},
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
        let kinds = vec![("a".to_owned(), of_document(&schema).expect("an object"))];
        let view =
            View { policy: policy("object.spec.maxRetries < 10", "object.metadata.labels['a']"), kinds };
        let plan = reconcile(&view);
        let text = plan.status_change().expect("a status").to_string();
        assert!(text.contains("undefined field 'maxRetries'"), "{text}");
    }
}
