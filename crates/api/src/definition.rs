//! What is true of a kind, as one value.

mod subresource;
mod verbs;

use std::{borrow::Cow, fmt, sync::Arc};

use apimachinery::{field::Problems, meta, schema::Schema};
use serde_json::Value;

pub use self::subresource::{ScalePaths, Subresource, SubresourceKind};
pub use self::verbs::{Verb, Verbs};
use crate::{columns::Column, metadata::MetaCheck, schemas::schemas};

/// Text that is borrowed for built-in kinds and owned for custom ones.
pub type Text = Cow<'static, str>;

/// What a kind is called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Names {
    /// API group, empty for the core group.
    pub group: Text,
    /// Version.
    pub version: Text,
    /// Kind.
    pub kind: Text,
    /// Kind of lists.
    pub list_kind: Text,
    /// Resource name in paths.
    pub plural: Text,
    /// Singular resource name.
    pub singular: Text,
    /// What kubectl users type.
    pub short_names: Vec<Text>,
    /// `all`, `api-extensions`
    pub categories: Vec<Text>,
}

impl Names {
    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `deployments.apps`, or `pods` for the core group.
    pub fn group_resource(&self) -> String {
        apimachinery::status::group_resource(&self.group, &self.plural)
    }
}

/// Whether objects live in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In none.
    Cluster,
}

/// What a write of this kind needs from the world. The API server implements each by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Services: cluster IPs and node ports are allocated and released.
    AllocateServiceAddresses,
    /// Pods: the binding subresource places a pod.
    BindPod,
    /// Pods: the eviction subresource honours disruption budgets.
    EvictPod,
    /// Pods: graceful deletion waits for the kubelet.
    GracefulPodDeletion,
    /// ServiceAccounts: the token subresource signs.
    IssueToken,
    /// Namespaces: deletion empties them first.
    FinalizeNamespace,
    /// Nodes, Pods, Services: the proxy, log and streaming subresources.
    Connect,
    /// CRDs: the registry of kinds follows.
    ServeCustomResources,
    /// APIServices: requests are forwarded.
    Aggregate,
    /// Reviews: answered, never stored.
    Review,
    /// Roles and bindings: no one grants more than they hold.
    CheckEscalation,
    /// IPAddresses and ServiceCIDRs: the allocator follows.
    FollowServiceRanges,
}

/// Where objects are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Key prefix without a trailing slash, `/registry/pods`.
    pub prefix: Text,
    /// Group of the stored form.
    pub group: Text,
    /// Version of the stored form.
    pub version: Text,
}

/// What of an object's metadata is out of reach of a status write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusKeeps {
    /// Labels and annotations may be written along.
    Nothing,
    /// Labels stay.
    Labels,
    /// Labels, annotations, finalizers and owners stay.
    Metadata,
}

impl StatusKeeps {
    /// The fields of the metadata that stay.
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            StatusKeeps::Nothing => &[],
            StatusKeeps::Labels => &["labels"],
            StatusKeeps::Metadata => {
                &["deletionTimestamp", "labels", "annotations", "finalizers", "ownerReferences"]
            }
        }
    }
}

/// A write to be judged.
pub struct Change<'a> {
    /// The object as it would be stored.
    pub new: &'a Value,
    /// The object as it is stored, for updates.
    pub old: Option<&'a Value>,
    /// The subresource that is written, "" for the object itself.
    pub subresource: &'a str,
}

impl<'a> Change<'a> {
    /// A creation.
    pub fn create(new: &'a Value) -> Self {
        Self { new, old: None, subresource: "" }
    }

    /// An update of the object itself.
    pub fn update(new: &'a Value, old: &'a Value) -> Self {
        Self { new, old: Some(old), subresource: "" }
    }

    /// The values at a dotted path before and after, for updates in which they differ.
    pub fn differs(&self, path: &str) -> bool {
        self.old.is_some_and(|old| meta::get(old, path) != meta::get(self.new, path))
    }
}

/// The hooks of a kind. All are pure; each has a default that does nothing.
pub trait Rules: Send + Sync {
    /// Fills in what the client left out, on every decode of a write (and on reads of stored objects).
    fn set_defaults(&self, _object: &mut Value) {}

    /// Removes or sets what a creation may not or must say, beyond the generic part.
    fn prepare_create(&self, _object: &mut Value) {}

    /// The same for updates, beyond the generic part (status kept, spec kept for status writes).
    fn prepare_update(&self, _new: &mut Value, _old: &Value, _subresource: &str) {}

    /// Says what is wrong. Metadata is checked elsewhere.
    fn validate(&self, _change: &Change<'_>, _problems: &mut Problems) {}

    /// Why the object is none of this kind although its fields have the right types, if so.
    fn unreadable(&self, _object: &Value) -> Option<String> {
        None
    }

    /// What works but should not be relied on; becomes `Warning` headers.
    fn warnings(&self, _change: &Change<'_>) -> Vec<String> {
        Vec::new()
    }
}

struct NoRules;
impl Rules for NoRules {}

/// A function that reads a field label's value from an object.
pub type LabelReader = fn(&Value) -> Cow<'_, str>;

/// How a field label (what `--field-selector` names) reads an object.
#[derive(Clone)]
pub enum FieldLabel {
    /// The text at a dotted path; absent reads as the given text.
    Path {
        /// label in selectors
        label: Text,
        /// dotted path in the object
        path: Text,
        /// how absence reads
        absent: Text,
    },
    /// Something computed.
    Function {
        /// label in selectors
        label: Text,
        /// dotted paths of all that the reader looks at
        reads: &'static [&'static str],
        /// reader
        read: LabelReader,
    },
}

impl FieldLabel {
    /// The label in selectors.
    pub fn label(&self) -> &str {
        match self {
            FieldLabel::Path { label, .. } | FieldLabel::Function { label, .. } => label,
        }
    }

    /// The paths of what decides the value.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let (path, reads) = match self {
            FieldLabel::Path { path, .. } => (Some(&**path), &[][..]),
            FieldLabel::Function { reads, .. } => (None, *reads),
        };
        path.into_iter().chain(reads.iter().copied())
    }

    /// The value in an object.
    pub fn read<'a>(&'a self, object: &'a Value) -> Cow<'a, str> {
        match self {
            FieldLabel::Path { path, absent, .. } => match meta::get(object, path) {
                Some(Value::String(text)) => Cow::Borrowed(text),
                Some(Value::Bool(value)) => Cow::Borrowed(if *value { "true" } else { "false" }),
                Some(Value::Number(number)) => Cow::Owned(number.to_string()),
                _ => Cow::Borrowed(absent),
            },
            FieldLabel::Function { read, .. } => read(object),
        }
    }
}

/// How objects of one served version become the stored form and back.
#[derive(Clone, Copy)]
pub struct Conversion {
    /// From this version to the stored one.
    pub to_storage: fn(&mut Value),
    /// From the stored version to this one.
    pub from_storage: fn(&mut Value),
}

/// How the name of an object is checked.
pub type NameRule = fn(&str) -> Vec<String>;

/// Everything true of one kind in one version.
#[derive(Clone)]
pub struct Definition {
    /// Names.
    pub names: Names,
    /// Namespaced or not.
    pub scope: Scope,
    /// Verbs of the resource itself.
    pub verbs: Verbs,
    /// Subresources.
    pub subresources: Vec<Subresource>,
    /// Shape.
    pub schema: Schema,
    /// Shape of lists.
    pub list_schema: Schema,
    /// Where it is kept.
    pub storage: Storage,
    /// Columns of tables, without the name and the age, which all have unless they say otherwise.
    pub columns: Vec<Column>,
    /// The table starts with the name; events do not.
    pub name_column: bool,
    /// What the name column shows: the name, with a mark for default classes.
    pub name_cell: fn(&Value) -> Value,
    /// Field labels beyond `metadata.name` and `metadata.namespace`.
    pub field_labels: Vec<FieldLabel>,
    /// Named effects.
    pub effects: Vec<Effect>,
    /// Conversion to the stored version, when it is another one.
    pub conversion: Option<Conversion>,
    /// `metadata.generation` counts changes of everything but metadata and status.
    pub generation: bool,
    /// An update without resourceVersion is allowed.
    pub unconditional_update: bool,
    /// PUT of an absent object creates it.
    pub create_on_update: bool,
    /// DELETE without a policy orphans dependents.
    pub orphan_by_default: bool,
    /// What to say to who deletes without a policy, where that orphans dependents.
    pub orphan_warning: Option<&'static str>,
    /// A creation may bring its status, or some of it: nodes register with it.
    pub created_with_status: bool,
    /// DELETE answers with the object that went instead of a Status.
    pub answers_with_object: bool,
    /// What of the metadata a status write leaves alone.
    pub status_keeps: StatusKeeps,
    /// Metadata that belongs to the desired state: a change of it counts as a new generation.
    pub generation_counts: Option<&'static str>,
    /// How the metadata of an update is looked at.
    pub checks_update: &'static [MetaCheck],
    /// The same for writes of the status.
    pub checks_status: &'static [MetaCheck],
    /// Syntax of names.
    pub name_rule: NameRule,
    /// Finalizers need not be qualified by a domain.
    pub any_finalizers: bool,
    /// Metadata is judged when nothing else is wrong, not before.
    pub metadata_last: bool,
    /// Dotted paths of fields whose feature gate is closed.
    pub gated: Vec<String>,
    /// Annotations that are fields of Go's struct: metadata that is shown alone is without them.
    pub annotated_fields: &'static [&'static str],
    /// Served for custom resources: patches are JSON only, decoding is lenient.
    pub custom: bool,
    /// The OpenAPI definition name.
    pub definition_name: Text,
    /// The CRD's own OpenAPI schema of this version, for publishing.
    pub published_schema: Option<Arc<Value>>,
    /// Deprecation warning given on every use.
    pub deprecation: Option<Text>,
    pub(crate) rules: Arc<dyn Rules>,
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Definition({} {})", self.names.api_version(), self.names.kind)
    }
}

/// The Go package part of OpenAPI names, by group.
fn package(group: &str) -> String {
    match group {
        "" => "io.k8s.api.core".into(),
        "apiextensions.k8s.io" => "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions".into(),
        "apiregistration.k8s.io" => "io.k8s.kube-aggregator.pkg.apis.apiregistration".into(),
        "meta.k8s.io" => "io.k8s.apimachinery.pkg.apis.meta".into(),
        "flowcontrol.apiserver.k8s.io" => "io.k8s.api.flowcontrol".into(),
        "rbac.authorization.k8s.io" => "io.k8s.api.rbac".into(),
        other => format!("io.k8s.api.{}", other.split('.').next().unwrap_or(other)),
    }
}

/// The OpenAPI definition name of a built-in kind.
pub fn definition_name(group: &str, version: &str, kind: &str) -> String {
    format!("{}.{version}.{kind}", package(group))
}

impl Definition {
    /// Starts the declaration of a built-in kind. The schema is found by group, version and kind.
    ///
    /// # Panics
    /// When the build-time table has no such type: a mistake in a declaration, found by the first test.
    pub fn new(
        scope: Scope,
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        let definition_name = definition_name(group, version, kind);
        let Some(schema) = schemas().get(&definition_name) else {
            panic!("no schema for {definition_name}: the kind's group, version or name is misspelt");
        };
        let list_schema = schemas().list_of(&definition_name).unwrap_or_else(|| schema.clone());
        let registry = match group {
            "apiextensions.k8s.io" | "apiregistration.k8s.io" => format!("/registry/{group}/{plural}"),
            _ => format!("/registry/{plural}"),
        };
        Self {
            names: Names {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
                list_kind: format!("{kind}List").into(),
                plural: plural.into(),
                singular: kind.to_lowercase().into(),
                short_names: Vec::new(),
                categories: Vec::new(),
            },
            scope,
            verbs: Verbs::ALL,
            subresources: Vec::new(),
            schema,
            list_schema,
            storage: Storage { prefix: registry.into(), group: group.into(), version: version.into() },
            columns: vec![Column::age()],
            name_column: true,
            name_cell: |object| meta::get_str(object, "metadata.name").into(),
            field_labels: Vec::new(),
            effects: Vec::new(),
            conversion: None,
            generation: false,
            unconditional_update: true,
            create_on_update: false,
            orphan_by_default: false,
            orphan_warning: None,
            created_with_status: false,
            answers_with_object: false,
            status_keeps: StatusKeeps::Nothing,
            generation_counts: None,
            checks_update: &[MetaCheck::Change],
            checks_status: &[MetaCheck::Change],
            name_rule: apimachinery::names::is_dns1123_subdomain,
            any_finalizers: false,
            metadata_last: false,
            gated: Vec::new(),
            annotated_fields: &[],
            custom: false,
            definition_name: definition_name.into(),
            published_schema: None,
            deprecation: None,
            rules: Arc::new(NoRules),
        }
    }

    /// A kind in namespaces.
    pub fn namespaced(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self::new(Scope::Namespaced, group, version, kind, plural)
    }

    /// A kind outside namespaces.
    pub fn cluster(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self::new(Scope::Cluster, group, version, kind, plural)
    }

    /// Short names.
    #[must_use]
    pub fn short(mut self, names: &[&'static str]) -> Self {
        self.names.short_names = names.iter().map(|name| Text::Borrowed(name)).collect();
        self
    }

    /// Categories.
    #[must_use]
    pub fn categories(mut self, names: &[&'static str]) -> Self {
        self.names.categories = names.iter().map(|name| Text::Borrowed(name)).collect();
        self
    }

    /// Verbs, when not all.
    #[must_use]
    pub fn verbs(mut self, verbs: Verbs) -> Self {
        self.verbs = verbs;
        self
    }

    /// A subresource.
    #[must_use]
    pub fn with(mut self, subresource: Subresource) -> Self {
        self.subresources.push(subresource);
        self
    }

    /// The status subresource.
    #[must_use]
    pub fn status(self) -> Self {
        self.with(Subresource::Status)
    }

    /// The scale subresource of workloads.
    #[must_use]
    pub fn scale(self) -> Self {
        self.with(Subresource::Scale(ScalePaths {
            spec_replicas: "spec.replicas".into(),
            status_replicas: "status.replicas".into(),
            selector: "spec.selector".into(),
        }))
    }

    /// Columns between the name and the end; they say the age themselves when they want it.
    #[must_use]
    pub fn columns(mut self, columns: Vec<Column>) -> Self {
        self.columns = columns;
        self
    }

    /// Hooks.
    #[must_use]
    pub fn rules(mut self, rules: impl Rules + 'static) -> Self {
        self.rules = Arc::new(rules);
        self
    }

    /// Effects.
    #[must_use]
    pub fn effects(mut self, effects: &[Effect]) -> Self {
        self.effects.extend_from_slice(effects);
        self
    }

    /// Counts generations.
    #[must_use]
    pub fn generation(mut self) -> Self {
        self.generation = true;
        self
    }

    /// Key prefix, when it is not the plural.
    #[must_use]
    pub fn stored_at(mut self, prefix: &'static str) -> Self {
        self.storage.prefix = prefix.into();
        self
    }

    /// Stored as another group-version, with a conversion.
    #[must_use]
    pub fn stored_as(mut self, group: &'static str, version: &'static str, conversion: Conversion) -> Self {
        self.storage.group = group.into();
        self.storage.version = version.into();
        self.conversion = Some(conversion);
        self
    }

    /// A field label whose name is its path.
    #[must_use]
    pub fn label(self, path: &'static str) -> Self {
        self.label_or(path, "")
    }

    /// A field label whose name is its path, with a text for absence.
    #[must_use]
    pub fn label_or(mut self, path: &'static str, absent: &'static str) -> Self {
        self.field_labels.push(FieldLabel::Path {
            label: path.into(),
            path: path.into(),
            absent: absent.into(),
        });
        self
    }

    /// A field label that is computed from what stands at certain paths.
    #[must_use]
    pub fn label_fn(
        mut self,
        label: &'static str,
        reads: &'static [&'static str],
        read: LabelReader,
    ) -> Self {
        self.field_labels.push(FieldLabel::Function { label: label.into(), reads, read });
        self
    }

    /// Syntax of names.
    #[must_use]
    pub fn named(mut self, rule: NameRule) -> Self {
        self.name_rule = rule;
        self
    }

    /// PUT of an absent object creates it.
    #[must_use]
    pub fn create_on_update(mut self) -> Self {
        self.create_on_update = true;
        self
    }

    /// Updates must name the version they change.
    #[must_use]
    pub fn versioned_updates(mut self) -> Self {
        self.unconditional_update = false;
        self
    }

    /// DELETE without a policy orphans dependents.
    #[must_use]
    pub fn orphans(mut self) -> Self {
        self.orphan_by_default = true;
        self
    }

    /// A warning given on every use.
    #[must_use]
    pub fn deprecated(mut self, text: &'static str) -> Self {
        self.deprecation = Some(text.into());
        self
    }

    /// Finalizers need not be qualified by a domain.
    #[must_use]
    pub fn any_finalizers(mut self) -> Self {
        self.any_finalizers = true;
        self
    }

    /// Fields that are dropped because their feature gate is closed.
    pub fn gated(mut self, paths: &[&str]) -> Self {
        self.gated.extend(paths.iter().map(|path| (*path).to_owned()));
        self
    }

    /// The same for the pod spec at a dotted path.
    pub fn pod_at(mut self, path: &str) -> Self {
        self.gated.extend(crate::gates::POD.iter().map(|below| format!("{path}.{below}")));
        self
    }

    /// Annotations that are not shown with metadata alone.
    pub fn annotated_fields(mut self, names: &'static [&'static str]) -> Self {
        self.annotated_fields = names;
        self
    }

    /// Metadata is judged when nothing else is wrong.
    pub fn metadata_last(mut self) -> Self {
        self.metadata_last = true;
        self
    }

    /// DELETE answers with the object that went.
    #[must_use]
    pub fn answers_with_object(mut self) -> Self {
        self.answers_with_object = true;
        self
    }

    /// What of the metadata a status write leaves alone.
    #[must_use]
    pub fn status_keeps(mut self, what: StatusKeeps) -> Self {
        self.status_keeps = what;
        self
    }

    /// A change of this part of the metadata counts as a new generation, too.
    #[must_use]
    pub fn generation_counts(mut self, field: &'static str) -> Self {
        self.generation_counts = Some(field);
        self
    }

    /// How the metadata of an update is looked at, where it is not for changes only.
    #[must_use]
    pub fn checks_update(mut self, checks: &'static [MetaCheck]) -> Self {
        self.checks_update = checks;
        self
    }

    /// The same for writes of the status.
    #[must_use]
    pub fn checks_status(mut self, checks: &'static [MetaCheck]) -> Self {
        self.checks_status = checks;
        self
    }

    /// Whether it has a subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name() == name)
    }

    /// Whether objects are kept (reviews are not).
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(Verb::Get)
    }

    /// The value of a field label, `None` when the kind does not have it.
    pub fn field<'a>(&'a self, object: &'a Value, label: &str) -> Option<Cow<'a, str>> {
        match label {
            "metadata.name" => Some(Cow::Borrowed(meta::get_str(object, "metadata.name"))),
            "metadata.namespace" if self.selects_namespaces() => {
                Some(Cow::Borrowed(meta::get_str(object, "metadata.namespace")))
            }
            _ => self.field_labels.iter().find(|have| have.label() == label).map(|have| have.read(object)),
        }
    }

    /// Whether a selector may name the namespace. Built-in kinds outside namespaces take it too, unless they have labels
    /// of their own.
    fn selects_namespaces(&self) -> bool {
        self.scope == Scope::Namespaced || !self.custom && self.field_labels.is_empty()
    }

    /// Whether a field selector may name this label.
    pub fn selects_on(&self, label: &str) -> bool {
        label == "metadata.name"
            || label == "metadata.namespace" && self.selects_namespaces()
            || self.field_labels.iter().any(|have| have.label() == label)
    }

    /// Fills in defaults.
    pub fn set_defaults(&self, object: &mut Value) {
        self.rules.set_defaults(object);
    }

    /// What should not be relied on. Which writes are warned is the store's to say.
    pub fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let mut out: Vec<String> = self.deprecation.iter().map(|text| text.to_string()).collect();
        out.extend(self.rules.warnings(change));
        out
    }

    /// Why an object whose fields have the right types is none of this kind all the same.
    pub fn unreadable(&self, object: &Value) -> Option<String> {
        self.rules.unreadable(object)
    }

    /// Everything that is wrong with a write, metadata included.
    pub fn validate(&self, change: &Change<'_>) -> Problems {
        let mut problems = Problems::new();
        if !self.metadata_last {
            crate::metadata::validate(self, change, &mut problems);
        }
        self.rules.validate(change, &mut problems);
        if self.metadata_last && problems.is_empty() {
            crate::metadata::validate(self, change, &mut problems);
        }
        problems
    }
}
