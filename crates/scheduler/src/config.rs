//! `KubeSchedulerConfiguration`: which profiles there are and which plugins each runs.
//!
//! The file says what differs from the default; [`parse`] makes the frameworks of it. It is read strictly, and a name
//! that is not known is an error: a plugin that silently does not run is worse than a scheduler that does not start.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use controller_runtime::program::{ProgramArgs, go_duration};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::extender::Extender;
use crate::framework::{Framework, Plugin};
use crate::plugins::{ArgsError, Registry};

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("strict decoding error: {0}")]
    Yaml(#[source] serde_yaml_ng::Error),
    #[error("no kind {kind:?} is registered for version {api_version:?}; use {API_VERSION} {KIND}")]
    Kind { api_version: String, kind: String },
    #[error("profiles[{profile}].plugins: plugin {plugin:?} does not exist; there are {known}")]
    UnknownPlugin { profile: usize, plugin: String, known: String },
    #[error("profiles[{profile}].plugins.{point}: plugin {plugin:?} does not extend {point} plugin")]
    WrongPoint { profile: usize, point: &'static str, plugin: String },
    #[error("profiles[{profile}].plugins.{point}: plugin {plugin:?} already registered as {plugin:?}")]
    Twice { profile: usize, point: &'static str, plugin: String },
    #[error("profiles[{index}].schedulerName: Duplicate value: {profile:?}")]
    DuplicateProfile { index: usize, profile: String },
    #[error("profiles[{index}].pluginConfig: repeated config for plugin {plugin}")]
    DuplicateArgs { index: usize, plugin: String },
    #[error("profiles[{profile}].pluginConfig[{plugin}].{source}")]
    Args { profile: usize, plugin: String, source: ArgsError },
    #[error("profiles[{index}].plugins: {problem}")]
    Incomplete { index: usize, problem: &'static str },
    #[error("profiles[{index}]: the queue sort plugin must be the same in all profiles")]
    QueueSort { index: usize },
    #[error("{field}: Invalid value: {value}: not in valid range [{lowest}, {highest}]")]
    OutOfRange { field: String, value: i64, lowest: i64, highest: i64 },
    #[error("leaderElection.{field}: Invalid value: {problem}")]
    LeaderElection { field: &'static str, problem: String },
    #[error("extenders[{index}].{problem}")]
    Extender { index: usize, problem: String },
}

/// The file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    pub api_version: String,
    pub kind: String,
    pub client_connection: ClientConnection,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<LeaderElectionFile>,
    pub enable_profiling: Option<bool>,
    pub enable_contention_profiling: Option<bool>,
    pub parallelism: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_cache_until_active: Option<bool>,
    pub percentage_of_nodes_to_score: i64,
    pub pod_initial_backoff_seconds: Option<i64>,
    pub pod_max_backoff_seconds: Option<i64>,
    pub profiles: Vec<ProfileFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extenders: Vec<crate::extender::ExtenderFile>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f64,
    pub burst: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaderElectionFile {
    pub leader_elect: Option<bool>,
    pub lease_duration: Option<String>,
    pub renew_deadline: Option<String>,
    pub retry_period: Option<String>,
    pub resource_lock: Option<String>,
    pub resource_name: Option<String>,
    pub resource_namespace: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileFile {
    scheduler_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentage_of_nodes_to_score: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugins: Option<PluginsFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plugin_config: Vec<PluginArgs>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct PluginArgs {
    name: String,
    args: Value,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct PluginsFile {
    multi_point: PluginSet,
    pre_enqueue: PluginSet,
    queue_sort: PluginSet,
    pre_filter: PluginSet,
    filter: PluginSet,
    post_filter: PluginSet,
    pre_score: PluginSet,
    score: PluginSet,
    reserve: PluginSet,
    permit: PluginSet,
    pre_bind: PluginSet,
    bind: PluginSet,
    post_bind: PluginSet,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct PluginSet {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    enabled: Vec<PluginName>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disabled: Vec<PluginName>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct PluginName {
    name: String,
    #[serde(skip_serializing_if = "is_zero")]
    weight: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(weight: &i64) -> bool {
    *weight == 0
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == "*" || plugin.name == name)
    }
}

/// One scheduler name and what it runs.
pub struct Profile {
    pub scheduler_name: String,
    pub framework: Framework,
}

/// What the file comes to.
pub struct Settings {
    pub profiles: Vec<Profile>,
    pub initial_backoff_seconds: i64,
    pub max_backoff_seconds: i64,
    /// How long a pod is set aside before it is tried again without a cause, if not five minutes.
    pub longest_wait: Option<jiff::SignedDuration>,
    pub extenders: Vec<Extender>,
}

impl Default for Settings {
    fn default() -> Self {
        match build(&File::default(), &Registry::default()) {
            Ok(settings) => settings,
            Err(error) => unreachable!("the default profile is complete: {error}"),
        }
    }
}

/// Reads a configuration file's text.
pub fn parse(text: &str) -> Result<Settings, ConfigError> {
    build(&read(text)?, &Registry::default())
}

/// The file as it is written.
pub fn read(text: &str) -> Result<File, ConfigError> {
    let file: File = serde_yaml_ng::from_str(text).map_err(ConfigError::Yaml)?;
    if file.api_version != API_VERSION || file.kind != KIND {
        return Err(ConfigError::Kind { api_version: file.api_version, kind: file.kind });
    }
    Ok(file)
}

impl LeaderElectionFile {
    /// What the file says holds wherever a flag has not been set to something else than its default.
    pub fn apply(&self, program: &mut ProgramArgs) -> Result<(), ConfigError> {
        let wrong = |field, problem: String| Err(ConfigError::LeaderElection { field, problem });
        if let Some(lock) = self.resource_lock.as_ref().filter(|lock| !matches!(&***lock, "" | "leases")) {
            return wrong("resourceLock", format!("{lock:?}: only leases are supported"));
        }
        program.leader_elect &= self.leader_elect.unwrap_or(true);
        for (field, text, flag, default) in [
            ("leaseDuration", &self.lease_duration, &mut program.leader_elect_lease_duration, 15),
            ("renewDeadline", &self.renew_deadline, &mut program.leader_elect_renew_deadline, 10),
            ("retryPeriod", &self.retry_period, &mut program.leader_elect_retry_period, 2),
        ] {
            let Some(text) = text.as_ref().filter(|text| !matches!(&***text, "" | "0s")) else { continue };
            match go_duration(text) {
                Ok(duration) if *flag == Duration::from_secs(default) => *flag = duration,
                Ok(_) => {}
                Err(problem) => return wrong(field, problem),
            }
        }
        if program.leader_elect_lease_duration <= program.leader_elect_renew_deadline {
            return wrong("leaseDuration", "must be greater than renewDeadline".to_owned());
        }
        if let Some(name) = self.resource_name.as_ref().filter(|name| !name.is_empty()) {
            program.leader_elect_resource_name.get_or_insert_with(|| name.clone());
        }
        if let Some(namespace) = self.resource_namespace.as_ref().filter(|namespace| !namespace.is_empty())
            && program.leader_elect_resource_namespace == "kube-system"
        {
            program.leader_elect_resource_namespace.clone_from(namespace);
        }
        Ok(())
    }
}

impl File {
    /// The same with every default written out, as `--write-config-to` shows it.
    pub fn completed(&self) -> Self {
        let mut file = self.clone();
        API_VERSION.clone_into(&mut file.api_version);
        KIND.clone_into(&mut file.kind);
        file.enable_profiling.get_or_insert(true);
        file.enable_contention_profiling.get_or_insert(true);
        file.parallelism.get_or_insert(16);
        file.pod_initial_backoff_seconds.get_or_insert(INITIAL_BACKOFF);
        file.pod_max_backoff_seconds.get_or_insert(MAX_BACKOFF);
        if file.client_connection.qps == 0.0 {
            (file.client_connection.qps, file.client_connection.burst) = (50.0, 100);
        }
        if file.profiles.is_empty() {
            file.profiles.push(ProfileFile::default());
        }
        for profile in &mut file.profiles {
            profile.scheduler_name.get_or_insert_with(|| DEFAULT_NAME.to_owned());
            if profile.plugins.is_none() {
                let named = |(name, weight): &(&'static str, i64)| PluginName {
                    name: (*name).to_owned(),
                    weight: *weight,
                };
                let enabled = Registry::default().defaults.iter().map(named).collect();
                let multi_point = PluginSet { enabled, disabled: Vec::new() };
                profile.plugins = Some(PluginsFile { multi_point, ..PluginsFile::default() });
            }
        }
        file
    }

    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        serde_yaml_ng::to_string(self).map_err(ConfigError::Yaml)
    }
}

const INITIAL_BACKOFF: i64 = 1;
const MAX_BACKOFF: i64 = 10;
const DEFAULT_NAME: &str = "default-scheduler";

/// Makes the frameworks that a file describes.
pub fn build(file: &File, registry: &Registry) -> Result<Settings, ConfigError> {
    let share = |field: String, value| within(field, value, 0, 100);
    let whole = share("percentageOfNodesToScore".into(), file.percentage_of_nodes_to_score)?;
    if let Some(parallelism) = file.parallelism {
        within("parallelism".into(), parallelism, 1, i64::from(i32::MAX))?;
    }
    let managed = file.extenders.iter().flat_map(|extender| &extender.managed_resources);
    let ignored: Vec<&str> =
        managed.filter(|resource| resource.ignored_by_scheduler).map(|resource| &*resource.name).collect();
    let mut profiles: Vec<Profile> = Vec::new();
    let default = [ProfileFile::default()];
    let described = if file.profiles.is_empty() { &default[..] } else { &file.profiles };
    for (index, profile) in described.iter().enumerate() {
        let name = profile.scheduler_name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned());
        if profiles.iter().any(|other| other.scheduler_name == name) {
            return Err(ConfigError::DuplicateProfile { index, profile: name });
        }
        let mut framework = Builder { index, profile, registry, ignored: &ignored }.framework()?;
        let field = || format!("profiles[{index}].percentageOfNodesToScore");
        let own = profile.percentage_of_nodes_to_score.map(|value| share(field(), value)).transpose()?;
        framework.percentage_of_nodes_to_score = own.unwrap_or(whole) as usize;
        let sort = |framework: &Framework| framework.queue_sort.as_ref().map(|plugin| plugin.name());
        if profiles.first().is_some_and(|first: &Profile| sort(&first.framework) != sort(&framework)) {
            return Err(ConfigError::QueueSort { index });
        }
        profiles.push(Profile { scheduler_name: name, framework });
    }
    let seconds = |field: &str, value: Option<i64>, default| {
        within(field.to_owned(), value.unwrap_or(default), 1, i64::from(i32::MAX))
    };
    let initial = seconds("podInitialBackoffSeconds", file.pod_initial_backoff_seconds, INITIAL_BACKOFF)?;
    let longest = seconds("podMaxBackoffSeconds", file.pod_max_backoff_seconds, MAX_BACKOFF.max(initial))?;
    within("podMaxBackoffSeconds".into(), longest, initial, i64::from(i32::MAX))?;
    let mut extenders = Vec::new();
    for (index, extender) in file.extenders.iter().enumerate() {
        let made = Extender::new(extender);
        extenders.push(made.map_err(|problem| ConfigError::Extender { index, problem })?);
    }
    if file.extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count() > 1 {
        let problem = "bindVerb: Invalid value: found multiple extenders implementing bind".to_owned();
        return Err(ConfigError::Extender { index: 0, problem });
    }
    Ok(Settings {
        profiles,
        initial_backoff_seconds: initial,
        max_backoff_seconds: longest,
        longest_wait: None,
        extenders,
    })
}

fn within(field: String, value: i64, lowest: i64, highest: i64) -> Result<i64, ConfigError> {
    if (lowest..=highest).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError::OutOfRange { field, value, lowest, highest })
    }
}

/// A point with its set in the file, what counts as working there, and where the framework keeps its plugins.
struct Point<'a> {
    name: &'static str,
    set: &'a PluginSet,
    has: fn(&dyn Plugin) -> bool,
}

/// Makes one profile's framework.
struct Builder<'a> {
    index: usize,
    profile: &'a ProfileFile,
    registry: &'a Registry,
    /// Resources that only extenders look at.
    ignored: &'a [&'a str],
}

impl Builder<'_> {
    fn framework(&self) -> Result<Framework, ConfigError> {
        let none = PluginsFile::default();
        let sets = self.profile.plugins.as_ref().unwrap_or(&none);
        let everywhere = self.everywhere(&sets.multi_point)?;
        let mut made: Vec<Arc<dyn Plugin>> = Vec::new();
        let mut at = |name, set, has| self.at(&Point { name, set, has }, &everywhere, &mut made);
        let plain =
            |all: Vec<(Arc<dyn Plugin>, i64)>| all.into_iter().map(|(plugin, _)| plugin).collect::<Vec<_>>();
        let pre_enqueue = plain(at("preEnqueue", &sets.pre_enqueue, |it| it.pre_enqueue().is_some())?);
        let queue_sort = plain(at("queueSort", &sets.queue_sort, |it| it.queue_sort().is_some())?);
        let pre_filter = plain(at("preFilter", &sets.pre_filter, |it| it.pre_filter().is_some())?);
        let filter = plain(at("filter", &sets.filter, |it| it.filter().is_some())?);
        let post_filter = plain(at("postFilter", &sets.post_filter, |it| it.post_filter().is_some())?);
        let pre_score = plain(at("preScore", &sets.pre_score, |it| it.pre_score().is_some())?);
        let score = at("score", &sets.score, |it| it.score().is_some())?;
        let reserve = plain(at("reserve", &sets.reserve, |it| it.reserve().is_some())?);
        let permit = plain(at("permit", &sets.permit, |it| it.permit().is_some())?);
        let pre_bind = plain(at("preBind", &sets.pre_bind, |it| it.pre_bind().is_some())?);
        let bind = plain(at("bind", &sets.bind, |it| it.bind().is_some())?);
        let post_bind = plain(at("postBind", &sets.post_bind, |it| it.post_bind().is_some())?);
        let incomplete = |problem| Err(ConfigError::Incomplete { index: self.index, problem });
        if queue_sort.len() != 1 {
            return incomplete("exactly one queue sort plugin is required");
        }
        if bind.is_empty() {
            return incomplete("at least one bind plugin is needed");
        }
        Ok(Framework {
            plugins: made,
            pre_enqueue,
            queue_sort: queue_sort.into_iter().next(),
            pre_filter,
            filter,
            post_filter,
            pre_score,
            score,
            reserve,
            permit,
            pre_bind,
            bind,
            post_bind,
            percentage_of_nodes_to_score: 0,
            measures: Arc::default(),
        })
    }

    fn check_known(&self, name: &str) -> Result<(), ConfigError> {
        if name == "*" || self.registry.knows(name) {
            return Ok(());
        }
        let known: Vec<&str> = self.registry.names().collect();
        Err(ConfigError::UnknownPlugin {
            profile: self.index,
            plugin: name.to_owned(),
            known: known.join(", "),
        })
    }

    /// Names and weights of the plugins that work wherever they can: the defaults, with the file's changes. One that
    /// is named again keeps its place.
    fn everywhere(&self, set: &PluginSet) -> Result<Vec<(String, i64)>, ConfigError> {
        for plugin in set.enabled.iter().chain(&set.disabled) {
            self.check_known(&plugin.name)?;
        }
        let mut all: Vec<(String, i64)> = Vec::new();
        for (name, weight) in &self.registry.defaults {
            let again = set.enabled.iter().find(|plugin| plugin.name == *name);
            match again {
                Some(plugin) if !set.disables(name) => {
                    all.push(((*name).to_owned(), if plugin.weight > 0 { plugin.weight } else { *weight }));
                }
                None if !set.disables(name) => all.push(((*name).to_owned(), *weight)),
                _ => {}
            }
        }
        for plugin in &set.enabled {
            if !all.iter().any(|(name, _)| *name == plugin.name) {
                all.push((plugin.name.clone(), plugin.weight));
            }
        }
        Ok(all)
    }

    /// The plugins of one point: those named for it first, then those that work everywhere and are not disabled here.
    fn at(
        &self,
        point: &Point<'_>,
        everywhere: &[(String, i64)],
        made: &mut Vec<Arc<dyn Plugin>>,
    ) -> Result<Vec<(Arc<dyn Plugin>, i64)>, ConfigError> {
        let mut all: Vec<(Arc<dyn Plugin>, i64)> = Vec::new();
        let mut seen = HashSet::new();
        for plugin in &point.set.disabled {
            self.check_known(&plugin.name)?;
        }
        // A plugin that works everywhere and is named here only gets another weight; it keeps its place.
        let named = |name: &str| point.set.enabled.iter().find(|plugin| plugin.name == name);
        for plugin in &point.set.enabled {
            let (index, name) = (self.index, &plugin.name);
            self.check_known(name)?;
            if !seen.insert(name.clone()) {
                return Err(ConfigError::Twice { profile: index, point: point.name, plugin: name.clone() });
            }
            let instance = self.instance(name, made)?;
            if !(point.has)(&*instance) {
                return Err(ConfigError::WrongPoint {
                    profile: index,
                    point: point.name,
                    plugin: name.clone(),
                });
            }
            let by_default = everywhere.iter().find(|(known, _)| known == name);
            if by_default.is_none() || point.set.disables(name) {
                let weight = if plugin.weight > 0 {
                    plugin.weight
                } else {
                    by_default.map_or(1, |(_, weight)| *weight).max(1)
                };
                all.push((instance, weight));
            }
        }
        for (name, weight) in everywhere {
            if point.set.disables(name) {
                continue;
            }
            let instance = self.instance(name, made)?;
            if (point.has)(&*instance) {
                let own = named(name).map(|plugin| plugin.weight).filter(|weight| *weight > 0);
                all.push((instance, own.unwrap_or(*weight).max(1)));
            }
        }
        Ok(all)
    }

    /// One plugin of a name per profile, made with its arguments.
    fn instance(&self, name: &str, made: &mut Vec<Arc<dyn Plugin>>) -> Result<Arc<dyn Plugin>, ConfigError> {
        if let Some(known) = made.iter().find(|plugin| plugin.name() == name) {
            return Ok(known.clone());
        }
        let mut given = self.profile.plugin_config.iter().filter(|config| config.name == name);
        let mut args = given.next().map_or(Value::Null, |config| config.args.clone());
        if name == "NodeResourcesFit" && !self.ignored.is_empty() {
            if !args.is_object() {
                args = serde_json::json!({});
            }
            let mut all = args["ignoredResources"].as_array().cloned().unwrap_or_default();
            all.extend(self.ignored.iter().map(|name| Value::from(*name)));
            args["ignoredResources"] = all.into();
        }
        if given.next().is_some() {
            return Err(ConfigError::DuplicateArgs { index: self.index, plugin: name.to_owned() });
        }
        self.check_known(name)?;
        let plugin = match self.registry.make(name, &args) {
            Some(Ok(plugin)) => plugin,
            Some(Err(source)) => {
                return Err(ConfigError::Args { profile: self.index, plugin: name.to_owned(), source });
            }
            None => {
                return Err(ConfigError::Incomplete { index: self.index, problem: "a plugin is missing" });
            }
        };
        made.push(plugin.clone());
        Ok(plugin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_profiles(text: &str) -> Result<Settings, String> {
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        parse(&format!("{head}{text}")).map_err(|error| error.to_string())
    }

    fn scores(profile: &Profile) -> Vec<(&'static str, i64)> {
        profile.framework.score.iter().map(|(plugin, weight)| (plugin.name(), *weight)).collect()
    }

    #[test]
    fn an_empty_file_is_upstreams_default() {
        let settings = parse_profiles("").unwrap();
        assert_eq!(settings.profiles[0].scheduler_name, "default-scheduler");
        assert_eq!(scores(&settings.profiles[0]), scores(&Settings::default().profiles[0]));
    }

    #[test]
    fn plugins_are_disabled_weighed_and_profiles_named() {
        let settings = parse_profiles(
            "profiles:
- schedulerName: packer
  plugins:
    score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality, weight: 7}]}
    filter: {disabled: [{name: NodePorts}]}
- schedulerName: bare
  plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: NodeName}, {name: PrioritySort}, {name: DefaultBinder}]}}
",
        )
        .unwrap();
        assert_eq!(scores(&settings.profiles[0]), [("ImageLocality", 7)]);
        let filters = |index: usize| -> Vec<&str> {
            settings.profiles[index].framework.filter.iter().map(|plugin| plugin.name()).collect()
        };
        assert!(!filters(0).contains(&"NodePorts") && filters(0).contains(&"NodeResourcesFit"));
        assert_eq!(filters(1), ["NodeName"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("profiles: [{plugins: {filter: {enabled: [{name: Magic}]}}}]", "\"Magic\" does not exist"),
            ("profiles: [{plugins: {filter: {enabled: [{name: ImageLocality}]}}}]", "does not extend filter"),
            ("profiles: [{}, {}]", "profiles[1].schedulerName: Duplicate value"),
            ("percentageOfNodesToScore: 101", "percentageOfNodesToScore: Invalid value: 101"),
            (
                "podInitialBackoffSeconds: 20\npodMaxBackoffSeconds: 5",
                "podMaxBackoffSeconds: Invalid value: 5",
            ),
            ("parallelism: 0", "parallelism: Invalid value: 0"),
            ("magic: 1", "strict decoding error: unknown field `magic`"),
            ("healthzBindAddress: ':1'", "unknown field `healthzBindAddress`"),
            ("profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]", "exactly one queue sort"),
            (
                "profiles: [{plugins: {bind: {disabled: [{name: DefaultBinder}]}}}]",
                "at least one bind plugin",
            ),
            ("extenders: [{urlPrefix: ''}]", "extenders[0].urlPrefix"),
        ] {
            let error = parse_profiles(text).err().unwrap();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse("kind: Pod").is_err());
    }

    #[test]
    fn arguments_reach_their_plugins_and_are_checked() {
        let with = |name: &str, args: &str| {
            parse_profiles(&format!("profiles: [{{pluginConfig: [{{name: {name}, args: {args}}}]}}]"))
                .map(drop)
        };
        for (name, args, part) in [
            ("InterPodAffinity", "{hardPodAffinityWeight: 101}", "hardPodAffinityWeight: Invalid value: 101"),
            ("InterPodAffinity", "{weight: 1}", "unknown field `weight`"),
            (
                "NodeResourcesFit",
                "{scoringStrategy: {type: Best}}",
                "scoringStrategy.type: Unsupported value",
            ),
            (
                "NodeResourcesFit",
                "{scoringStrategy: {resources: [{name: cpu, weight: 101}]}}",
                "not in valid range [1, 100]",
            ),
            ("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio}}", "at least one point"),
            ("NodeResourcesFit", "{ignoredResourceGroups: [a/b]}", "can't contain '/'"),
            ("NodeResourcesBalancedAllocation", "{resources: [{name: cpu, weight: 2}]}", "must be 1"),
            (
                "PodTopologySpread",
                "{defaultingType: System, defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway}]}",
                "defaultingType",
            ),
            (
                "PodTopologySpread",
                "{defaultingType: List, defaultConstraints: [{maxSkew: 0}]}",
                "defaultConstraints[0].maxSkew",
            ),
            (
                "DefaultPreemption",
                "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}",
                "at the same time",
            ),
            ("VolumeBinding", "{bindTimeoutSeconds: -1}", "should not be a negative value"),
            ("NodeName", "{}", "takes no arguments"),
        ] {
            let error = with(name, args).unwrap_err();
            assert!(error.contains(part), "{name} {args}: {error}");
        }
        for (name, args) in [
            (
                "InterPodAffinity",
                "{apiVersion: kubescheduler.config.k8s.io/v1, kind: InterPodAffinityArgs, hardPodAffinityWeight: 5}",
            ),
            (
                "NodeResourcesFit",
                "{scoringStrategy: {type: MostAllocated, resources: [{name: example.com/gpu, weight: 5}]}}",
            ),
            ("PodTopologySpread", "{defaultingType: List}"),
            (
                "NodeAffinity",
                "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}",
            ),
            ("DynamicResources", "{filterTimeout: 5s}"),
        ] {
            with(name, args).unwrap();
        }
    }

    #[test]
    fn the_files_election_holds_where_no_flag_says_otherwise() {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            program: ProgramArgs,
        }
        let applied = |flags: &[&str], text: &str| -> Result<ProgramArgs, String> {
            let flags = std::iter::once("x").chain(flags.iter().copied());
            let mut program = <Flags as clap::Parser>::try_parse_from(flags).unwrap().program;
            let file: LeaderElectionFile = serde_yaml_ng::from_str(text).unwrap();
            file.apply(&mut program).map_err(|error| error.to_string())?;
            Ok(program)
        };
        let text = "{leaderElect: true, leaseDuration: 1m, retryPeriod: 5s, resourceName: mine, resourceNamespace: here}";
        let program = applied(&["--leader-elect-retry-period=3s"], text).unwrap();
        assert_eq!(program.leader_elect_lease_duration, Duration::from_secs(60));
        assert_eq!(program.leader_elect_retry_period, Duration::from_secs(3), "the flag wins");
        assert_eq!(program.leader_elect_resource_name.as_deref(), Some("mine"));
        assert_eq!(program.leader_elect_resource_namespace, "here");
        assert!(!applied(&[], "{leaderElect: false}").unwrap().leader_elect);
        for (text, part) in [
            ("{resourceLock: configmaps}", "only leases"),
            ("{leaseDuration: soon}", "leaderElection.leaseDuration"),
            ("{leaseDuration: 5s}", "greater than renewDeadline"),
        ] {
            let error = applied(&[], text).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_completed_file_says_the_same_again() {
        let head = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
        let written = read(&head).unwrap().completed().to_yaml().unwrap();
        let again = parse(&written).unwrap();
        assert_eq!(scores(&again.profiles[0]), scores(&Settings::default().profiles[0]));
        assert!(written.contains("podMaxBackoffSeconds: 10"), "{written}");
    }
}
