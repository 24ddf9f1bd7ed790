//! Scenes as data: what each controller, cloud loop and scheduler plug-in does, seen from outside by a client of another
//! maker. The programs run apart, with upstream's flags, on fake nodes. `scenes/*.yaml` are lists of scenes; each gets a
//! namespace of its own and is a list of steps:
//!
//! | step | meaning |
//! |---|---|
//! | `given` | apply this object, its status too if it has one |
//! | `then` | wait until an object like this is there |
//! | `gone` | wait until no object like this is there |
//! | `delete` | delete this object (`propagation` beside it says how), or all like it if it has no name |
//! | `each` | merge `set` into every object like this |
//! | `approve` | approve this request for a certificate |
//! | `post` | POST `body` to `path`; with `refused` beside them the answer is an error that says this |
//! | `many` | apply `given` as often as `count` says, with `$INDEX` for the number |
//! | `note` | remember the uid of this object under the name `as`: `$name` from then on |
//! | `signed` | the certificate of this request is valid for so many `seconds` |
//!
//! "Like this" is `pattern::matches`. `$NS` stands for the scene's namespace. Kinds need no `apiVersion`, unless discovery
//! does not know them yet; pods get a container, and nodes room and readiness, where a scene does not speak of them. Scenes
//! that are `long` begin first. `SCENES=word` runs those with the word in their names.

mod extenders;
mod pattern;
mod programs;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::StreamExt;
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    PropagationPolicy,
};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, Scope};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::{eventually, in_own_network};

/// How long a scene waits for a step: longer than a minute, for schedules of minutes.
const PATIENCE: Duration = Duration::from_secs(90);

/// The files of scenes that play side by side.
const FILES: [&str; 8] =
    ["workloads", "services", "volumes", "identities", "nodes", "scheduling", "extenders", "cloud"];

/// Those that follow: a cluster that has become large is another place.
const LARGE: &str = "large";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scene {
    scene: String,
    #[serde(default)]
    long: bool,
    steps: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    Given(Value),
    Then(Value),
    Gone(Value),
    Delete(Value),
    Each(Value),
    Approve(String),
    Post { path: String, body: Value, refused: Option<String> },
    Many { count: usize, given: Value },
    Note(Value),
    Signed { request: String, seconds: i64 },
}

/// What stands for something else in the texts of a scene: a name and its meaning.
type Names = Vec<(String, String)>;

/// The value with the meanings of all names.
fn named(value: &Value, names: &Names) -> Value {
    let text = names.iter().fold(value.to_string(), |text, (name, meaning)| text.replace(name, meaning));
    serde_json::from_str(&text).expect("a name is no syntax")
}

fn read_step(step: &Value) -> Step {
    serde_json::from_value(step.clone()).unwrap_or_else(|error| panic!("{step}: {error}"))
}

/// The scenes of a file whose names have the wanted word.
fn scenes(file: &str) -> Vec<Scene> {
    let path = format!("{}/tests/e2e/scenes/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the scenes are there");
    let mut list: serde_yaml_ng::Value =
        serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    list.apply_merge().expect("merges are sound");
    let wanted = std::env::var("SCENES").unwrap_or_default();
    let scenes =
        list.as_sequence().expect("a list of scenes").iter().filter(|scene| scene.get("scene").is_some());
    let scenes = scenes.map(|scene| {
        let scene = serde_json::to_value(scene).expect("YAML that JSON knows");
        serde_json::from_value::<Scene>(scene).unwrap_or_else(|error| panic!("{path}: {error}"))
    });
    scenes
        .inspect(|scene| scene.steps.iter().for_each(|step| drop(read_step(step))))
        .filter(|scene| scene.scene.contains(&wanted))
        .collect()
}

/// Where scenes play.
struct Stage {
    client: Client,
    discovery: Discovery,
}

impl Stage {
    async fn new(client: Client) -> Self {
        // An aggregated server is sent requests once it was seen to answer.
        let discovery = eventually("discovery works", || async {
            Discovery::new(client.clone()).run().await.map_err(|error| error.to_string())
        })
        .await;
        Self { client, discovery }
    }

    /// The kind of an object: the one that it names, or the first group's that has it. A kind that came after the start is
    /// taken to be in namespaces.
    fn kind(&self, object: &Value) -> (ApiResource, Scope) {
        let kind = object["kind"].as_str().expect("a kind");
        let version = object["apiVersion"].as_str();
        let fits = |found: &ApiResource| {
            found.kind == kind && version.is_none_or(|version| found.api_version == version)
        };
        let mut groups = self.discovery.groups_alphabetical();
        groups.sort_by_key(|group| group.name().contains('.'));
        let all = groups.iter().flat_map(|group| match version {
            Some(_) => group.resources_by_stability(),
            None => group.recommended_resources(),
        });
        if let Some((found, capabilities)) = all.into_iter().find(|(found, _)| fits(found)) {
            return (found, capabilities.scope);
        }
        let (group, version) = version
            .and_then(|version| version.split_once('/'))
            .unwrap_or_else(|| panic!("no kind {kind} is served"));
        (ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)), Scope::Namespaced)
    }

    fn api(&self, object: &Value, namespace: &str) -> (Api<DynamicObject>, ApiResource) {
        let (kind, scope) = self.kind(object);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
        let api = match scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &kind),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &kind),
        };
        (api, kind)
    }

    async fn play(&self, number: usize, scene: Scene) -> Result<(), String> {
        let namespace = format!("scene-{number}");
        let started = std::time::Instant::now();
        self.given(&json!({"kind": "Namespace", "metadata": {"name": namespace}}), &namespace).await?;
        self.seen(&json!({"kind": "ServiceAccount", "metadata": {"name": "default"}}), &namespace).await?;
        let mut names = vec![("$NS".to_owned(), namespace.clone())];
        for (index, step) in scene.steps.iter().enumerate() {
            let step = read_step(&named(step, &names));
            let played = match step {
                Step::Note(object) => self.note(&object, &namespace).await.map(|name| names.push(name)),
                step => self.step(&step, &namespace).await,
            };
            played.map_err(|error| format!("{}, step {}: {error}", scene.scene, index + 1))?;
        }
        eprintln!("{:>6} ms  {}", started.elapsed().as_millis(), scene.scene);
        Ok(())
    }

    async fn step(&self, step: &Step, namespace: &str) -> Result<(), String> {
        match step {
            Step::Given(object) => self.given(&filled(object, namespace), namespace).await,
            Step::Many { count, given } => {
                for index in 0..*count {
                    let object = named(given, &vec![("$INDEX".to_owned(), index.to_string())]);
                    self.given(&filled(&object, namespace), namespace).await?;
                }
                Ok(())
            }
            Step::Note(_) => Err("a note is taken beside the steps".to_owned()),
            Step::Signed { request, seconds } => {
                let (api, _) = self.api(&json!({"kind": "CertificateSigningRequest"}), namespace);
                let request = api.get(request).await.map_err(|error| format!("{error}"))?;
                let found = lifetime(&request.data["status"]["certificate"])?;
                // Certificates begin a little earlier than now.
                let expected = *seconds..=*seconds + 600;
                if expected.contains(&found) { Ok(()) } else { Err(format!("it is valid for {found} s")) }
            }
            Step::Then(like) => self.seen(like, namespace).await,
            Step::Gone(like) => self.wait(like, namespace, |found| found.is_empty()).await,
            Step::Delete(object) => {
                let (api, _) = self.api(object, namespace);
                let policy = match object["propagation"].as_str() {
                    Some("Foreground") => PropagationPolicy::Foreground,
                    Some("Orphan") => PropagationPolicy::Orphan,
                    _ => PropagationPolicy::Background,
                };
                let how = DeleteParams {
                    propagation_policy: Some(policy),
                    grace_period_seconds: object["gracePeriodSeconds"].as_u64().map(|seconds| seconds as u32),
                    ..DeleteParams::default()
                };
                let named = match object["metadata"]["name"].is_null() {
                    false => vec![object.clone()],
                    true => {
                        self.like(&without(object, &["propagation", "gracePeriodSeconds"]), namespace)
                            .await?
                            .0
                    }
                };
                for object in named {
                    api.delete(name(&object)?, &how).await.map_err(|error| format!("{error}"))?;
                }
                Ok(())
            }
            Step::Each(like) => {
                let mut like = like.clone();
                let set = like.as_object_mut().and_then(|like| like.shift_remove("set")).unwrap_or_default();
                for mut object in self.like(&like, namespace).await?.0 {
                    object["kind"] = like["kind"].clone();
                    self.merge(&object, &set, namespace).await?;
                }
                Ok(())
            }
            Step::Approve(name) => {
                let (api, _) = self.api(&json!({"kind": "CertificateSigningRequest"}), namespace);
                let mut request = api.get(name).await.map_err(|error| format!("{error}"))?;
                let approved =
                    json!({"type": "Approved", "status": "True", "reason": "Scene", "message": ""});
                request.data["status"]["conditions"] = json!([approved]);
                let done = api.replace_subresource("approval", name, &PostParams::default(), &request).await;
                done.map(drop).map_err(|error| format!("{error}"))
            }
            Step::Post { path, body, refused } => {
                let request = http::Request::post(path)
                    .header("content-type", "application/json")
                    .body(body.to_string().into_bytes())
                    .map_err(|error| format!("{error}"))?;
                match (self.client.request_text(request).await, refused) {
                    (Ok(_), None) => Ok(()),
                    (Err(error), Some(text)) if error.to_string().contains(text) => Ok(()),
                    (Ok(answer), Some(text)) => Err(format!("{answer}, not {text:?}")),
                    (Err(error), _) => Err(error.to_string()),
                }
            }
        }
    }

    /// The name under which an object's uid is to be known.
    async fn note(&self, object: &Value, namespace: &str) -> Result<(String, String), String> {
        let (api, _) = self.api(object, namespace);
        let found = api.get(name(object)?).await.map_err(|error| format!("{error}"))?;
        let known = object["as"].as_str().ok_or("a note has a name: as")?;
        Ok((format!("${known}"), found.metadata.uid.unwrap_or_default()))
    }

    async fn given(&self, object: &Value, namespace: &str) -> Result<(), String> {
        let (api, kind) = self.api(object, namespace);
        let mut object = object.clone();
        object["apiVersion"] = json!(kind.api_version);
        let how = PatchParams::apply("scenes").force();
        let status = object.as_object_mut().and_then(|object| object.shift_remove("status"));
        // What is being made by others (an account, a quota) may not be there yet.
        let applied = api.patch(name(&object)?, &how, &Patch::Apply(&object)).await;
        applied.map_err(|error| format!("{error}"))?;
        let Some(status) = status else { return Ok(()) };
        self.merge(&object, &json!({"status": status}), namespace).await
    }

    /// Changes an object, or its status if that is what is set.
    async fn merge(&self, object: &Value, set: &Value, namespace: &str) -> Result<(), String> {
        let (api, _) = self.api(object, namespace);
        let (how, patch) = (PatchParams::default(), Patch::Merge(set));
        let patched = if set["status"].is_null() {
            api.patch(name(object)?, &how, &patch).await
        } else {
            api.patch_status(name(object)?, &how, &patch).await
        };
        patched.map(drop).map_err(|error| format!("{error}"))
    }

    async fn seen(&self, like: &Value, namespace: &str) -> Result<(), String> {
        self.wait(like, namespace, |found| !found.is_empty()).await
    }

    /// The objects like this one, and the others of its kind.
    async fn like(&self, like: &Value, namespace: &str) -> Result<(Vec<Value>, Vec<Value>), String> {
        let (api, _) = self.api(like, namespace);
        let mut like = like.clone();
        like.as_object_mut().map(|like| (like.shift_remove("apiVersion"), like.shift_remove("kind")));
        let one = like["metadata"]["name"].as_str().map(|name| format!("metadata.name={name}"));
        let query = ListParams { field_selector: one, ..ListParams::default() };
        let list = api.list(&query).await.map_err(|error| format!("{error}"))?;
        let all = list.items.into_iter().filter_map(|item| serde_json::to_value(item).ok());
        Ok(all.partition(|item| pattern::matches(&like, item)))
    }

    /// Waits until the objects like this one are as wanted.
    async fn wait(
        &self,
        like: &Value,
        namespace: &str,
        wanted: impl Fn(&[Value]) -> bool,
    ) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (found, others) = self.like(like, namespace).await?;
            if wanted(&found) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                let all: Vec<Value> = found.into_iter().chain(others).map(without_bookkeeping).collect();
                return Err(format!("waited for {like}, found {}", json!(all)));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

fn without(object: &Value, fields: &[&str]) -> Value {
    let mut object = object.clone();
    for field in fields {
        object.as_object_mut().and_then(|object| object.shift_remove(*field));
    }
    object
}

fn without_bookkeeping(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.shift_remove("managedFields");
    }
    object
}

fn name(object: &Value) -> Result<&str, String> {
    object["metadata"]["name"].as_str().ok_or_else(|| format!("no name: {object}"))
}

/// For how long a certificate is valid, in seconds.
fn lifetime(certificate: &Value) -> Result<i64, String> {
    let pem = BASE64.decode(certificate.as_str().unwrap_or_default()).map_err(|error| error.to_string())?;
    let parsed = pki::Certificate::from_pem(&pem).map_err(|error| error.to_string())?;
    Ok(parsed.not_after.duration_since(parsed.not_before).as_secs())
}

/// The object with what a scene need not say.
fn filled(object: &Value, namespace: &str) -> Value {
    let mut object = object.clone();
    let containers = json!([{"name": "c", "image": "none"}]);
    // Other scenes' nodes have no kubelet: pods that ask for no node in particular keep to those that have one.
    let kept = json!({"kelson.dev/fake-node": "true"});
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "10Gi"});
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let object_name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let placed = object["spec"]["nodeName"].is_string();
    let mut fill = |pointer: &[&str], value: Value| {
        let mut at = &mut object;
        for part in pointer {
            at = &mut at[*part];
        }
        if at.is_null() {
            *at = value;
        }
    };
    match kind.as_str() {
        "Pod" => {
            fill(&["spec", "containers"], containers);
            if !placed {
                fill(&["spec", "nodeSelector"], kept);
            }
        }
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            fill(&["spec", "selector"], json!({"matchLabels": {"app": "a"}}));
            fill(&["spec", "template", "metadata"], json!({"labels": {"app": "a"}}));
            fill(&["spec", "template", "spec", "containers"], containers);
            fill(&["spec", "template", "spec", "nodeSelector"], kept);
        }
        "ReplicationController" => fill(&["spec", "template", "spec", "nodeSelector"], kept),
        "Job" => {
            fill(&["spec", "template", "spec", "restartPolicy"], json!("Never"));
            fill(&["spec", "template", "spec", "containers"], containers);
            fill(&["spec", "template", "spec", "nodeSelector"], kept);
        }
        "Node" => {
            // Found by its scene and by its name, and out of the reckoning of zones' sizes.
            fill(&["metadata", "labels", "kubernetes.io/hostname"], json!(object_name));
            fill(&["metadata", "labels", "scene"], json!(namespace));
            fill(&["metadata", "labels", "node-role.kubernetes.io/control-plane"], json!(""));
            let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                "lastHeartbeatTime": jiff::Timestamp::now().to_string(), "lastTransitionTime": jiff::Timestamp::now().to_string()}]);
            fill(&["status", "conditions"], ready);
            fill(&["status", "capacity"], room.clone());
            fill(&["status", "allocatable"], room);
        }
        _ => {}
    }
    object
}

/// Plays the scenes of some files a few at a time, and tells all that went wrong. `first` is the number of the first.
async fn play(stage: &Stage, first: usize, files: &[&str]) {
    let mut scenes: Vec<Scene> = files.iter().flat_map(|file| scenes(file)).collect();
    scenes.sort_by_key(|scene| !scene.long);
    let plays = scenes.into_iter().zip(first..).map(|(scene, number)| stage.play(number, scene));
    let outcomes: Vec<_> = futures::stream::iter(plays).buffer_unordered(10).collect().await;
    let failed: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{} scenes failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn every_loop_is_seen_from_outside() {
    in_own_network(|| async {
        let programs = programs::Programs::start();
        let client = programs.client().await;
        eventually("fake nodes are ready", || async {
            let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
            let nodes = nodes.list(&ListParams::default()).await.map_err(|error| format!("{error}"))?;
            let ready = nodes
                .items
                .iter()
                .filter(|node| node.spec.as_ref().is_some_and(|spec| spec.taints.is_none()));
            if ready.count() >= programs::NODES { Ok(()) } else { Err("too few".to_owned()) }
        })
        .await;
        programs.publish_metrics(&client).await;
        let stage = Stage::new(client).await;
        play(&stage, 0, &FILES).await;
        play(&stage, programs::SCENES, &[LARGE]).await;
        programs.tell_how_they_are();
        programs.say_nothing_bad();
    });
}

/// The tables in the guides name all scenes and no others.
#[test]
fn the_guides_tell_what_is_seen() {
    if std::env::var_os("SCENES").is_some() {
        return;
    }
    let mut told = std::collections::BTreeSet::new();
    for guide in ["controllers", "scheduler"] {
        let path = format!("{}/../../docs/guides/{guide}.md", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).expect("a guide");
        let (_, section) = text.split_once("## Seen from outside").expect("its section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
        let cells = rows.filter_map(|row| row.trim_matches('|').split_once('|'));
        for name in cells.flat_map(|(_, scenes)| scenes.split('·')).map(str::trim) {
            if !name.starts_with('`') {
                told.insert(name.to_owned());
            }
        }
    }
    let there = FILES.iter().chain([&LARGE]).flat_map(|file| scenes(file)).map(|scene| scene.scene);
    let there: std::collections::BTreeSet<String> = there.collect();
    assert_eq!(told, there);
}
