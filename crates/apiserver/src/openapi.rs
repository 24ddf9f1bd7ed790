//! The OpenAPI documents, made when first asked for and again when the registry changed.

use std::sync::Arc;

use apimachinery::status::Status;
use http::{HeaderMap, Response};

use crate::body::Body;
use crate::request_info::Query;
use crate::server::ApiServer;

impl ApiServer {
    /// GET below `/openapi`.
    pub(crate) fn openapi_document(
        self: &Arc<Self>,
        _parts: &[&str],
        _headers: &HeaderMap,
        _query: &Query,
    ) -> Result<Response<Body>, Status> {
        Err(Status::no_such_path())
    }
}
