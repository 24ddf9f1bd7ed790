//! One request as the verbs see it: who, what, which resource, and the options that all verbs share.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use apimachinery::decode::FieldValidation;
use apimachinery::status::Status;
use http::HeaderMap;
use http::header::USER_AGENT;
use serde_json::Value;

use crate::conversion::Books;
use crate::metrics::requests::LongRunning;
use crate::negotiate::Accepted;
use crate::registry::Resource;
use crate::request_info::{Query, RequestInfo};
use crate::user::UserInfo;

/// A request on a resource.
pub struct Context {
    /// Who.
    pub user: Arc<UserInfo>,
    /// What.
    pub info: RequestInfo,
    /// The query.
    pub query: Query,
    /// The headers.
    pub headers: HeaderMap,
    /// The resource.
    pub resource: Arc<Resource>,
    /// The wanted form of the answer.
    pub accepted: Accepted,
    /// Whether it came over a network, and not from another part of this process.
    pub remote: bool,
    /// Whether compressing the answer is worth it.
    pub compress: bool,
    /// Kept for as long as a watch or stream lasts.
    pub running: Option<LongRunning>,
    /// The object in the versions that its managers wrote in.
    pub books: Books,
    warnings: Mutex<Warnings>,
    annotations: Mutex<Vec<(String, String)>>,
}

/// Each warning once, in the order in which they came.
#[derive(Default)]
struct Warnings {
    list: Vec<String>,
    known: HashSet<String>,
}

impl Context {
    /// A request.
    pub fn new(
        user: Arc<UserInfo>,
        info: RequestInfo,
        query: Query,
        headers: HeaderMap,
        resource: Arc<Resource>,
        accepted: Accepted,
    ) -> Self {
        Self {
            user,
            info,
            query,
            headers,
            resource,
            accepted,
            remote: false,
            compress: false,
            running: None,
            books: Books::default(),
            warnings: Mutex::default(),
            annotations: Mutex::default(),
        }
    }

    /// A request of the server itself, on behalf of `user`.
    pub fn internal(
        user: Arc<UserInfo>,
        resource: Arc<Resource>,
        verb: &'static str,
        namespace: &str,
        name: &str,
    ) -> Self {
        let info = RequestInfo {
            is_resource: true,
            verb,
            group: resource.group().to_owned(),
            version: resource.version().to_owned(),
            resource: resource.plural().to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..RequestInfo::default()
        };
        Self::new(user, info, Query::default(), HeaderMap::new(), resource, Accepted::JSON)
    }

    /// Adds a warning that the client will see.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if warnings.known.insert(text.clone()) {
            warnings.list.push(text);
        }
    }

    /// The warnings so far.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())).list
    }

    /// Adds an annotation to the audit record.
    pub fn audit(&self, key: &str, value: impl Into<String>) {
        self.annotations
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push((key.to_owned(), value.into()));
    }

    /// The audit annotations so far.
    pub fn take_annotations(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.annotations.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Whether nothing may be stored.
    pub fn dry_run(&self) -> Result<bool, Status> {
        let mut dry = false;
        for value in self.query.all("dryRun") {
            if value != "All" {
                let text = format!("Invalid value: \"dryRun\": {value:?}: supported values: \"All\"");
                return Err(Status::bad_request(text));
            }
            dry = true;
        }
        Ok(dry)
    }

    /// What happens to unknown fields.
    pub fn field_validation(&self) -> Result<FieldValidation, Status> {
        let text = self.query.get("fieldValidation").unwrap_or_default();
        FieldValidation::parse(text).ok_or_else(|| {
            Status::bad_request(format!(
                "fieldValidation: Unsupported value: {text:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))
        })
    }

    /// Who manages the fields that are written: as said, or the program's name from the user agent.
    pub fn field_manager(&self) -> String {
        if let Some(manager) = self.query.get("fieldManager").filter(|manager| !manager.is_empty()) {
            return manager.to_owned();
        }
        let agent = self.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let program = agent.split('/').next().unwrap_or_default();
        let printable: String = program.chars().filter(|letter| !letter.is_control()).take(128).collect();
        if printable.is_empty() { "unknown".to_owned() } else { printable }
    }

    /// 404 for the addressed object.
    pub fn not_found(&self) -> Status {
        Status::not_found(self.resource.group(), self.resource.plural(), &self.info.name)
    }

    /// 422 for an object.
    pub fn invalid(&self, object: &Value, problems: &apimachinery::field::Problems) -> Status {
        use apimachinery::meta::Meta;
        let name = if object.name().is_empty() { object.generate_name() } else { object.name() };
        // Events of either group are judged as those of the core.
        let group = &self.resource.definition.storage.group;
        Status::invalid(group, self.resource.kind(), name, problems)
    }
}
