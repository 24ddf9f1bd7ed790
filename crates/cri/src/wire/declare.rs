//! How a message is declared: `Name { number field: kind, … }`.
//!
//! Kinds are protobuf's scalars, `int32s` and `int64s` (lists), `text` and `texts`, `map` (of text to text),
//! `one(Message)` and `many(Message)`. Enums travel as `int32`; `convert` gives the numbers their meaning.

/// Declares messages, see the module.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($fields:tt)* })*) => {
        $(fields! { [$(#[$doc])*] $name [] $($fields)*, })*
    };
}

/// Turns one field after the other into a struct's field with prost's attribute.
macro_rules! fields {
    ([$($head:tt)*] $name:ident [$($done:tt)*] $(,)*) => {
        $($head)*
        #[derive(Clone, PartialEq, ::prost::Message)]
        #[allow(missing_docs, reason = "a field's name is the protocol's")]
        pub struct $name { $($done)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: text, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(string, tag = $tag)] pub $field: String,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: texts, $($rest:tt)*) => {
        fields! { $head $name
            [$($done)* #[prost(string, repeated, tag = $tag)] pub $field: Vec<String>,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: bytes, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(bytes = "vec", tag = $tag)] pub $field: Vec<u8>,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: map, $($rest:tt)*) => {
        fields! { $head $name
            [$($done)* #[prost(btree_map = "string, string", tag = $tag)]
             pub $field: ::std::collections::BTreeMap<String, String>,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: one($of:ident), $($rest:tt)*) => {
        fields! { $head $name
            [$($done)* #[prost(message, optional, tag = $tag)] pub $field: Option<$of>,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: many($of:ident), $($rest:tt)*) => {
        fields! { $head $name
            [$($done)* #[prost(message, repeated, tag = $tag)] pub $field: Vec<$of>,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: bool, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(bool, tag = $tag)] pub $field: bool,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: int32, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(int32, tag = $tag)] pub $field: i32,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: int64, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(int64, tag = $tag)] pub $field: i64,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: uint32, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(uint32, tag = $tag)] pub $field: u32,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: uint64, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(uint64, tag = $tag)] pub $field: u64,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: double, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(double, tag = $tag)] pub $field: f64,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: int32s, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(int32, repeated, tag = $tag)] pub $field: Vec<i32>,] $($rest)* }
    };
    ($head:tt $name:ident [$($done:tt)*] $tag:tt $field:ident: int64s, $($rest:tt)*) => {
        fields! { $head $name [$($done)* #[prost(int64, repeated, tag = $tag)] pub $field: Vec<i64>,] $($rest)* }
    };
}
