//! From a CRD to definitions: the same type that built-in kinds have.

use std::{borrow::Cow, sync::Arc};

use apimachinery::{
    field::{Path, Problem, ProblemKind, Problems},
    meta::{get, get_list, get_str},
    schema::{Schema, structural},
};
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    Change, Column, Definition, MetaCheck, Names, Rules, ScalePaths, Scope, Storage, Subresource, Verbs,
    columns::{Cell, age},
    definition::FieldLabel,
    schemas::object_meta,
};

mod json_path;
pub mod rules;

use json_path::JsonPath;
use rules::Validator;

struct Custom {
    schema: Schema,
    rules: Option<Validator>,
    /// Where the scale subresource finds its numbers.
    replicas: Vec<Cow<'static, str>>,
}

/// What is said when the rules of a schema could not be looked at.
const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

impl Rules for Custom {
    fn set_defaults(&self, object: &mut Value) {
        structural::set_defaults(object, self.schema.node());
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        structural::validate(change.new, self.schema.node(), &Path::ROOT, problems);
        if let Some(rules) = &self.rules {
            // Rules may rely on the types that the schema declares.
            let blocking = |problem: &Problem| {
                use ProblemKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
                matches!(problem.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)
            };
            if problems.iter().any(blocking) {
                problems.push(Problem {
                    kind: ProblemKind::Invalid,
                    path: "<nil>".to_owned(),
                    value: Some(Value::Null),
                    detail: UNCHECKED.to_owned(),
                });
            } else {
                rules.validate(change.new, change.old, problems);
            }
        }
        for path in &self.replicas {
            if let Some(number) = get(change.new, path).and_then(Value::as_i64)
                && number < 0
            {
                problems.push(Problem {
                    kind: ProblemKind::Invalid,
                    path: format!(".{path}"),
                    value: Some(number.into()),
                    detail: "should be a non-negative integer".to_owned(),
                });
            }
        }
    }
}

fn owned(text: &str) -> Cow<'static, str> {
    Cow::Owned(text.to_owned())
}

fn texts(object: &Value, path: &str) -> Vec<Cow<'static, str>> {
    get_list(object, path).iter().filter_map(Value::as_str).map(owned).collect()
}

/// `.spec.replicas` without its leading dot.
fn dotted(path: &str) -> Cow<'static, str> {
    owned(path.trim_start_matches('.'))
}

impl Definition {
    /// One definition per served version of a CRD. Fails when the CRD itself is not valid.
    pub fn from_crd(crd: &Value) -> Result<Vec<Definition>, Problems> {
        let all = Self::versions_of_crd(crd)?;
        Ok(all.into_iter().filter(|(_, served)| *served).map(|(definition, _)| definition).collect())
    }

    /// One definition per version of a CRD, and whether it is served. Fails when the CRD itself is not valid.
    pub fn versions_of_crd(crd: &Value) -> Result<Vec<(Definition, bool)>, Problems> {
        let mut problems = Problems::new();
        crate::apiextensions::crd::validate(crd, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let versions = get_list(crd, "spec.versions");
        let stored = versions.iter().find(|version| version["storage"] == true);
        let stored = stored.map_or("", |version| get_str(version, "name"));
        let all = versions.iter();
        Ok(all.map(|version| (from_version(crd, version, stored), version["served"] == true)).collect())
    }
}

/// What is said of a version that is deprecated without a text of its own: use the newest one that is newer.
fn deprecated(crd: &Value, name: &str) -> String {
    let (group, kind) = (get_str(crd, "spec.group"), get_str(crd, "spec.names.kind"));
    let order = apimachinery::names::version_order;
    let better = get_list(crd, "spec.versions")
        .iter()
        .filter(|one| one["served"] == true && one["deprecated"] != true);
    let better = better.map(|one| get_str(one, "name")).filter(|other| order(other) > order(name));
    match better.max_by_key(|other| order(other)) {
        Some(newer) => format!("{group}/{name} {kind} is deprecated; use {group}/{newer} {kind}"),
        None => format!("{group}/{name} {kind} is deprecated"),
    }
}

fn from_version(crd: &Value, version: &Value, stored: &str) -> Definition {
    let (group, plural) = (get_str(crd, "spec.group"), get_str(crd, "spec.names.plural"));
    let kind = get_str(crd, "spec.names.kind");
    let name = get_str(version, "name");
    let open = get(version, "schema.openAPIV3Schema").cloned().unwrap_or_default();
    let schema = structural::build(&open, object_meta().node());
    // A valid CRD has rules that compile.
    let rules = rules::compile(&open, "", rules::Costs::None, &mut Problems::new());
    let or = |text: &str, other: String| if text.is_empty() { Cow::Owned(other) } else { owned(text) };
    let mut reversed: Vec<&str> = group.split('.').collect();
    reversed.reverse();
    let deprecation = (version["deprecated"] == true).then(|| match get_str(version, "deprecationWarning") {
        "" => Cow::Owned(deprecated(crd, name)),
        text => owned(text),
    });
    let mut subresources = Vec::new();
    if get(version, "subresources.status").is_some() {
        subresources.push(Subresource::Status);
    }
    if let Some(scale) = get(version, "subresources.scale") {
        subresources.push(Subresource::Scale(ScalePaths {
            spec_replicas: dotted(get_str(scale, "specReplicasPath")),
            status_replicas: dotted(get_str(scale, "statusReplicasPath")),
            selector: dotted(get_str(scale, "labelSelectorPath")),
        }));
    }
    let replicas = ["specReplicasPath", "statusReplicasPath"]
        .into_iter()
        .filter_map(|field| Some(dotted(get(version, "subresources.scale")?.get(field)?.as_str()?)))
        .collect();
    Definition {
        names: Names {
            group: owned(group),
            version: owned(name),
            kind: owned(kind),
            list_kind: or(get_str(crd, "spec.names.listKind"), format!("{kind}List")),
            plural: owned(plural),
            singular: or(get_str(crd, "spec.names.singular"), kind.to_lowercase()),
            short_names: texts(crd, "spec.names.shortNames"),
            categories: texts(crd, "spec.names.categories"),
        },
        scope: if get_str(crd, "spec.scope") == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
        verbs: Verbs::ALL,
        subresources,
        list_schema: Schema::any(),
        storage: Storage {
            prefix: Cow::Owned(format!("/registry/{group}/{plural}")),
            group: owned(group),
            version: owned(stored),
        },
        columns: columns(version),
        name_column: true,
        name_cell: |object| get_str(object, "metadata.name").into(),
        field_labels: get_list(version, "selectableFields")
            .iter()
            .map(|field| {
                let path = dotted(get_str(field, "jsonPath"));
                FieldLabel::Path { label: path.clone(), path, absent: "".into() }
            })
            .collect(),
        effects: Vec::new(),
        conversion: None,
        generation: true,
        unconditional_update: false,
        create_on_update: false,
        orphan_by_default: false,
        orphan_warning: None,
        created_with_status: false,
        answers_with_object: false,
        // All but the status is taken from the object as it is.
        status_keeps: crate::StatusKeeps::Metadata,
        generation_counts: None,
        checks_update: &[MetaCheck::Change],
        checks_status: &[MetaCheck::Change],
        name_rule: apimachinery::names::is_dns1123_subdomain,
        any_finalizers: true,
        metadata_last: false,
        gated: Vec::new(),
        annotated_fields: &[],
        custom: true,
        definition_name: Cow::Owned(format!("{}.{name}.{kind}", reversed.join("."))),
        published_schema: Some(Arc::new(open)),
        deprecation,
        rules: Arc::new(Custom { schema: schema.clone(), rules, replicas }),
        schema,
    }
}

fn columns(version: &Value) -> Vec<Column> {
    let declared = get_list(version, "additionalPrinterColumns");
    if declared.is_empty() {
        return vec![Column::age()];
    }
    declared
        .iter()
        .map(|column| {
            let kind = get_str(column, "type").to_owned();
            let path = JsonPath::parse(get_str(column, "jsonPath"));
            let is_date = kind == "date";
            let read = move |object: &Value, now: Timestamp| cell(&path, object, is_date, now);
            Column {
                name: owned(get_str(column, "name")),
                kind: Cow::Owned(kind),
                format: owned(get_str(column, "format")),
                description: match get_str(column, "description") {
                    "" => Cow::Owned(format!(
                        "Custom resource definition column (in JSONPath format): {}",
                        get_str(column, "jsonPath")
                    )),
                    text => owned(text),
                },
                priority: column["priority"].as_i64().unwrap_or(0) as i32,
                cell: Cell::Shared(Arc::new(read)),
            }
        })
        .collect()
}

fn cell(path: &JsonPath, object: &Value, is_date: bool, now: Timestamp) -> Value {
    let found = path.find(object);
    match found.as_slice() {
        [] => Value::Null,
        [Value::String(text)] if is_date => age(text, now).into(),
        [only @ (Value::Object(_) | Value::Array(_))] => only.to_string().into(),
        [only] => (*only).clone(),
        many => {
            let texts: Vec<String> = many
                .iter()
                .map(|value| match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                })
                .collect();
            texts.join(",").into()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd() -> Value {
        let mut crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "shirts.stable.example.com"},
            "spec": {"group": "stable.example.com", "scope": "Namespaced",
                "names": {"plural": "shirts", "kind": "Shirt", "shortNames": ["sh"]},
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "subresources": {"status": {},
                        "scale": {"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.count"}},
                        "selectableFields": [{"jsonPath": ".spec.color"}],
                        "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}],
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                            "properties": {"color": {"type": "string", "default": "blue"}, "count": {"type": "integer"}}}}}}},
                    {"name": "v2", "served": false, "storage": false,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
        let definition =
            crate::builtins().into_iter().find(|kind| kind.names.kind == "CustomResourceDefinition");
        definition.expect("CRDs are built in").set_defaults(&mut crd);
        crd
    }

    #[test]
    fn a_crd_becomes_a_definition_like_any_other() {
        let definitions = Definition::from_crd(&crd()).expect("a valid CRD");
        let [shirt] = &definitions[..] else { panic!("one version is served") };
        assert_eq!(shirt.names.api_version(), "stable.example.com/v1");
        assert_eq!(shirt.storage.prefix, "/registry/stable.example.com/shirts");
        assert_eq!(shirt.definition_name, "com.example.stable.v1.Shirt");
        let mut object = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {}});
        shirt.set_defaults(&mut object);
        assert_eq!(shirt.field(&object, "spec.color").as_deref(), Some("blue"));
        assert_eq!(shirt.table_cells(&object, Timestamp::UNIX_EPOCH), [json!("a"), json!("blue")]);
        assert!(shirt.validate(&Change::create(&object)).is_empty());
        object["spec"]["count"] = json!("many");
        assert_eq!(shirt.validate(&Change::create(&object)).len(), 1);
    }

    #[test]
    fn a_bad_crd_is_refused() {
        let mut bad = crd();
        bad["spec"]["versions"][1]["storage"] = json!(true);
        let problems = Definition::from_crd(&bad).expect_err("two stored versions");
        assert_eq!(problems.iter().next().map(|problem| problem.path.as_str()), Some("spec.versions"));
    }
}
