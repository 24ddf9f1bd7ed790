//! What a request asks for, read from its method, path and query before anything else looks at it.
//!
//! Authorization, admission, audit and priority all speak of verb, group, resource, subresource, namespace and
//! name; this is the one place where those words are cut out of a URL.

use apimachinery::selector::FieldSelector;
use http::Method;

/// The parts of a request that the chain decides on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether the path names a resource.
    pub is_resource: bool,
    /// get, list, watch, create, update, patch, delete, deletecollection, or the lower-case method.
    pub verb: &'static str,
    /// `api` or `apis`.
    pub prefix: String,
    /// The API group; empty for core.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The namespace, empty if none.
    pub namespace: String,
    /// The plural resource name.
    pub resource: String,
    /// The part after the name.
    pub subresource: String,
    /// The object's name, empty for collections.
    pub name: String,
    /// The whole path.
    pub path: String,
    /// What follows the subresource (proxy paths).
    pub rest: String,
}

/// Subresources of namespaces, which are not resources inside of one.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// Reads method, path and query.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { path: path.to_owned(), verb: method_verb(method), ..Self::default() };
        let trimmed = path.trim_matches('/');
        let mut parts = trimmed.split('/').filter(|part| !part.is_empty());
        match parts.next() {
            Some("api") => info.prefix = "api".to_owned(),
            Some("apis") => {
                info.prefix = "apis".to_owned();
                match parts.next() {
                    Some(group) => info.group = decode(group),
                    None => return info,
                }
            }
            _ => return info,
        }
        let Some(version) = parts.next() else { return info };
        info.version = decode(version);
        let mut rest: Vec<&str> = parts.collect();
        if rest.is_empty() {
            return info;
        }
        info.is_resource = true;
        // The old way to watch: /api/v1/watch/pods.
        let mut forced = None;
        if rest[0] == "watch" || (rest[0] == "proxy" && rest.len() > 1) {
            if rest.len() < 2 {
                info.is_resource = false;
                return info;
            }
            forced = Some(if rest[0] == "watch" { "watch" } else { "proxy" });
            rest.remove(0);
        }
        if rest[0] == "namespaces" && rest.len() > 1 {
            info.namespace = decode(rest[1]);
            if rest.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&rest[2]) {
                rest.drain(..2);
            }
        }
        info.resource = decode(rest[0]);
        if let Some(name) = rest.get(1) {
            info.name = decode(name);
        }
        if let Some(subresource) = rest.get(2) {
            info.subresource = decode(subresource);
        }
        if info.subresource == "proxy" {
            info.rest = proxy_rest(path);
        } else if rest.len() > 3 {
            info.rest = rest[3..].join("/");
        }
        info.verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        if info.name.is_empty() {
            if info.verb == "get" {
                info.verb = if query.flag("watch") { "watch" } else { "list" };
            } else if info.verb == "delete" {
                info.verb = "deletecollection";
            }
            if info.verb != "create"
                && info.verb != "get"
                && let Some(selector) = query.get("fieldSelector")
                && let Some(name) = selected_name(selector)
            {
                info.name = name;
            }
        }
        if let Some(verb) = forced {
            info.verb = verb;
        }
        info
    }

    /// Whether the request may last: watches and streams get no deadline.
    pub fn is_long_running(&self, query: &Query) -> bool {
        self.verb == "watch"
            || matches!(self.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy")
            || (self.subresource == "log" && query.flag("follow"))
    }

    /// Whether nothing can change by it.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }

    /// `resource/subresource`.
    pub fn resource_path(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        Method::CONNECT => "connect",
        _ => "trace",
    }
}

/// The raw path after `/proxy/`, undecoded and with its slashes, as the backend must see it.
fn proxy_rest(path: &str) -> String {
    match path.split_once("/proxy/") {
        Some((_, rest)) => rest.to_owned(),
        None => String::new(),
    }
}

/// Whether a name can be part of a path.
fn is_segment(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%'])
}

/// The name that a field selector pins, so that authorization by name also holds for list and watch.
fn selected_name(selector: &str) -> Option<String> {
    let fields = FieldSelector::parse(selector).ok()?;
    fields.exact("metadata.name").filter(|name| is_segment(name)).map(str::to_owned)
}

/// The query parameters of a URL, decoded.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=b&c=d`.
    pub fn parse(text: Option<&str>) -> Self {
        let Some(text) = text else { return Self::default() };
        Self(
            text.split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode_plus(key), decode_plus(value))
                })
                .collect(),
        )
    }

    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    /// Every value of `key`.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    /// A boolean parameter; present without a value, or with one that is no boolean, means true.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !matches!(value, "false" | "0" | "f" | "F" | "False" | "FALSE"))
    }

    /// All pairs.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Undoes percent encoding; bytes that are no UTF-8 are replaced.
pub fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |byte: u8| (byte as char).to_digit(16);
        if bytes[at] == b'%'
            && at + 2 < bytes.len()
            && let (Some(high), Some(low)) = (hex(bytes[at + 1]), hex(bytes[at + 2]))
        {
            out.push((high * 16 + low) as u8);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn decode_plus(text: &str) -> String {
    if text.contains('+') { decode(&text.replace('+', " ")) } else { decode(text) }
}

/// Percent-encodes what may not stand in a query value.
pub fn encode_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => {
                use std::fmt::Write;
                let _ = write!(out, "%{byte:02X}"); // writing to a String cannot fail
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: Method, url: &str) -> RequestInfo {
        let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
        RequestInfo::parse(&method, path, &Query::parse(query))
    }

    #[test]
    fn urls_are_cut_as_upstream_cuts_them() {
        // method, url, verb, group, version, namespace, resource, subresource, name
        let cases = [
            (Method::GET, "/api/v1/pods", "list", "", "v1", "", "pods", "", ""),
            (Method::GET, "/api/v1/pods?watch=1", "watch", "", "v1", "", "pods", "", ""),
            (Method::GET, "/api/v1/watch/pods", "watch", "", "v1", "", "pods", "", ""),
            (Method::GET, "/api/v1/namespaces/x/pods/p/log", "get", "", "v1", "x", "pods", "log", "p"),
            (Method::GET, "/api/v1/namespaces/x", "get", "", "v1", "x", "namespaces", "", "x"),
            (
                Method::PUT,
                "/api/v1/namespaces/x/finalize",
                "update",
                "",
                "v1",
                "x",
                "namespaces",
                "finalize",
                "x",
            ),
            (Method::GET, "/api/v1/namespaces", "list", "", "v1", "", "namespaces", "", ""),
            (
                Method::POST,
                "/apis/apps/v1/namespaces/x/deployments",
                "create",
                "apps",
                "v1",
                "x",
                "deployments",
                "",
                "",
            ),
            (
                Method::DELETE,
                "/apis/apps/v1/namespaces/x/deployments",
                "deletecollection",
                "apps",
                "v1",
                "x",
                "deployments",
                "",
                "",
            ),
            (
                Method::GET,
                "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
                "list",
                "",
                "v1",
                "",
                "nodes",
                "",
                "n1",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/x/services/http:s:80/proxy/a/b%2Fc?x=y",
                "get",
                "",
                "v1",
                "x",
                "services",
                "proxy",
                "http:s:80",
            ),
        ];
        for (method, url, verb, group, version, namespace, resource, subresource, name) in cases {
            let got = info(method, url);
            assert!(got.is_resource, "{url}");
            assert_eq!(
                (
                    got.verb,
                    &*got.group,
                    &*got.version,
                    &*got.namespace,
                    &*got.resource,
                    &*got.subresource,
                    &*got.name
                ),
                (verb, group, version, namespace, resource, subresource, name),
                "{url}"
            );
        }
        assert_eq!(info(Method::GET, "/api/v1/namespaces/x/services/s/proxy/a/b%2Fc").rest, "a/b%2Fc");
    }

    #[test]
    fn other_paths_are_no_resources() {
        for url in
            ["/", "/healthz", "/api", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1", "/api/v1/watch"]
        {
            assert!(!info(Method::GET, url).is_resource, "{url}");
        }
        assert_eq!(info(Method::POST, "/healthz").verb, "post");
    }

    #[test]
    fn a_query_is_decoded() {
        let query = Query::parse(Some("a=b%2Cc+d&watch&x=false"));
        assert_eq!(query.get("a"), Some("b,c d"));
        assert!(query.flag("watch"));
        assert!(!query.flag("x"));
        assert!(!query.flag("y"));
    }
}
