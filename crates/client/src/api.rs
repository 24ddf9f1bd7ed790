//! Requests: one builder for every resource, namespace, object and subresource.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::watch::WatchStream;
use crate::{Body, Error, Resource, Transport, read};

/// A connection to one API server under one identity. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    user_agent: Arc<str>,
}

impl Client {
    /// A client that calls itself `user_agent` (also the default field manager of its writes).
    pub fn new(transport: Arc<dyn Transport>, user_agent: impl Into<Arc<str>>) -> Self {
        Self { transport, user_agent: user_agent.into() }
    }

    /// The same connection under another name.
    pub fn named(&self, user_agent: impl Into<Arc<str>>) -> Self {
        Self { transport: self.transport.clone(), user_agent: user_agent.into() }
    }

    /// All objects of a resource; narrow it with [`Api::within`].
    pub fn api(&self, resource: &Resource) -> Api {
        Api { client: self.clone(), resource: resource.clone(), namespace: None }
    }

    /// Sends a request as it is and returns the answer, whatever its code.
    pub async fn raw(&self, mut request: Request<Bytes>) -> Result<http::Response<Body>, Error> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if let Ok(agent) = header::HeaderValue::from_str(&self.user_agent) {
            request.headers_mut().entry(header::USER_AGENT).or_insert(agent);
        }
        self.transport.call(request).await.map_err(|source| Error::Transport { method, path, source })
    }

    /// GETs any path and decodes the JSON answer.
    pub async fn get_path<T: DeserializeOwned>(&self, path_and_query: &str) -> Result<T, Error> {
        self.send(Method::GET, path_and_query.to_owned(), None, Bytes::new()).await
    }

    /// POSTs JSON to any path and decodes the JSON answer.
    pub async fn post_path<T: DeserializeOwned>(
        &self,
        path_and_query: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let body = encode(path_and_query, body)?;
        self.send(Method::POST, path_and_query.to_owned(), Some("application/json"), body).await
    }

    /// Sends a request; an answer that is not a success becomes an error.
    async fn open(
        &self,
        method: Method,
        path: String,
        content_type: Option<&str>,
        body: Bytes,
    ) -> Result<http::Response<Body>, Error> {
        let mut request =
            Request::builder().method(method.clone()).uri(&path).header(header::ACCEPT, "application/json");
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(body).map_err(|source| Error::Request { path: path.clone(), source })?;
        let answer = self.raw(request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status();
        let retry_after =
            answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = collect(answer, &method, &path).await?;
        Err(Error::from_answer(code, retry_after, &body))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        content_type: Option<&str>,
        body: Bytes,
    ) -> Result<T, Error> {
        let answer = self.open(method.clone(), path.clone(), content_type, body).await?;
        let body = collect(answer, &method, &path).await?;
        read(&body).map_err(|source| Error::Decode { method, path, source })
    }
}

async fn collect(answer: http::Response<Body>, method: &Method, path: &str) -> Result<Bytes, Error> {
    let collected = answer.into_body().collect().await;
    let broken = |source| Error::Transport { method: method.clone(), path: path.to_owned(), source };
    Ok(collected.map_err(broken)?.to_bytes())
}

fn encode(path: &str, body: &impl Serialize) -> Result<Bytes, Error> {
    match serde_json::to_vec(body) {
        Ok(bytes) => Ok(bytes.into()),
        Err(source) => Err(Error::Encode { path: path.to_owned(), source }),
    }
}

/// Which objects a list or watch is about.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    /// `NotOlderThan` or `Exact`; empty leaves it to the server.
    pub resource_version_match: &'static str,
    pub limit: u32,
    pub continue_token: String,
}

impl ListOptions {
    /// Only objects whose field has a value, such as `spec.nodeName=worker-1`.
    pub fn fields(selector: impl Into<String>) -> Self {
        Self { field_selector: selector.into(), ..Self::default() }
    }

    /// Only objects with these labels.
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { label_selector: selector.into(), ..Self::default() }
    }

    /// What asks for the page after the one that carried this token.
    pub(crate) fn next_page(&self, continue_token: String) -> Self {
        let (resource_version, resource_version_match) = Default::default();
        Self { continue_token, resource_version, resource_version_match, ..self.clone() }
    }

    fn query(&self) -> Query {
        let mut query = Query::default();
        query.add("labelSelector", &self.label_selector);
        query.add("fieldSelector", &self.field_selector);
        query.add("resourceVersion", &self.resource_version);
        query.add("resourceVersionMatch", self.resource_version_match);
        if self.limit > 0 {
            query.add("limit", &self.limit.to_string());
        }
        query.add("continue", &self.continue_token);
        query
    }
}

/// A list as the server sent it.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct List<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    #[serde(default, deserialize_with = "null_as_empty")]
    pub items: Vec<T>,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// `metadata` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMetadata {
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub continue_token: String,
}

/// A change to an object, in one of the four forms that the server takes.
#[derive(Clone, Copy, Debug)]
pub enum Patch<'a> {
    Json(&'a Value),
    Merge(&'a Value),
    Strategic(&'a Value),
    Apply { manager: &'a str, force: bool, object: &'a Value },
}

/// What happens to the objects that the deleted one owns.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// How to delete.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<Propagation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Delete only this very object, or this very version of it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Delete the object with this uid and no successor of the same name.
    pub fn of_uid(uid: impl Into<String>) -> Self {
        let preconditions = Preconditions { uid: Some(uid.into()), resource_version: None };
        Self { preconditions: Some(preconditions), ..Self::default() }
    }

    pub fn grace(mut self, seconds: i64) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }

    pub fn propagation(mut self, policy: Propagation) -> Self {
        self.propagation_policy = Some(policy);
        self
    }

    pub fn at_revision(mut self, resource_version: impl Into<String>) -> Self {
        self.preconditions.get_or_insert_default().resource_version = Some(resource_version.into());
        self
    }
}

/// The objects of one resource, in one namespace or all.
#[derive(Clone)]
pub struct Api {
    client: Client,
    resource: Resource,
    namespace: Option<Box<str>>,
}

impl Api {
    /// Only the objects in this namespace. An empty name means all; cluster-wide resources ignore it.
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    fn path(&self, name: Option<&str>, subresource: Option<&str>) -> String {
        self.resource.path(self.namespace.as_deref(), name, subresource)
    }

    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        self.client.send(Method::GET, self.path(Some(name), None), None, Bytes::new()).await
    }

    /// The object, or `None` if there is none. Being unable to look is still an error.
    pub async fn find<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        match self.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One page of objects; see [`Api::list_all`].
    pub async fn list<T: DeserializeOwned>(&self, options: &ListOptions) -> Result<List<T>, Error> {
        let path = options.query().after(self.path(None, None));
        self.client.send(Method::GET, path, None, Bytes::new()).await
    }

    /// All objects, page by page.
    pub async fn list_all<T: DeserializeOwned>(&self, options: &ListOptions) -> Result<List<T>, Error> {
        let mut options = options.clone();
        let mut whole: List<T> = self.list(&options).await?;
        while !whole.metadata.continue_token.is_empty() {
            options = options.next_page(std::mem::take(&mut whole.metadata.continue_token));
            let mut page: List<T> = self.list(&options).await?;
            whole.items.append(&mut page.items);
            whole.metadata = page.metadata;
        }
        Ok(whole)
    }

    /// Changes after `options.resource_version`, with bookmarks. The server ends the stream after `seconds`.
    pub async fn watch(&self, options: &ListOptions, seconds: u32) -> Result<WatchStream, Error> {
        let mut query = options.query();
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        query.add("timeoutSeconds", &seconds.to_string());
        let path = query.after(self.path(None, None));
        let answer = self.client.open(Method::GET, path.clone(), None, Bytes::new()).await?;
        Ok(WatchStream::new(answer.into_body(), path))
    }

    pub async fn create<T: DeserializeOwned>(&self, object: &impl Serialize) -> Result<T, Error> {
        self.write(Method::POST, self.path(None, None), object).await
    }

    /// POSTs to a subresource: `binding`, `eviction`, `token`.
    pub async fn create_sub<T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        object: &impl Serialize,
    ) -> Result<T, Error> {
        self.write(Method::POST, self.path(Some(name), Some(subresource)), object).await
    }

    pub async fn replace<T: DeserializeOwned>(
        &self,
        name: &str,
        object: &impl Serialize,
    ) -> Result<T, Error> {
        self.write(Method::PUT, self.path(Some(name), None), object).await
    }

    pub async fn replace_sub<T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        object: &impl Serialize,
    ) -> Result<T, Error> {
        self.write(Method::PUT, self.path(Some(name), Some(subresource)), object).await
    }

    async fn write<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        object: &impl Serialize,
    ) -> Result<T, Error> {
        let body = encode(&path, object)?;
        self.client.send(method, path, Some("application/json"), body).await
    }

    pub async fn patch<T: DeserializeOwned>(&self, name: &str, patch: Patch<'_>) -> Result<T, Error> {
        self.send_patch(self.path(Some(name), None), patch).await
    }

    pub async fn patch_sub<T: DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        patch: Patch<'_>,
    ) -> Result<T, Error> {
        self.send_patch(self.path(Some(name), Some(subresource)), patch).await
    }

    async fn send_patch<T: DeserializeOwned>(&self, path: String, patch: Patch<'_>) -> Result<T, Error> {
        let mut query = Query::default();
        let (content_type, value) = match patch {
            Patch::Json(value) => ("application/json-patch+json", value),
            Patch::Merge(value) => ("application/merge-patch+json", value),
            Patch::Strategic(value) => ("application/strategic-merge-patch+json", value),
            Patch::Apply { manager, force, object } => {
                query.add("fieldManager", manager);
                query.add("force", if force { "true" } else { "" });
                ("application/apply-patch+yaml", object)
            }
        };
        let path = query.after(path);
        let body = encode(&path, value)?;
        self.client.send(Method::PATCH, path, Some(content_type), body).await
    }

    /// Asks for deletion. The answer is the object (still there, terminating) or a Status (gone).
    pub async fn delete(&self, name: &str, options: &DeleteOptions) -> Result<Value, Error> {
        self.write(Method::DELETE, self.path(Some(name), None), options).await
    }

    /// Deletes every object that the list options choose.
    pub async fn delete_collection(
        &self,
        options: &DeleteOptions,
        which: &ListOptions,
    ) -> Result<Value, Error> {
        self.write(Method::DELETE, which.query().after(self.path(None, None)), options).await
    }
}

/// A query string under construction; empty values are left out.
#[derive(Default)]
struct Query(String);

impl Query {
    fn add(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    self.0.push(byte.into())
                }
                _ => self.0.push_str(&format!("%{byte:02X}")),
            }
        }
    }

    fn after(&self, path: String) -> String {
        path + &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_escaped_in_the_query() {
        let options = ListOptions { label_selector: "app in (a,b)".into(), limit: 5, ..Default::default() };
        assert_eq!(
            options.query().after("/api/v1/pods".into()),
            "/api/v1/pods?labelSelector=app%20in%20%28a%2Cb%29&limit=5"
        );
    }

    #[test]
    fn a_list_may_have_null_items() {
        let list: List<Value> =
            serde_json::from_str(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#).unwrap();
        assert!(list.items.is_empty());
        assert_eq!(list.metadata.resource_version, "7");
    }

    #[test]
    fn delete_options_carry_only_what_was_asked() {
        let options = DeleteOptions::of_uid("u1").grace(0);
        assert_eq!(
            serde_json::to_string(&options).unwrap(),
            r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"u1"}}"#
        );
    }
}
