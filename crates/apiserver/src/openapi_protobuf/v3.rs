//! The messages of gnostic's `openapi.v3`: JSON name, tag and shape of each field.

use super::{Field, Message, Shape};

pub(super) const DOCUMENT: &[Field] = &[
    ("openapi", 1, Shape::Text),
    ("info", 2, Shape::One(Message::Info3)),
    ("paths", 4, Shape::Named(Message::PathItem3)),
    ("components", 5, Shape::One(Message::Components3)),
    ("security", 6, Shape::Requirements),
];
pub(super) const INFO: &[Field] = &[
    ("title", 1, Shape::Text),
    ("description", 2, Shape::Text),
    ("termsOfService", 3, Shape::Text),
    ("version", 6, Shape::Text),
    ("summary", 8, Shape::Text),
];
pub(super) const PATH_ITEM: &[Field] = &[
    ("$ref", 1, Shape::Text),
    ("summary", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("get", 4, Shape::One(Message::Operation3)),
    ("put", 5, Shape::One(Message::Operation3)),
    ("post", 6, Shape::One(Message::Operation3)),
    ("delete", 7, Shape::One(Message::Operation3)),
    ("options", 8, Shape::One(Message::Operation3)),
    ("head", 9, Shape::One(Message::Operation3)),
    ("patch", 10, Shape::One(Message::Operation3)),
    ("trace", 11, Shape::One(Message::Operation3)),
    ("parameters", 13, Shape::Eithers(Message::Parameter3)),
];
pub(super) const OPERATION: &[Field] = &[
    ("tags", 1, Shape::Texts),
    ("summary", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("operationId", 5, Shape::Text),
    ("parameters", 6, Shape::Eithers(Message::Parameter3)),
    ("requestBody", 7, Shape::Either(Message::RequestBody3)),
    ("responses", 8, Shape::ResponsesEither),
    ("deprecated", 10, Shape::Bool),
    ("security", 11, Shape::Requirements),
];
pub(super) const PARAMETER: &[Field] = &[
    ("name", 1, Shape::Text),
    ("in", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("required", 4, Shape::Bool),
    ("deprecated", 5, Shape::Bool),
    ("allowEmptyValue", 6, Shape::Bool),
    ("style", 7, Shape::Text),
    ("explode", 8, Shape::Bool),
    ("allowReserved", 9, Shape::Bool),
    ("schema", 10, Shape::Either(Message::Schema3)),
    ("example", 11, Shape::Any),
    ("content", 13, Shape::Named(Message::MediaType3)),
];
pub(super) const REQUEST_BODY: &[Field] = &[
    ("description", 1, Shape::Text),
    ("content", 2, Shape::Named(Message::MediaType3)),
    ("required", 3, Shape::Bool),
];
pub(super) const RESPONSE: &[Field] =
    &[("description", 1, Shape::Text), ("content", 3, Shape::Named(Message::MediaType3))];
pub(super) const MEDIA_TYPE: &[Field] =
    &[("schema", 1, Shape::Either(Message::Schema3)), ("example", 2, Shape::Any)];
pub(super) const COMPONENTS: &[Field] = &[
    ("schemas", 1, Shape::NamedEither(Message::Schema3)),
    ("responses", 2, Shape::NamedEither(Message::Response3)),
    ("parameters", 3, Shape::NamedEither(Message::Parameter3)),
    ("requestBodies", 5, Shape::NamedEither(Message::RequestBody3)),
    ("securitySchemes", 7, Shape::NamedEither(Message::SecurityScheme3)),
];
pub(super) const SECURITY_SCHEME: &[Field] = &[
    ("type", 1, Shape::Text),
    ("description", 2, Shape::Text),
    ("name", 3, Shape::Text),
    ("in", 4, Shape::Text),
    ("scheme", 5, Shape::Text),
    ("bearerFormat", 6, Shape::Text),
    ("openIdConnectUrl", 8, Shape::Text),
];
pub(super) const SCHEMA: &[Field] = &[
    ("nullable", 1, Shape::Bool),
    ("readOnly", 3, Shape::Bool),
    ("writeOnly", 4, Shape::Bool),
    ("example", 7, Shape::Any),
    ("deprecated", 8, Shape::Bool),
    ("title", 9, Shape::Text),
    ("multipleOf", 10, Shape::Double),
    ("maximum", 11, Shape::Double),
    ("exclusiveMaximum", 12, Shape::Bool),
    ("minimum", 13, Shape::Double),
    ("exclusiveMinimum", 14, Shape::Bool),
    ("maxLength", 15, Shape::Int),
    ("minLength", 16, Shape::Int),
    ("pattern", 17, Shape::Text),
    ("maxItems", 18, Shape::Int),
    ("minItems", 19, Shape::Int),
    ("uniqueItems", 20, Shape::Bool),
    ("maxProperties", 21, Shape::Int),
    ("minProperties", 22, Shape::Int),
    ("required", 23, Shape::Texts),
    ("enum", 24, Shape::Anys),
    ("type", 25, Shape::Text),
    ("allOf", 26, Shape::Eithers(Message::Schema3)),
    ("oneOf", 27, Shape::Eithers(Message::Schema3)),
    ("anyOf", 28, Shape::Eithers(Message::Schema3)),
    ("not", 29, Shape::One(Message::Schema3)),
    ("items", 30, Shape::ItemsEither),
    ("properties", 31, Shape::NamedEither(Message::Schema3)),
    ("additionalProperties", 32, Shape::AdditionalEither),
    ("default", 33, Shape::Default),
    ("description", 34, Shape::Text),
    ("format", 35, Shape::Text),
];
