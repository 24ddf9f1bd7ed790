//! An adversary that lets every write succeed and undoes it before the answer arrives.
//!
//! What was created is removed, what was changed is put back, what was removed is made anew: as a webhook that reverts, a
//! second controller of another opinion, or a user's script in a loop would.

use std::sync::Arc;

use apiserver::{ApiServer, UserInfo};
use bytes::Bytes;
use client::{Body, TransportError, full_body};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

async fn ask(server: &Arc<ApiServer>, method: Method, path: &str, body: Option<&Value>) -> Option<Value> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(apiserver::Body::Full(body.map(|body| body.to_string().into()).unwrap_or_default()))
        .ok()?;
    let response = server.handle(UserInfo::loopback(), request).await;
    let succeeded = response.status().is_success();
    let bytes = response.into_body().collect().await.ok()?.to_bytes();
    serde_json::from_slice(&bytes).ok().filter(|_| succeeded)
}

/// Removes an object at once, whatever holds it.
async fn remove(server: &Arc<ApiServer>, path: &str) {
    if let Some(mut object) = ask(server, Method::GET, path, None).await
        && object["metadata"]["finalizers"].is_array()
    {
        object["metadata"]["finalizers"] = json!([]);
        ask(server, Method::PUT, path, Some(&object)).await;
    }
    ask(server, Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), None).await;
}

/// Puts an object as it was, under whatever revision it has now.
async fn restore(server: &Arc<ApiServer>, path: &str, mut old: Value) {
    if let Some(metadata) = old["metadata"].as_object_mut() {
        metadata.shift_remove("resourceVersion");
        metadata.shift_remove("managedFields");
    }
    ask(server, Method::PUT, path, Some(&old)).await;
}

/// Makes an object anew that was removed.
async fn renew(server: &Arc<ApiServer>, path: &str, mut old: Value) {
    if let Some(metadata) = old["metadata"].as_object_mut() {
        for field in [
            "resourceVersion",
            "uid",
            "creationTimestamp",
            "managedFields",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        ] {
            metadata.shift_remove(field);
        }
    }
    if let Some((collection, _)) = path.rsplit_once('/') {
        ask(server, Method::POST, collection, Some(&old)).await;
    }
}

/// Does what was asked, then undoes it.
pub async fn pass(server: &Arc<ApiServer>, who: &UserInfo, request: Request<Bytes>) -> Response<Body> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let old = if method == Method::POST { None } else { ask(server, Method::GET, &path, None).await };
    let response = server.handle(who.clone(), request.map(apiserver::Body::Full)).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if parts.status.is_success() {
        match (method, old) {
            (Method::POST, _) => {
                let made: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                // What is posted to a subresource (an eviction, a token) is not an object.
                if let Some(name) =
                    made["metadata"]["name"].as_str().filter(|name| !path.contains(&format!("/{name}/")))
                {
                    remove(server, &format!("{path}/{name}")).await;
                }
            }
            (Method::DELETE, Some(old)) => renew(server, &path, old).await,
            (_, Some(old)) => restore(server, &path, old).await,
            (_, None) => {}
        }
    }
    Response::from_parts(parts, full_body(bytes))
        .map(|body: Body| body.map_err(TransportError::broken).boxed_unsync())
}
