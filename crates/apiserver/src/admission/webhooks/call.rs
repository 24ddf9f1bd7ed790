//! The question to an admission webhook and its answer: where it is sent, in which form, and what counts as one.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::meta::get_str;
use apimachinery::status::{Reason, Status};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::outbound::{self, Target};
use crate::proxy::{Backend, Reach};
use crate::server::ApiServer;
use crate::tls;

/// Where a hook's server is.
pub enum Place {
    /// By its URL.
    Url(Target),
    /// Behind a Service: namespace, name, port, path.
    Service(String, String, u16, String),
}

/// A hook's server and how to know it.
pub struct Client {
    place: Place,
    tls: Arc<rustls::ClientConfig>,
}

impl Client {
    /// Reads a `clientConfig`.
    pub fn read(config: &Value) -> Result<Self, String> {
        let roots = match get_str(config, "caBundle") {
            "" => client::system_roots(),
            text => {
                let ca = STANDARD.decode(text).map_err(|_| "the caBundle is no base64".to_owned())?;
                tls::roots(&ca, "the caBundle").map_err(|error| telemetry::chain(&error).to_string())?
            }
        };
        let tls = tls::client_config(roots, None).map_err(|error| telemetry::chain(&error).to_string())?;
        let service = &config["service"];
        let place = if service.is_object() {
            let path = get_str(service, "path").trim_start_matches('/');
            Place::Service(
                get_str(service, "namespace").to_owned(),
                get_str(service, "name").to_owned(),
                service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
                format!("/{path}"),
            )
        } else {
            Place::Url(
                Target::parse(get_str(config, "url"))
                    .map_err(|error| telemetry::chain(&error).to_string())?,
            )
        };
        Ok(Self { place, tls: Arc::new(tls) })
    }

    /// Asks and waits for the answer.
    pub async fn ask(&self, server: &ApiServer, review: &Value, at_most: Duration) -> Result<Value, String> {
        let (backend, path) = match &self.place {
            Place::Url(target) => (target.backend(self.tls.clone()), target.path.clone()),
            Place::Service(namespace, name, port, path) => {
                let (host, port) =
                    server.service_address(namespace, name, *port).map_err(|status| status.message)?;
                let backend = Backend {
                    host,
                    port,
                    tls: Some(self.tls.clone()),
                    server_name: Some(format!("{name}.{namespace}.svc")),
                    reach: Reach::default(),
                };
                (backend, path.clone())
            }
        };
        // Servers may tell questions apart by how long they are waited for.
        let mark = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{mark}timeout={}s", at_most.as_secs());
        let asking = outbound::json(&backend, &path, Some(review), at_most, &server.tasks);
        asking.await.map_err(|error| {
            format!("Post \"https://{}{path}\": {}", backend.authority(), telemetry::chain(&error))
        })
    }
}

/// The question. `request` says what is known of it without the objects.
pub fn review(
    version: &str,
    uid: &str,
    mut request: Value,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Value {
    request["uid"] = uid.into();
    request["object"] = object.cloned().unwrap_or_default();
    request["oldObject"] = old.cloned().unwrap_or_default();
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": request})
}

/// A no, with what its author says.
#[derive(Debug, PartialEq)]
pub struct Refusal(pub Value);

/// What a hook said.
#[derive(Debug, PartialEq)]
pub struct Answer {
    /// For the client.
    pub warnings: Vec<String>,
    /// For the audit log.
    pub annotations: Vec<(String, String)>,
    /// A no, or a yes and perhaps a JSON patch.
    pub outcome: Result<Option<Value>, Refusal>,
}

/// Reads an answer; an error says why it is none.
pub fn read(version: &str, uid: &str, answer: &Value) -> Result<Answer, String> {
    let response = &answer["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let api_version = format!("admission.k8s.io/{version}");
    if version == "v1" {
        let (found, kind) = (get_str(answer, "apiVersion"), get_str(answer, "kind"));
        if found != api_version || kind != "AdmissionReview" {
            return Err(format!(
                "expected webhook response of {api_version}, Kind=AdmissionReview, got {found}, Kind={kind}"
            ));
        }
        if get_str(response, "uid") != uid {
            return Err(format!("expected response.uid={uid:?}, got {:?}", get_str(response, "uid")));
        }
    }
    let empty = Map::new();
    let annotations = response["auditAnnotations"].as_object().unwrap_or(&empty);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut found = Answer {
        warnings: response["warnings"].as_array().into_iter().flatten().filter_map(text).collect(),
        annotations: annotations
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
        outcome: Ok(None),
    };
    if response["allowed"] != true {
        found.outcome = Err(Refusal(response["status"].clone()));
        return Ok(found);
    }
    let patch = get_str(response, "patch");
    let kind = get_str(response, "patchType");
    match (patch.is_empty(), kind) {
        (true, _) => {}
        (false, "JSONPatch") => {}
        // The older version had only one type, and need not name it.
        (false, "") if version == "v1beta1" => {}
        (false, other) => {
            return Err(format!("webhook returned response.patch but response.patchType {other:?}"));
        }
    }
    if !patch.is_empty() {
        let bytes = STANDARD.decode(patch).map_err(|_| "response.patch is no base64".to_owned())?;
        let operations =
            serde_json::from_slice(&bytes).map_err(|error| format!("response.patch: {error}"))?;
        found.outcome = Ok(Some(operations));
    }
    Ok(found)
}

/// The status that a refused client reads.
pub fn denied(name: &str, result: &Value) -> Status {
    let by = format!("admission webhook {name:?} denied the request");
    let (message, reason) = (get_str(result, "message"), get_str(result, "reason"));
    let code = result["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0).max(400);
    let mut whole = result.clone();
    if !whole.is_object() {
        whole = json!({});
    }
    whole["kind"] = json!("Status");
    whole["status"] = json!("Failure");
    whole["code"] = json!(code);
    let mut status = Status::from_value(&whole).unwrap_or_else(|| Status::bad_request(""));
    status.success = false;
    status.code = code;
    if reason.is_empty() {
        status.reason = Reason::Unknown;
    }
    status.message = match (message, reason) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_strictly() {
        let answer = |response: Value| json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        let yes = read(
            "v1",
            "u",
            &answer(json!({"uid": "u", "allowed": true, "warnings": ["w"], "auditAnnotations": {"k": "v"}})),
        )
        .unwrap();
        assert_eq!(
            yes,
            Answer {
                warnings: vec!["w".into()],
                annotations: vec![("k".into(), "v".into())],
                outcome: Ok(None)
            }
        );
        let patch = STANDARD.encode("[{\"op\":\"add\",\"path\":\"/a\",\"value\":1}]");
        let changed = read(
            "v1",
            "u",
            &answer(json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": patch})),
        );
        assert_eq!(changed.unwrap().outcome.unwrap().unwrap()[0]["path"], "/a");
        let no = read("v1", "u", &answer(json!({"uid": "u", "allowed": false, "status": {"message": "m"}})))
            .unwrap();
        assert_eq!(no.outcome, Err(Refusal(json!({"message": "m"}))));
        for (response, want) in [
            (json!(null), "absent"),
            (json!({"uid": "other", "allowed": true}), "response.uid"),
            (json!({"uid": "u", "allowed": true, "patch": patch}), "patchType"),
            (json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "!"}), "base64"),
        ] {
            let said = read("v1", "u", &answer(response)).unwrap_err();
            assert!(said.contains(want), "{said}");
        }
        assert!(read("v1", "u", &json!({"response": {"uid": "u", "allowed": true}})).is_err());
        assert!(read("v1beta1", "u", &json!({"response": {"allowed": true, "patch": patch}})).is_ok());
    }

    #[test]
    fn a_refusal_says_who_refused() {
        for (result, message, code) in [
            (json!(null), "admission webhook \"h\" denied the request without explanation", 400),
            (json!({"message": "no", "code": 403}), "admission webhook \"h\" denied the request: no", 403),
            (json!({"reason": "Forbidden"}), "admission webhook \"h\" denied the request: Forbidden", 400),
        ] {
            let status = denied("h", &result);
            assert_eq!((status.message.as_str(), status.code, status.success), (message, code, false));
        }
    }
}
