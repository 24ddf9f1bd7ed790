//! `AuthorizationConfiguration`: who is asked, in which order.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::names;
use serde::Deserialize;

use super::{FileError, document, wrong};
use crate::authz::abac;
use crate::authz::webhook::{Conditions, WebhookConfig};
use crate::config::AuthorizationMode;

/// The longest time that a webhook may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most conditions of a webhook.
const CONDITIONS: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Authorization {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    authorizers: Vec<AuthorizerConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorizerConfig {
    r#type: String,
    name: String,
    webhook: Option<AuthorizationWebhook>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AuthorizationWebhook {
    #[serde(rename = "authorizedTTL")]
    authorized_ttl: Option<String>,
    cache_authorized_requests: Option<bool>,
    #[serde(rename = "unauthorizedTTL")]
    unauthorized_ttl: Option<String>,
    cache_unauthorized_requests: Option<bool>,
    #[serde(default)]
    timeout: String,
    #[serde(default)]
    subject_access_review_version: String,
    #[serde(default)]
    match_condition_subject_access_review_version: String,
    #[serde(default)]
    failure_policy: String,
    connection_info: ConnectionInfo,
    #[serde(default)]
    match_conditions: Vec<MatchCondition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchCondition {
    #[serde(default)]
    expression: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ConnectionInfo {
    r#type: String,
    kube_config_file: Option<PathBuf>,
}

/// Reads an `AuthorizationConfiguration` and the kubeconfigs that it names. The policies of ABAC come from a flag.
pub fn authorization(
    text: &str,
    policies: Option<&Arc<abac::Policies>>,
) -> Result<Vec<AuthorizationMode>, FileError> {
    let document: Authorization = document(text, "AuthorizationConfiguration")?;
    let mut modes = Vec::new();
    let mut seen: Vec<(String, String)> = Vec::new();
    for (index, own) in document.authorizers.into_iter().enumerate() {
        let at = format!("authorizers[{index}]");
        let is_webhook = own.r#type == "Webhook";
        if !is_webhook && seen.iter().any(|(kind, _)| *kind == own.r#type) {
            return Err(wrong(format!("{at}.type"), "may not come twice"));
        }
        if own.name.is_empty() || seen.iter().any(|(_, name)| *name == own.name) {
            return Err(wrong(format!("{at}.name"), "a name is required and may not come twice"));
        }
        if let Some(complaint) = names::is_dns1123_subdomain(&own.name).first() {
            return Err(wrong(format!("{at}.name"), format!("authorizer name is invalid: {complaint}")));
        }
        if is_webhook != own.webhook.is_some() {
            return Err(wrong(format!("{at}.webhook"), "is for the type Webhook, and required there"));
        }
        modes.push(match (own.r#type.as_str(), own.webhook) {
            ("AlwaysAllow", _) => AuthorizationMode::AlwaysAllow,
            ("AlwaysDeny", _) => AuthorizationMode::AlwaysDeny,
            ("Node", _) => AuthorizationMode::Node,
            ("RBAC", _) => AuthorizationMode::Rbac,
            ("ABAC", _) => AuthorizationMode::Abac(policies.cloned().ok_or_else(|| {
                wrong(format!("{at}.type"), "ABAC needs the flag --authorization-policy-file")
            })?),
            ("Webhook", Some(webhook)) => {
                let mut config = authorization_webhook(&at, webhook)?;
                config.name.clone_from(&own.name);
                AuthorizationMode::Webhook(Box::new(config))
            }
            (other, _) => return Err(wrong(format!("{at}.type"), format!("{other:?} is not supported"))),
        });
        let expected = own.r#type.to_ascii_lowercase();
        if !is_webhook && own.name != expected {
            let why = format!("expected name {expected} for authorizer {}", own.r#type);
            return Err(wrong(format!("{at}.name"), why));
        }
        seen.push((own.r#type, own.name));
    }
    if modes.is_empty() {
        return Err(wrong("authorizers", "at least one authorization mode must be defined"));
    }
    Ok(modes)
}

fn authorization_webhook(at: &str, own: AuthorizationWebhook) -> Result<WebhookConfig, FileError> {
    let at = format!("{at}.webhook");
    let version = own.subject_access_review_version.as_str();
    if !matches!(version, "v1" | "v1beta1") {
        return Err(wrong(format!("{at}.subjectAccessReviewVersion"), "must be v1 or v1beta1"));
    }
    let for_conditions = own.match_condition_subject_access_review_version.as_str();
    if for_conditions != "v1" && !(for_conditions.is_empty() && own.match_conditions.is_empty()) {
        let why = "must be v1; required if match conditions are specified";
        return Err(wrong(format!("{at}.matchConditionSubjectAccessReviewVersion"), why));
    }
    let path = match (own.connection_info.r#type.as_str(), own.connection_info.kube_config_file) {
        ("KubeConfigFile", Some(path)) if path.is_absolute() => path,
        ("KubeConfigFile", Some(_)) => {
            return Err(wrong(format!("{at}.connectionInfo.kubeConfigFile"), "must be an absolute path"));
        }
        ("KubeConfigFile", None) => {
            return Err(wrong(format!("{at}.connectionInfo.kubeConfigFile"), "is required"));
        }
        // The API server does not run in a pod of the cluster that it serves, as far as it knows.
        (other, _) => {
            let why = format!("{other:?} is not supported, KubeConfigFile is");
            return Err(wrong(format!("{at}.connectionInfo.type"), why));
        }
    };
    let kubeconfig =
        std::fs::read_to_string(&path).map_err(|source| FileError::Read { path: path.clone(), source })?;
    let mut config = WebhookConfig::new(kubeconfig, version);
    let duration = |field: &str, text: &str| {
        apimachinery::time::parse_duration(text)
            .and_then(|nanos| u64::try_from(nanos).ok())
            .map(Duration::from_nanos)
            .ok_or_else(|| wrong(format!("{at}.{field}"), format!("{text:?} is no duration")))
    };
    config.timeout = duration("timeout", &own.timeout)?;
    if config.timeout.is_zero() || config.timeout > PATIENCE {
        return Err(wrong(format!("{at}.timeout"), "must be > 0s and <= 30s"));
    }
    let ttl = |field: &str, text: &Option<String>, cache: Option<bool>, default: Duration| {
        let said = text.as_ref().map(|text| duration(field, text)).transpose()?.filter(|ttl| !ttl.is_zero());
        Ok::<_, FileError>(if cache == Some(false) { Duration::ZERO } else { said.unwrap_or(default) })
    };
    config.allowed_for =
        ttl("authorizedTTL", &own.authorized_ttl, own.cache_authorized_requests, config.allowed_for)?;
    config.refused_for =
        ttl("unauthorizedTTL", &own.unauthorized_ttl, own.cache_unauthorized_requests, config.refused_for)?;
    config.failure_denies = match own.failure_policy.as_str() {
        "Deny" => true,
        "NoOpinion" => false,
        _ => return Err(wrong(format!("{at}.failurePolicy"), "must be NoOpinion or Deny")),
    };
    if own.match_conditions.len() > CONDITIONS {
        return Err(wrong(format!("{at}.matchConditions"), format!("must have at most {CONDITIONS} items")));
    }
    let mut conditions = Conditions::default();
    for (index, condition) in own.match_conditions.iter().enumerate() {
        let at = format!("{at}.matchConditions[{index}].expression");
        let source = condition.expression.as_str();
        if source.trim().is_empty() {
            return Err(wrong(at, "is required"));
        }
        if own.match_conditions[..index].iter().any(|other| other.expression == source) {
            return Err(wrong(at, "may not come twice"));
        }
        conditions.add(source).map_err(|why| wrong(at, why))?;
    }
    config.conditions = Arc::new(conditions);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";

    #[test]
    fn authorizers_are_read_in_order() {
        let read = |list: &str| authorization(&format!("{HEAD}authorizers: {list}\n"), None);
        let modes = read("[{type: Node, name: node}, {type: RBAC, name: rbac}]").unwrap();
        assert!(matches!(modes[..], [AuthorizationMode::Node, AuthorizationMode::Rbac]));
        for (list, want) in [
            ("[{type: Node, name: node}, {type: RBAC, name: node}]", "name"),
            ("[{type: Node, name: node}, {type: Node, name: more}]", "twice"),
            ("[{type: Node, name: other}]", "expected name node"),
            ("[{type: Maybe, name: maybe}]", "Maybe"),
            ("[{type: Webhook, name: n}]", "webhook"),
            ("[{type: ABAC, name: abac}]", "authorization-policy-file"),
            ("[]", "at least one"),
        ] {
            let said = read(list).unwrap_err().to_string();
            assert!(said.contains(want), "{list}: {said}");
        }
    }

    #[test]
    fn webhooks_say_when_they_are_asked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("k");
        std::fs::write(&file, "kind: Config\n").unwrap();
        let good = serde_json::json!({
            "timeout": "3s", "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
            "failurePolicy": "Deny", "cacheAuthorizedRequests": false, "unauthorizedTTL": "1m",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": file},
            "matchConditions": [{"expression": "has(request.resourceAttributes)"}, {"expression": "request.user != 'a'"}],
        });
        let read = |webhook: &serde_json::Value| {
            let list = serde_json::json!([{"type": "Webhook", "name": "one", "webhook": webhook}]);
            authorization(&format!("{HEAD}authorizers: {list}\n"), None)
        };
        let modes = read(&good).unwrap();
        let [AuthorizationMode::Webhook(own)] = &modes[..] else { panic!("one webhook") };
        assert_eq!((own.name.as_str(), own.allowed_for.as_secs(), own.refused_for.as_secs()), ("one", 0, 60));
        assert!(own.failure_denies && own.timeout.as_secs() == 3);
        for (field, value, want) in [
            ("timeout", serde_json::json!("31s"), "<= 30s"),
            ("failurePolicy", serde_json::json!("Maybe"), "failurePolicy"),
            ("matchConditionSubjectAccessReviewVersion", serde_json::json!(""), "matchConditionSubject"),
            (
                "matchConditions",
                serde_json::json!([{"expression": "request.who == 'a'"}]),
                "matchConditions[0]",
            ),
            ("matchConditions", serde_json::json!([{"expression": "request.user"}]), "must evaluate to bool"),
            ("matchConditions", serde_json::json!([{"expression": " "}]), "required"),
            ("connectionInfo", serde_json::json!({"type": "InClusterConfig"}), "InClusterConfig"),
            (
                "connectionInfo",
                serde_json::json!({"type": "KubeConfigFile", "kubeConfigFile": "k"}),
                "absolute",
            ),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let said = read(&bad).unwrap_err().to_string();
            assert!(said.contains(want), "{field}: {said}");
        }
    }
}
