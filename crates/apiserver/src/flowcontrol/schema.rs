//! FlowSchemas: which requests they are about.

use serde_json::Value;

use crate::request_info::RequestInfo;
use crate::user::UserInfo;

/// A FlowSchema, read.
#[derive(Clone, Debug)]
pub struct Schema {
    pub name: String,
    pub uid: String,
    pub level: String,
    pub precedence: i64,
    pub distinguish: Option<Distinguish>,
    rules: Vec<SchemaRule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinguish {
    User,
    Namespace,
}

#[derive(Clone, Debug, Default)]
struct SchemaRule {
    users: Vec<String>,
    groups: Vec<String>,
    accounts: Vec<(String, String)>,
    resources: Vec<ResourceRule>,
    urls: Vec<(Vec<String>, Vec<String>)>,
}

/// Read once, because every request is held against it.
#[derive(Clone, Debug)]
struct ResourceRule {
    cluster_scope: bool,
    namespaces: Vec<String>,
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
}

impl ResourceRule {
    fn read(rule: &Value) -> Self {
        Self {
            cluster_scope: rule["clusterScope"] == true,
            namespaces: strings(&rule["namespaces"]),
            verbs: strings(&rule["verbs"]),
            groups: strings(&rule["apiGroups"]),
            resources: strings(&rule["resources"]),
        }
    }

    fn covers(&self, info: &RequestInfo) -> bool {
        let scope = if info.namespace.is_empty() {
            self.cluster_scope
        } else {
            has(&self.namespaces, &info.namespace)
        };
        scope
            && has(&self.verbs, info.verb)
            && has(&self.groups, &info.group)
            && self.resources.iter().any(|own| own == "*" || names_resource(own, info))
    }
}

/// Whether `pods` or `pods/status` is what a request is about.
fn names_resource(own: &str, info: &RequestInfo) -> bool {
    match own.split_once('/') {
        None => own == info.resource && info.subresource.is_empty(),
        Some((resource, subresource)) => resource == info.resource && subresource == info.subresource,
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == "*" || own == wanted)
}

impl Schema {
    pub fn read(object: &Value) -> Option<Self> {
        let spec = &object["spec"];
        let rules = spec["rules"].as_array().into_iter().flatten().map(|rule| {
            let mut read = SchemaRule::default();
            for subject in rule["subjects"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                match subject["kind"].as_str() {
                    Some("User") => read.users.push(text(&subject["user"]["name"])),
                    Some("Group") => read.groups.push(text(&subject["group"]["name"])),
                    Some("ServiceAccount") => {
                        let account = &subject["serviceAccount"];
                        read.accounts.push((text(&account["namespace"]), text(&account["name"])));
                    }
                    _ => {}
                }
            }
            let rules = rule["resourceRules"].as_array().into_iter().flatten();
            read.resources = rules.map(ResourceRule::read).collect();
            for url in rule["nonResourceRules"].as_array().into_iter().flatten() {
                read.urls.push((strings(&url["verbs"]), strings(&url["nonResourceURLs"])));
            }
            read
        });
        Some(Self {
            name: object["metadata"]["name"].as_str()?.to_owned(),
            uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            level: spec["priorityLevelConfiguration"]["name"].as_str()?.to_owned(),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            distinguish: match spec["distinguisherMethod"]["type"].as_str() {
                Some("ByUser") => Some(Distinguish::User),
                Some("ByNamespace") => Some(Distinguish::Namespace),
                _ => None,
            },
            rules: rules.collect(),
        })
    }

    pub fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        self.rules.iter().any(|rule| rule.names(user) && rule.covers(info))
    }
}

impl SchemaRule {
    fn names(&self, user: &UserInfo) -> bool {
        let account = user.service_account_key();
        self.users.iter().any(|own| own == "*" || *own == user.name)
            || self.groups.iter().any(|own| own == "*" || user.is_in(own))
            || self.accounts.iter().any(|(namespace, name)| {
                account.is_some_and(|(own_namespace, own_name)| {
                    namespace == own_namespace && (name == "*" || name == own_name)
                })
            })
    }

    fn covers(&self, info: &RequestInfo) -> bool {
        if !info.is_resource {
            return self.urls.iter().any(|(verbs, urls)| {
                verbs.iter().any(|own| own == "*" || own == info.verb)
                    && urls.iter().any(|own| {
                        own == "*"
                            || *own == info.path
                            || own.strip_suffix('*').is_some_and(|prefix| info.path.starts_with(prefix))
                    })
            });
        }
        self.resources.iter().any(|rule| rule.covers(info))
    }
}
