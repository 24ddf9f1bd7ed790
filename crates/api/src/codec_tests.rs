//! Round trips of real kinds through the codecs: JSON to protobuf to JSON.

use apimachinery::{
    decode::{self, FieldValidation},
    protobuf,
    schema::{Kind, Node, Scalar},
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{builtins, schemas::schemas};

#[test]
fn a_pod_survives_protobuf() {
    let schema = schemas().get("io.k8s.api.core.v1.Pod").expect("Pod");
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}, "creationTimestamp": "2024-05-01T12:00:00Z",
            "managedFields": [{"manager": "m", "operation": "Update", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:x": {}}}}]},
        "spec": {
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 3},
                "ports": [{"containerPort": 80, "name": "http"}],
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k", "optional": false}}}]}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "cm", "defaultMode": 420}}],
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "nodeSelector": {"a": "b"},
        },
        "status": {"phase": "Running", "podIPs": [{"ip": "1.2.3.4"}], "startTime": "2024-05-01T12:00:00Z"},
    });
    let pod = decode::value(pod, &schema, FieldValidation::Strict).expect("a valid pod").value;
    let bytes = protobuf::encode(&pod, &schema);
    assert_eq!(&bytes[..4], protobuf::MAGIC);
    let again = protobuf::decode(&bytes, &schema).expect("our own bytes");
    assert_eq!(again, pod);
}

#[test]
fn a_custom_resource_definition_survives_protobuf() {
    let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
    let schema = schemas().get(name).expect("CRD");
    let crd = json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "a.b.c"}, "spec": {"group": "b.c", "scope": "Namespaced",
        "names": {"plural": "a", "kind": "A"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "additionalProperties": {"type": "string"}},
                "any": {"x-kubernetes-preserve-unknown-fields": true, "default": {"a": [1, null, "x"]}},
                "list": {"type": "array", "items": {"type": "integer", "minimum": 1.5, "enum": [1, 2]}},
                "closed": {"type": "object", "additionalProperties": false}}}}}]},
        "status": {"conditions": [], "acceptedNames": {"plural": "a", "kind": "A"}, "storedVersions": ["v1"]}});
    let crd = decode::value(crd, &schema, FieldValidation::Strict).expect("a valid CRD").value;
    let again = protobuf::decode(&protobuf::encode(&crd, &schema), &schema).expect("our own bytes");
    assert_eq!(again, crd);
}

/// Some value of a type, small and deterministic in the seed.
fn sample(node: Node<'_>, seed: &mut u64, depth: usize) -> Value {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    let dice = *seed >> 33;
    match node.kind() {
        Kind::Object(_) => {
            let mut map = Map::new();
            for field in node.fields() {
                *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if depth < 6 && (*seed >> 33).is_multiple_of(3) && field.tag != 0 {
                    map.insert(field.name.to_string(), sample(node.at(field.node), seed, depth + 1));
                }
            }
            Value::Object(map)
        }
        Kind::Map { value, .. } => {
            json!({"k": sample(node.at(*value), seed, depth + 1), "l": sample(node.at(*value), seed, depth + 1)})
        }
        Kind::List(list) => json!([
            sample(node.at(list.items), seed, depth + 1),
            sample(node.at(list.items), seed, depth + 1)
        ]),
        Kind::Scalar(scalar) => match scalar {
            Scalar::String => json!(["", "text", "ünïcode"][dice as usize % 3]),
            Scalar::Int32 => json!([0, -1, i32::MAX][dice as usize % 3]),
            Scalar::Int64 => json!([0, i64::MIN, i64::MAX][dice as usize % 3]),
            Scalar::Float => json!(1.5),
            Scalar::Bool => json!(dice.is_multiple_of(2)),
            Scalar::Bytes => json!("AQID"),
            Scalar::Quantity => json!("1500m"),
            Scalar::IntOrString => [json!(80), json!("http")][dice as usize % 2].clone(),
            Scalar::Time => json!("2024-05-01T12:00:00Z"),
            Scalar::MicroTime => json!("0001-01-01T00:00:02.000001Z"),
            Scalar::Duration => json!("1m30s"),
        },
        Kind::Opaque(_) => json!({"any": [1, "two", {"three": 3.5}]}),
        Kind::SchemaOr(..) => json!({"type": "string"}),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_kind_survives_protobuf(seed in any::<u64>()) {
        let mut seed = seed;
        for definition in builtins() {
            let mut object = sample(definition.schema.node(), &mut seed, 0);
            object["kind"] = json!(definition.names.kind);
            object["apiVersion"] = json!(definition.names.api_version());
            let object = decode::value(object, &definition.schema, FieldValidation::Strict).expect("fits its schema").value;
            let bytes = protobuf::encode(&object, &definition.schema);
            let again = protobuf::decode(&bytes, &definition.schema).expect("our own bytes");
            prop_assert_eq!(&again, &object, "{:?}", definition);
            let text = serde_json::to_vec(&object).expect("JSON");
            let third = decode::json(&text, &definition.schema, FieldValidation::Strict).expect("fits");
            prop_assert_eq!(third.value, object);
        }
    }

    #[test]
    fn no_bytes_make_the_codec_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let schema = schemas().get("io.k8s.api.core.v1.Pod").expect("Pod");
        let mut enveloped = protobuf::MAGIC.to_vec();
        enveloped.extend(&bytes);
        let _refused = protobuf::decode(&enveloped, &schema).is_err();
        let _also = protobuf::decode_raw(&bytes, schema.node()).is_err();
    }
}

fn deployment(text: &str, validation: FieldValidation) -> Result<decode::Decoded, decode::DecodeError> {
    let schema = schemas().get("io.k8s.api.apps.v1.Deployment").expect("Deployment");
    decode::json(text.as_bytes(), &schema, validation)
}

#[test]
fn unknown_and_duplicate_fields_are_told_with_their_paths() {
    let text = r#"{"metadata":{"name":"a","unknownMeta":1},"spec":{"replicas":1,"replicas":2,"unknownField":3,
        "template":{"spec":{"containers":[{"name":"c","foo":1}]}}}}"#;
    let err = deployment(text, FieldValidation::Strict).expect_err("strict");
    assert_eq!(
        err.to_string(),
        "strict decoding error: unknown field \"metadata.unknownMeta\", duplicate field \"spec.replicas\", \
         unknown field \"spec.unknownField\", unknown field \"spec.template.spec.containers[0].foo\""
    );
    let decoded = deployment(text, FieldValidation::Warn).expect("warn");
    assert_eq!(decoded.warnings.len(), 4);
    assert_eq!(decoded.value["spec"]["replicas"], 2);
    assert!(deployment(text, FieldValidation::Ignore).is_ok_and(|decoded| decoded.warnings.is_empty()));
}

#[test]
fn wrong_types_are_told_in_gos_words() {
    for (text, want) in [
        (
            r#"{"spec":{"replicas":"x"}}"#,
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            r#"{"spec":{"template":{"spec":{"containers":[{"image":5}]}}}}"#,
            "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.image of type string",
        ),
        (
            r#"{"spec":{"paused":{}}}"#,
            "json: cannot unmarshal object into Go struct field DeploymentSpec.spec.paused of type bool",
        ),
        (
            r#"{"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"x"}}}]}}}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ] {
        assert_eq!(deployment(text, FieldValidation::Strict).expect_err(text).to_string(), want);
    }
    assert!(deployment("{", FieldValidation::Warn).is_err());
    assert!(deployment("", FieldValidation::Warn).is_err());
    let deep = "[".repeat(300) + &"]".repeat(300);
    assert!(
        deployment(
            &format!("{{\"metadata\":{{\"managedFields\":[{{\"fieldsV1\":{deep}}}]}}}}"),
            FieldValidation::Warn
        )
        .is_err()
    );
}

#[test]
fn objects_are_normalised_as_gos_types_would() {
    let schema = schemas().get("io.k8s.api.core.v1.Pod").expect("Pod");
    let text = r#"{"metadata":{"creationTimestamp":null,"labels":{}},"spec":{"hostNetwork":false,"nodeName":"",
        "automountServiceAccountToken":false,"terminationGracePeriodSeconds":0,
        "containers":[{"name":"c","resources":{"limits":{"cpu":0.5,"memory":"1024Mi"}},"command":[]}]}}"#;
    let pod = decode::json(text.as_bytes(), &schema, FieldValidation::Strict).expect("decodes").value;
    assert_eq!(
        pod,
        json!({"metadata": {}, "spec": {"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]}, "status": {}})
    );
}

#[test]
fn yaml_tells_the_line_of_a_duplicate_key() {
    let schema = schemas().get("io.k8s.api.core.v1.ConfigMap").expect("ConfigMap");
    let text =
        "\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  foo: x\n  bar: v\n  foo: z\n";
    let err = decode::yaml(text.as_bytes(), &schema, FieldValidation::Strict).expect_err("a duplicate");
    assert_eq!(
        err.to_string(),
        "strict decoding error: yaml: unmarshal errors:\n  line 9: key \"foo\" already set in map"
    );
    let decoded = decode::yaml(text.as_bytes(), &schema, FieldValidation::Ignore).expect("lenient");
    assert_eq!(decoded.value["data"]["foo"], "z");
}

#[test]
fn yaml_is_that_of_go() {
    let schema = schemas().get("io.k8s.api.apps.v1.ControllerRevision").expect("ControllerRevision");
    let read = |text: &str| decode::yaml(text.as_bytes(), &schema, FieldValidation::Warn);
    for (text, wanted) in [
        ("yes", json!(true)),
        ("Off", json!(false)),
        ("n", json!(false)),
        ("\"yes\"", json!("yes")),
        ("0644", json!(420)),
        ("0o644", json!(420)),
        ("0b11", json!(3)),
        ("1_000", json!(1000)),
        ("1e3", json!(1000)),
        ("2020-01-01", json!("2020-01-01")),
        ("!!binary aGVsbG8=", json!("hello")),
        ("!!str 1", json!("1")),
        ("{1: a, yes: b, 1.5: c}", json!({"1": "a", "1.5": "c", "true": "b"})),
        ("{x: &x {a: 1, b: 2}, z: {<<: *x, b: 3}}", json!({"x": {"a": 1, "b": 2}, "z": {"a": 1, "b": 3}})),
        ("{x: &x {a: 1}, z: {a: 3, <<: *x}}", json!({"x": {"a": 1}, "z": {"a": 1}})),
        ("1\n---\nfoo: [", json!(1)),
    ] {
        let decoded = read(&format!("data: {text}")).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(decoded.value["data"], wanted, "{text}");
    }
    for (text, wanted) in [
        ("data: .nan", "json: unsupported value: NaN"),
        ("data: !!int x", "yaml: cannot decode !!str `x` as a !!int"),
        ("data: *zz", "yaml: unknown anchor 'zz' referenced"),
        ("data: &a [*a]", "yaml: anchor 'a' value contains itself"),
        ("data: {<<: 1}", "yaml: map merge requires map or sequence of maps as the value"),
        ("a: 1\ndata:\n\ta: 1", "yaml: line 3: found character that cannot start any token"),
        ("a: 1\ndata: [1", "yaml: line 2: did not find expected ',' or ']'"),
        ("data: {[a]: b}", "yaml: invalid map key: []interface {}{\"a\"}"),
    ] {
        assert_eq!(read(text).expect_err(text).to_string(), wanted);
    }
    let bomb: String = ('a'..'i')
        .map(|one| {
            let next = char::from(one as u8 + 1);
            format!("  {next}: &{next} [{}]\n", vec![format!("*{one}"); 9].join(","))
        })
        .collect();
    let said = read(&format!("data:\n  a: &a [1,1,1,1,1,1,1,1,1]\n{bomb}")).expect_err("a bomb");
    assert_eq!(said.to_string(), "yaml: document contains excessive aliasing");
}

#[test]
fn what_a_patch_left_alone_need_not_be_decoded_again() {
    let schema = schemas().get("io.k8s.api.core.v1.Pod").expect("pods");
    let text = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "nodeName": "n", "hostNetwork": true,
            "containers": [
                {"name": "one", "image": "i", "resources": {"requests": {"cpu": "100m"}}, "ports": [{"containerPort": 80}]},
                {"name": "two", "image": "i", "env": [{"name": "A", "value": "b"}]},
            ],
            "tolerations": [{"operator": "Exists", "tolerationSeconds": 5}],
        },
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    });
    let old = decode::value(text, &schema, FieldValidation::Strict).expect("in order").value;
    let one = || old.clone();
    let mut cases: Vec<Value> = Vec::new();
    for (path, value) in [
        ("/metadata/labels/a", json!("c")),
        ("/metadata/labels/a", Value::Null),
        ("/metadata/labels", json!({})),
        ("/metadata/labels", json!({"a": "b", "n": null})),
        ("/metadata/annotations", json!("text")),
        ("/spec/containers/0/image", json!("")),
        ("/spec/containers/0/image", json!(7)),
        ("/spec/containers/0/resources/requests/cpu", json!("0.5")),
        ("/spec/containers/0/resources/requests/cpu", json!("much")),
        ("/spec/containers/1/env/0", json!({"name": "B", "value": "", "wrong": 1})),
        ("/spec/containers/1/env/0", Value::Null),
        ("/spec/containers/0", json!({"name": "two", "unknown": {"a": 1}})),
        (
            "/spec/containers",
            json!([{"name": "two", "image": "i"}, {"name": "one", "image": "i"}, {"name": "three"}]),
        ),
        ("/spec/containers", Value::Null),
        ("/spec/hostNetwork", json!(false)),
        ("/spec/hostNetwork", json!("yes")),
        ("/spec/nodeName", json!("")),
        ("/spec/tolerations/0/tolerationSeconds", json!(0)),
        ("/spec", json!({"containers": [{"name": "one"}], "extra": true})),
        ("/spec", json!([])),
        ("/status/startTime", json!("2026-01-01T00:00:00.5+01:00")),
        ("/status", json!({})),
        ("/status", Value::Null),
    ] {
        let mut new = one();
        *new.pointer_mut(path).expect(path) = value;
        cases.push(new);
    }
    let mut more = one();
    more["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}, "wrong": 1}]);
    more["wrong"] = json!({"a": 1});
    more["metadata"]["finalizers"] = json!([]);
    cases.extend([more, one(), json!({}), json!([]), Value::Null]);
    for case in cases {
        for validation in [FieldValidation::Ignore, FieldValidation::Warn, FieldValidation::Strict] {
            let whole = decode::value(case.clone(), &schema, validation);
            let part = decode::changed(case.clone(), &old, &schema, decode::Options::new(validation));
            assert_eq!(part, whole, "{case}");
        }
    }
}
