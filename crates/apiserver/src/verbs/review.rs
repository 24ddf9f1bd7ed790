//! Reviews: questions in the form of objects. They are answered and never stored.

use std::sync::Arc;

use apimachinery::field::{Path, Problems};
use apimachinery::names;
use apimachinery::status::Status;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::create::{decode_own, read_body};
use crate::authz::rbac::Rule;
use crate::authz::{Attributes, Authorizer, Decision};
use crate::body::Body;
use crate::context::Context;
use crate::managed;
use crate::respond;
use crate::server::ApiServer;
use crate::user::UserInfo;

impl ApiServer {
    /// POST of a review.
    pub(crate) async fn review(
        self: &Arc<Self>,
        context: &Context,
        body: Body,
    ) -> Result<Response<Body>, Status> {
        if context.resource.plural() == "bindings" {
            return self.bind_pod(context, body).await;
        }
        let bytes = read_body(body).await?;
        let mut review = decode_own(context, &bytes)?;
        if review["metadata"].is_null() {
            review["metadata"] = json!({});
        }
        // Answered with what was asked, and with who asked it.
        managed::created(&mut review, &context.resource, &context.field_manager());
        match context.resource.plural() {
            "subjectaccessreviews" => {
                judge(&review, true, None)?;
                let user = reviewed_user(&review);
                review["status"] = self.access(&user, &review["spec"]).await?;
            }
            "localsubjectaccessreviews" => {
                review["metadata"]["namespace"] = json!(context.info.namespace);
                judge(&review, true, Some(&context.info.namespace))?;
                let user = reviewed_user(&review);
                review["status"] = self.access(&user, &review["spec"]).await?;
            }
            "selfsubjectaccessreviews" => {
                judge(&review, false, None)?;
                review["status"] = self.access(&context.user, &review["spec"]).await?
            }
            "selfsubjectrulesreviews" => {
                review["status"] = self.rules_review(&context.user, &review["spec"])?;
                (review["spec"], review["metadata"]) = (json!({}), json!({}));
            }
            "selfsubjectreviews" => {
                review["status"] = json!({"userInfo": &*context.user});
                review["metadata"] = json!({});
            }
            "tokenreviews" => review["status"] = self.token_review(&review["spec"]).await?,
            _ => return Err(Status::no_such_path()),
        }
        if context.resource.plural() == "selfsubjectreviews"
            && let Some(metadata) = review["metadata"].as_object_mut()
        {
            metadata.insert(
                "creationTimestamp".to_owned(),
                json!(apimachinery::time::seconds(jiff::Timestamp::now())),
            );
        }
        respond::value(
            StatusCode::CREATED,
            &review,
            &context.accepted,
            Some(&context.resource.definition.schema),
        )
    }

    async fn access(&self, user: &UserInfo, spec: &Value) -> Result<Value, Status> {
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let decision = match resource.is_object() {
            true => {
                let [verb, group, version, plural, subresource, namespace, name] =
                    ["verb", "group", "version", "resource", "subresource", "namespace", "name"]
                        .map(|field| text(&resource[field]));
                let selector = field_selector(&resource["fieldSelector"]);
                let labels = label_selector(&resource["labelSelector"]);
                self.authorize(&Attributes {
                    user,
                    verb: &verb,
                    is_resource: true,
                    group: &group,
                    version: &version,
                    resource: &plural,
                    subresource: &subresource,
                    namespace: &namespace,
                    name: &name,
                    path: "",
                    field_selector: &selector,
                    label_selector: &labels,
                })
                .await
            }
            false => {
                let (verb, path) = (text(&path["verb"]), text(&path["path"]));
                let mut asked = Attributes::resource(user, &verb, "", "", "", "");
                asked.is_resource = false;
                asked.path = &path;
                self.authorize(&asked).await
            }
        };
        let mut status = json!({"allowed": decision.is_allowed()});
        if matches!(decision, Decision::Deny(_)) {
            status["denied"] = json!(true);
        }
        if !decision.reason().is_empty() {
            status["reason"] = json!(decision.reason());
        }
        let unread = [
            ("fieldSelector", unread_fields(&resource["fieldSelector"])),
            ("labelSelector", unread_labels(&resource["labelSelector"])),
        ];
        let unread = unread.into_iter().filter(|(_, unread)| *unread);
        let unread: Vec<String> = unread
            .map(|(field, _)| format!("spec.resourceAttributes.{field} ignored due to parse error"))
            .collect();
        if !unread.is_empty() {
            status["evaluationError"] = json!(unread.join(", "));
        }
        Ok(status)
    }

    fn rules_review(&self, user: &UserInfo, spec: &Value) -> Result<Value, Status> {
        let namespace = spec["namespace"].as_str().unwrap_or_default();
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let (mut rules, mut unknown, mut gone) = (Vec::new(), Vec::new(), String::new());
        // What the administrators' group may do, its binding says like that of any other.
        let authorizers = self.authorizers();
        for authorizer in authorizers.iter() {
            match authorizer {
                Authorizer::AlwaysAllow => {
                    let all = || vec!["*".to_owned()];
                    rules.push(Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() });
                    rules.push(Rule { verbs: all(), urls: all(), ..Rule::default() });
                }
                Authorizer::AlwaysDeny => {}
                Authorizer::Node if user.node_name().is_none() => {}
                Authorizer::Node => unknown.push("node authorizer does not support user rule resolution"),
                Authorizer::Rbac => {
                    let policy = self.policy.read().unwrap_or_else(|poisoned| poisoned.into_inner());
                    rules.extend(policy.rules_for(user, namespace));
                    gone = policy.gone_for(user, namespace);
                }
                Authorizer::Abac(policies) => rules.extend(policies.rules_for(user, namespace)),
                Authorizer::Webhook(_) => {
                    unknown.push("webhook authorizer does not support user rule resolution");
                }
            }
        }
        let (urls, resources): (Vec<Rule>, Vec<Rule>) =
            rules.into_iter().partition(|rule| !rule.urls.is_empty());
        let incomplete = !unknown.is_empty();
        let mut status =
            json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": incomplete});
        unknown.extend(Some(gone.as_str()).filter(|gone| !gone.is_empty()));
        if !unknown.is_empty() {
            status["evaluationError"] = json!(unknown.join(", "));
        }
        Ok(status)
    }

    async fn token_review(&self, spec: &Value) -> Result<Value, Status> {
        let token = spec["token"].as_str().unwrap_or_default();
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let wanted: Vec<String> = serde_json::from_value(spec["audiences"].clone()).unwrap_or_default();
        let audiences = if wanted.is_empty() { self.authenticator.audiences.clone() } else { wanted.clone() };
        Ok(match self.authenticator.token(token, &audiences).await {
            Ok((mut user, good)) => {
                if !user.is_in(crate::user::AUTHENTICATED) {
                    user.groups.push(crate::user::AUTHENTICATED.to_owned());
                }
                json!({"authenticated": true, "user": user, "audiences": good})
            }
            Err(complaints) => json!({"user": {}, "error": complaints.to_string()}),
        })
    }
}

/// Whether a selector of fields says what is not understood.
fn unread_fields(value: &Value) -> bool {
    let raw = value["rawSelector"].as_str().unwrap_or_default();
    let mut operators = value["requirements"].as_array().into_iter().flatten().map(|one| &one["operator"]);
    operators.any(|own| !matches!(own.as_str(), Some("In" | "NotIn" | "Exists" | "DoesNotExist")))
        || apimachinery::selector::FieldSelector::parse(raw).is_err()
}

fn unread_labels(value: &Value) -> bool {
    let raw = value["rawSelector"].as_str().unwrap_or_default();
    apimachinery::selector::LabelSelector::parse(raw).is_err()
}

fn field_selector(value: &Value) -> String {
    if let Some(raw) = value["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let terms = value["requirements"].as_array().into_iter().flatten().filter_map(|one| {
        let (key, first) = (one["key"].as_str()?, one["values"][0].as_str()?);
        (one["operator"] == "In").then(|| format!("{key}={first}"))
    });
    terms.collect::<Vec<_>>().join(",")
}

fn label_selector(value: &Value) -> String {
    if let Some(raw) = value["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let terms = value["requirements"].as_array().into_iter().flatten().filter_map(|one| {
        let key = one["key"].as_str()?;
        let values: Vec<&str> =
            one["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match one["operator"].as_str()? {
            "In" => Some(format!("{key} in ({})", values.join(","))),
            "NotIn" => Some(format!("{key} notin ({})", values.join(","))),
            "Exists" => Some(key.to_owned()),
            "DoesNotExist" => Some(format!("!{key}")),
            _ => None,
        }
    });
    terms.collect::<Vec<_>>().join(",")
}

fn reviewed_user(review: &Value) -> UserInfo {
    let spec = &review["spec"];
    UserInfo {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: serde_json::from_value(spec["groups"].clone()).unwrap_or_default(),
        extra: serde_json::from_value(spec["extra"].clone()).unwrap_or_default(),
    }
}

/// Whether a question can be answered: it names one thing, and somebody unless that is the asker. Within a namespace
/// only what is there can be asked for.
fn judge(review: &Value, somebody: bool, namespace: Option<&str>) -> Result<(), Status> {
    let spec = &review["spec"];
    let mut problems = Problems::new();
    let path = Path::new("spec");
    let (resource_at, other_at) = (path.child("resourceAttributes"), path.child("nonResourceAttributes"));
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    // As Go shows it: with the names of its own fields.
    let shown = || json!({"Path": other["path"].as_str().unwrap_or(""), "Verb": other["verb"].as_str().unwrap_or("")});
    match (resource.is_object(), other.is_object()) {
        (true, true) => {
            problems.invalid(&other_at, shown(), "cannot be specified in combination with resourceAttributes")
        }
        (false, false) => problems.invalid(
            &resource_at,
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        _ => {}
    }
    for field in ["fieldSelector", "labelSelector"] {
        selector(&resource[field], field, &resource_at, &mut problems);
    }
    let nobody = |field: &str| match &spec[field] {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    if somebody && nobody("user") && nobody("groups") {
        problems.invalid(&path.child("user"), "", "at least one of user or group must be specified");
    }
    let metadata = review["metadata"].as_object();
    let allowed = |field: &str| field == "managedFields" || field == "namespace" && namespace.is_some();
    if let Some(metadata) = metadata.filter(|map| map.keys().any(|field| !allowed(field))) {
        let why = if namespace.is_some() { "must be empty except for namespace" } else { "must be empty" };
        problems.invalid(&Path::new("metadata"), Value::Object(metadata.clone()), why);
    }
    if let Some(namespace) = namespace {
        let own = resource["namespace"].as_str().unwrap_or_default();
        if resource.is_object() && own != namespace {
            problems.invalid(&resource_at.child("namespace"), own, "must match metadata.namespace");
        }
        if other.is_object() {
            problems.invalid(&other_at, shown(), "disallowed on this kind of request");
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Status::invalid("authorization.k8s.io", "", "", &problems)) }
}

fn selector(value: &Value, field: &'static str, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child(field);
    let raw = value["rawSelector"].as_str().unwrap_or_default();
    let requirements = value["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    if value.is_object() && raw.is_empty() && requirements.is_empty() {
        let shown = format!("spec.resourceAttributes.{field}");
        let why = format!("when {shown} is specified, requirements or rawSelector is required");
        problems.required(&at.child("requirements"), &why);
    }
    if !raw.is_empty() && !requirements.is_empty() {
        problems.invalid(&at.child("rawSelector"), raw, "may not specified at the same time as requirements");
    }
    let list = at.child("requirements");
    for (index, one) in requirements.iter().enumerate() {
        let at = list.index(index);
        let key = one["key"].as_str().unwrap_or_default();
        if field != "labelSelector" && key.is_empty() {
            problems.required(&at.child("key"), "must be specified");
        }
        let empty = one["values"].as_array().is_none_or(Vec::is_empty);
        match one["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if empty => {
                problems.required(&at.child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
            }
            "Exists" | "DoesNotExist" if !empty => problems.forbidden(
                &at.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            // Of fields, operators to come are passed over.
            other if field == "labelSelector" => {
                problems.invalid(&at.child("operator"), other, "not a valid selector operator")
            }
            _ => {}
        }
        if field == "labelSelector" {
            problems.invalid_each(&at.child("key"), key, names::is_label_key(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_cannot_be_answered_are_refused_where_they_are_odd() {
        let pods = json!({"verb": "get", "resource": "pods", "namespace": "n"});
        let table = [
            (json!({"user": "u", "resourceAttributes": pods}), Some("n"), ""),
            (json!({"resourceAttributes": pods}), None, "spec.user"),
            (json!({"user": "u"}), None, "spec.resourceAttributes"),
            (
                json!({"user": "u", "resourceAttributes": pods}),
                Some("m"),
                "spec.resourceAttributes.namespace",
            ),
            (
                json!({"user": "u", "nonResourceAttributes": {"path": "/"}}),
                Some("n"),
                "spec.nonResourceAttributes",
            ),
            (
                json!({"user": "u", "resourceAttributes": {}, "nonResourceAttributes": {}}),
                None,
                "spec.nonResourceAttributes",
            ),
            (
                json!({"user": "u", "resourceAttributes": {"fieldSelector": {"rawSelector": "a", "requirements": [{"key": "a", "operator": "Exists"}]}}}),
                None,
                "spec.resourceAttributes.fieldSelector.rawSelector",
            ),
            (
                json!({"user": "u", "resourceAttributes": {"labelSelector": {"requirements": [{"key": "a", "operator": "Is"}]}}}),
                None,
                "spec.resourceAttributes.labelSelector.requirements[0].operator",
            ),
        ];
        for (spec, namespace, field) in table {
            let said = judge(&json!({"spec": spec}), true, namespace).err();
            let said = said.map(|status| status.message).unwrap_or_default();
            assert!(said.contains(field) && said.is_empty() == field.is_empty(), "{spec}: {said}");
        }
    }
}
