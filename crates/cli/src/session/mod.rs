//! One session: the kubeconfig, the connection, and what the server serves, each found when it is first needed.

pub mod discovery;
mod exec_plugin;
pub mod kubeconfig;
pub mod mapper;
pub mod transport;

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, Method, header};
use hyper::body::Incoming;
use serde_json::{Value, json};

use self::discovery::{ApiResource, Discovery};
use self::kubeconfig::{Access, Kubeconfig};
use self::transport::{Call, Transport, whole};
use crate::Program;
use crate::error::{CliError, Failure, message};
use crate::flags::{GlobalFlags, duration};

pub const JSON: &str = "application/json";

/// See the module.
pub struct Session {
    pub program: Program,
    pub flags: GlobalFlags,
    config: OnceCell<Kubeconfig>,
    access: OnceCell<Access>,
    transport: OnceCell<Transport>,
    discovery: RefCell<Option<std::rc::Rc<Discovery>>>,
    was_fresh: RefCell<bool>,
    warnings: RefCell<HashSet<String>>,
}

/// A request: method, path, and what goes with it.
#[derive(Clone, Default)]
pub struct Ask {
    pub method: Method,
    pub path: String,
    pub query: Vec<(String, String)>,
    pub accept: Option<String>,
    pub content_type: Option<&'static str>,
    pub body: Bytes,
}

impl Ask {
    pub fn get(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), ..Self::default() }
    }

    pub fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_owned(), value.into()));
        self
    }

    /// Only if there is a value.
    pub fn query_some(self, name: &str, value: &str) -> Self {
        if value.is_empty() { self } else { self.query(name, value) }
    }

    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        (self.content_type, self.body) = (Some(content_type), body.into());
        self
    }

    pub fn json(self, value: &Value) -> Self {
        self.body(JSON, value.to_string())
    }

    fn target(&self) -> String {
        let mut target = self.path.clone();
        let mut separator = if target.contains('?') { '&' } else { '?' };
        for (name, value) in &self.query {
            target.push(separator);
            target.push_str(&escape(name));
            target.push('=');
            target.push_str(&escape(value));
            separator = '&';
        }
        target
    }
}

/// A part of a path or query, with what is not a plain letter written in hexadecimal digits.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl Session {
    pub fn new(program: Program, flags: GlobalFlags) -> Self {
        Self {
            program,
            flags,
            config: OnceCell::new(),
            access: OnceCell::new(),
            transport: OnceCell::new(),
            discovery: RefCell::new(None),
            was_fresh: RefCell::new(false),
            warnings: RefCell::new(HashSet::new()),
        }
    }

    pub fn config(&self) -> Result<&Kubeconfig, CliError> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let found = Kubeconfig::find(&self.flags, self.program == Program::Kelson)?;
        Ok(self.config.get_or_init(|| found))
    }

    pub fn access(&self) -> Result<&Access, CliError> {
        if let Some(access) = self.access.get() {
            return Ok(access);
        }
        let config = self.config()?;
        let mut access = kubeconfig::access(config, &self.flags)?;
        if access.server.is_empty() && config.files.is_empty() {
            in_cluster(&mut access);
        }
        Ok(self.access.get_or_init(|| access))
    }

    pub fn transport(&self) -> Result<&Transport, CliError> {
        if let Some(transport) = self.transport.get() {
            return Ok(transport);
        }
        let agent = concat!("kubectl/v1.36.0 (linux) kelson/", env!("CARGO_PKG_VERSION"));
        let transport = Transport::new(self.access()?, agent)?;
        Ok(self.transport.get_or_init(|| transport))
    }

    /// The namespace to use where none is named, and whether the command line named it.
    pub fn namespace(&self) -> Result<(String, bool), CliError> {
        if let Some(given) = self.flags.namespace.as_ref().filter(|name| !name.is_empty()) {
            return Ok((given.clone(), true));
        }
        Ok((self.access()?.namespace.clone().unwrap_or_else(|| "default".to_owned()), false))
    }

    pub fn cache_dir(&self) -> PathBuf {
        self.flags.cache_dir.clone().unwrap_or_else(|| {
            let own = std::env::var_os("KUBECACHEDIR").map(PathBuf::from);
            own.unwrap_or_else(|| std::env::home_dir().unwrap_or_default().join(".kube/cache"))
        })
    }

    /// A warning on stderr, once.
    pub fn warn(&self, text: &str) {
        if self.warnings.borrow_mut().insert(text.to_owned()) {
            eprintln!("Warning: {text}");
        }
    }

    /// The end of a command whose warnings count as errors.
    pub fn check_warnings(&self) -> Result<(), CliError> {
        let count = self.warnings.borrow().len();
        match count {
            0 => Ok(()),
            _ if !self.flags.warnings_as_errors => Ok(()),
            1 => Err(message("1 warning received")),
            _ => Err(message(format!("{count} warnings received"))),
        }
    }

    fn request_timeout(&self) -> Result<Option<Duration>, CliError> {
        let text = self.flags.request_timeout.as_str();
        if let Ok(seconds) = text.parse::<u64>() {
            return Ok((seconds > 0).then(|| Duration::from_secs(seconds)));
        }
        let found = duration(text).map_err(|_| {
            message(
                "Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding time unit (e.g. 1s | 2m | 3h)",
            )
        })?;
        Ok((found > Duration::ZERO).then_some(found))
    }

    /// Sends a request; an answer that tells of a failure is an error.
    pub async fn send(&self, mut ask: Ask) -> Result<http::Response<Incoming>, CliError> {
        let timeout = self.request_timeout()?;
        if let Some(timeout) = timeout {
            ask = ask.query("timeout", format!("{}s", timeout.as_secs().max(1)));
        }
        let answer = async {
            let answer = self.send_any(&ask).await?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            let code = answer.status();
            let plain = !content_type(&answer).contains("json");
            let body = whole(answer.into_body()).await?;
            Err(failure(code.as_u16(), plain, &body))
        };
        match timeout {
            None => answer.await,
            Some(timeout) => tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| {
                Err(CliError::Plain(
                    "Unable to connect to the server: context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned(),
                ))
            }),
        }
    }

    /// Sends a request and takes any answer.
    pub async fn send_any(&self, ask: &Ask) -> Result<http::Response<Incoming>, CliError> {
        let transport = self.transport()?;
        let mut headers: Vec<(HeaderName, String)> =
            vec![(header::ACCEPT, ask.accept.clone().unwrap_or_else(|| JSON.to_owned()))];
        if let Some(content_type) = ask.content_type {
            headers.push((header::CONTENT_TYPE, content_type.to_owned()));
        }
        let began = Instant::now();
        let path = ask.target();
        if self.flags.v >= 8 && !ask.body.is_empty() {
            eprintln!("Request Body: {}", String::from_utf8_lossy(&ask.body));
        }
        let call = Call { method: ask.method.clone(), path: path.clone(), headers, body: ask.body.clone() };
        let answer = transport.send(call).await?;
        if self.flags.v >= 6 {
            eprintln!(
                "{} {}{path} {} in {} milliseconds",
                ask.method,
                transport.url(),
                answer.status(),
                began.elapsed().as_millis()
            );
        }
        for warning in answer.headers().get_all(header::WARNING) {
            if let Some(text) = warning.to_str().ok().and_then(warning_text) {
                self.warn(&text);
            }
        }
        Ok(answer)
    }

    /// The answer as JSON.
    pub async fn json(&self, ask: Ask) -> Result<Value, CliError> {
        let path = ask.path.clone();
        let body = whole(self.send(ask).await?.into_body()).await?;
        if self.flags.v >= 8 {
            eprintln!("Response Body: {}", String::from_utf8_lossy(&body));
        }
        serde_json::from_slice(&body)
            .map_err(|error| message(format!("the answer to {path} is not JSON: {error}")))
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Result<Value, CliError> {
        let mut ask = Ask::get(path);
        ask.accept = Some(accept.to_owned());
        self.json(ask).await
    }

    pub async fn text(&self, ask: Ask) -> Result<Vec<u8>, CliError> {
        Ok(whole(self.send(ask).await?.into_body()).await?.to_vec())
    }

    /// Prints an answer as it comes.
    pub async fn copy(&self, ask: Ask, out: &mut dyn Write) -> Result<(), CliError> {
        use http_body_util::BodyExt as _;
        let mut body = self.send(ask).await?.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| message(format!("the answer broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                out.write_all(&data)?;
                out.flush()?;
            }
        }
        Ok(())
    }

    pub async fn discovery(&self) -> Result<std::rc::Rc<Discovery>, CliError> {
        if let Some(known) = self.discovery.borrow().clone() {
            return Ok(known);
        }
        let found = std::rc::Rc::new(discovery::discover(self, false).await?);
        *self.discovery.borrow_mut() = Some(found.clone());
        Ok(found)
    }

    /// Asks the server again, at most once.
    pub async fn rediscover(&self) -> Result<Option<std::rc::Rc<Discovery>>, CliError> {
        if self.was_fresh.replace(true) {
            return Ok(None);
        }
        let found = std::rc::Rc::new(discovery::discover(self, true).await?);
        *self.discovery.borrow_mut() = Some(found.clone());
        Ok(Some(found))
    }

    /// The next look asks the server, because what it serves has changed.
    pub fn forget_discovery(&self) {
        *self.discovery.borrow_mut() = None;
        *self.was_fresh.borrow_mut() = false;
    }

    /// The resource that a word means.
    pub async fn resource(&self, word: &str) -> Result<ApiResource, CliError> {
        if let Some(found) = mapper::resource_for(&*self.discovery().await?, word) {
            return Ok(found.clone());
        }
        if let Some(fresh) = self.rediscover().await?
            && let Some(found) = mapper::resource_for(&fresh, word)
        {
            return Ok(found.clone());
        }
        let name = word.split('.').next().unwrap_or_default();
        Err(message(format!("the server doesn't have a resource type {name:?}")))
    }

    /// The resource of an object's kind.
    pub async fn resource_of(&self, api_version: &str, kind: &str) -> Result<Option<ApiResource>, CliError> {
        if let Some(found) = mapper::of_object(&*self.discovery().await?, api_version, kind) {
            return Ok(Some(found.clone()));
        }
        let Some(fresh) = self.rediscover().await? else { return Ok(None) };
        Ok(mapper::of_object(&fresh, api_version, kind).cloned())
    }
}

/// The service account of the pod that this runs in.
fn in_cluster(access: &mut Access) {
    const DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let (Ok(host), Ok(port)) =
        (std::env::var("KUBERNETES_SERVICE_HOST"), std::env::var("KUBERNETES_SERVICE_PORT"))
    else {
        return;
    };
    let directory = PathBuf::from(DIRECTORY);
    if !directory.join("token").exists() {
        return;
    }
    access.server = if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    };
    access.authority = Some(kubeconfig::Material::File(directory.join("ca.crt")));
    if access.token.is_none() {
        access.token_file = Some(directory.join("token"));
    }
    if access.namespace.is_none() {
        access.namespace =
            std::fs::read_to_string(directory.join("namespace")).ok().map(|name| name.trim().to_owned());
    }
}

fn content_type(answer: &http::Response<Incoming>) -> String {
    let value = answer.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// The error of an answer, whether or not it is a `Status`.
fn failure(code: u16, plain: bool, body: &[u8]) -> CliError {
    let read: Option<Value> =
        serde_json::from_slice(body).ok().filter(|value: &Value| value["kind"] == "Status");
    let status = read.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&body[..body.len().min(2048)]).trim().to_owned();
        let (reason, message) = match code {
            401 => ("Unauthorized", "the server has asked for the client to provide credentials"),
            403 => ("Forbidden", "the server does not allow access to the requested resource"),
            404 => ("NotFound", "the server could not find the requested resource"),
            405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
            429 => ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
            500 => ("InternalError", "an error on the server has prevented the request from succeeding"),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "the server was unable to return a response in the time allotted, but may still be processing the request"),
            _ => ("", "the server responded with the status code and did not say more"),
        };
        let message = match () {
            () if code == 404 && plain => message.to_owned(),
            () if text.is_empty() => message.to_owned(),
            () if code >= 500 => format!("{message} ({text:?})"),
            () => text,
        };
        json!({"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code})
    });
    CliError::Status(Box::new(Failure { status }))
}

/// The text of `299 - "text"`.
fn warning_text(header: &str) -> Option<String> {
    let start = header.find('"')?;
    let mut out = String::new();
    let mut letters = header[start + 1..].chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => out.extend(letters.next()),
            '"' => return Some(out),
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(warning_text(r#"299 - "a \"b\" c""#).as_deref(), Some(r#"a "b" c"#));
        assert_eq!(warning_text("299 -"), None);
    }

    #[test]
    fn queries_are_escaped() {
        let ask = Ask::get("/api/v1/pods").query("labelSelector", "a=b,c in (d)").query_some("x", "");
        assert_eq!(ask.target(), "/api/v1/pods?labelSelector=a%3Db%2Cc%20in%20%28d%29");
    }
}
