//! Which kinds are served. Built-in and custom ones are the same here: a [`Resource`] under its path.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use api::{Definition, Scope};
use apimachinery::meta::MetaMut;
use bytes::Bytes;
use serde_json::Value;

use crate::cache::entry::{Entry, encode_for_store};
use crate::cache::sparse;
use crate::conversion::{Converter, pruned};

/// Which built-in API versions are served: all, but for those that were turned off.
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig {
    /// `group/version` or `version` of the core group, perhaps with `/resource`; and whether it is wanted.
    wanted: Vec<(String, bool)>,
    all: Option<bool>,
}

impl RuntimeConfig {
    /// Reads the values of `--runtime-config`.
    pub fn parse(pairs: &[String]) -> Result<Self, String> {
        let mut found = Self::default();
        for pair in pairs.iter().filter(|pair| !pair.is_empty()) {
            let (name, on) = pair.split_once('=').unwrap_or((pair, "true"));
            let on = match on {
                "true" | "" => true,
                "false" => false,
                _ => return Err(format!("{pair:?} is not of the form group/version=true")),
            };
            match name {
                "api/all" => found.all = Some(on),
                // Only versions that are generally available are built in.
                "api/ga" => found.all = found.all.or(Some(on)),
                "api/beta" | "api/alpha" | "api/legacy" => {}
                name => found.wanted.push((name.trim_start_matches("api/").to_owned(), on)),
            }
        }
        Ok(found)
    }

    /// Refuses names that no built-in kind has.
    pub fn check(&self, definitions: &[Definition]) -> Result<(), String> {
        for (name, _) in &self.wanted {
            if !definitions.iter().any(|one| names_version(name, one)) {
                return Err(format!("{name:?} is not built into this server"));
            }
        }
        Ok(())
    }

    /// Whether a kind is served.
    pub fn serves(&self, definition: &Definition) -> bool {
        let said = self.wanted.iter().rev().find(|(name, _)| names_version(name, definition));
        said.map(|(_, on)| *on).or(self.all).unwrap_or(true)
    }
}

/// Whether `apps/v1`, `v1` or `apps/v1/deployments` names the kind's version.
fn names_version(name: &str, definition: &Definition) -> bool {
    let own = definition.names.api_version();
    name == own
        || name.strip_prefix(&own).and_then(|rest| rest.strip_prefix('/')) == Some(&definition.names.plural)
}

/// One kind in one served version.
pub struct Resource {
    /// Everything that is true of it.
    pub definition: Definition,
    /// `apps/v1`
    pub api_version: String,
    /// The store's keys start with this.
    pub prefix: Bytes,
    /// How stored objects of this version begin.
    head: String,
    /// The API version that is stored.
    storage_api_version: String,
    /// How objects begin that are stored as they are stored now.
    storage_head: String,
    /// Who makes other versions of its objects, if that takes more than another name.
    pub converter: Option<Arc<Converter>>,
    /// The stored version, if it is a custom resource and that is another one.
    stored: Option<Arc<Definition>>,
}

impl Resource {
    /// Wraps a definition.
    pub fn new(definition: Definition) -> Self {
        let api_version = definition.names.api_version();
        let storage = &definition.storage;
        let storage_api_version = if storage.group.is_empty() {
            storage.version.to_string()
        } else {
            format!("{}/{}", storage.group, storage.version)
        };
        Self {
            prefix: Bytes::from(format!("{}/", definition.storage.prefix)),
            head: head(&definition.names.kind, &api_version),
            storage_head: head(&definition.names.kind, &storage_api_version),
            storage_api_version,
            converter: None,
            stored: None,
            api_version,
            definition,
        }
    }

    /// A custom resource with other versions: how it is converted, and which one is stored.
    pub fn versioned(mut self, converter: Option<Arc<Converter>>, stored: Option<&Arc<Definition>>) -> Self {
        self.converter = converter;
        self.stored = stored.filter(|_| !self.is_stored()).cloned();
        self
    }

    /// Whether this is the version that is stored.
    pub fn is_stored(&self) -> bool {
        self.storage_api_version == self.api_version
    }

    /// The API version that is stored.
    pub fn storage_api_version(&self) -> &str {
        &self.storage_api_version
    }

    /// Whether an entry is of this version.
    pub fn is_own(&self, entry: &Entry) -> bool {
        self.head_of(entry) > 0
            || sparse::read(&entry.value, &["apiVersion"])
                .is_ok_and(|found| found["apiVersion"] == self.api_version.as_str())
    }

    /// Whether a custom resource was stored in a version that is no longer the stored one. Then a write that changes nothing is
    /// done nevertheless: that is how stored versions are left behind.
    pub fn is_outdated(&self, entry: &Entry) -> bool {
        self.definition.custom
            && !entry.value.starts_with(self.storage_head.as_bytes())
            && sparse::read(&entry.value, &["apiVersion"])
                .is_ok_and(|found| found["apiVersion"] != self.storage_api_version.as_str())
    }

    /// The API group.
    pub fn group(&self) -> &str {
        &self.definition.names.group
    }

    /// The API version without group.
    pub fn version(&self) -> &str {
        &self.definition.names.version
    }

    /// The plural name.
    pub fn plural(&self) -> &str {
        &self.definition.names.plural
    }

    /// Whether it is this resource of the core group.
    pub fn is_core(&self, plural: &str) -> bool {
        self.group().is_empty() && self.plural() == plural
    }

    /// The kind.
    pub fn kind(&self) -> &str {
        &self.definition.names.kind
    }

    /// Whether objects live in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.definition.scope == Scope::Namespaced
    }

    /// The store's key of an object.
    pub fn key(&self, namespace: &str, name: &str) -> Bytes {
        let prefix = &self.definition.storage.prefix;
        if self.is_namespaced() {
            Bytes::from(format!("{prefix}/{namespace}/{name}"))
        } else {
            Bytes::from(format!("{prefix}/{name}"))
        }
    }

    /// The prefix of the keys of a namespace, or of all objects.
    pub fn collection(&self, namespace: &str) -> Bytes {
        if self.is_namespaced() && !namespace.is_empty() {
            Bytes::from(format!("{}/{namespace}/", self.definition.storage.prefix))
        } else {
            self.prefix.clone()
        }
    }

    /// The length of `{"kind":…,"apiVersion":…,` at the start of an entry of this version, which items of a list
    /// do without. 0 if the entry is of another version.
    pub fn head_of(&self, entry: &Entry) -> usize {
        if entry.value.starts_with(self.head.as_bytes()) { self.head.len() } else { 0 }
    }

    /// The entry in this version: itself, or a converted copy.
    pub fn entry_in_version(&self, entry: &Arc<Entry>) -> Arc<Entry> {
        if self.head_of(entry) > 0 {
            return entry.clone();
        }
        let value = encode_for_store(&self.served_value(entry.parse()));
        Arc::new(Entry::new(self.prefix.len(), entry.key.clone(), value, entry.revision))
    }

    /// A stored object in this version.
    pub fn served_value(&self, mut stored: Value) -> Value {
        let own = stored["apiVersion"] == self.api_version.as_str() && stored["kind"] == self.kind();
        if !own {
            if let Some(conversion) = self.definition.conversion {
                (conversion.from_storage)(&mut stored);
            }
            stored["apiVersion"] = Value::String(self.api_version.clone());
            stored["kind"] = Value::String(self.kind().to_owned());
            if self.definition.custom {
                stored = pruned(&self.definition, stored);
            }
        }
        stored
    }

    /// An object at a revision, in this version.
    pub fn parse(&self, entry: &Entry) -> Value {
        let mut value = self.served_value(entry.parse());
        value.set_meta("resourceVersion", &entry.revision.to_string());
        value
    }

    /// The bytes to store for an object of this version.
    pub fn encode(&self, object: &Value) -> Bytes {
        if self.storage_api_version == self.api_version {
            return encode_for_store(object);
        }
        let mut stored = object.clone();
        if let Some(conversion) = self.definition.conversion {
            (conversion.to_storage)(&mut stored);
        }
        stored["apiVersion"] = Value::String(self.storage_api_version.clone());
        if let Some(definition) = &self.stored {
            stored = pruned(definition, stored);
        }
        encode_for_store(&stored)
    }
}

/// How stored objects of a kind begin.
fn head(kind: &str, api_version: &str) -> String {
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",")
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.api_version, self.plural())
    }
}

/// All served resources at one moment.
#[derive(Default)]
pub struct Table {
    /// By plural name: few groups and versions share one.
    by_plural: HashMap<String, Vec<Arc<Resource>>>,
    /// Groups in discovery order, each with its versions in order of preference.
    pub groups: Vec<(String, Vec<String>)>,
    /// Counts changes.
    pub generation: u64,
}

impl Table {
    /// The resource at a path.
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let mut same = self.by_plural.get(plural)?.iter();
        same.find(|one| one.group() == group && one.version() == version)
    }

    /// The resources of a group version, by plural name.
    pub fn of_version(&self, group: &str, version: &str) -> Vec<&Arc<Resource>> {
        let mut found: Vec<&Arc<Resource>> =
            self.all().filter(|one| one.group() == group && one.version() == version).collect();
        found.sort_by(|one, two| one.plural().cmp(two.plural()));
        found
    }

    /// Any version of a resource, the preferred one first.
    pub fn any_version(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        let (_, versions) = self.groups.iter().find(|(own, _)| own == group)?;
        versions.iter().find_map(|version| self.get(group, version, plural))
    }

    /// The resource of a kind.
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.all().find(|one| one.group() == group && one.version() == version && one.kind() == kind)
    }

    /// Everything.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_plural.values().flatten()
    }
}

/// The table, replaced as a whole when a CRD changes.
pub struct Registry {
    table: RwLock<Arc<Table>>,
    builtin: Vec<Arc<Resource>>,
    /// The first version of each built-in kind, by plural name.
    first_builtin: HashMap<String, Vec<Arc<Resource>>>,
    custom: RwLock<BTreeMap<String, Vec<Arc<Resource>>>>,
}

impl Registry {
    /// A registry of the built-in kinds.
    pub fn new(definitions: Vec<Definition>) -> Self {
        let builtin: Vec<Arc<Resource>> =
            definitions.into_iter().map(|one| Arc::new(Resource::new(one))).collect();
        let mut first_builtin: HashMap<String, Vec<Arc<Resource>>> = HashMap::new();
        for resource in &builtin {
            let same = first_builtin.entry(resource.plural().to_owned()).or_default();
            if same.iter().all(|one| one.group() != resource.group()) {
                same.push(resource.clone());
            }
        }
        let registry = Self { table: RwLock::default(), builtin, first_builtin, custom: RwLock::default() };
        registry.rebuild();
        registry
    }

    /// The present table.
    pub fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The resource at a path.
    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.table().get(group, version, plural).cloned()
    }

    /// A built-in resource that must exist.
    pub fn builtin(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        self.first_builtin.get(plural)?.iter().find(|one| one.group() == group).cloned()
    }

    /// Sets what a CRD serves; nothing removes it.
    pub fn set_custom(&self, crd: &str, resources: Vec<Arc<Resource>>) {
        {
            let mut custom = self.custom.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            if resources.is_empty() {
                custom.remove(crd);
            } else {
                custom.insert(crd.to_owned(), resources);
            }
        }
        self.rebuild();
    }

    /// The names of the CRDs that are served.
    pub fn custom_names(&self) -> Vec<String> {
        self.custom.read().unwrap_or_else(|poisoned| poisoned.into_inner()).keys().cloned().collect()
    }

    fn rebuild(&self) {
        let custom = self.custom.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut table = Table::default();
        let mut add = |resource: &Arc<Resource>| {
            let (group, version) = (resource.group().to_owned(), resource.version().to_owned());
            if table.get(&group, &version, resource.plural()).is_some() {
                return; // a built-in kind cannot be taken over
            }
            table.by_plural.entry(resource.plural().to_owned()).or_default().push(resource.clone());
            match table.groups.iter_mut().find(|(own, _)| *own == group) {
                None => table.groups.push((group, vec![version])),
                Some((_, versions)) if !versions.contains(&version) => versions.push(version),
                Some(_) => {}
            }
        };
        self.builtin.iter().for_each(&mut add);
        let mut others: Vec<&Arc<Resource>> = custom.values().flatten().collect();
        others.sort_by(|one, two| (one.group(), one.plural()).cmp(&(two.group(), two.plural())));
        others.into_iter().for_each(&mut add);
        for (_, versions) in &mut table.groups {
            versions.sort_by_key(|version| std::cmp::Reverse(apimachinery::names::version_order(version)));
        }
        let mut current = self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        table.generation = current.generation + 1;
        *current = Arc::new(table);
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::version_order;

    #[test]
    fn stable_versions_come_first() {
        let mut versions = ["v1alpha1", "foo", "v2beta1", "v1", "v10", "v2", "v1beta2"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_order(version)));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo"]);
    }
}
