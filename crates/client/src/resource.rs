//! The coordinates of a resource and its paths.

use std::fmt;

/// Where a kind is served: group, version, plural, and whether it lives in namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    pub group: std::borrow::Cow<'static, str>,
    pub version: std::borrow::Cow<'static, str>,
    pub plural: std::borrow::Cow<'static, str>,
    pub kind: std::borrow::Cow<'static, str>,
    pub namespaced: bool,
}

impl Resource {
    /// A resource that lives in namespaces, known at build time.
    pub const fn namespaced(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        kind: &'static str,
    ) -> Self {
        Self::known(group, version, plural, kind, true)
    }

    /// A resource of the whole cluster, known at build time.
    pub const fn cluster(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        kind: &'static str,
    ) -> Self {
        Self::known(group, version, plural, kind, false)
    }

    const fn known(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        kind: &'static str,
        namespaced: bool,
    ) -> Self {
        use std::borrow::Cow::Borrowed;
        Self {
            group: Borrowed(group),
            version: Borrowed(version),
            plural: Borrowed(plural),
            kind: Borrowed(kind),
            namespaced,
        }
    }

    /// `v1` or `apps/v1`, as in an object's `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The path of the collection, an object in it, or an object's subresource.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>, subresource: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let (true, Some(namespace)) = (self.namespaced, namespace.filter(|name| !name.is_empty())) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        for part in [name, subresource].into_iter().flatten() {
            path.push('/');
            path.push_str(part);
        }
        path
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            write!(out, "{}", self.plural)
        } else {
            write!(out, "{}.{}", self.plural, self.group)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::resources::{DEPLOYMENTS, NODES, PODS};

    #[test]
    fn paths_follow_group_and_scope() {
        assert_eq!(PODS.path(Some("web"), Some("a"), Some("log")), "/api/v1/namespaces/web/pods/a/log");
        assert_eq!(PODS.path(None, None, None), "/api/v1/pods");
        assert_eq!(NODES.path(Some("ignored"), Some("n1"), None), "/api/v1/nodes/n1");
        assert_eq!(
            DEPLOYMENTS.path(Some("web"), Some("a"), Some("status")),
            "/apis/apps/v1/namespaces/web/deployments/a/status"
        );
    }
}
