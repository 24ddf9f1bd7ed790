//! `KubeSchedulerConfiguration`: which profiles there are and which plugins each runs.
//!
//! The file says what differs from the default; [`build`] makes the frameworks of it. A name that is not known is an
//! error, never ignored: a plugin that silently does not run is worse than a scheduler that does not start.

use serde::Deserialize;
use thiserror::Error;

use crate::framework::Framework;
use crate::plugins::{self, Entry};

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("the scheduler configuration is not valid YAML")]
    Yaml(#[source] serde_yaml_ng::Error),
    #[error(
        "the scheduler configuration is {api_version} {kind}, not kubescheduler.config.k8s.io/v1 KubeSchedulerConfiguration"
    )]
    Kind { api_version: String, kind: String },
    #[error("profile {profile:?} names the plugin {plugin:?}, which does not exist; there are {known}")]
    UnknownPlugin { profile: String, plugin: String, known: String },
    #[error("profile {profile:?} appears twice; scheduler names must be unique")]
    DuplicateProfile { profile: String },
    #[error("{field} is {value}, but must be from {lowest} to {highest}")]
    OutOfRange { field: &'static str, value: i64, lowest: i64, highest: i64 },
}

/// The file, as far as it is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct File {
    api_version: String,
    kind: String,
    percentage_of_nodes_to_score: i64,
    pod_initial_backoff_seconds: Option<i64>,
    pod_max_backoff_seconds: Option<i64>,
    profiles: Vec<ProfileFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProfileFile {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<i64>,
    plugins: PluginsFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PluginsFile {
    multi_point: PluginSet,
    pre_enqueue: PluginSet,
    filter: PluginSet,
    score: PluginSet,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PluginSet {
    enabled: Vec<PluginName>,
    disabled: Vec<PluginName>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PluginName {
    name: String,
    weight: i64,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == "*" || plugin.name == name)
    }

    fn enabled(&self, name: &str) -> Option<&PluginName> {
        self.enabled.iter().find(|plugin| plugin.name == name)
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
}

impl Default for Settings {
    fn default() -> Self {
        let profile = Profile {
            scheduler_name: "default-scheduler".to_owned(),
            framework: plugins::default_framework(),
        };
        Self { profiles: vec![profile], initial_backoff_seconds: 1, max_backoff_seconds: 10 }
    }
}

/// Reads a configuration file's text.
pub fn parse(text: &str) -> Result<Settings, ConfigError> {
    let file: File = serde_yaml_ng::from_str(text).map_err(ConfigError::Yaml)?;
    if file.api_version != "kubescheduler.config.k8s.io/v1" || file.kind != "KubeSchedulerConfiguration" {
        return Err(ConfigError::Kind { api_version: file.api_version, kind: file.kind });
    }
    build(file)
}

fn build(file: File) -> Result<Settings, ConfigError> {
    let defaults = Settings::default();
    let share = |value| within("percentageOfNodesToScore", value, 0, 100);
    let whole = share(file.percentage_of_nodes_to_score)?;
    let mut profiles: Vec<Profile> = Vec::new();
    for profile in &file.profiles {
        let name = profile.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".to_owned());
        if profiles.iter().any(|other| other.scheduler_name == name) {
            return Err(ConfigError::DuplicateProfile { profile: name });
        }
        let mut framework = framework(&name, &profile.plugins)?;
        let own = profile.percentage_of_nodes_to_score.map(share).transpose()?;
        framework.percentage_of_nodes_to_score = own.unwrap_or(whole) as usize;
        profiles.push(Profile { scheduler_name: name, framework });
    }
    if profiles.is_empty() {
        profiles = defaults.profiles;
        profiles[0].framework.percentage_of_nodes_to_score = whole as usize;
    }
    let seconds =
        |field, value: Option<i64>, default| within(field, value.unwrap_or(default), 1, i64::from(i32::MAX));
    let initial_backoff_seconds = seconds(
        "podInitialBackoffSeconds",
        file.pod_initial_backoff_seconds,
        defaults.initial_backoff_seconds,
    )?;
    let max_backoff_seconds =
        seconds("podMaxBackoffSeconds", file.pod_max_backoff_seconds, defaults.max_backoff_seconds)?;
    within("podInitialBackoffSeconds", initial_backoff_seconds, 1, max_backoff_seconds)?;
    Ok(Settings { profiles, initial_backoff_seconds, max_backoff_seconds })
}

fn within(field: &'static str, value: i64, lowest: i64, highest: i64) -> Result<i64, ConfigError> {
    if (lowest..=highest).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError::OutOfRange { field, value, lowest, highest })
    }
}

fn framework(profile: &str, sets: &PluginsFile) -> Result<Framework, ConfigError> {
    let all = [&sets.multi_point, &sets.pre_enqueue, &sets.filter, &sets.score];
    let named = all.iter().flat_map(|set| set.enabled.iter().chain(&set.disabled));
    for plugin in named.filter(|plugin| plugin.name != "*") {
        if !plugins::ALL.iter().any(|entry| entry.name == plugin.name) {
            let known: Vec<&str> = plugins::ALL.iter().map(|entry| entry.name).collect();
            return Err(ConfigError::UnknownPlugin {
                profile: profile.to_owned(),
                plugin: plugin.name.clone(),
                known: known.join(", "),
            });
        }
    }
    let runs = |entry: &Entry, point: &PluginSet| {
        let by_default =
            sets.multi_point.enabled(entry.name).is_some() || !sets.multi_point.disables(entry.name);
        point.enabled(entry.name).is_some() || by_default && !point.disables(entry.name)
    };
    let weight = |entry: &Entry| {
        let said = [&sets.score, &sets.multi_point].into_iter().filter_map(|set| set.enabled(entry.name));
        said.map(|plugin| plugin.weight).find(|weight| *weight > 0).unwrap_or(entry.weight)
    };
    let mut framework = Framework::default();
    for entry in plugins::ALL {
        if let Some(make) = entry.pre_enqueue.filter(|_| runs(entry, &sets.pre_enqueue)) {
            framework.pre_enqueue.push(make());
        }
        if let Some(make) = entry.filter.filter(|_| runs(entry, &sets.filter)) {
            framework.filters.push(make());
        }
        if let Some(make) = entry.score.filter(|_| runs(entry, &sets.score)) {
            framework.scores.push((make(), weight(entry)));
        }
    }
    Ok(framework)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_profiles(text: &str) -> Result<Settings, String> {
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        parse(&format!("{head}{text}")).map_err(|error| error.to_string())
    }

    fn scores(profile: &Profile) -> Vec<(&'static str, i64)> {
        profile.framework.scores.iter().map(|(plugin, weight)| (plugin.name(), *weight)).collect()
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
  plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: NodeName}]}}
",
        )
        .unwrap();
        assert_eq!(scores(&settings.profiles[0]), [("ImageLocality", 7)]);
        let filters = |index: usize| -> Vec<&str> {
            settings.profiles[index].framework.filters.iter().map(|plugin| plugin.name()).collect()
        };
        assert!(!filters(0).contains(&"NodePorts") && filters(0).contains(&"NodeResourcesFit"));
        assert_eq!(filters(1), ["NodeName"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("profiles: [{plugins: {filter: {enabled: [{name: Magic}]}}}]", "\"Magic\""),
            ("profiles: [{}, {}]", "twice"),
            ("percentageOfNodesToScore: 101", "percentageOfNodesToScore is 101"),
            ("podInitialBackoffSeconds: 20", "podInitialBackoffSeconds is 20"),
        ] {
            let error = parse_profiles(text).err().unwrap();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse("kind: Pod").is_err());
    }
}
