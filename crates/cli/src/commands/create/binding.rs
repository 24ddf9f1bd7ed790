//! Role bindings and cluster role bindings.

use clap::Args;
use serde_json::{Value, json};

use super::{Common, one_name};
use crate::error::{CliError, message};

#[derive(Args, Debug)]
struct Subjects {
    /// Usernames to bind to the role
    #[arg(long, value_delimiter = ',')]
    user: Vec<String>,
    /// Groups to bind to the role
    #[arg(long, value_delimiter = ',')]
    group: Vec<String>,
    /// Service accounts to bind to the role, in the format <namespace>:<name>
    #[arg(long, value_delimiter = ',')]
    serviceaccount: Vec<String>,
}

impl Subjects {
    fn list(&self) -> Result<Vec<Value>, CliError> {
        let named = |kind: &str, name: &String| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
        let mut found: Vec<Value> = self.user.iter().map(|name| named("User", name)).collect();
        found.extend(self.group.iter().map(|name| named("Group", name)));
        for account in &self.serviceaccount {
            let Some((namespace, name)) =
                account.split_once(':').filter(|(a, b)| !a.is_empty() && !b.is_empty())
            else {
                return Err(message("serviceaccount must be <namespace>:<name>"));
            };
            found.push(json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}));
        }
        Ok(found)
    }
}

fn binding(kind: &str, name: String, role_kind: &str, role: &str, subjects: Vec<Value>) -> Value {
    let mut object = json!({"kind": kind, "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role}});
    if !subjects.is_empty() {
        object["subjects"] = Value::Array(subjects);
    }
    object
}

/// Create a role binding for a particular role or cluster role
#[derive(Args, Debug)]
pub struct RoleBinding {
    names: Vec<String>,
    /// ClusterRole this RoleBinding should reference
    #[arg(long, default_value = "", hide_default_value = true)]
    clusterrole: String,
    /// Role this RoleBinding should reference
    #[arg(long, default_value = "", hide_default_value = true)]
    role: String,
    #[command(flatten)]
    subjects: Subjects,
    #[command(flatten)]
    pub common: Common,
}

impl RoleBinding {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("rolebinding", &self.names)?;
        let (kind, role) = match (self.clusterrole.is_empty(), self.role.is_empty()) {
            (false, true) => ("ClusterRole", &self.clusterrole),
            (true, false) => ("Role", &self.role),
            _ => return Err(message("exactly one of clusterrole or role must be specified")),
        };
        Ok(binding("RoleBinding", name, kind, role, self.subjects.list()?))
    }
}

/// Create a cluster role binding for a particular cluster role
#[derive(Args, Debug)]
pub struct ClusterRoleBinding {
    names: Vec<String>,
    /// ClusterRole this ClusterRoleBinding should reference
    #[arg(long, default_value = "", hide_default_value = true)]
    clusterrole: String,
    #[command(flatten)]
    subjects: Subjects,
    #[command(flatten)]
    pub common: Common,
}

impl ClusterRoleBinding {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("clusterrolebinding", &self.names)?;
        if self.clusterrole.is_empty() {
            return Err(message("required flag(s) \"clusterrole\" not set"));
        }
        Ok(binding("ClusterRoleBinding", name, "ClusterRole", &self.clusterrole, self.subjects.list()?))
    }
}
