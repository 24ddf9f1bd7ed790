//! What the server serves: every kind in its preferred version, with its verbs.

use client::{Client, Error, Resource};
use serde::Deserialize;

/// A kind that the server serves.
#[derive(Clone, Debug)]
pub struct Served {
    /// The kind.
    pub resource: Resource,
    /// What can be done with it.
    pub verbs: Vec<Box<str>>,
}

impl Served {
    /// Whether a verb is offered.
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| **own == *verb)
    }
}

/// What was found out.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The kinds.
    pub kinds: Vec<Served>,
    /// Groups that could not be asked, with the reason.
    pub failed: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    preferred_version: GroupVersion,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<Box<str>>,
}

/// Asks the server. A group that does not answer is noted and does not hide the others.
pub async fn discover(client: &Client) -> Result<Discovery, Error> {
    let groups: Groups = client.get_path("/apis").await?;
    let mut found = Discovery::default();
    ask(client, "v1", "/api/v1", &mut found).await;
    for group in groups.groups {
        let preferred = group.preferred_version.group_version;
        ask(client, &preferred, &format!("/apis/{preferred}"), &mut found).await;
        for other in group.versions.iter().map(|version| &version.group_version).filter(|v| **v != preferred)
        {
            // A kind may be served only in a version that is not its group's favourite.
            ask(client, other, &format!("/apis/{other}"), &mut found).await;
        }
    }
    Ok(found)
}

async fn ask(client: &Client, group_version: &str, path: &str, found: &mut Discovery) {
    let resources: Resources = match client.get_path(path).await {
        Ok(resources) => resources,
        Err(error) => {
            found.failed.push((group_version.to_owned(), telemetry::chain(&error).to_string()));
            return;
        }
    };
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    for served in resources.resources.into_iter().filter(|served| !served.name.contains('/')) {
        let known = |kind: &Served| kind.resource.group == group && kind.resource.plural == served.name;
        if found.kinds.iter().any(known) {
            continue;
        }
        let resource = Resource {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            plural: served.name.into(),
            kind: served.kind.into(),
            namespaced: served.namespaced,
        };
        found.kinds.push(Served { resource, verbs: served.verbs });
    }
}
