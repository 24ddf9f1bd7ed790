//! `AuthenticationConfiguration`: issuers of tokens, and who may come without credentials.

use std::sync::Arc;

use apimachinery::names;
use cel::Program;
use serde::Deserialize;

use super::{FileError, document, wrong};
use crate::authn::Anonymous;
use crate::authn::claims::{self, Expressions, Rule};
use crate::authn::oidc::IssuerConfig;

/// The most issuers of a file.
const ISSUERS: usize = 64;

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
    user_validation_rules: Vec<UserRule>,
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
    #[serde(default)]
    egress_selector_type: String,
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
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserRule {
    #[serde(default)]
    expression: String,
    #[serde(default)]
    message: String,
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
    extra: Vec<Extra>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Extra {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value_expression: String,
}

/// Issuers with their CAs, and who may come without credentials if the file says so.
pub type AuthenticationFile = (Vec<(IssuerConfig, Option<Vec<u8>>)>, Option<Anonymous>);

/// Reads an `AuthenticationConfiguration`. The issuers of the server's own tokens may not stand in it.
pub fn authentication(text: &str, own: &[String]) -> Result<AuthenticationFile, FileError> {
    let document: Authentication = document(text, "AuthenticationConfiguration")?;
    if document.jwt.len() > ISSUERS {
        return Err(wrong("jwt", format!("must have at most {ISSUERS} items")));
    }
    let mut issuers: Vec<(IssuerConfig, Option<Vec<u8>>)> = Vec::new();
    for (index, jwt) in document.jwt.into_iter().enumerate() {
        let at = format!("jwt[{index}]");
        let JwtIssuer { url, discovery_url, .. } = &jwt.issuer;
        if own.contains(url) {
            let why = format!("URL must not overlap with disallowed issuers: {own:?}");
            return Err(wrong(format!("{at}.issuer.url"), why));
        }
        if issuers.iter().any(|(one, _)| one.url == *url) {
            return Err(wrong(format!("{at}.issuer.url"), "two issuers have the same URL"));
        }
        if !discovery_url.is_empty() && issuers.iter().any(|(one, _)| one.discovery_url == *discovery_url) {
            return Err(wrong(format!("{at}.issuer.discoveryURL"), "two issuers have the same URL"));
        }
        let ca = jwt.issuer.certificate_authority.clone();
        issuers.push((issuer(&at, jwt)?, (!ca.is_empty()).then(|| ca.into_bytes())));
    }
    let anonymous = match document.anonymous {
        Some(own) if !own.enabled && !own.conditions.is_empty() => {
            return Err(wrong(
                "anonymous.conditions",
                "enabled should be set to true when conditions are defined",
            ));
        }
        Some(own) if !own.enabled => Some(Anonymous::Never),
        Some(own) if own.conditions.is_empty() => Some(Anonymous::Always),
        Some(own) => Some(Anonymous::Paths(own.conditions.into_iter().map(|one| one.path).collect())),
        None => None,
    };
    Ok((issuers, anonymous))
}

fn check_url(at: String, url: &str) -> Result<(), FileError> {
    let Some(rest) = url.strip_prefix("https://") else {
        return Err(wrong(at, "URL scheme must be https"));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    for (bad, why) in [
        (authority.contains('@'), "URL must not contain a username or password"),
        (rest.contains('?'), "URL must not contain a query"),
        (rest.contains('#'), "URL must not contain a fragment"),
    ] {
        if bad {
            return Err(wrong(at, why));
        }
    }
    Ok(())
}

fn check_issuer(at: &str, issuer: &JwtIssuer) -> Result<(), FileError> {
    check_url(format!("{at}.url"), &issuer.url)?;
    if !issuer.discovery_url.is_empty() {
        let place = format!("{at}.discoveryURL");
        if issuer.url.trim_end_matches('/') == issuer.discovery_url.trim_end_matches('/') {
            return Err(wrong(place, "discoveryURL must be different from URL"));
        }
        check_url(place, &issuer.discovery_url)?;
    }
    let audiences = &issuer.audiences;
    if audiences.is_empty() {
        return Err(wrong(format!("{at}.audiences"), "at least one audience is required"));
    }
    for (index, audience) in audiences.iter().enumerate() {
        if audience.is_empty() || audiences[..index].contains(audience) {
            let why = "is required and may not come twice";
            return Err(wrong(format!("{at}.audiences[{index}]"), why));
        }
    }
    let policy = issuer.audience_match_policy.as_str();
    if policy != "MatchAny" && (audiences.len() > 1 || !policy.is_empty()) {
        let why = if audiences.len() > 1 {
            "audienceMatchPolicy must be MatchAny for multiple audiences"
        } else {
            "audienceMatchPolicy must be empty or MatchAny for single audience"
        };
        return Err(wrong(format!("{at}.audienceMatchPolicy"), why));
    }
    if !issuer.egress_selector_type.is_empty() {
        return Err(wrong(format!("{at}.egressSelectorType"), "egress selectors are not supported"));
    }
    Ok(())
}

/// An expression, if there is one.
fn maybe(
    at: String,
    source: &str,
    compile: fn(&str) -> Result<Program, String>,
) -> Result<Option<Program>, FileError> {
    if source.is_empty() {
        return Ok(None);
    }
    compile(source).map(Some).map_err(|why| wrong(at, why))
}

/// What one claim gives, or an expression.
fn mapping(at: &str, own: &Claim, required: bool, prefixed: bool) -> Result<Option<Program>, FileError> {
    match (own.claim.is_empty(), own.expression.is_empty()) {
        (false, false) => return Err(wrong(at, "claim and expression can't both be set")),
        (true, true) if required => return Err(wrong(at, "claim or expression is required")),
        (true, false) if own.prefix.is_some() => {
            return Err(wrong(format!("{at}.prefix"), "may not be specified when expression is set"));
        }
        (false, true) if prefixed && own.prefix.is_none() => {
            let why =
                "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
            return Err(wrong(format!("{at}.prefix"), why));
        }
        _ => {}
    }
    maybe(format!("{at}.expression"), &own.expression, claims::compile_mapping)
}

fn check_extra_key(at: String, key: &str) -> Result<(), FileError> {
    let Some((domain, path)) = key.split_once('/') else {
        return Err(wrong(at, format!("{key:?} must be a domain-prefixed path, such as \"acme.io/foo\"")));
    };
    if path.is_empty() || !names::is_dns1123_subdomain(domain).is_empty() {
        return Err(wrong(at, format!("{key:?} must be a domain-prefixed path, such as \"acme.io/foo\"")));
    }
    if key.chars().any(char::is_uppercase) {
        return Err(wrong(at, "must be lowercase"));
    }
    let reserved =
        |own: &str| domain == own || domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'));
    if reserved("k8s.io") || reserved("kubernetes.io") {
        return Err(wrong(at, "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"));
    }
    Ok(())
}

fn issuer(at: &str, jwt: Jwt) -> Result<IssuerConfig, FileError> {
    check_issuer(&format!("{at}.issuer"), &jwt.issuer)?;
    let mut expressions = Expressions::default();
    let mut required_claims: Vec<(String, String)> = Vec::new();
    for (index, rule) in jwt.claim_validation_rules.into_iter().enumerate() {
        let at = format!("{at}.claimValidationRules[{index}]");
        match (rule.claim.is_empty(), rule.expression.is_empty()) {
            (false, false) => return Err(wrong(at, "claim and expression can't both be set")),
            (true, true) => return Err(wrong(at, "claim or expression is required")),
            (false, true) => {
                if !rule.message.is_empty() {
                    return Err(wrong(format!("{at}.message"), "may not be specified when claim is set"));
                }
                if required_claims.iter().any(|(claim, _)| *claim == rule.claim) {
                    return Err(wrong(format!("{at}.claim"), "may not come twice"));
                }
                required_claims.push((rule.claim, rule.required_value));
            }
            (true, false) => {
                if !rule.required_value.is_empty() {
                    let why = "may not be specified when expression is set";
                    return Err(wrong(format!("{at}.requiredValue"), why));
                }
                let at = format!("{at}.expression");
                let known = &mut expressions.claim_rules;
                push_rule(known, at, rule.expression, rule.message, claims::compile_claim_rule)?;
            }
        }
    }
    let ClaimMappings { username, groups, uid, extra } = jwt.claim_mappings;
    let mappings = format!("{at}.claimMappings");
    expressions.username = mapping(&format!("{mappings}.username"), &username, true, true)?;
    expressions.groups = mapping(&format!("{mappings}.groups"), &groups, false, true)?;
    expressions.uid = mapping(&format!("{mappings}.uid"), &uid, false, false)?;
    for (index, own) in extra.into_iter().enumerate() {
        let at = format!("{mappings}.extra[{index}]");
        check_extra_key(format!("{at}.key"), &own.key)?;
        if expressions.extra.iter().any(|(key, _)| *key == own.key) {
            return Err(wrong(format!("{at}.key"), "may not come twice"));
        }
        let at = format!("{at}.valueExpression");
        let program = maybe(at.clone(), &own.value_expression, claims::compile_mapping)?;
        expressions.extra.push((own.key, program.ok_or_else(|| wrong(at, "is required"))?));
    }
    check_mail(&mappings, &expressions)?;
    for (index, rule) in jwt.user_validation_rules.into_iter().enumerate() {
        let at = format!("{at}.userValidationRules[{index}].expression");
        let known = &mut expressions.user_rules;
        push_rule(known, at, rule.expression, rule.message, claims::compile_user_rule)?;
    }
    Ok(IssuerConfig {
        algorithms: Vec::new(),
        url: jwt.issuer.url,
        discovery_url: jwt.issuer.discovery_url,
        audiences: jwt.issuer.audiences,
        username_claim: username.claim,
        username_prefix: username.prefix.unwrap_or_default(),
        groups_claim: groups.claim,
        groups_prefix: groups.prefix.unwrap_or_default(),
        uid_claim: uid.claim,
        required_claims,
        expressions: Arc::new(expressions),
    })
}

fn push_rule(
    known: &mut Vec<Rule>,
    at: String,
    source: String,
    message: String,
    compile: fn(&str) -> Result<Program, String>,
) -> Result<(), FileError> {
    if known.iter().any(|rule| rule.program.source() == source) {
        return Err(wrong(at, "may not come twice"));
    }
    let program = maybe(at.clone(), &source, compile)?.ok_or_else(|| wrong(at, "is required"))?;
    known.push(Rule { program, message });
    Ok(())
}

/// A mail address names somebody only if it is known to be his.
fn check_mail(at: &str, expressions: &Expressions) -> Result<(), FileError> {
    let username = expressions.username.iter();
    let verified = username
        .clone()
        .chain(expressions.extra.iter().map(|(_, program)| program))
        .chain(expressions.claim_rules.iter().map(|rule| &rule.program))
        .any(|program| claims::uses_claim(program, "email_verified"));
    if username.clone().any(|program| claims::uses_claim(program, "email")) && !verified {
        return Err(wrong(
            format!("{at}.username.expression"),
            "claims.email_verified must be used in claimMappings.username.expression or \
             claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is \
             used in claimMappings.username.expression",
        ));
    }
    Ok(())
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
        for version in ["v1", "v1beta1", "v1alpha1"] {
            let text = text.replace("k8s.io/v1", &format!("k8s.io/{version}"));
            let (issuers, anonymous) = authentication(&text, &[]).unwrap();
            assert_eq!(anonymous, Some(Anonymous::Paths(vec!["/livez".into()])));
            let one = &issuers[0].0;
            assert_eq!((one.username_prefix.as_str(), one.uid_claim.as_str()), ("a:", "id"));
            assert_eq!(one.required_claims, [("hd".to_owned(), "x".to_owned())]);
        }
        assert!(authentication(&text.replace("k8s.io/v1", "k8s.io/v2"), &[]).is_err());
        let said = authentication(&text, &["https://a".to_owned()]).unwrap_err().to_string();
        assert!(said.contains("disallowed"), "{said}");
    }

    #[test]
    fn expressions_are_compiled() {
        let text = format!(
            "{HEAD}jwt:\n- issuer: {{url: 'https://a', audiences: [k, l], audienceMatchPolicy: MatchAny, discoveryURL: 'https://b/d'}}\n  claimMappings:\n    username: {{expression: 'claims.email'}}\n    groups: {{expression: 'claims.roles'}}\n    uid: {{expression: 'claims.sub'}}\n    extra: [{{key: example.com/x, valueExpression: 'claims.x'}}]\n  claimValidationRules: [{{expression: 'claims.email_verified == true', message: m}}]\n  userValidationRules: [{{expression: \"!user.username.startsWith('system:')\", message: n}}]\n"
        );
        let (issuers, anonymous) = authentication(&text, &[]).unwrap();
        assert_eq!(anonymous, None);
        let own = &issuers[0].0.expressions;
        assert!(own.username.is_some() && own.groups.is_some() && own.uid.is_some());
        assert_eq!((own.extra.len(), own.claim_rules.len(), own.user_rules.len()), (1, 1, 1));
        assert_eq!(issuers[0].0.discovery_url, "https://b/d");
    }

    #[test]
    fn what_would_not_be_applied_is_refused() {
        let issuer = "issuer: {url: 'https://a', audiences: [k]}";
        let mappings = "claimMappings: {username: {claim: sub, prefix: ''}}";
        let mapped = |mappings: &str| format!("[{{{issuer}, claimMappings: {{{mappings}}}}}]");
        let with = |more: &str| format!("[{{{issuer}, {mappings}, {more}}}]");
        let extra = |key: &str| {
            mapped(&format!(
                "username: {{claim: s, prefix: ''}}, extra: [{{key: {key}, valueExpression: 'claims.x'}}]"
            ))
        };
        for (jwt, want) in [
            (format!("[{{issuer: {{url: 'http://a', audiences: [k]}}, {mappings}}}]"), "https"),
            (
                format!("[{{issuer: {{url: 'https://u@a', audiences: [k]}}, {mappings}}}]"),
                "username or password",
            ),
            (format!("[{{issuer: {{url: 'https://a?b', audiences: [k]}}, {mappings}}}]"), "query"),
            (format!("[{{issuer: {{url: 'https://a'}}, {mappings}}}]"), "audience"),
            (format!("[{{issuer: {{url: 'https://a', audiences: [k, l]}}, {mappings}}}]"), "MatchAny"),
            (
                format!(
                    "[{{issuer: {{url: 'https://a', audiences: [k], discoveryURL: 'https://a/'}}, {mappings}}}]"
                ),
                "different",
            ),
            (with("userValidationRules: [{expression: 'user.x'}]"), "userValidationRules[0].expression"),
            (with("userValidationRules: [{message: m}]"), "required"),
            (with("claimValidationRules: [{expression: 'claims.a'}]"), "bool"),
            (with("claimValidationRules: [{expression: 'true', claim: a}]"), "both"),
            (with("claimValidationRules: [{claim: a, message: m}]"), "message"),
            (with("claimValidationRules: [{}]"), "claim or expression is required"),
            (mapped("username: {claim: sub}"), "prefix"),
            (mapped("username: {}"), "claim or expression"),
            (mapped("username: {expression: 'claims.a', prefix: x}"), "prefix"),
            (mapped("username: {expression: 'claims.email'}"), "email_verified"),
            (extra("plain"), "domain-prefixed"),
            (extra("a.k8s.io/x"), "reserved"),
            (extra("a.io/X"), "lowercase"),
            (with("nonsense: 1"), "malformed"),
        ] {
            let said = authentication(&format!("{HEAD}jwt: {jwt}\n"), &[]).unwrap_err().to_string();
            assert!(said.contains(want), "{jwt}: {said}");
        }
        let off = format!("{HEAD}anonymous: {{enabled: false, conditions: [{{path: /}}]}}\n");
        assert!(authentication(&off, &[]).unwrap_err().to_string().contains("enabled"));
        assert!(
            authentication("kind: Secret\napiVersion: v1\n", &[]).unwrap_err().to_string().contains("Secret")
        );
    }
}
