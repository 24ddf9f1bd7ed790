use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::{Arena, Field, Kind, List, ListType, Object, PatchStrategy, Scalar, Schema};

fn text_field(name: &'static str, node: u32) -> Field {
    Field::new(name, node)
}

fn object(arena: &mut Arena, fields: Vec<Field>) -> u32 {
    let fields = arena.add_fields(fields);
    arena.add(Kind::Object(Object {
        name: "Pod".into(),
        definition: "".into(),
        fields,
        inlines: Vec::new(),
        additional: None,
        preserve_unknown: true,
        embedded: false,
        atomic: false,
    }))
}

/// `containers` merges by name, `finalizers` merges as a set, `args` is replaced, `strategy` retains keys.
fn schema() -> Schema {
    let mut arena = Arena::default();
    let text = arena.add(Kind::Scalar(Scalar::String));
    let texts = arena.add(Kind::List(List {
        items: text,
        list_type: ListType::Atomic,
        merge_key: None,
        wrapped: false,
    }));
    let container = object(
        &mut arena,
        vec![text_field("name", text), text_field("image", text), text_field("args", texts)],
    );
    let containers = arena.add(Kind::List(List {
        items: container,
        list_type: ListType::Map(vec!["name".into()]),
        merge_key: Some("name".into()),
        wrapped: false,
    }));
    let merge = PatchStrategy { merge: true, ..PatchStrategy::default() };
    let root = object(
        &mut arena,
        vec![
            Field { patch: merge, ..text_field("containers", containers) },
            Field { patch: merge, ..text_field("finalizers", texts) },
            text_field("args", texts),
        ],
    );
    Schema::new(Arc::new(arena), root)
}

fn strategic(object: Value, patch: Value) -> Result<Value, PatchError> {
    strategic_merge_patch(object, &patch, &schema())
}

#[test]
fn json_patch_does_each_operation() {
    let object = json!({"a": {"b": [1, 2]}, "c~/d": 1});
    for (patch, expected) in [
        (json!([{"op": "add", "path": "/a/b/1", "value": 9}]), json!({"a": {"b": [1, 9, 2]}, "c~/d": 1})),
        (json!([{"op": "add", "path": "/a/b/-", "value": 9}]), json!({"a": {"b": [1, 2, 9]}, "c~/d": 1})),
        (json!([{"op": "remove", "path": "/c~0~1d"}]), json!({"a": {"b": [1, 2]}})),
        (json!([{"op": "replace", "path": "/a", "value": 1}]), json!({"a": 1, "c~/d": 1})),
        (json!([{"op": "move", "from": "/a/b", "path": "/e"}]), json!({"a": {}, "c~/d": 1, "e": [1, 2]})),
        (
            json!([{"op": "copy", "from": "/c~0~1d", "path": "/a/x"}]),
            json!({"a": {"b": [1, 2], "x": 1}, "c~/d": 1}),
        ),
        (json!([{"op": "test", "path": "/a/b/0", "value": 1.0}]), object.clone()),
        (json!([{"op": "test", "path": "/nothing", "value": null}]), object.clone()),
        (
            json!([{"op": "copy", "from": "/nothing", "path": "/c~0~1d"}]),
            json!({"a": {"b": [1, 2]}, "c~/d": null}),
        ),
    ] {
        assert_eq!(json_patch(object.clone(), &patch), Ok(expected), "{patch}");
    }
}

#[test]
fn a_json_patch_that_does_not_fit_changes_nothing() {
    let object = json!({"a": [1]});
    for patch in [
        json!([{"op": "remove", "path": "/b"}]),
        json!([{"op": "add", "path": "/a/7", "value": 1}]),
        json!([{"op": "add", "path": "/x/y", "value": 1}]),
        json!([{"op": "test", "path": "/a/0", "value": 2}]),
        json!([{"op": "remove", "path": "/a/1"}]),
        json!([{"op": "copy", "from": "/x/y", "path": "/b"}]),
        json!([{"op": "copy", "from": "/a/1", "path": "/b"}]),
        json!([{"op": "copy", "from": "/a/0/b", "path": "/b"}]),
        json!([{"op": "copy", "from": "", "path": "/b"}]),
        json!([{"op": "test", "path": "/x/y", "value": null}]),
        json!([{"op": "dance", "path": "/a"}]),
        json!([{"path": "/a"}]),
    ] {
        assert!(matches!(json_patch(object.clone(), &patch), Err(PatchError::DoesNotApply(_))), "{patch}");
    }
    for (patch, want) in [
        (json!({}), "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
        (json!([1]), "json: cannot unmarshal number into Go value of type jsonpatch.Operation"),
    ] {
        assert_eq!(json_patch(object.clone(), &patch), Err(PatchError::Malformed(want.to_owned())));
    }
    assert_eq!(json_patch(object.clone(), &Value::Null), Ok(object.clone()));
    let nothing = json!([{"op": "add", "path": "/b"}]);
    assert_eq!(json_patch(object.clone(), &nothing), Ok(json!({"a": [1], "b": null})));
    let many =
        Value::Array(vec![json!({"op": "test", "path": "/a", "value": [1]}); MAX_JSON_PATCH_OPERATIONS + 1]);
    assert_eq!(json_patch(object.clone(), &many), Err(PatchError::TooLarge(MAX_JSON_PATCH_OPERATIONS + 1)));
}

#[test]
fn copies_of_copies_do_not_fill_the_memory() {
    let twice = json!({"op": "copy", "from": "/a", "path": "/a/-"});
    let object = json!({"a": ["<0123456789>"]});
    let Err(PatchError::DoesNotApply(why)) =
        json_patch(object.clone(), &Value::Array(vec![twice.clone(); 40]))
    else {
        panic!("copied without end");
    };
    // What Go counts: each `<` as six bytes, and each copy with a comma.
    let copied: usize = (0..17).map(|turn| (26 << turn) + (1 << turn) - 1).sum();
    assert_eq!(
        why,
        format!(
            "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit 3145728"
        )
    );
    assert!(json_patch(object, &Value::Array(vec![twice; 16])).is_ok());
}

#[test]
fn a_merge_patch_removes_a_great_many_fields() {
    const MANY: usize = 300_000;
    let all = |value: Value| -> Value { (0..MANY).map(|n| (n.to_string(), value.clone())).collect() };
    let mut object = all(json!(1));
    object["stays"] = json!(1);
    assert_eq!(merge_patch(object.clone(), &all(Value::Null)), Ok(json!({"stays": 1})));
    assert_eq!(strategic(object, all(Value::Null)), Ok(json!({"stays": 1})));
}

#[test]
fn merge_patch_follows_the_rfcs_examples() {
    for (object, patch, expected) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        assert_eq!(merge_patch(object, &patch), Ok(expected), "{patch}");
    }
}

#[test]
fn lists_merge_by_key_and_others_are_replaced() {
    let object =
        json!({"args": ["x"], "containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]});
    let patch =
        json!({"args": ["y"], "containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]});
    assert_eq!(
        strategic(object, patch).unwrap(),
        json!({"args": ["y"], "containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}]})
    );
}

#[test]
fn directives_delete_replace_and_order() {
    let object =
        || json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "finalizers": ["x", "y"]});
    let deleted = strategic(object(), json!({"containers": [{"name": "b", "$patch": "delete"}]})).unwrap();
    assert_eq!(deleted["containers"], json!([{"name": "a"}, {"name": "c"}]));
    let replaced =
        strategic(object(), json!({"containers": [{"name": "z"}, {"$patch": "replace"}]})).unwrap();
    assert_eq!(replaced["containers"], json!([{"name": "z"}]));
    let primitive =
        strategic(object(), json!({"$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]}))
            .unwrap();
    assert_eq!(
        primitive["finalizers"],
        json!(["z", "y"]),
        "what the server does not know comes first, as upstream has it"
    );
    let ordered = strategic(
        object(),
        json!({"$setElementOrder/containers": [{"name": "d"}, {"name": "c"}, {"name": "a"}], "containers": [{"name": "d"}]}),
    )
    .unwrap();
    let names: Vec<_> =
        ordered["containers"].as_array().unwrap().iter().map(|item| item["name"].clone()).collect();
    assert_eq!(names, ["d", "b", "c", "a"]);
    let whole = strategic(object(), json!({"$patch": "replace", "args": ["only"]})).unwrap();
    assert_eq!(whole, json!({"args": ["only"]}));
}

#[test]
fn retained_keys_leave_nothing_else() {
    let object = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
    let patch = json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}});
    assert_eq!(strategic(object.clone(), patch).unwrap(), json!({"strategy": {"type": "Recreate"}}));
    let contradiction = json!({"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}});
    assert!(matches!(strategic(object, contradiction), Err(PatchError::Malformed(_))));
}

#[test]
fn nulls_remove_and_leave_no_trace_in_what_is_new() {
    let object = json!({"a": 1, "b": {"c": 1}});
    let patch = json!({"a": null, "b": {"c": null}, "new": {"x": null, "y": 1}, "absent": null});
    assert_eq!(strategic(object, patch).unwrap(), json!({"b": {}, "new": {"y": 1}}));
}

#[test]
fn patches_that_make_no_sense_are_refused() {
    let malformed = |text: &str| PatchError::Malformed(text.to_owned());
    let failed = |text: &str| PatchError::Failed(text.to_owned());
    for (patch, want) in [
        (json!([]), malformed("json: cannot unmarshal array into Go value of type map[string]interface {}")),
        (json!({"$retainKeys": 1}), malformed("invalid patch format of retainKeys")),
        (json!({"$patch": "dance"}), failed("unknown patch type: dance in map: map[$patch:dance]")),
        (
            json!({"containers": [{"image": "x"}]}),
            failed("map: map[image:x] does not contain declared merge key: name"),
        ),
        (
            json!({"containers": [{"$patch": "delete"}]}),
            failed("map: map[$patch:delete] does not contain declared merge key: name"),
        ),
        (
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "a"}, {"name": "b"}]}),
            failed(
                "The order in patch list:\n[map[name:a] map[name:b]]\n doesn't match $setElementOrder list:\n[map[name:b] map[name:a]]\n",
            ),
        ),
        (
            json!({"$setElementOrder/containers": "a"}),
            failed("expected a []interface {}, but received a string"),
        ),
    ] {
        let object = json!({"containers": [{"name": "a"}]});
        assert_eq!(strategic(object, patch.clone()), Err(want), "{patch}");
    }
}

/// Some of a few names, each once, in any order.
fn some_names() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(vec!["a", "b", "c", "d", "e"], 0..=5).prop_shuffle()
}

/// An object with containers and finalizers.
fn some_object() -> impl Strategy<Value = Value> {
    (some_names(), some_names()).prop_map(|(containers, finalizers)| {
        let container = |name| json!({"name": name, "image": format!("{name}:1"), "args": [name]});
        let containers: Vec<Value> = containers.into_iter().map(container).collect();
        json!({"containers": containers, "finalizers": finalizers, "paused": true})
    })
}

/// What a patch does: sets images, deletes containers, and adds or takes finalizers.
#[derive(Debug)]
struct Intent {
    set: Vec<&'static str>,
    delete: Vec<&'static str>,
    add: Vec<&'static str>,
    take: Vec<&'static str>,
}

impl Intent {
    fn patch(&self) -> Value {
        let set = self.set.iter().map(|name| json!({"name": name, "image": "patched"}));
        let delete = self.delete.iter().map(|name| json!({"name": name, "$patch": "delete"}));
        let containers: Vec<Value> = set.chain(delete).collect();
        json!({"containers": containers, "finalizers": self.add, "$deleteFromPrimitiveList/finalizers": self.take})
    }
}

fn some_intent() -> impl Strategy<Value = Intent> {
    (some_names(), some_names(), 0..=5usize, 0..=5usize).prop_map(|(containers, finalizers, set, add)| {
        let (set, delete) = containers.split_at(set.min(containers.len()));
        let (add, take) = finalizers.split_at(add.min(finalizers.len()));
        Intent { set: set.into(), delete: delete.into(), add: add.into(), take: take.into() }
    })
}

fn names_of(object: &Value) -> Vec<&str> {
    object["containers"].as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

fn finalizers_of(object: &Value) -> Vec<&str> {
    object["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

proptest! {
    #[test]
    fn a_strategic_patch_does_what_it_says_and_no_more(object in some_object(), intent in some_intent()) {
        let patched = strategic(object.clone(), intent.patch()).expect("applies");
        prop_assert!(!patched.to_string().contains('$'), "a directive was stored: {}", patched);
        prop_assert_eq!(&patched["paused"], &object["paused"]);

        let (before, after) = (names_of(&object), names_of(&patched));
        for (name, container) in after.iter().zip(patched["containers"].as_array().expect("a list")) {
            let old = object["containers"].as_array().expect("a list").iter().find(|old| old["name"] == *name);
            if intent.set.contains(name) {
                prop_assert_eq!(&container["image"], "patched");
                // What the patch does not name stays.
                prop_assert_eq!(container.get("args"), old.and_then(|old| old.get("args")));
            } else {
                prop_assert_eq!(Some(container), old);
            }
        }
        for name in &intent.set {
            prop_assert_eq!(after.iter().filter(|have| *have == name).count(), 1);
        }
        prop_assert!(intent.delete.iter().all(|name| !after.contains(name)));
        // Nothing else came or went, and what was not named keeps its order.
        let others = |names: &[&str]| -> Vec<String> {
            let named = |name: &&&str| !intent.set.contains(*name) && !intent.delete.contains(*name);
            names.iter().filter(named).map(|name| (*name).to_owned()).collect()
        };
        prop_assert_eq!(others(&before), others(&after));

        let (before, after) = (finalizers_of(&object), finalizers_of(&patched));
        prop_assert!(intent.add.iter().all(|name| after.contains(name)));
        prop_assert!(intent.take.iter().all(|name| !after.contains(name)));
        for name in before {
            prop_assert!(after.contains(&name) || intent.take.contains(&name), "{} is gone", name);
        }
    }

    #[test]
    fn a_strategic_patch_done_twice_is_done_once(object in some_object(), intent in some_intent()) {
        let once = strategic(object, intent.patch()).expect("applies");
        prop_assert_eq!(strategic(once.clone(), intent.patch()).expect("applies"), once);
    }

    #[test]
    fn an_empty_strategic_patch_changes_nothing(object in some_object()) {
        prop_assert_eq!(strategic(object.clone(), json!({})).expect("applies"), object);
    }

    #[test]
    fn an_order_that_names_everything_is_kept(object in some_object(), wanted in some_names()) {
        let have = names_of(&object);
        let extra = have.iter().filter(|name| !wanted.contains(*name));
        let order: Vec<&str> = wanted.iter().chain(extra).copied().collect();
        let named = |names: &[&str]| -> Vec<Value> { names.iter().map(|name| json!({"name": name})).collect() };
        let patch = json!({"$setElementOrder/containers": named(&order), "containers": named(&wanted)});
        let patched = strategic(object.clone(), patch).expect("applies");
        prop_assert_eq!(names_of(&patched), order);
    }
}
