//! POST to a collection.

use apimachinery::decode::MAX_BYTES;
use apimachinery::schema::Schema;
use apimachinery::status::Status;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;

use crate::body::{Body, ReadError};
use crate::codec::{self, Expected};
use crate::context::Context;
use crate::negotiate;
use crate::respond;
use crate::server::ApiServer;
use crate::store::WriteOptions;

/// Reads a request body up to the limit.
pub async fn read_body(body: Body) -> Result<Bytes, Status> {
    body.read(MAX_BYTES).await.map_err(|error| match error {
        ReadError::TooLarge { limit } => Status::too_large(format!("limit is {limit}")),
        ReadError::Io(error) => Status::bad_request(format!("the request body did not arrive: {error}")),
    })
}

/// Decodes a body as the kind of the addressed resource; warnings go to the context.
pub fn decode_own(context: &Context, bytes: &[u8]) -> Result<Value, Status> {
    let resource = &context.resource;
    let definition = &resource.definition;
    let kind = resource.kind();
    let object = decode_as(context, bytes, &resource.api_version, kind, &definition.schema)?;
    if let Some(why) = definition.unreadable(&object) {
        let version = &definition.names.version;
        return Err(Status::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        )));
    }
    Ok(object)
}

/// Decodes a body as some kind.
pub fn decode_as(
    context: &Context,
    bytes: &[u8],
    api_version: &str,
    kind: &str,
    schema: &Schema,
) -> Result<Value, Status> {
    let format = negotiate::content_format(&context.headers).ok_or_else(|| {
        Status::unsupported_media_type(&[
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
        ])
    })?;
    let expected = Expected { api_version, kind, schema, exact: true };
    let (value, warnings) = codec::decode(bytes, format, &expected, context.field_validation()?)?;
    warnings.into_iter().for_each(|warning| context.warn(warning));
    Ok(value)
}

impl ApiServer {
    /// Creates an object.
    pub async fn create(&self, context: &Context, body: Body) -> Result<Response<Body>, Status> {
        let bytes = read_body(body).await?;
        let object = decode_own(context, &bytes)?;
        let options = WriteOptions::of(context)?;
        let entry = self.create_object(context, object, &options).await?;
        let entry = self.shown(&context.resource, entry).await?;
        respond::object(context, StatusCode::CREATED, &entry)
    }
}
