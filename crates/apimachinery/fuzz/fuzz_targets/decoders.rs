//! Bytes to every decoder: JSON, YAML and protobuf of a Pod, and back.
#![no_main]

use apimachinery::{
    decode::{self, FieldValidation},
    protobuf,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(schema) = api::schemas::schemas().get("io.k8s.api.core.v1.Pod") else { return };
    let _refused = decode::yaml(bytes, &schema, FieldValidation::Warn).is_err();
    if let Ok(decoded) = decode::json(bytes, &schema, FieldValidation::Strict) {
        // What decodes survives the other codec, unless a free-form value holds what protobuf cannot carry.
        let again = protobuf::decode(&protobuf::encode(&decoded.value, &schema), &schema);
        assert!(again.is_ok(), "our own bytes do not decode");
    }
    let mut enveloped = protobuf::MAGIC.to_vec();
    enveloped.extend_from_slice(bytes);
    let _refused = protobuf::decode(&enveloped, &schema).is_err();
});
