//! Whether a policy or binding is about a request: rules, exclusions, selectors. Webhooks say it with the same words.

use apimachinery::selector::LabelSelector;
use serde::Deserialize;
use serde_json::{Map, Value};

/// What is matched: a resource in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// API group.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    /// Plural name.
    pub resource: &'a str,
    /// Subresource or nothing.
    pub subresource: &'a str,
    /// In a namespace.
    pub namespaced: bool,
}

/// A rule.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    operations: Vec<String>,
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    resources: Vec<String>,
    resource_names: Vec<String>,
    scope: Option<String>,
}

fn any(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == "*" || own == wanted)
}

impl Rule {
    /// Whether the rule is about this resource, operation and object.
    pub fn matches(&self, target: &Target<'_>, operation: &str, name: &str) -> bool {
        let scope = match self.scope.as_deref() {
            Some("Namespaced") => target.namespaced,
            Some("Cluster") => !target.namespaced,
            _ => true,
        };
        scope
            && any(&self.operations, operation)
            && any(&self.api_groups, target.group)
            && any(&self.api_versions, target.version)
            && self.resources.iter().any(|pattern| matches_resource(pattern, target))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|own| own == name))
    }
}

fn matches_resource(pattern: &str, target: &Target<'_>) -> bool {
    let (resource, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
    let one = resource == "*" || resource == target.resource;
    let other = subresource == "*" || subresource == target.subresource;
    one && other
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    namespace_selector: Option<Value>,
    object_selector: Option<Value>,
    resource_rules: Vec<Rule>,
    exclude_resource_rules: Vec<Rule>,
    match_policy: Option<String>,
}

/// `matchConstraints` or `matchResources`.
#[derive(Clone, Debug)]
pub struct MatchResources {
    namespaces: LabelSelector,
    objects: LabelSelector,
    rules: Vec<Rule>,
    exclude: Vec<Rule>,
    exact: bool,
}

/// The labels of what a request is about.
pub struct Labels<'a> {
    /// Of the namespace; `None` if there is none to look at.
    pub namespace: Option<&'a Map<String, Value>>,
    /// Whether the namespace counts at all: objects outside of namespaces match every selector.
    pub in_namespace: bool,
    /// Of the new object.
    pub object: Option<&'a Map<String, Value>>,
    /// Of the old object.
    pub old: Option<&'a Map<String, Value>>,
    /// Whether there is a new object, an old object.
    pub present: (bool, bool),
}

impl MatchResources {
    /// Reads it. Absent matches everything.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let wire: Wire = if value.is_object() {
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())?
        } else {
            Wire::default()
        };
        let selector = |selector: &Option<Value>| match selector {
            Some(value) => LabelSelector::from_object(value).map_err(|error| error.to_string()),
            None => Ok(LabelSelector::everything()),
        };
        Ok(Self {
            namespaces: selector(&wire.namespace_selector)?,
            objects: selector(&wire.object_selector)?,
            rules: wire.resource_rules,
            exclude: wire.exclude_resource_rules,
            exact: wire.match_policy.as_deref() == Some("Exact"),
        })
    }

    /// The target it matches: the first of `targets` is the requested one, the others are the same objects in other
    /// versions, which count unless the match is to be exact.
    pub fn matches<'t, 'a>(
        &self,
        targets: &'t [Target<'a>],
        operation: &str,
        name: &str,
        labels: &Labels<'_>,
    ) -> Option<&'t Target<'a>> {
        if labels.in_namespace && !self.namespaces.matches(labels.namespace) {
            return None;
        }
        if !self.objects.is_everything() {
            let new = labels.present.0 && self.objects.matches(labels.object);
            let old = labels.present.1 && self.objects.matches(labels.old);
            if !new && !old {
                return None;
            }
        }
        let find = |rules: &[Rule]| {
            let considered = if self.exact { targets.get(..1).unwrap_or_default() } else { targets };
            let held = |target: &&Target<'a>| rules.iter().any(|rule| rule.matches(target, operation, name));
            considered.iter().find(held)
        };
        if find(&self.exclude).is_some() {
            return None;
        }
        if self.rules.is_empty() { targets.first() } else { find(&self.rules) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEPLOYMENT: Target<'_> =
        Target { group: "apps", version: "v1", resource: "deployments", subresource: "", namespaced: true };

    fn matched(value: &Value, targets: &[Target<'_>], labels: &Value) -> bool {
        let map = labels.as_object();
        let labels =
            Labels { namespace: map, in_namespace: true, object: map, old: None, present: (true, false) };
        MatchResources::parse(value).expect("readable").matches(targets, "CREATE", "x", &labels).is_some()
    }

    #[test]
    fn rules_exclusions_and_selectors_decide() {
        let rule = |group: &str, version: &str, resource: &str| json!({"operations": ["CREATE"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]});
        let scale = Target { subresource: "scale", ..DEPLOYMENT };
        let beta = Target { version: "v1beta1", ..DEPLOYMENT };
        let own = rule("apps", "v1", "deployments");
        let table = [
            (json!({"resourceRules": [own]}), vec![DEPLOYMENT], true),
            (json!({"resourceRules": [own]}), vec![scale], false),
            (json!({"resourceRules": [rule("*", "*", "*/scale")]}), vec![scale], true),
            (json!({"resourceRules": [rule("apps", "v1", "deployments/*")]}), vec![DEPLOYMENT], true),
            (json!({"resourceRules": [rule("", "v1", "pods")]}), vec![DEPLOYMENT], false),
            (
                json!({"resourceRules": [own], "excludeResourceRules": [rule("*", "*", "*")]}),
                vec![DEPLOYMENT],
                false,
            ),
            (json!({"resourceRules": [own]}), vec![beta, DEPLOYMENT], true),
            (json!({"resourceRules": [own], "matchPolicy": "Exact"}), vec![beta, DEPLOYMENT], false),
            (
                json!({"resourceRules": [own], "namespaceSelector": {"matchLabels": {"a": "b"}}}),
                vec![DEPLOYMENT],
                true,
            ),
            (
                json!({"resourceRules": [own], "namespaceSelector": {"matchLabels": {"a": "c"}}}),
                vec![DEPLOYMENT],
                false,
            ),
            (
                json!({"resourceRules": [own], "objectSelector": {"matchLabels": {"a": "c"}}}),
                vec![DEPLOYMENT],
                false,
            ),
            (json!(null), vec![DEPLOYMENT], true),
        ];
        for (value, targets, wanted) in table {
            assert_eq!(matched(&value, &targets, &json!({"a": "b"})), wanted, "{value}");
        }
        let mut named = own.clone();
        named["resourceNames"] = json!(["y"]);
        assert!(!matched(&json!({"resourceRules": [named]}), &[DEPLOYMENT], &json!({})));
    }
}
