//! The messages of gnostic's `openapi.v2`: JSON name, tag and shape of each field.

use super::{Field, Message, Shape};

pub(super) const DOCUMENT: &[Field] = &[
    ("swagger", 1, Shape::Text),
    ("info", 2, Shape::One(Message::Info)),
    ("consumes", 6, Shape::Texts),
    ("produces", 7, Shape::Texts),
    ("definitions", 9, Shape::Named(Message::Schema)),
    ("security", 12, Shape::Requirements),
    ("securityDefinitions", 13, Shape::Named(Message::SecurityDefinition)),
];
pub(super) const INFO: &[Field] =
    &[("title", 1, Shape::Text), ("version", 2, Shape::Text), ("description", 3, Shape::Text)];
pub(super) const PATH_ITEM: &[Field] = &[
    ("get", 2, Shape::One(Message::Operation)),
    ("put", 3, Shape::One(Message::Operation)),
    ("post", 4, Shape::One(Message::Operation)),
    ("delete", 5, Shape::One(Message::Operation)),
    ("options", 6, Shape::One(Message::Operation)),
    ("head", 7, Shape::One(Message::Operation)),
    ("patch", 8, Shape::One(Message::Operation)),
    ("parameters", 9, Shape::Parameters),
];
pub(super) const OPERATION: &[Field] = &[
    ("tags", 1, Shape::Texts),
    ("summary", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("operationId", 5, Shape::Text),
    ("produces", 6, Shape::Texts),
    ("consumes", 7, Shape::Texts),
    ("parameters", 8, Shape::Parameters),
    ("responses", 9, Shape::Responses),
    ("schemes", 10, Shape::Texts),
    ("deprecated", 11, Shape::Bool),
];
pub(super) const SCHEMA: &[Field] = &[
    ("$ref", 1, Shape::Text),
    ("format", 2, Shape::Text),
    ("title", 3, Shape::Text),
    ("description", 4, Shape::Text),
    ("default", 5, Shape::Any),
    ("multipleOf", 6, Shape::Double),
    ("maximum", 7, Shape::Double),
    ("exclusiveMaximum", 8, Shape::Bool),
    ("minimum", 9, Shape::Double),
    ("exclusiveMinimum", 10, Shape::Bool),
    ("maxLength", 11, Shape::Int),
    ("minLength", 12, Shape::Int),
    ("pattern", 13, Shape::Text),
    ("maxItems", 14, Shape::Int),
    ("minItems", 15, Shape::Int),
    ("uniqueItems", 16, Shape::Bool),
    ("maxProperties", 17, Shape::Int),
    ("minProperties", 18, Shape::Int),
    ("required", 19, Shape::Texts),
    ("enum", 20, Shape::Anys),
    ("additionalProperties", 21, Shape::AdditionalProperties),
    ("type", 22, Shape::TypeItem),
    ("items", 23, Shape::Items),
    ("allOf", 24, Shape::Many(Message::Schema)),
    ("properties", 25, Shape::Named(Message::Schema)),
    ("discriminator", 26, Shape::Text),
    ("readOnly", 27, Shape::Bool),
    ("example", 30, Shape::Any),
];
pub(super) const RESPONSE: &[Field] = &[("description", 1, Shape::Text)];
pub(super) const PRIMITIVE: &[Field] = &[("type", 1, Shape::Text), ("format", 2, Shape::Text)];
pub(super) const SECURITY: &[Field] = &[
    ("type", 1, Shape::Text),
    ("name", 2, Shape::Text),
    ("in", 3, Shape::Text),
    ("description", 4, Shape::Text),
];
/// A parameter in the body.
pub(super) const BODY_PARAMETER: &[Field] = &[
    ("description", 1, Shape::Text),
    ("name", 2, Shape::Text),
    ("in", 3, Shape::Text),
    ("required", 4, Shape::Bool),
    ("schema", 5, Shape::One(Message::Schema)),
];
/// A parameter in the query.
pub(super) const QUERY_PARAMETER: &[Field] = &[
    ("required", 1, Shape::Bool),
    ("in", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("name", 4, Shape::Text),
    ("type", 6, Shape::Text),
    ("format", 7, Shape::Text),
    ("items", 8, Shape::One(Message::Primitive)),
    ("default", 10, Shape::Any),
    ("uniqueItems", 20, Shape::Bool),
];
/// A parameter in the path or in a header.
pub(super) const PATH_PARAMETER: &[Field] = &[
    ("required", 1, Shape::Bool),
    ("in", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("name", 4, Shape::Text),
    ("type", 5, Shape::Text),
    ("format", 6, Shape::Text),
    ("items", 7, Shape::One(Message::Primitive)),
    ("default", 9, Shape::Any),
    ("uniqueItems", 19, Shape::Bool),
];
