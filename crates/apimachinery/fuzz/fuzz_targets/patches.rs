//! Two JSON documents to every patch and to server-side apply, as a Deployment.
#![no_main]

use apimachinery::{apply, patch};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|input: (&str, &str)| {
    let (Ok(object), Ok(change)) = (serde_json::from_str::<Value>(input.0), serde_json::from_str::<Value>(input.1)) else {
        return;
    };
    let Some(schema) = api::schemas::schemas().get("io.k8s.api.apps.v1.Deployment") else { return };
    let _json = patch::json_patch(object.clone(), &change).is_ok();
    let _merge = patch::merge_patch(object.clone(), &change).is_ok();
    let _strategic = patch::strategic_merge_patch(object.clone(), &change, &schema).is_ok();
    let manager = apply::Manager {
        name: "fuzz",
        api_version: "apps/v1",
        subresource: "",
        now: Default::default(),
        ignored: &["status"],
        versions: None,
    };
    if let Ok(config) = apply::Configuration::new(change, &schema)
        && let Ok(applied) = apply::apply(Some(&object), &config, &schema, &manager, true)
    {
        let again = apply::apply(Some(&applied), &config, &schema, &manager, true);
        assert_eq!(again.as_ref(), Ok(&applied), "applying twice differs from applying once");
    }
});
