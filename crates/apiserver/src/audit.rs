//! The audit log: who did what, at the level that the policy asks for, one JSON object per line and stage.
//!
//! `begin` writes the stage RequestReceived, `finish` ResponseComplete. A watch has ResponseStarted between them, and
//! is complete when its stream ends. Bodies are written as JSON whatever form they were sent in.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apimachinery::schema::Schema;
use apimachinery::status::Status;
use apimachinery::time;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Response, Uri};
use jiff::Timestamp;
use lifecycle::Tasks;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::warn;

use crate::body::Body;
use crate::config::AuditConfig;
use crate::request_info::RequestInfo;
use crate::user::UserInfo;
use crate::verbs::create::read_body;

/// Lines that may wait for the disk; more are dropped and counted.
const BACKLOG: usize = 4096;

/// Why auditing cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy is malformed.
    #[error("the audit policy is malformed")]
    Policy(#[from] serde_yaml_ng::Error),
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
    /// Whether the body that was sent belongs into it.
    pub fn wants_request(&self) -> bool {
        self.level >= Level::Request
    }

    /// Reads the body, notes it, and gives it back. `schema` is that of the addressed kind.
    pub async fn take_request(
        &mut self,
        body: Body,
        headers: &HeaderMap,
        schema: &Schema,
    ) -> Result<Body, Status> {
        let bytes = read_body(body).await?;
        self.put("requestObject", &bytes, headers, schema);
        Ok(Body::from(bytes))
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
                self.put("responseObject", &bytes, response.headers(), schema);
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

    fn put(&mut self, field: &str, bytes: &[u8], headers: &HeaderMap, schema: &Schema) {
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let packed = headers.get(CONTENT_ENCODING).is_some_and(|value| value == "gzip");
        let mut unpacked = Vec::new();
        let bytes = if packed {
            match flate2::read::GzDecoder::new(bytes).read_to_end(&mut unpacked) {
                Ok(_) => &unpacked,
                Err(_) => return,
            }
        } else {
            bytes
        };
        let value = if kind.contains("protobuf") {
            apimachinery::protobuf::decode(bytes, schema).ok()
        } else if kind.contains("yaml") {
            serde_yaml_ng::from_slice::<Value>(bytes).ok()
        } else {
            serde_json::from_slice::<Value>(bytes).ok()
        };
        let Some(mut value) = value.filter(|value| !value.is_null()) else { return };
        if self.omit_managed_fields {
            forget_managers(&mut value);
            value["items"].as_array_mut().into_iter().flatten().for_each(forget_managers);
            if value["items"].is_null()
                && let Some(map) = value.as_object_mut()
            {
                map.shift_remove("items");
            }
        }
        self.event[field] = value;
    }
}

fn forget_managers(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
}

/// The log and its policy.
pub struct Audit {
    policy: Policy,
    lines: mpsc::Sender<String>,
}

impl Audit {
    /// Opens the log; lines are written by a task.
    pub fn open(config: &AuditConfig, tasks: &Tasks) -> Result<Self, AuditError> {
        let policy: Policy = serde_yaml_ng::from_str(&config.policy)?;
        let mut log = Log::open(config)?;
        let (lines, mut inbox) = mpsc::channel::<String>(BACKLOG);
        tasks.spawn("audit-log", |stop| async move {
            loop {
                let line = tokio::select! {
                    biased;
                    line = inbox.recv() => line,
                    () = stop.requested() => inbox.try_recv().ok(),
                };
                let Some(line) = line else { break };
                if let Err(error) = log.write(&line) {
                    warn!(%error, "cannot write the audit log");
                }
            }
        });
        Ok(Self { policy, lines })
    }

    /// Begins a record, if the policy wants one.
    #[allow(clippy::too_many_arguments)] // the parts of a request, each from another place
    pub fn begin(
        &self,
        id: &str,
        user: &UserInfo,
        impersonated: Option<&UserInfo>,
        info: &RequestInfo,
        uri: &Uri,
        headers: &HeaderMap,
        remote: Option<SocketAddr>,
    ) -> Option<Record> {
        let rule = self.policy.rules.iter().find(|rule| rule.matches(user, info))?;
        if rule.level == Level::None {
            return None;
        }
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": format!("{:?}", rule.level), "auditID": id,
            "stage": "ResponseComplete", "requestURI": uri.path_and_query().map_or("/", |uri| uri.as_str()), "verb": info.verb, "user": user,
            "sourceIPs": remote.map(|remote| vec![remote.ip().to_string()]).unwrap_or_default(),
            "userAgent": headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default(),
            "requestReceivedTimestamp": time::micros(Timestamp::now()),
        });
        if let Some(other) = impersonated {
            event["impersonatedUser"] = json!(other);
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
        let record = Record { level: rule.level, event, omit, omit_managed_fields };
        self.write(&record, "RequestReceived");
        Some(record)
    }

    /// Notes that a watch has begun to answer.
    pub fn started(&self, record: &mut Record, code: u16) {
        record.event["responseStatus"] = json!({"metadata": {}, "code": code});
        self.write(record, "ResponseStarted");
    }

    fn write(&self, record: &Record, stage: &str) {
        if record.omit.iter().any(|own| own == stage) {
            return;
        }
        let mut event = record.event.clone();
        event["stage"] = json!(stage);
        let now = if stage == "RequestReceived" {
            event["requestReceivedTimestamp"].clone()
        } else {
            json!(time::micros(Timestamp::now()))
        };
        event["stageTimestamp"] = now;
        if self.lines.try_send(event.to_string()).is_err() {
            warn!("the audit log cannot keep up; a record was dropped");
        }
    }

    /// Writes that somebody unknown was turned away.
    pub fn unauthenticated(&self, mut record: Record) {
        record.event["responseStatus"] = json!({"metadata": {}, "status": "Failure", "reason": "Unauthorized",
            "message": "Authentication failed", "code": 401});
        self.write(&record, "ResponseStarted");
    }

    /// Writes that a request was never answered because its handler broke.
    pub fn panicked(&self, mut record: Record) {
        record.event["responseStatus"] = json!({"metadata": {}, "status": "Failure", "reason": "InternalError",
            "message": "the request could not be finished because of a fault in the server", "code": 500});
        self.write(&record, "Panic");
    }

    /// Ends a record and writes it.
    pub fn finish(&self, mut record: Record, code: u16, message: &str) {
        record.event["responseStatus"] = json!({"metadata": {}, "code": code});
        if !message.is_empty() {
            record.event["responseStatus"]["message"] = json!(message);
            record.event["responseStatus"]["status"] = json!("Failure");
        }
        self.write(&record, "ResponseComplete");
    }
}

/// A file that is rotated by size.
struct Log {
    path: PathBuf,
    out: Box<dyn Write + Send>,
    written: u64,
    limit: u64,
    keep: usize,
    max_age: Option<Duration>,
}

impl Log {
    fn open(config: &AuditConfig) -> Result<Self, AuditError> {
        let path = config.path.clone();
        let to_stdout = path == Path::new("-");
        let (out, written) = if to_stdout {
            (Box::new(std::io::stdout()) as Box<dyn Write + Send>, 0)
        } else {
            open_file(&path).map_err(|source| AuditError::Open { path: path.clone(), source })?
        };
        let limit = if to_stdout || config.max_size == 0 { u64::MAX } else { config.max_size << 20 };
        let max_age = (config.max_age_days > 0)
            .then(|| Duration::from_secs(config.max_age_days.saturating_mul(86_400)));
        Ok(Self { path, out, written, limit, keep: config.max_backup, max_age })
    }

    fn write(&mut self, line: &str) -> std::io::Result<()> {
        if self.written + line.len() as u64 > self.limit {
            self.rotate()?;
        }
        self.out.write_all(line.as_bytes())?;
        self.out.write_all(b"\n")?;
        self.written += line.len() as u64 + 1;
        self.out.flush()
    }

    fn rotate(&mut self) -> std::io::Result<()> {
        let stem = self.path.with_extension("");
        let name = |number: usize| PathBuf::from(format!("{}-{number}.log", stem.display()));
        for number in (1..self.keep.max(1)).rev() {
            if name(number).exists() {
                std::fs::rename(name(number), name(number + 1))?;
            }
        }
        std::fs::rename(&self.path, name(1))?;
        if let Some(max_age) = self.max_age {
            for number in 2..=self.keep.max(1) {
                let old = std::fs::metadata(name(number)).and_then(|file| file.modified());
                if old.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > max_age)) {
                    std::fs::remove_file(name(number))?;
                }
            }
        }
        (self.out, self.written) = open_file(&self.path)?;
        Ok(())
    }
}

fn open_file(path: &Path) -> std::io::Result<(Box<dyn Write + Send>, u64)> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    let size = file.metadata()?.len();
    Ok((Box::new(file), size))
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
}
