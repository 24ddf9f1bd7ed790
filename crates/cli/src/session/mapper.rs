//! From what people type (`po`, `deploy`, `deployments.v1.apps`, `Pod`) to a resource of the server.

use super::discovery::{ApiResource, Discovery};

/// The resource that a word means.
pub fn resource_for<'a>(discovery: &'a Discovery, word: &str) -> Option<&'a ApiResource> {
    let lower = word.to_lowercase();
    let mut parts = lower.splitn(3, '.');
    if let (Some(name), Some(version), Some(group)) = (parts.next(), parts.next(), parts.next()) {
        let exact = discovery.resources.iter().find(|resource| {
            resource.version == version && resource.group == group && is_named(resource, name)
        });
        if exact.is_some() {
            return exact;
        }
    }
    let (name, group) =
        lower.split_once('.').map_or((lower.as_str(), None), |(name, group)| (name, Some(group)));
    if let Some(found) = in_group(discovery, name, group) {
        return Some(found);
    }
    // A short name stands for a resource, which may then be one of another version.
    let expanded = discovery.resources.iter().find(|resource| {
        resource.short.iter().any(|short| short == name)
            && group.is_none_or(|group| resource.group == group || resource.group.starts_with(group))
    });
    expanded.or_else(|| kind_for(discovery, word))
}

fn in_group<'a>(discovery: &'a Discovery, name: &str, group: Option<&str>) -> Option<&'a ApiResource> {
    let mut named = discovery.resources.iter().filter(|resource| is_named(resource, name));
    let Some(group) = group else { return named.next() };
    let named: Vec<&ApiResource> = named.collect();
    let exact = named.iter().find(|resource| resource.group == group);
    exact.or_else(|| named.iter().find(|resource| resource.group.starts_with(group))).copied()
}

fn is_named(resource: &ApiResource, name: &str) -> bool {
    resource.name == name
        || if resource.singular.is_empty() {
            resource.kind.to_lowercase() == name
        } else {
            resource.singular == name
        }
}

/// `Deployment`, `Deployment.apps`, `Deployment.v1.apps`.
fn kind_for<'a>(discovery: &'a Discovery, word: &str) -> Option<&'a ApiResource> {
    let (kind, rest) = word.split_once('.').unwrap_or((word, ""));
    discovery.resources.iter().find(|resource| {
        resource.kind == kind
            && (rest.is_empty()
                || resource.group == rest
                || rest
                    .split_once('.')
                    .is_some_and(|(version, group)| resource.version == version && resource.group == group))
    })
}

/// The resource of an object's own kind.
pub fn of_object<'a>(discovery: &'a Discovery, api_version: &str, kind: &str) -> Option<&'a ApiResource> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let mut matching = discovery
        .resources
        .iter()
        .filter(|resource| resource.group == group && resource.version == version && resource.kind == kind);
    matching.next()
}

/// The resources of a category such as `all`, each in its preferred version.
pub fn in_category<'a>(discovery: &'a Discovery, category: &str) -> Vec<&'a ApiResource> {
    let all = discovery.preferred().into_iter();
    all.filter(|resource| resource.categories.iter().any(|own| own == category)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group: &str, version: &str, name: &str, kind: &str, short: &str) -> ApiResource {
        ApiResource {
            group: group.into(),
            version: version.into(),
            name: name.into(),
            singular: kind.to_lowercase(),
            kind: kind.into(),
            short: vec![short.into()],
            ..ApiResource::default()
        }
    }

    #[test]
    fn words_find_their_resources() {
        let discovery = Discovery {
            groups: Vec::new(),
            resources: vec![
                resource("", "v1", "pods", "Pod", "po"),
                resource("", "v1", "events", "Event", "ev"),
                resource("events.k8s.io", "v1", "events", "Event", "ev"),
                resource("apps", "v1", "deployments", "Deployment", "deploy"),
                resource("apps", "v1beta1", "deployments", "Deployment", "deploy"),
            ],
        };
        for (word, group, version) in [
            ("po", "", "v1"),
            ("Pod", "", "v1"),
            ("PODS", "", "v1"),
            ("events", "", "v1"),
            ("events.events.k8s.io", "events.k8s.io", "v1"),
            ("ev.events", "events.k8s.io", "v1"),
            ("deploy", "apps", "v1"),
            ("deployments.v1beta1.apps", "apps", "v1beta1"),
            ("Deployment.v1beta1.apps", "apps", "v1beta1"),
            ("deployments.app", "apps", "v1"),
        ] {
            let found = resource_for(&discovery, word).unwrap_or_else(|| panic!("{word}"));
            assert_eq!((found.group.as_str(), found.version.as_str()), (group, version), "{word}");
        }
        assert!(resource_for(&discovery, "nothing").is_none());
    }
}
