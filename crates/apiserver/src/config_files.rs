//! The configuration files behind `--authentication-config` and `--authorization-config`.
//!
//! Both are upstream's documents. CEL expressions in them are refused by name instead of being left out: a rule
//! that is not applied would let strangers in.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::authn::Anonymous;
use crate::authn::oidc::IssuerConfig;
use crate::authz::webhook::WebhookConfig;
use crate::config::AuthorizationMode;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Not YAML, or not in the right form.
    #[error("it is malformed")]
    Malformed(#[from] serde_yaml_ng::Error),
    /// Another kind of document.
    #[error("it is of kind {found:?} and version {version:?}, wanted is {wanted} of apiserver.config.k8s.io")]
    Kind {
        /// What is wanted.
        wanted: &'static str,
        /// What was found.
        found: String,
        /// In which version.
        version: String,
    },
    /// A field.
    #[error("{path}: {why}")]
    Field {
        /// Which one.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A file that it names.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn wrong(path: impl Into<String>, why: impl Into<String>) -> FileError {
    FileError::Field { path: path.into(), why: why.into() }
}

fn document<T: DeserializeOwned>(text: &str, wanted: &'static str) -> Result<T, FileError> {
    let value: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)?;
    let field = |name: &str| value.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
    let (found, version) = (field("kind"), field("apiVersion"));
    if found != wanted || !version.starts_with("apiserver.config.k8s.io/") {
        return Err(FileError::Kind { wanted, found, version });
    }
    Ok(serde_yaml_ng::from_value(value)?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Authentication {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    jwt: Vec<Jwt>,
    anonymous: Option<AnonymousConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnonymousConfig {
    enabled: bool,
    #[serde(default)]
    conditions: Vec<AnonymousCondition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnonymousCondition {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Jwt {
    issuer: JwtIssuer,
    #[serde(default)]
    claim_validation_rules: Vec<ClaimRule>,
    claim_mappings: ClaimMappings,
    #[serde(default)]
    user_validation_rules: Vec<serde_yaml_ng::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct JwtIssuer {
    url: String,
    #[serde(default, rename = "discoveryURL")]
    discovery_url: String,
    #[serde(default)]
    certificate_authority: String,
    #[serde(default)]
    audiences: Vec<String>,
    #[serde(default)]
    audience_match_policy: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClaimRule {
    #[serde(default)]
    claim: String,
    #[serde(default)]
    required_value: String,
    #[serde(default)]
    expression: String,
    #[serde(default, rename = "message")]
    _message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimMappings {
    username: Claim,
    #[serde(default)]
    groups: Claim,
    #[serde(default)]
    uid: Claim,
    #[serde(default)]
    extra: Vec<serde_yaml_ng::Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    #[serde(default)]
    claim: String,
    prefix: Option<String>,
    #[serde(default)]
    expression: String,
}

/// Issuers with their CAs, and who may come without credentials if the file says so.
pub type AuthenticationFile = (Vec<(IssuerConfig, Option<Vec<u8>>)>, Option<Anonymous>);

/// Reads an `AuthenticationConfiguration`.
pub fn authentication(text: &str) -> Result<AuthenticationFile, FileError> {
    let document: Authentication = document(text, "AuthenticationConfiguration")?;
    let mut issuers = Vec::new();
    for (index, jwt) in document.jwt.into_iter().enumerate() {
        let at = format!("jwt[{index}]");
        if issuers.iter().any(|(one, _): &(IssuerConfig, _)| one.url == jwt.issuer.url) {
            return Err(wrong(format!("{at}.issuer.url"), "two issuers have the same URL"));
        }
        let ca = jwt.issuer.certificate_authority.clone();
        issuers.push((issuer(&at, jwt)?, (!ca.is_empty()).then(|| ca.into_bytes())));
    }
    let anonymous = document.anonymous.map(|own| match (own.enabled, own.conditions.is_empty()) {
        (false, _) => Anonymous::Never,
        (true, true) => Anonymous::Always,
        (true, false) => Anonymous::Paths(own.conditions.into_iter().map(|one| one.path).collect()),
    });
    Ok((issuers, anonymous))
}

fn issuer(at: &str, jwt: Jwt) -> Result<IssuerConfig, FileError> {
    let cel = |path: String| wrong(path, "CEL expressions are not supported here");
    let JwtIssuer { url, discovery_url, audiences, audience_match_policy, .. } = jwt.issuer;
    if !url.starts_with("https://") {
        return Err(wrong(format!("{at}.issuer.url"), "URL scheme must be https"));
    }
    if audiences.is_empty() {
        return Err(wrong(format!("{at}.issuer.audiences"), "at least one audience is required"));
    }
    let any = audience_match_policy == "MatchAny";
    if !any && (audiences.len() > 1 || !audience_match_policy.is_empty()) {
        return Err(wrong(format!("{at}.issuer.audienceMatchPolicy"), "must be MatchAny"));
    }
    let mut required_claims = Vec::new();
    for (index, rule) in jwt.claim_validation_rules.into_iter().enumerate() {
        if !rule.expression.is_empty() {
            return Err(cel(format!("{at}.claimValidationRules[{index}].expression")));
        }
        required_claims.push((rule.claim, rule.required_value));
    }
    if !jwt.user_validation_rules.is_empty() {
        return Err(cel(format!("{at}.userValidationRules")));
    }
    let ClaimMappings { username, groups, uid, extra } = jwt.claim_mappings;
    if !extra.is_empty() {
        return Err(cel(format!("{at}.claimMappings.extra")));
    }
    for (name, claim, prefixed) in
        [("username", &username, true), ("groups", &groups, true), ("uid", &uid, false)]
    {
        let path = format!("{at}.claimMappings.{name}");
        if !claim.expression.is_empty() {
            return Err(cel(format!("{path}.expression")));
        }
        if prefixed && claim.claim.is_empty() != claim.prefix.is_none() {
            return Err(wrong(path, "claim and prefix go together; the prefix may be empty"));
        }
    }
    if username.claim.is_empty() {
        return Err(wrong(format!("{at}.claimMappings.username.claim"), "is required"));
    }
    Ok(IssuerConfig {
        algorithms: Vec::new(),
        url,
        discovery_url,
        audiences,
        username_claim: username.claim,
        username_prefix: username.prefix.unwrap_or_default(),
        groups_claim: groups.claim,
        groups_prefix: groups.prefix.unwrap_or_default(),
        uid_claim: uid.claim,
        required_claims,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Authorization {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
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
    timeout: String,
    subject_access_review_version: String,
    #[serde(default, rename = "matchConditionSubjectAccessReviewVersion")]
    _match_version: String,
    failure_policy: String,
    connection_info: ConnectionInfo,
    #[serde(default)]
    match_conditions: Vec<serde_yaml_ng::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ConnectionInfo {
    r#type: String,
    kube_config_file: Option<PathBuf>,
}

/// Reads an `AuthorizationConfiguration` and the kubeconfigs that it names.
pub fn authorization(text: &str) -> Result<Vec<AuthorizationMode>, FileError> {
    let document: Authorization = document(text, "AuthorizationConfiguration")?;
    let mut modes = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for (index, own) in document.authorizers.into_iter().enumerate() {
        let at = format!("authorizers[{index}]");
        if own.name.is_empty() || names.contains(&own.name) {
            return Err(wrong(format!("{at}.name"), "a name is required and may not come twice"));
        }
        if (own.r#type == "Webhook") != own.webhook.is_some() {
            return Err(wrong(format!("{at}.webhook"), "is for the type Webhook, and required there"));
        }
        names.push(own.name);
        modes.push(match (own.r#type.as_str(), own.webhook) {
            ("AlwaysAllow", _) => AuthorizationMode::AlwaysAllow,
            ("AlwaysDeny", _) => AuthorizationMode::AlwaysDeny,
            ("Node", _) => AuthorizationMode::Node,
            ("RBAC", _) => AuthorizationMode::Rbac,
            ("Webhook", Some(webhook)) => {
                AuthorizationMode::Webhook(Box::new(authorization_webhook(&at, webhook)?))
            }
            (other, _) => return Err(wrong(format!("{at}.type"), format!("{other:?} is not supported"))),
        });
    }
    if modes.is_empty() {
        return Err(wrong("authorizers", "at least one is required"));
    }
    Ok(modes)
}

fn authorization_webhook(at: &str, own: AuthorizationWebhook) -> Result<WebhookConfig, FileError> {
    let at = format!("{at}.webhook");
    if !own.match_conditions.is_empty() {
        return Err(wrong(format!("{at}.matchConditions"), "CEL expressions are not supported here"));
    }
    let version = own.subject_access_review_version.as_str();
    if !matches!(version, "v1" | "v1beta1") {
        return Err(wrong(format!("{at}.subjectAccessReviewVersion"), "must be v1 or v1beta1"));
    }
    let path = match (own.connection_info.r#type.as_str(), own.connection_info.kube_config_file) {
        ("KubeConfigFile", Some(path)) => path,
        _ => return Err(wrong(format!("{at}.connectionInfo"), "only KubeConfigFile is supported")),
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
    let ttl = |field: &str, text: &Option<String>, cache: Option<bool>, default: Duration| match (cache, text)
    {
        (Some(false), _) => Ok(Duration::ZERO),
        (_, Some(text)) => duration(field, text),
        (_, None) => Ok(default),
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
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";

    #[test]
    fn issuers_and_anonymous_paths_are_read() {
        let text = format!(
            "{HEAD}anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}\njwt:\n- issuer: {{url: 'https://a', audiences: [k]}}\n  claimMappings: {{username: {{claim: sub, prefix: 'a:'}}, groups: {{claim: g, prefix: ''}}, uid: {{claim: id}}}}\n  claimValidationRules: [{{claim: hd, requiredValue: x}}]\n"
        );
        let (issuers, anonymous) = authentication(&text).unwrap();
        assert_eq!(anonymous, Some(Anonymous::Paths(vec!["/livez".into()])));
        let one = &issuers[0].0;
        assert_eq!((one.username_prefix.as_str(), one.uid_claim.as_str()), ("a:", "id"));
        assert_eq!(one.required_claims, [("hd".to_owned(), "x".to_owned())]);
    }

    #[test]
    fn what_would_not_be_applied_is_refused() {
        let mappings = "claimMappings: {username: {claim: sub, prefix: ''}}";
        for (jwt, want) in [
            (format!("[{{issuer: {{url: 'http://a', audiences: [k]}}, {mappings}}}]"), "https"),
            (format!("[{{issuer: {{url: 'https://a'}}, {mappings}}}]"), "audience"),
            (
                format!("[{{issuer: {{url: 'https://a', audiences: [k]}}, {mappings}, userValidationRules: [{{expression: x}}]}}]"),
                "CEL",
            ),
            (
                "[{issuer: {url: 'https://a', audiences: [k]}, claimMappings: {username: {expression: claims.sub}}}]".into(),
                "username.expression",
            ),
            ("[{issuer: {url: 'https://a', audiences: [k]}, claimMappings: {username: {claim: sub}}}]".into(), "prefix"),
        ] {
            let said = authentication(&format!("{HEAD}jwt: {jwt}\n")).unwrap_err().to_string();
            assert!(said.contains(want), "{said}");
        }
        assert!(authentication("kind: Secret\napiVersion: v1\n").unwrap_err().to_string().contains("Secret"));
    }

    #[test]
    fn authorizers_are_read_in_order() {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";
        let modes = authorization(&format!(
            "{head}authorizers: [{{type: Node, name: n}}, {{type: RBAC, name: r}}]\n"
        ))
        .unwrap();
        assert!(matches!(modes[..], [AuthorizationMode::Node, AuthorizationMode::Rbac]));
        for (list, want) in [
            ("[{type: Node, name: n}, {type: RBAC, name: n}]", "name"),
            ("[{type: Maybe, name: n}]", "Maybe"),
            ("[{type: Webhook, name: n}]", "webhook"),
            ("[]", "at least one"),
        ] {
            let said = authorization(&format!("{head}authorizers: {list}\n")).unwrap_err().to_string();
            assert!(said.contains(want), "{said}");
        }
    }
}
