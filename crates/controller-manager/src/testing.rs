//! Values for the tables of the controllers' tests, and a small API server for the tests that run them.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kinds::Pod;

/// Reads a projection (or a part of one) from JSON.
pub fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the test's object can be read")
}

/// Noon of the first day of 2026.
pub fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a valid time")
}

/// A pod of the namespace `n` with the label `app=web`, changed by a merge patch.
pub fn pod(name: &str, more: Value) -> Pod {
    let mut value = json!({"metadata":{"name":name,"namespace":"n","uid":name,"resourceVersion":"1",
        "labels":{"app":"web"},"creationTimestamp":"2026-01-01T00:00:00Z"}});
    controller_runtime::merge(&mut value, &more);
    object(value)
}

pub mod server;
