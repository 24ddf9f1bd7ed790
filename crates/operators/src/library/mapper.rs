//! From the kind of an object to the resource that serves it, by asking discovery.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use client::{Client, Error, Resource};
use serde::Deserialize;

/// The resources that a server was found to serve. What was not found is asked for again: definitions come and go.
pub struct Mapper {
    client: Client,
    known: Mutex<HashMap<(String, String, String), Resource>>,
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
    kind: String,
    #[serde(default)]
    namespaced: bool,
}

impl Mapper {
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// The resource of a kind, `None` when the server has none. Being unable to ask is an error.
    pub async fn resource(&self, group: &str, version: &str, kind: &str) -> Result<Option<Resource>, Error> {
        let key = (group.to_owned(), version.to_owned(), kind.to_owned());
        if let Some(known) = self.known().get(&key) {
            return Ok(Some(known.clone()));
        }
        let path = match group.is_empty() {
            true => format!("/api/{version}"),
            false => format!("/apis/{group}/{version}"),
        };
        let list: ResourceList = match self.client.get_path(&path).await {
            Ok(list) => list,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut known = self.known();
        for served in list.resources.into_iter().filter(|served| !served.name.contains('/')) {
            let resource = Resource {
                group: group.to_owned().into(),
                version: version.to_owned().into(),
                plural: served.name.into(),
                kind: served.kind.clone().into(),
                namespaced: served.namespaced,
            };
            known.insert((group.to_owned(), version.to_owned(), served.kind), resource);
        }
        Ok(known.get(&key).cloned())
    }

    /// Asks again for a kind whose resource turned out to be gone.
    pub fn forget(&self, resource: &Resource) {
        self.known().retain(|_, known| known != resource);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<(String, String, String), Resource>> {
        // A map of facts is as good after a panic as before it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
