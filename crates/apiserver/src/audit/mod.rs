//! Auditing: who did what, at the level that the policy asks for, one event per stage. [`output`] says where they go.
//!
//! `begin` writes the stage RequestReceived, `finish` ResponseComplete. A watch has ResponseStarted between them, and
//! is complete when its stream ends. Bodies are written as JSON whatever form they were sent in.

pub mod log;
pub mod output;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::Definition;
use apimachinery::decode::FieldValidation;
use apimachinery::schema::Schema;
use apimachinery::status::Status;
use apimachinery::time;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Response, Uri};
use jiff::Timestamp;
use lifecycle::Tasks;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use self::output::{Lost, Output};
use crate::body::Body;
use crate::codec::{self, Expected};
use crate::config::AuditConfig;
use crate::negotiate;
use crate::request_info::RequestInfo;
use crate::user::UserInfo;
use crate::verbs::create::read_body;

/// Why auditing cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy is malformed.
    #[error("the audit policy is malformed")]
    Policy(#[from] serde_yaml_ng::Error),
    /// The webhook cannot be used.
    #[error("the audit webhook cannot be used")]
    Webhook(#[from] crate::outbound::WebhookError),
    /// The log cannot be opened.
    #[error("cannot open the audit log {path}")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// How much is written of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    /// Nothing.
    None,
    /// Who, what, when.
    Metadata,
    /// And the body that was sent.
    Request,
    /// And the body of the answer.
    RequestResponse,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    #[serde(default)]
    rules: Vec<PolicyRule>,
    #[serde(default)]
    omit_stages: Vec<String>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyRule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

impl PolicyRule {
    fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        let among = |list: &[String], one: &str| list.is_empty() || list.iter().any(|own| own == one);
        if !among(&self.users, &user.name)
            || !(self.user_groups.is_empty() || self.user_groups.iter().any(|group| user.is_in(group)))
            || !(self.verbs.is_empty() || self.verbs.iter().any(|verb| verb == info.verb || verb == "*"))
        {
            return false;
        }
        if !info.is_resource {
            return self.resources.is_empty()
                && self.namespaces.is_empty()
                && (self.urls.is_empty()
                    || self.urls.iter().any(|own| {
                        own == "*"
                            || *own == info.path
                            || own.strip_suffix('*').is_some_and(|start| info.path.starts_with(start))
                    }));
        }
        if !self.urls.is_empty() || !among(&self.namespaces, &info.namespace) {
            return false;
        }
        let path = info.resource_path();
        self.resources.is_empty()
            || self.resources.iter().any(|own| {
                (own.group == info.group || own.group == "*")
                    && (own.resources.is_empty()
                        || own.resources.iter().any(|one| {
                            one == "*"
                                || *one == path
                                || one.strip_prefix("*/").is_some_and(|sub| sub == info.subresource)
                                || one.strip_suffix("/*").is_some_and(|main| main == info.resource)
                        }))
                    && among(&own.resource_names, &info.name)
            })
    }
}

/// A record that is being made.
pub struct Record {
    level: Level,
    event: Value,
    omit: Vec<String>,
    omit_managed_fields: bool,
}

impl Record {
    /// Notes in whose name it is done, and what bounds that.
    pub fn impersonated(&mut self, other: &UserInfo, constraint: Option<&str>) {
        self.event["impersonatedUser"] = json!(other);
        if let Some(constraint) = constraint {
            self.event["authenticationMetadata"] = json!({"impersonationConstraint": constraint});
        }
    }

    /// Whether the body that was sent belongs into it.
    pub fn wants_request(&self) -> bool {
        self.level >= Level::Request
    }

    /// Reads the body, notes it, and gives it back. `definition` is that of the addressed kind.
    pub async fn take_request(
        &mut self,
        body: Body,
        headers: &HeaderMap,
        definition: &Definition,
        info: &RequestInfo,
    ) -> Result<Body, Status> {
        let bytes = read_body(body).await?;
        let whole =
            matches!(info.verb, "create" | "update") && matches!(info.subresource.as_str(), "" | "status");
        let value = match (whole, negotiate::content_format(headers)) {
            // An object is told as the server understood it, with what it means by itself.
            (true, Some(format)) => {
                let names = &definition.names;
                let api_version = match &*names.group {
                    "" => names.version.to_string(),
                    group => format!("{group}/{}", names.version),
                };
                let schema = &definition.schema;
                let expected = Expected { api_version: &api_version, kind: &names.kind, schema, exact: true };
                let read = codec::decode(&bytes, format, &expected, FieldValidation::Ignore);
                read.ok().map(|(mut value, _)| {
                    definition.set_defaults(&mut value);
                    value
                })
            }
            (true, None) => None,
            (false, _) => decoded(&bytes, headers, &definition.schema),
        };
        if let Some(mut value) = value {
            if matches!(info.verb, "delete" | "deletecollection") {
                value["apiVersion"] = json!("meta.k8s.io/__internal");
            }
            self.put("requestObject", value);
        }
        Ok(Body::from(bytes))
    }

    /// Notes an answer that is a status.
    pub fn take_status(&mut self, response: &Response<Body>) {
        const START: &[u8] = b"{\"kind\":\"Status\"";
        if let Body::Full(bytes) = response.body()
            && bytes.len() < 64 * 1024
            && (bytes.starts_with(START) || bytes.starts_with(b"{\n  \"kind\": \"Status\""))
            && let Ok(status) = serde_json::from_slice::<Value>(bytes)
        {
            self.told(&status);
        }
    }

    /// Notes a refusal.
    pub fn refused(&mut self, status: &Status) {
        let status = status.to_value();
        self.told(&status);
        if self.wants_response() {
            self.event["responseObject"] = status;
        }
    }

    fn told(&mut self, status: &Value) {
        let mut told = json!({"metadata": {}});
        for field in ["status", "message", "reason", "details", "code"] {
            if let Some(value) = status.get(field) {
                told[field] = value.clone();
            }
        }
        // What could not be made is named by what is said of it.
        let name = status["details"]["name"].as_str().filter(|_| self.is_nameless());
        if let Some(name) = name {
            self.event["objectRef"]["name"] = json!(name);
        }
        self.event["responseStatus"] = told;
    }

    fn is_nameless(&self) -> bool {
        self.event["verb"] == "create"
            && self.event["objectRef"].is_object()
            && self.event["objectRef"].get("name").is_none()
    }

    /// Whether the body of the answer belongs into it.
    pub fn wants_response(&self) -> bool {
        self.level >= Level::RequestResponse
    }

    /// Reads the answer's body, notes it, and gives it back.
    pub async fn take_response(&mut self, response: &mut Response<Body>, schema: &Schema) {
        let body = std::mem::take(response.body_mut());
        match body.read(usize::MAX).await {
            Ok(bytes) => {
                if let Some(value) = decoded(&bytes, response.headers(), schema) {
                    self.put("responseObject", value);
                }
                *response.body_mut() = Body::from(bytes);
            }
            // An answer that is made here does not break; if it did, the client learns it from its length.
            Err(error) => warn!(error = %telemetry::chain(&error), "an answer could not be audited"),
        }
    }

    /// Adds what the server found out on the way.
    pub fn annotate(&mut self, annotations: impl IntoIterator<Item = (String, String)>) {
        for (key, value) in annotations {
            self.event["annotations"][key] = json!(value);
        }
    }

    /// Names what was created: its path says no name. A name that was made up belongs to the answer only.
    pub fn take_name(&mut self, response: &Response<Body>, schema: &Schema) {
        let nameless = self.is_nameless();
        if let (true, true, Body::Full(bytes)) = (nameless, response.status().is_success(), response.body())
            && let Some(object) = decoded(bytes, response.headers(), schema)
            && object["metadata"].get("generateName").is_none()
            && let Some(name) = object["metadata"]["name"].as_str()
        {
            self.event["objectRef"]["name"] = json!(name);
        }
    }

    fn put(&mut self, field: &str, mut value: Value) {
        if self.omit_managed_fields {
            forget_managers(&mut value);
            value["items"].as_array_mut().into_iter().flatten().for_each(forget_managers);
            if value["items"].is_null()
                && let Some(map) = value.as_object_mut()
            {
                map.shift_remove("items");
            }
        }
        if field == "requestObject"
            && self.event["objectRef"].is_object()
            && self.event["objectRef"].get("name").is_none()
            && let Some(name) = value["metadata"]["name"].as_str()
        {
            self.event["objectRef"]["name"] = json!(name);
        }
        self.event[field] = value;
    }
}

/// A body as JSON, whatever form it was sent in.
fn decoded(bytes: &[u8], headers: &HeaderMap, schema: &Schema) -> Option<Value> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let packed = headers.get(CONTENT_ENCODING).is_some_and(|value| value == "gzip");
    let mut unpacked = Vec::new();
    let bytes = if packed {
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut unpacked).ok()?;
        &unpacked
    } else {
        bytes
    };
    let value = if kind.contains("protobuf") {
        apimachinery::protobuf::decode(bytes, schema).ok()
    } else if kind.contains("yaml") {
        apimachinery::decode::parse_yaml(bytes).ok()
    } else {
        serde_json::from_slice::<Value>(bytes).ok()
    };
    value.filter(|value| !value.is_null())
}

fn forget_managers(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
}

/// What was audited and what was not.
#[derive(Debug, Default)]
pub struct Counted {
    /// Events that were made.
    pub events: AtomicU64,
    /// Requests by level, `None` first.
    pub levels: [AtomicU64; 4],
    /// Requests that were refused because their event could not be kept.
    pub rejected: AtomicU64,
    /// Events that were lost.
    pub lost: Arc<Lost>,
}

/// The policy and where events go.
pub struct Audit {
    policy: Policy,
    outputs: Vec<Arc<Output>>,
    tasks: Tasks,
    /// For the metrics.
    pub counted: Counted,
}

/// The first event of a request could not be kept, and must be.
#[derive(Debug)]
pub struct NotKept;

impl Audit {
    /// Opens the outputs.
    pub fn open(config: &AuditConfig, tasks: &Tasks) -> Result<Self, AuditError> {
        let policy: Policy = serde_yaml_ng::from_str(&config.policy)?;
        let counted = Counted::default();
        let outputs = output::open(config, &counted.lost, tasks)?;
        Ok(Self { policy, outputs, tasks: tasks.clone(), counted })
    }

    /// Begins a record, if the policy wants one.
    #[allow(clippy::too_many_arguments)] // the parts of a request, each from another place
    pub async fn begin(
        &self,
        id: &str,
        user: &UserInfo,
        info: &RequestInfo,
        uri: &Uri,
        headers: &HeaderMap,
        remote: Option<SocketAddr>,
    ) -> Result<Option<Record>, NotKept> {
        let Some(record) = self.make(id, user, info, uri, headers, remote) else { return Ok(None) };
        if !self.write(&record, "RequestReceived").await {
            self.counted.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(NotKept);
        }
        Ok(Some(record))
    }

    fn make(
        &self,
        id: &str,
        user: &UserInfo,
        info: &RequestInfo,
        uri: &Uri,
        headers: &HeaderMap,
        remote: Option<SocketAddr>,
    ) -> Option<Record> {
        let rule = self.policy.rules.iter().find(|rule| rule.matches(user, info));
        let level = rule.map_or(Level::None, |rule| rule.level);
        self.counted.levels[level as usize].fetch_add(1, Ordering::Relaxed);
        let rule = rule.filter(|rule| rule.level != Level::None)?;
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": format!("{:?}", rule.level), "auditID": id,
            "stage": "ResponseComplete", "requestURI": uri.path_and_query().map_or("/", |uri| uri.as_str()), "verb": info.verb, "user": user,
            "sourceIPs": source_ips(headers, remote),
            "requestReceivedTimestamp": time::micros(Timestamp::now()),
        });
        let agent = headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
        if let Some(agent) = agent.filter(|agent| !agent.is_empty()) {
            event["userAgent"] = json!(agent);
        }
        if info.is_resource {
            let mut object = json!({"resource": info.resource, "apiVersion": info.version});
            for (field, value) in [
                ("namespace", &info.namespace),
                ("name", &info.name),
                ("apiGroup", &info.group),
                ("subresource", &info.subresource),
            ] {
                if !value.is_empty() {
                    object[field] = json!(value);
                }
            }
            event["objectRef"] = object;
        }
        let omit = rule.omit_stages.iter().chain(&self.policy.omit_stages).cloned().collect();
        let omit_managed_fields = rule.omit_managed_fields.unwrap_or(self.policy.omit_managed_fields);
        Some(Record { level: rule.level, event, omit, omit_managed_fields })
    }

    /// Notes that a watch has begun to answer.
    pub async fn started(&self, record: &mut Record, code: u16) {
        answered(record, code);
        self.write(record, "ResponseStarted").await;
    }

    /// Hands an event to every output; whether none that must not lose it did.
    async fn write(&self, record: &Record, stage: &str) -> bool {
        let Some(event) = self.event(record, stage) else { return true };
        let mut good = true;
        for output in &self.outputs {
            good &= output.take(&event).await;
        }
        good
    }

    /// The same where nobody can wait.
    fn write_aside(&self, record: &Record, stage: &str) {
        let Some(event) = self.event(record, stage) else { return };
        self.outputs.iter().for_each(|output| output.take_aside(&event, &self.tasks));
    }

    fn event(&self, record: &Record, stage: &str) -> Option<Arc<Value>> {
        if record.omit.iter().any(|own| own == stage) {
            return None;
        }
        self.counted.events.fetch_add(1, Ordering::Relaxed);
        let mut event = record.event.clone();
        event["stage"] = json!(stage);
        let now = if stage == "RequestReceived" {
            event["requestReceivedTimestamp"].clone()
        } else {
            json!(time::micros(Timestamp::now()))
        };
        event["stageTimestamp"] = now;
        Some(Arc::new(event))
    }

    /// Writes that somebody unknown was turned away.
    #[allow(clippy::too_many_arguments)] // as above
    pub async fn unauthenticated(
        &self,
        id: &str,
        info: &RequestInfo,
        uri: &Uri,
        headers: &HeaderMap,
        remote: Option<SocketAddr>,
    ) {
        if let Some(mut record) = self.make(id, &UserInfo::default(), info, uri, headers, remote) {
            record.refused(&Status::unauthorized());
            self.write(&record, "ResponseStarted").await;
        }
    }

    /// Writes that a request was never answered because its handler broke.
    pub fn panicked(&self, mut record: Record) {
        record.event["responseStatus"] = json!({"metadata": {}, "status": "Failure", "reason": "InternalError",
            "message": "the request could not be finished because of a fault in the server", "code": 500});
        self.write_aside(&record, "Panic");
    }

    /// Ends a record and writes it.
    pub async fn finish(&self, mut record: Record, code: u16) {
        answered(&mut record, code);
        self.write(&record, "ResponseComplete").await;
    }

    /// The same where nobody can wait.
    pub fn finish_aside(&self, mut record: Record, code: u16) {
        answered(&mut record, code);
        self.write_aside(&record, "ResponseComplete");
    }
}

/// Notes the code, beside what the answer said of itself.
fn answered(record: &mut Record, code: u16) {
    if !record.event["responseStatus"].is_object() {
        record.event["responseStatus"] = json!({"metadata": {}});
    }
    record.event["responseStatus"]["code"] = json!(code);
}

/// Where a request comes from: what proxies say, and who asks.
fn source_ips(headers: &HeaderMap, remote: Option<SocketAddr>) -> Vec<String> {
    let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let address = |text: &str| text.trim().parse::<IpAddr>().ok();
    let mut found: Vec<IpAddr> = said("x-forwarded-for").split(',').filter_map(address).collect();
    for one in [address(said("x-real-ip")), remote.map(|remote| remote.ip())].into_iter().flatten() {
        if found.last() != Some(&one) {
            found.push(one);
        }
    }
    found.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_info::Query;

    #[test]
    fn the_first_matching_rule_decides_the_level() {
        let policy: Policy = serde_yaml_ng::from_str(
            "rules:\n- level: None\n  users: [quiet]\n- level: Metadata\n  resources:\n  - group: ''\n    resources: [secrets]\n- level: Request\n",
        )
        .unwrap();
        let level = |user: &str, path: &str| {
            let info = RequestInfo::parse(&http::Method::GET, path, &Query::default());
            let user = UserInfo::new(user, &[]);
            policy.rules.iter().find(|rule| rule.matches(&user, &info)).map(|rule| rule.level)
        };
        assert_eq!(level("quiet", "/api/v1/pods"), Some(Level::None));
        assert_eq!(level("ann", "/api/v1/namespaces/a/secrets/b"), Some(Level::Metadata));
        assert_eq!(level("ann", "/api/v1/pods"), Some(Level::Request));
        assert_eq!(level("ann", "/healthz"), Some(Level::Request));
    }

    #[test]
    fn proxies_say_where_a_request_comes_from() {
        let mut headers = HeaderMap::new();
        let remote = Some("127.0.0.1:9".parse().unwrap());
        assert_eq!(source_ips(&headers, remote), ["127.0.0.1"]);
        headers.insert("x-forwarded-for", "1.2.3.4, nonsense, 5.6.7.8".parse().unwrap());
        headers.insert("x-real-ip", "5.6.7.8".parse().unwrap());
        assert_eq!(source_ips(&headers, remote), ["1.2.3.4", "5.6.7.8", "127.0.0.1"]);
    }

    #[test]
    fn an_answer_is_told_with_what_it_says_of_itself() {
        let event = json!({"verb": "create", "objectRef": {"resource": "configmaps"}});
        let mut record =
            Record { level: Level::RequestResponse, event, omit: Vec::new(), omit_managed_fields: false };
        record.refused(&Status::already_exists("", "configmaps", "a"));
        answered(&mut record, 409);
        let told = &record.event["responseStatus"];
        assert_eq!((&told["reason"], &told["code"]), (&json!("AlreadyExists"), &json!(409)));
        assert_eq!(told["details"]["name"], "a");
        assert_eq!(record.event["objectRef"]["name"], "a");
        assert_eq!(record.event["responseObject"]["kind"], "Status");
        let body = json!({"kind": "Status", "status": "Success", "details": {"name": "a"}}).to_string();
        let mut record = Record { event: json!({}), ..record };
        record.take_status(&Response::new(Body::from(body)));
        answered(&mut record, 200);
        assert_eq!(record.event["responseStatus"]["status"], "Success");
    }
}
