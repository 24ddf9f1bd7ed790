//! Audit policies by profile.

use serde_json::{Value, json};

/// Requests that are of no interest, whatever the profile.
fn quiet() -> Vec<Value> {
    vec![
        json!({"level": "None", "resources": [{"group": "", "resources": ["events"]}]}),
        json!({"level": "None", "nonResourceURLs": ["/healthz*", "/readyz*", "/livez*", "/version", "/metrics"]}),
    ]
}

/// What a profile adds, most particular first. Bodies of what authenticates somebody are never written.
fn rules(profile: &str) -> Result<Vec<Value>, String> {
    let secret = json!({
        "level": "Metadata",
        "resources": [
            {"group": "", "resources": ["secrets"]},
            {"group": "route.openshift.io", "resources": ["routes"]},
            {"group": "oauth.openshift.io", "resources": [
                "oauthclients", "oauthaccesstokens", "oauthauthorizetokens",
            ]},
            {"group": "authentication.k8s.io", "resources": ["tokenreviews", "tokenrequests"]},
        ],
    });
    Ok(match profile {
        "" | "Default" => vec![json!({"level": "Metadata"})],
        "WriteRequestBodies" => vec![
            secret,
            json!({"level": "RequestResponse", "verbs": ["update", "patch", "create", "delete", "deletecollection"]}),
            json!({"level": "Metadata"}),
        ],
        "AllRequestBodies" => vec![secret, json!({"level": "RequestResponse"})],
        "None" => vec![json!({"level": "None"})],
        other => {
            return Err(format!(
                "audit profile {other:?} is none of Default, WriteRequestBodies, AllRequestBodies, None"
            ));
        }
    })
}

/// The policy of `spec.audit` of the APIServer.
pub fn policy(audit: &Value) -> Result<Value, String> {
    let mut all = quiet();
    for custom in audit["customRules"].as_array().into_iter().flatten() {
        let group = custom["group"].as_str().unwrap_or_default();
        for mut rule in rules(custom["profile"].as_str().unwrap_or_default())? {
            rule["userGroups"] = json!([group]);
            all.push(rule);
        }
    }
    all.extend(rules(audit["profile"].as_str().unwrap_or_default())?);
    Ok(json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": all,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_and_rules_of_groups_become_a_policy() {
        let level = |policy: &Value| policy["rules"].as_array().unwrap().last().unwrap()["level"].clone();
        assert_eq!(level(&policy(&json!({})).unwrap()), "Metadata");
        assert_eq!(level(&policy(&json!({"profile": "AllRequestBodies"})).unwrap()), "RequestResponse");
        assert_eq!(level(&policy(&json!({"profile": "None"})).unwrap()), "None");
        let custom = policy(&json!({"customRules": [{"group": "devs", "profile": "None"}]})).unwrap();
        assert_eq!(custom["rules"][2], json!({"level": "None", "userGroups": ["devs"]}));
        assert!(policy(&json!({"profile": "Everything"})).is_err());
    }
}
