//! CRD structural schemas: from their OpenAPI form into the arena, their defaults and their value rules.

use serde_json::Value;

/// What a CRD schema says about values beyond their type.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Default, applied when the field is absent.
    pub default: Option<Value>,
    /// null is a value.
    pub nullable: bool,
    /// Unknown fields are kept.
    pub preserve: bool,
    /// Declared JSON type, for messages; empty when any is allowed.
    pub kind: &'static str,
    /// Allowed values.
    pub allowed: Vec<Value>,
    /// Regular expression source.
    pub pattern: Option<String>,
    /// Named format.
    pub format: Option<String>,
    /// Bounds of numbers.
    pub minimum: Option<f64>,
    /// Bounds of numbers.
    pub maximum: Option<f64>,
    /// The bound itself is excluded.
    pub exclusive_minimum: bool,
    /// The bound itself is excluded.
    pub exclusive_maximum: bool,
    /// Values are multiples of this.
    pub multiple_of: Option<f64>,
    /// Bounds of text length.
    pub min_length: Option<u64>,
    /// Bounds of text length.
    pub max_length: Option<u64>,
    /// Bounds of list length.
    pub min_items: Option<u64>,
    /// Bounds of list length.
    pub max_items: Option<u64>,
    /// Elements differ.
    pub unique_items: bool,
    /// Bounds of map size.
    pub min_properties: Option<u64>,
    /// Bounds of map size.
    pub max_properties: Option<u64>,
    /// The whole OpenAPI node when it has allOf, anyOf, oneOf or not.
    pub logic: Option<Value>,
}
