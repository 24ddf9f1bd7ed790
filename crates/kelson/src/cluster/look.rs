//! What can be seen of an installation on this host: its machines from outside, their journals, and the API; put together
//! as one picture in which every wait has its cause.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use client::Client;
use installer::bootstrap::{cause, connect, error_text, records};
use installer::complaint;
use installer::local::Plan;
use installer::nodes::Role;
use installer::wait;
use machines::cluster::Cluster;
use machines::journal::{Filter, Reader};
use serde_json::Value;

use super::view::{Line, Picture};

/// How much of a pod's log is read for its last complaint.
const TAIL: u64 = 64 << 10;

/// Looks at one installation again and again.
pub struct Eyes<'a> {
    dir: &'a Path,
    cluster: &'a Cluster,
    client: Client,
    /// Machines whose nodes are expected, with their nodes' names.
    nodes: BTreeMap<String, String>,
    journals: BTreeMap<String, Journal>,
}

/// What a journal said last.
struct Journal {
    reader: Reader,
    /// By unit: the last line, and the last complaint.
    last: BTreeMap<String, String>,
    complaints: BTreeMap<String, String>,
}

/// Whether the stages are reached; the text says why not.
pub struct Seen {
    pub picture: Picture,
    pub bootstrap: Result<(), String>,
    pub version: Result<(), String>,
    pub operators: Result<(), String>,
}

impl<'a> Eyes<'a> {
    pub fn open(dir: &'a Path, cluster: &'a Cluster, plan: &Plan) -> anyhow::Result<Self> {
        let nodes = plan.nodes.nodes.iter().filter(|node| node.role != Role::Bootstrap);
        Ok(Self {
            dir,
            cluster,
            client: connect(&dir.join("auth/kubeconfig"), "kelson-create-cluster")?,
            nodes: nodes.map(|node| (node.name.clone(), format!("{}.{}", node.name, plan.domain))).collect(),
            journals: BTreeMap::new(),
        })
    }

    /// One look at everything.
    pub async fn look(&mut self, stage: &'static str) -> anyhow::Result<Seen> {
        let mut picture = Picture { stage, ..Picture::default() };
        let mut running = Vec::new();
        for place in self.cluster.places()? {
            let seen = self.cluster.seen(&place)?;
            let name = seen.machine.name.clone();
            if seen.pid.is_some() {
                running.push(name.clone());
                self.read_journal(&name, place.path());
            }
            picture.machines.push(Line { name, state: seen.state, cause: seen.detail });
        }
        let answers = Answers::ask(&self.client).await;
        let absent = || Err("the API does not answer".to_owned());
        let (bootstrap, version, operators) = match &answers {
            Ok(answers) => (
                wait::judge_bootstrap(answers.bootstrap.as_ref()),
                wait::judge_version(answers.version.as_ref()),
                wait::judge_operators(answers.operators.as_ref()),
            ),
            Err(_) => (absent(), absent(), absent()),
        };
        match &answers {
            Err(reason) => {
                picture.waits.push(format!("the API does not answer: {reason}"));
                if running.iter().any(|name| name == "bootstrap") {
                    let logs = self.dir.join("local/machines/bootstrap/var/log/pods");
                    picture.waits.extend(["etcd", "kube-apiserver"].iter().filter_map(|container| {
                        let said = last_complaint(&logs, container)?;
                        Some(format!("bootstrap: {container} says: {said}"))
                    }));
                }
            }
            Ok(answers) => {
                let expected: Vec<String> = self
                    .nodes
                    .iter()
                    .filter(|(name, _)| running.contains(name))
                    .map(|(_, node)| node.clone())
                    .collect();
                picture.waits.extend(cause::of_machines(&expected, &answers.requests, &answers.nodes));
                picture.operators = operator_lines(answers.operators.as_ref());
                if let (Err(reason), true) = (&version, stage == "install") {
                    picture.waits.push(reason.clone());
                }
            }
        }
        let registered: Vec<&str> = answers
            .iter()
            .flat_map(|answers| &answers.nodes)
            .filter_map(|node| node["metadata"]["name"].as_str())
            .collect();
        for line in picture.machines.iter_mut().filter(|line| line.cause.is_empty()) {
            line.cause = match self.nodes.get(&line.name) {
                None => self.bootkube().unwrap_or_default(),
                Some(node) if !registered.contains(&node.as_str()) => self
                    .complaint(&line.name, "kubelet.service")
                    .map(|said| format!("kubelet: {said}"))
                    .unwrap_or_default(),
                Some(_) => String::new(),
            };
        }
        Ok(Seen { picture, bootstrap, version, operators })
    }

    fn read_journal(&mut self, name: &str, root: &Path) {
        let journal = self.journals.entry(name.to_owned()).or_insert_with(|| {
            let units = ["kubelet.service", "bootkube.service"].map(str::to_owned).to_vec();
            Journal {
                reader: Reader::new(root, Filter { units, boot: None }),
                last: BTreeMap::new(),
                complaints: BTreeMap::new(),
            }
        });
        let (last, complaints) = (&mut journal.last, &mut journal.complaints);
        // A journal that cannot be read now is read at the next look.
        let _ = journal.reader.read(&mut |entry| {
            last.insert(entry.unit.clone(), entry.message.clone());
            if let Some(said) = complaint::of_line(&entry.message) {
                complaints.insert(entry.unit.clone(), said.to_owned());
            }
        });
    }

    fn complaint(&self, machine: &str, unit: &str) -> Option<&str> {
        self.journals.get(machine)?.complaints.get(unit).map(String::as_str)
    }

    /// Where bootkube is, and what it waits for there.
    fn bootkube(&self) -> Option<String> {
        let record = self.dir.join("local/machines/bootstrap/var/log/openshift/bootkube.json");
        let stage = records::summary(&std::fs::read(record).ok()?)?;
        let last = self.journals.get("bootstrap").and_then(|journal| journal.last.get("bootkube.service"));
        let waits = last.filter(|line| line.starts_with("waiting") && stage.starts_with("at "));
        Some(match waits {
            Some(line) => format!("bootkube {stage}: {line}"),
            None => format!("bootkube {stage}"),
        })
    }
}

/// What the API says; not all of it is there from the beginning.
struct Answers {
    bootstrap: Option<Value>,
    version: Option<Value>,
    operators: Option<Value>,
    requests: Vec<Value>,
    nodes: Vec<Value>,
}

impl Answers {
    async fn ask(client: &Client) -> Result<Self, String> {
        let find = async |path: &str| match client.get_path::<Value>(path).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error_text(&error)),
        };
        let items =
            |list: Option<Value>| list.and_then(|list| list["items"].as_array().cloned()).unwrap_or_default();
        Ok(Self {
            bootstrap: find("/api/v1/namespaces/kube-system/configmaps/bootstrap").await?,
            version: find("/apis/config.openshift.io/v1/clusterversions/version").await?,
            operators: find("/apis/config.openshift.io/v1/clusteroperators").await?,
            requests: items(find("/apis/certificates.k8s.io/v1/certificatesigningrequests").await?),
            nodes: items(find("/api/v1/nodes").await?),
        })
    }
}

fn operator_lines(list: Option<&Value>) -> Vec<Line> {
    let operators = list.and_then(|list| list["items"].as_array()).map(Vec::as_slice).unwrap_or_default();
    let line = |operator: &Value| {
        let (state, cause) = cause::of_operator(operator);
        let name = operator["metadata"]["name"].as_str().unwrap_or_default();
        Line { name: format!("operator {name}"), state, cause }
    };
    operators.iter().map(line).collect()
}

/// The last complaint of a container, in the newest of its logs.
fn last_complaint(logs: &Path, container: &str) -> Option<String> {
    let mut files: Vec<(std::time::SystemTime, PathBuf)> = Vec::new();
    for pod in std::fs::read_dir(logs).ok()?.flatten() {
        for log in std::fs::read_dir(pod.path().join(container)).into_iter().flatten().flatten() {
            if let Ok(time) = log.metadata().and_then(|metadata| metadata.modified()) {
                files.push((time, log.path()));
            }
        }
    }
    let (_, path) = files.into_iter().max()?;
    let text = tail(&path).ok()?;
    complaint::of_container(&text).map(str::to_owned)
}

fn tail(path: &Path) -> std::io::Result<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_log_of_a_container_tells_its_last_complaint() {
        let directory = tempfile::tempdir().unwrap();
        let pod = directory.path().join("kube-system_etcd-bootstrap_1/etcd");
        std::fs::create_dir_all(&pod).unwrap();
        let text = "2026-11-18T06:00:00Z stderr F error: one\n2026-11-18T06:00:01Z stderr F error: two\n2026-11-18T06:00:02Z stdout F fine\n";
        std::fs::write(pod.join("0.log"), text).unwrap();
        assert_eq!(last_complaint(directory.path(), "etcd").as_deref(), Some("two"));
        assert_eq!(last_complaint(directory.path(), "other"), None);
    }

    #[test]
    fn an_operators_worst_condition_is_what_is_shown() {
        let operator = |name: &str, conditions: Value| json!({"metadata": {"name": name}, "status": {"conditions": conditions}});
        let is = |kind: &str, status: &str| json!({"type": kind, "status": status, "message": format!("{kind} said")});
        let list = json!({"items": [
            operator("dns", json!([is("Available", "True"), is("Progressing", "False"), is("Degraded", "False")])),
            operator("etcd", json!([is("Available", "True"), is("Progressing", "True"), is("Degraded", "True")])),
            operator("new", json!([])),
        ]});
        let lines = operator_lines(Some(&list));
        let states: Vec<(&str, &str)> =
            lines.iter().map(|line| (line.state.as_str(), line.cause.as_str())).collect();
        assert_eq!(
            states,
            [
                ("Available=True", ""),
                ("Degraded=True", "Degraded said"),
                ("unknown", "it has not said how it is")
            ]
        );
    }
}
