//! Who asks: the identity that authentication found and every later step of the chain looks at.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Every authenticated request carries this group.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Members may do everything; authorization is not asked.
pub const MASTERS: &str = "system:masters";
/// The name of a request without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// All service accounts.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// All kubelets.
pub const NODES: &str = "system:nodes";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const NODE_PREFIX: &str = "system:node:";

/// A user as authenticators, authorizers and admission see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserInfo {
    /// The unique name.
    #[serde(rename = "username", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Distinguishes two users that had the same name at different times.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The groups the user is in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// What else the authenticator said.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user with a name and groups; `system:authenticated` is added.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        groups.push(AUTHENTICATED.to_owned());
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// The identity of the control plane's own components inside one process.
    pub fn loopback() -> Self {
        Self::new("system:apiserver", &[MASTERS])
    }

    /// A service account's identity.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::new(
            format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"),
            &[SERVICE_ACCOUNTS, &format!("{SERVICE_ACCOUNTS}:{namespace}")],
        )
    }

    /// Who a request without credentials is.
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// Whether the user is in `group`.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The node whose kubelet this is.
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX)?;
        (!name.is_empty() && self.is_in(NODES)).then_some(name)
    }

    /// Namespace and name of the service account that this is.
    pub fn service_account_key(&self) -> Option<(&str, &str)> {
        split_service_account(&self.name)
    }
}

/// Splits `system:serviceaccount:<namespace>:<name>`.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_account_name_needs_both_parts() {
        let cases = [
            ("system:serviceaccount:kube-system:default", Some(("kube-system", "default"))),
            ("system:serviceaccount:kube-system", None),
            ("system:serviceaccount::x", None),
            ("system:serviceaccount:a:b:c", None),
            ("alice", None),
        ];
        for (name, want) in cases {
            assert_eq!(split_service_account(name), want, "{name}");
        }
    }

    #[test]
    fn a_node_is_one_by_name_and_group() {
        assert_eq!(UserInfo::new("system:node:a", &[NODES]).node_name(), Some("a"));
        assert_eq!(UserInfo::new("system:node:a", &[]).node_name(), None);
    }
}
