//! In-place resize: what a pod was given, what its containers run with, and the way from one to the other. Pure, but for the
//! file.
//!
//! ```text
//! spec ──admission──► allocated (a file in the pod's directory) ──steps──► actuated (what the cgroups hold)
//! ```
//!
//! The worker only ever sees a pod with its allocated resources; a resize that does not fit stays a pending condition
//! until it does. What a container runs with is remembered per container id; a kubelet that comes back compares what the
//! runtime tells with what is allocated, so a resize that it died in is taken up again.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use cri::{ContainerState, ContainerStatus, LinuxContainerResources};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::beneath::Owner;
use crate::pod::{Container, Pod, Quantity, ResourceRequirements, Role};
use crate::resources;
use crate::state::{Memory, RuntimeView};
use crate::volumes::open_pod_dir;

const FILE: &str = "allocated_resources";
const LONGEST_FILE: u64 = 1 << 20;

/// What a pod was given of what it asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocation {
    pub pod: Option<ResourceRequirements>,
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Whether it was ever changed: what was made with the pod needs no second look.
    pub resized: bool,
}

/// A resize that is not made yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// `Deferred` or `Infeasible`.
    pub reason: &'static str,
    pub message: String,
}

impl Allocation {
    /// All that the pod asks for.
    pub fn of(pod: &Pod) -> Self {
        let of = |container: &Container| (container.name.clone(), container.resources.clone());
        Self {
            pod: pod.spec.resources.clone(),
            containers: pod.spec.init_containers.iter().chain(&pod.spec.containers).map(of).collect(),
            resized: false,
        }
    }

    /// Whether the pod asks for just this.
    pub fn is_of(&self, pod: &Pod) -> bool {
        let whole = match (&self.pod, &pod.spec.resources) {
            (None, None) => true,
            (Some(given), Some(asked)) => is_same(given, asked),
            _ => false,
        };
        whole
            && pod.spec.init_containers.iter().chain(&pod.spec.containers).all(|container| {
                // A container that was never given anything is new here, and has what it asks for.
                self.containers.get(&container.name).is_none_or(|given| is_same(given, &container.resources))
            })
    }

    /// The pod with what it was given in place of what it asks for.
    pub fn apply(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        pod.spec.resources.clone_from(&self.pod);
        for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
            if let Some(given) = self.containers.get(&container.name) {
                container.resources.clone_from(given);
            }
        }
        pod
    }

    /// What was written for the pod of this directory. A file that cannot be understood counts as none: the pod then has
    /// what it asks for.
    pub fn read(pod_dir: &Path) -> Option<Self> {
        let bytes = std::fs::metadata(pod_dir.join(FILE)).ok().filter(|file| file.len() <= LONGEST_FILE);
        bytes.and_then(|_| serde_json::from_slice(&std::fs::read(pod_dir.join(FILE)).ok()?).ok())
    }

    pub fn write(&self, pod_dir: &Path) -> io::Result<()> {
        let draft = format!("{FILE}.draft");
        let dir = open_pod_dir(pod_dir)?;
        dir.write_file(OsStr::new(&draft), &serde_json::to_vec(self)?, &Owner::root(0o600))?;
        dir.rename(&draft, FILE)
    }
}

/// Whether two say the same, however it is written.
fn is_same(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    let lists = [(&one.requests, &other.requests), (&one.limits, &other.limits)];
    lists.into_iter().all(|(one, other)| {
        one.len() == other.len()
            && one.iter().all(|(name, value)| {
                other
                    .get(name)
                    .is_some_and(|known| known == value || number(name, known) == number(name, value))
            })
    })
}

fn number(name: &str, quantity: &Quantity) -> Option<i64> {
    if name == "cpu" { quantity.millis() } else { quantity.value() }
}

/// What containers run with, by id, and what the pod's cgroup holds. Unknown where this kubelet did not set it.
#[derive(Debug, Clone, Default)]
pub struct Actuated {
    pub containers: HashMap<String, ResourceRequirements>,
    pub pod: Option<LinuxContainerResources>,
}

/// One change of a cgroup. Zero values leave a limit as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The container's name and id; none for the pod's own group.
    pub container: Option<(String, String)>,
    pub values: LinuxContainerResources,
    /// It is not known whether this is needed; a refusal does no harm.
    pub lenient: bool,
}

/// A memory limit that shrinks, and must not fall below what is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrink {
    /// The container's name and id; none for the pod.
    pub container: Option<(String, String)>,
    pub limit: i64,
}

/// All that a resize does now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    pub checks: Vec<Shrink>,
    pub steps: Vec<Step>,
    /// Containers that run with what they were given once the steps are made, by name and id. What shows in no cgroup (a
    /// memory request) needs no step.
    pub updated: Vec<(String, String)>,
    /// Containers that their policy restarts, by id and name.
    pub restarts: Vec<(String, String)>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        self.has_no_action() && self.restarts.is_empty()
    }

    /// Whether there is nothing to do but to restart.
    pub fn has_no_action(&self) -> bool {
        self.steps.is_empty() && self.updated.is_empty()
    }
}

/// A running container that does not run with what its pod was given.
struct Stale<'a> {
    container: &'a Container,
    here: &'a ContainerStatus,
    old: LinuxContainerResources,
    new: LinuxContainerResources,
}

impl Stale<'_> {
    fn key(&self) -> (String, String) {
        (self.container.name.clone(), self.here.id.clone())
    }
}

/// What a running container runs with, where that is not what it was given.
pub fn actual(
    container: &Container,
    here: &ContainerStatus,
    actuated: &Actuated,
) -> Option<ResourceRequirements> {
    match actuated.containers.get(&here.id) {
        Some(known) => (!is_same(known, &container.resources)).then(|| known.clone()),
        None => resources::actual(container, &here.resources),
    }
}

/// The way from what runs in a sandbox to what the pod was given.
pub fn change(pod: &Pod, sandbox: &str, runtime: &RuntimeView, actuated: &Actuated, resized: bool) -> Change {
    let mut change = Change::default();
    let mut stale = Vec::new();
    for (role, container) in pod.containers() {
        let resizable = matches!(role, Role::App | Role::Sidecar);
        let Some(here) = runtime.in_sandbox(sandbox, &container.name).filter(|_| resizable) else { continue };
        if here.state != ContainerState::Running {
            continue;
        }
        let Some(known) = actual(container, here, actuated) else { continue };
        if restarts(container, &known) {
            change.restarts.push((here.id.clone(), container.name.clone()));
            continue;
        }
        let old = resources::of_requirements(&known);
        stale.push(Stale { container, here, old, new: resources::of_requirements(&container.resources) });
    }
    let wanted = resources::of_pod(pod);
    let current = actuated.pod.as_ref();
    if stale.is_empty() && (!resized || current.is_some_and(|current| is_same_group(current, &wanted))) {
        return change;
    }
    change.updated = stale.iter().map(Stale::key).collect();
    let memory = |values: &LinuxContainerResources| values.memory_limit_in_bytes;
    let quota = |values: &LinuxContainerResources| values.cpu_quota;
    let shares = |values: &LinuxContainerResources| values.cpu_shares;
    change.checks = stale
        .iter()
        .filter(|one| shrinks(memory(&one.old), memory(&one.new)))
        .map(|one| Shrink { container: Some(one.key()), limit: memory(&one.new) })
        .collect();
    if current.is_none_or(|current| shrinks(memory(current), memory(&wanted))) && memory(&wanted) > 0 {
        change.checks.push(Shrink { container: None, limit: memory(&wanted) });
    }
    change.steps = around(current, &wanted, &mut stale, memory, |new| LinuxContainerResources {
        memory_limit_in_bytes: or_unlimited(new.memory_limit_in_bytes),
        memory_swap_limit_in_bytes: or_unlimited(new.memory_swap_limit_in_bytes),
        ..LinuxContainerResources::default()
    });
    change.steps.extend(around(current, &wanted, &mut stale, quota, |new| LinuxContainerResources {
        cpu_period: new.cpu_period,
        cpu_quota: or_unlimited(new.cpu_quota),
        ..LinuxContainerResources::default()
    }));
    change.steps.extend(around(current, &wanted, &mut stale, shares, |new| LinuxContainerResources {
        cpu_shares: new.cpu_shares,
        ..LinuxContainerResources::default()
    }));
    change
}

/// Whether a resize is under way. A look at the pod's group after a restart of the kubelet is none.
pub fn is_in_progress(pod: &Pod, runtime: &RuntimeView, memory: &Memory, resized: bool) -> bool {
    let Some(sandbox) = runtime.ready_sandbox() else { return false };
    let change = change(pod, &sandbox.id, runtime, &memory.actuated, resized);
    !change.updated.is_empty()
        || !change.restarts.is_empty()
        || memory.actuated.pod.is_some() && !change.steps.is_empty()
        || memory.containers.values().any(|one| one.resize_restart.is_some())
}

/// The changes of one value: shrinking containers before growing ones, and the pod's own group first where it grows and last
/// where it shrinks, so that it is never smaller than what is in it.
fn around(
    current: Option<&LinuxContainerResources>,
    wanted: &LinuxContainerResources,
    stale: &mut [Stale<'_>],
    value: impl Fn(&LinuxContainerResources) -> i64,
    values: impl Fn(&LinuxContainerResources) -> LinuxContainerResources,
) -> Vec<Step> {
    stale.sort_by_key(|one| !shrinks(value(&one.old), value(&one.new)));
    let of_pod = |lenient| Step { container: None, values: values(wanted), lenient };
    let mut steps = Vec::new();
    match current {
        None => steps.push(of_pod(true)),
        Some(current) if shrinks(value(wanted), value(current)) => steps.push(of_pod(false)),
        Some(_) => {}
    }
    for one in stale.iter().filter(|one| value(&one.old) != value(&one.new)) {
        steps.push(Step { container: Some(one.key()), values: values(&one.new), lenient: false });
    }
    if current.is_none_or(|current| shrinks(value(current), value(wanted))) {
        steps.push(of_pod(false));
    }
    steps
}

/// Whether the second is less. Zero is no limit, and so more than any.
fn shrinks(old: i64, new: i64) -> bool {
    new > 0 && (old <= 0 || new < old)
}

fn or_unlimited(value: i64) -> i64 {
    if value == 0 { -1 } else { value }
}

fn is_same_group(one: &LinuxContainerResources, other: &LinuxContainerResources) -> bool {
    let of = |values: &LinuxContainerResources| {
        (values.memory_limit_in_bytes, values.cpu_quota, values.cpu_shares, values.cpu_period)
    };
    of(one) == of(other)
}

/// Whether a policy of the container restarts it for this change.
fn restarts(container: &Container, known: &ResourceRequirements) -> bool {
    let wanted = &container.resources;
    container.resize_policy.iter().filter(|policy| policy.restart_policy == "RestartContainer").any(
        |policy| {
            let name = policy.resource_name.as_str();
            let of = |list: &BTreeMap<String, Quantity>| list.get(name).and_then(|value| number(name, value));
            of(&known.requests) != of(&wanted.requests) || of(&known.limits) != of(&wanted.limits)
        },
    )
}

/// What events of a resize say after their sentence.
pub fn summary(pod: &Pod, problem: &str) -> String {
    let list = |containers: &[Container]| -> Vec<serde_json::Value> {
        let of = |one: &Container| json!({"name": one.name, "resources": one.resources});
        containers.iter().map(of).collect()
    };
    let mut parts = serde_json::Map::new();
    if !pod.spec.init_containers.is_empty() {
        parts.insert("initContainers".into(), json!(list(&pod.spec.init_containers)));
    }
    parts.insert("containers".into(), json!(list(&pod.spec.containers)));
    parts.insert("generation".into(), json!(pod.metadata.generation));
    if !problem.is_empty() {
        parts.insert("error".into(), json!(problem));
    }
    serde_json::Value::Object(parts).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"generation": 2}, "spec": {"containers": containers}}))
            .unwrap()
    }

    fn limits(name: &str, cpu: &str, memory: &str) -> serde_json::Value {
        let both = json!({"cpu": cpu, "memory": memory});
        json!({"name": name, "resources": {"limits": both, "requests": both}})
    }

    /// A sandbox in which these run with what the pod asks for.
    fn runs(pod: &Pod) -> (RuntimeView, Actuated) {
        let mut actuated = Actuated { pod: Some(resources::of_pod(pod)), ..Actuated::default() };
        let mut view = RuntimeView::default();
        for container in &pod.spec.containers {
            actuated.containers.insert(container.name.clone(), container.resources.clone());
            view.containers.push(ContainerStatus {
                id: container.name.clone(),
                pod_sandbox_id: "s".into(),
                metadata: cri::ContainerMetadata { name: container.name.clone(), attempt: 0 },
                state: ContainerState::Running,
                resources: resources::of_requirements(&container.resources),
                ..ContainerStatus::default()
            });
        }
        (view, actuated)
    }

    fn text(change: &Change) -> Vec<String> {
        let step = |step: &Step| {
            let name = step.container.as_ref().map_or("pod", |(name, _)| name);
            let values = &step.values;
            match (values.memory_limit_in_bytes, values.cpu_quota, values.cpu_shares) {
                (0, 0, shares) => format!("{name} shares {shares}"),
                (0, quota, _) => format!("{name} quota {quota}"),
                (memory, ..) => format!("{name} memory {memory}"),
            }
        };
        change.steps.iter().map(step).collect()
    }

    #[test]
    fn shrinking_comes_first_and_the_pod_is_never_smaller_than_what_is_in_it() {
        let (view, actuated) = runs(&pod(json!([limits("a", "1", "10Mi"), limits("b", "1", "10Mi")])));
        let larger = pod(json!([limits("a", "2", "20Mi"), limits("b", "500m", "5Mi")]));
        let found = change(&larger, "s", &view, &actuated, true);
        let wanted = [
            "pod memory 26214400",
            "b memory 5242880",
            "a memory 20971520",
            "pod quota 250000",
            "b quota 50000",
            "a quota 200000",
            "pod shares 2560",
            "b shares 512",
            "a shares 2048",
        ];
        assert_eq!(text(&found), wanted);
        assert_eq!(found.checks, [Shrink { container: Some(("b".into(), "b".into())), limit: 5 << 20 }]);
        let smaller = pod(json!([limits("a", "1", "10Mi"), limits("b", "1", "5Mi")]));
        let found = change(&smaller, "s", &view, &actuated, true);
        assert_eq!(text(&found), ["b memory 5242880", "pod memory 15728640"]);
        assert_eq!(found.checks.len(), 2);
        let same = pod(json!([limits("a", "1000m", "10Mi"), limits("b", "1", "10240Ki")]));
        assert!(change(&same, "s", &view, &actuated, true).is_empty());
    }

    #[test]
    fn a_policy_restarts_the_container_for_its_resource_only() {
        let mut old = limits("a", "1", "10Mi");
        old["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"},
                                     {"resourceName": "cpu", "restartPolicy": "NotRequired"}]);
        let (view, actuated) = runs(&pod(json!([old])));
        let mut cpu = old.clone();
        cpu["resources"]["limits"]["cpu"] = json!("2");
        let found = change(&pod(json!([cpu])), "s", &view, &actuated, true);
        assert_eq!(
            (text(&found), found.restarts.len()),
            (vec!["pod quota 200000".into(), "a quota 200000".into()], 0)
        );
        let mut memory = old.clone();
        memory["resources"]["requests"]["memory"] = json!("5Mi");
        let found = change(&pod(json!([memory])), "s", &view, &actuated, true);
        assert_eq!((found.steps.len(), found.restarts.as_slice()), (0, &[("a".into(), "a".into())][..]));
    }

    #[test]
    fn a_kubelet_that_comes_back_goes_by_what_the_runtime_tells() {
        let (view, _) = runs(&pod(json!([limits("a", "1", "10Mi")])));
        let resized = pod(json!([limits("a", "1", "20Mi")]));
        let found = change(&resized, "s", &view, &Actuated::default(), true);
        assert!(text(&found).contains(&"a memory 20971520".to_owned()), "{found:?}");
        assert!(found.steps[0].lenient);
        // What was never resized is not touched.
        let first = pod(json!([limits("a", "1", "10Mi")]));
        assert!(change(&first, "s", &view, &Actuated::default(), false).is_empty());
    }

    #[test]
    fn an_allocation_outlives_the_kubelet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pods/uid");
        let asked = pod(json!([limits("a", "1", "10Mi")]));
        assert_eq!(Allocation::read(&path), None);
        Allocation::of(&asked).write(&path).unwrap();
        let known = Allocation::read(&path).unwrap();
        assert!(known.is_of(&asked) && known.is_of(&pod(json!([limits("a", "1000m", "10Mi")]))));
        let more = pod(json!([limits("a", "2", "10Mi")]));
        assert!(!known.is_of(&more));
        assert_eq!(known.apply(&more).spec.containers[0].resources, asked.spec.containers[0].resources);
        assert_eq!(
            summary(&asked, ""),
            r#"{"containers":[{"name":"a","resources":{"limits":{"cpu":"1","memory":"10Mi"},"requests":{"cpu":"1","memory":"10Mi"}}}],"generation":2}"#
        );
        std::fs::write(path.join(FILE), b"{").unwrap();
        assert_eq!(Allocation::read(&path), None);
    }
}
