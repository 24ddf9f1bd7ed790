//! The pod network of a node as others configure it: the first usable configuration of a directory, and the programs it names.
//!
//! The path of a pod: what is about to be done is written down, every plug-in of the chain is called with the answer of the one
//! before, the last answer is written down beside it. Whoever asks to disconnect the pod, after whatever happened in between,
//! uses what was written down, not what the directory says by then.
//!
//! What must stay true: a pod that plug-ins may know of has a record; no plug-in is called twice with ADD for one pod without a
//! DEL between; the network is ready only if its configuration can be used and, where the protocol knows the question, its
//! plug-ins say so.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tracing::{info, warn};

use crate::conf::{self, NetworkList, Version};
use crate::exec::{self, Call};
use crate::{Attachment, BoxFuture, Error, Network, PodRef, Protocol, Result, answer};

/// The pod's side of its link, as Kubernetes has it.
const INTERFACE: &str = "eth0";
/// How often bandwidth may be exceeded at once, as the kubelet's own network plug-in had it.
const LARGEST_BURST: u64 = i32::MAX as u64;

/// Where a node's network is configured.
#[derive(Clone, Debug)]
pub struct PluginsConfig {
    /// Configurations.
    pub conf_dir: PathBuf,
    /// Programs, in the order in which they are looked for.
    pub bin_dirs: Vec<PathBuf>,
    /// What is known of connected pods.
    pub cache_dir: PathBuf,
}

/// Connects pods by the plug-ins of a directory.
#[derive(Debug)]
pub struct Plugins {
    config: PluginsConfig,
    /// The configuration whose plug-ins were seen to understand it.
    accepted: Mutex<Option<NetworkList>>,
    /// What was last said about files that cannot be used: once is enough.
    told: Mutex<String>,
    /// Plug-ins have not been told yet which pods live.
    is_gc_due: AtomicBool,
    /// Pods that are gone and could not be disconnected: at the start of a machine its network comes later.
    leftover: Mutex<BTreeSet<String>>,
}

/// What is kept of a connected pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    sandbox_id: String,
    network: String,
    cni_version: String,
    #[serde(default)]
    disable_check: bool,
    plugins: Vec<Map<String, Value>>,
    cni_args: String,
    capability_args: Map<String, Value>,
    /// Absent: ADD has not ended.
    result: Option<Value>,
}

impl Plugins {
    /// A network that is configured elsewhere, now or later.
    pub fn new(config: PluginsConfig) -> Self {
        Self {
            config,
            accepted: Mutex::default(),
            told: Mutex::default(),
            is_gc_due: AtomicBool::new(true),
            leftover: Mutex::default(),
        }
    }

    /// The network to use: of the first file that can be used, if its plug-ins can.
    async fn network(&self) -> Result<NetworkList> {
        let not_ready = |reason: String| Error::NotReady { reason };
        let found = conf::read_dir(&self.config.conf_dir).map_err(|error| not_ready(chain(&error)))?;
        let mut problems = Vec::new();
        for one in found {
            let problem = match one {
                Ok((path, list)) => match self.accept(&list).await {
                    Ok(()) => return Ok(list),
                    Err(problem) => format!("{}: {problem}", path.display()),
                },
                Err(error) => chain(&error),
            };
            problems.push(problem);
        }
        let said = problems.join("; ");
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told != said && !said.is_empty() {
            warn!(problems = said, "network configurations cannot be used");
        }
        told.clone_from(&said);
        // CRI-O's words, which people look for.
        let place = self.config.conf_dir.display();
        let reason = format!("No CNI configuration file in {place}/. Has your network provider started?");
        Err(not_ready(if said.is_empty() { reason } else { format!("{reason} ({said})") }))
    }

    /// Whether the plug-ins are there and speak the configuration's version. They are asked once per configuration.
    async fn accept(&self, list: &NetworkList) -> std::result::Result<(), String> {
        for program in list.programs() {
            if exec::find(program, &self.config.bin_dirs).is_none() {
                return Err(format!("there is no plug-in {program:?}"));
            }
        }
        if self.accepted.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(list) {
            return Ok(());
        }
        for program in list.programs() {
            let call = Call {
                command: "VERSION",
                plugin: program,
                network: &list.name,
                environment: vec![
                    ("CNI_CONTAINERID", "dummy".into()),
                    ("CNI_NETNS", "dummy".into()),
                    ("CNI_IFNAME", "dummy".into()),
                ],
                input: json!({"cniVersion": list.version.text()}).to_string().into_bytes(),
            };
            let bytes = exec::run(&call, &self.config.bin_dirs).await.map_err(|error| error.to_string())?;
            let spoken = exec::answer(&call, &bytes).map_err(|error| error.to_string())?;
            let spoken = spoken["supportedVersions"].as_array().cloned().unwrap_or_default();
            if !spoken.iter().any(|version| version == list.version.text()) {
                return Err(format!("plug-in {program:?} does not speak cniVersion {}", list.version.text()));
            }
        }
        info!(network = list.name, version = list.version.text(), "network configuration found");
        *self.accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(list.clone());
        Ok(())
    }

    async fn attach(&self, pod: &PodRef) -> Result<Attachment> {
        if let Some(record) = self.read(&pod.sandbox_id)? {
            // It was connected before; ADD must not be called again.
            return match self.verify(&record, pod).await? {
                Some(attachment) => Ok(attachment),
                None => Err(Error::Invalid {
                    what: format!("sandbox {}", pod.sandbox_id),
                    reason: "it was never connected whole, and must be disconnected first".to_owned(),
                }),
            };
        }
        let list = self.network().await?;
        let mut record = Record {
            sandbox_id: pod.sandbox_id.clone(),
            network: list.name.clone(),
            cni_version: list.version.text().to_owned(),
            disable_check: list.disable_check,
            plugins: list.plugins,
            cni_args: cni_args(pod),
            capability_args: capabilities(pod),
            result: None,
        };
        self.write(&record)?;
        let mut result: Option<Value> = None;
        for plugin in &record.plugins {
            result = Some(self.call("ADD", &record, plugin, Some(pod), result.as_ref()).await?);
        }
        let result = result.unwrap_or_default();
        let attachment = answer::attachment(&result, INTERFACE).map_err(|problem| Error::Plugin {
            plugin: record.plugins.last().map(kind).unwrap_or_default().to_owned(),
            network: record.network.clone(),
            command: "add".to_owned(),
            code: 0,
            message: format!("its answer cannot be used: {problem}"),
        })?;
        record.result = Some(result);
        self.write(&record)?;
        Ok(attachment)
    }

    async fn detach(&self, sandbox_id: &str, pod: Option<&PodRef>) -> Result<()> {
        let Some(record) = self.read(sandbox_id)? else { return Ok(()) };
        for plugin in record.plugins.iter().rev() {
            self.call("DEL", &record, plugin, pod, record.result.as_ref()).await?;
        }
        self.forget(sandbox_id)
    }

    /// The attachment, if it is whole and the plug-ins find nothing wrong with it.
    async fn verify(&self, record: &Record, pod: &PodRef) -> Result<Option<Attachment>> {
        let Some(result) = &record.result else { return Ok(None) };
        if !record.disable_check && version(record) >= Version::V0_4 {
            for plugin in &record.plugins {
                self.call("CHECK", record, plugin, Some(pod), Some(result)).await?;
            }
        }
        Ok(answer::attachment(result, INTERFACE).ok())
    }

    async fn call(
        &self,
        command: &'static str,
        record: &Record,
        plugin: &Map<String, Value>,
        pod: Option<&PodRef>,
        previous: Option<&Value>,
    ) -> Result<Value> {
        let netns = pod.map(netns).unwrap_or_default();
        let environment = vec![
            ("CNI_CONTAINERID", record.sandbox_id.clone()),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", INTERFACE.to_owned()),
            ("CNI_ARGS", record.cni_args.clone()),
        ];
        let input = input(record, plugin, previous);
        let call = Call { command, plugin: kind(plugin), network: &record.network, environment, input };
        let bytes = exec::run(&call, &self.config.bin_dirs).await?;
        // Only ADD is asked for something.
        if command == "ADD" { exec::answer(&call, &bytes) } else { Ok(Value::Null) }
    }

    /// Calls STATUS or GC of every plug-in of a network.
    async fn ask_all(
        &self,
        command: &'static str,
        list: &NetworkList,
        more: &Map<String, Value>,
    ) -> Result<()> {
        for plugin in &list.plugins {
            let mut conf = plugin.clone();
            conf.insert("name".to_owned(), json!(list.name));
            conf.insert("cniVersion".to_owned(), json!(list.version.text()));
            conf.extend(more.clone());
            let input = Value::Object(conf).to_string().into_bytes();
            let environment = Vec::new();
            let call = Call { command, plugin: kind(plugin), network: &list.name, environment, input };
            exec::run(&call, &self.config.bin_dirs).await?;
        }
        Ok(())
    }

    async fn ready(&self) -> Result<()> {
        let list = self.network().await?;
        let not_ready = |error: Error| Error::NotReady { reason: chain(&error) };
        if list.version >= Version::V1_1 {
            self.ask_all("STATUS", &list, &Map::new()).await.map_err(not_ready)?;
        }
        let leftover = std::mem::take(&mut *self.leftover.lock().unwrap_or_else(PoisonError::into_inner));
        for id in leftover {
            if let Err(error) = self.disconnect_gone(&id).await {
                warn!(sandbox = %id, error = chain(&error), "a pod that is gone cannot be disconnected yet");
            }
        }
        if list.version >= Version::V1_1
            && self.is_gc_due.swap(false, Ordering::AcqRel)
            && let Err(error) = self.tell_living(&list).await
        {
            self.is_gc_due.store(true, Ordering::Release);
            warn!(error = chain(&error), "plug-ins cannot be told which pods live; trying again later");
        }
        Ok(())
    }

    /// Tells plug-ins which pods there are. A record is older than what plug-ins know of its pod, so none is missing.
    async fn tell_living(&self, list: &NetworkList) -> Result<()> {
        if list.disable_gc {
            return Ok(());
        }
        let known = self.records()?;
        let attachment = |id: &String| json!({"containerID": id, "ifname": INTERFACE});
        let valid: Vec<Value> = known.iter().map(attachment).collect();
        let mut more = Map::new();
        more.insert("cni.dev/valid-attachments".to_owned(), json!(valid));
        // The name it had before the protocol gave it one; some plug-ins know only that.
        more.insert("cni.dev/attachments".to_owned(), json!(valid));
        self.ask_all("GC", list, &more).await
    }

    /// Disconnects what is recorded and does not live.
    async fn collect(&self, live: &HashSet<String>) -> Result<()> {
        let mut outcome = Ok(());
        for id in self.records()?.into_iter().filter(|id| !live.contains(id)) {
            info!(sandbox = %id, "disconnecting a pod that is gone");
            // Each is tried, whatever became of the others.
            outcome = outcome.and(self.disconnect_gone(&id).await);
        }
        outcome
    }

    async fn disconnect_gone(&self, id: &str) -> Result<()> {
        let outcome = self.detach(id, None).await;
        if outcome.is_err() {
            self.leftover.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
        }
        outcome
    }

    fn path(&self, sandbox_id: &str) -> Result<PathBuf> {
        if sandbox_id.is_empty() || sandbox_id.starts_with('.') || sandbox_id.contains('/') {
            let reason = "it must be a file name".to_owned();
            return Err(Error::Invalid { what: format!("sandbox id {sandbox_id:?}"), reason });
        }
        Ok(self.config.cache_dir.join(format!("{sandbox_id}.json")))
    }

    fn records(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.config.cache_dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::failed("listing connected pods", error)),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned())).collect())
    }

    fn read(&self, sandbox_id: &str) -> Result<Option<Record>> {
        let path = self.path(sandbox_id)?;
        let doing = || format!("reading {}", path.display());
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|error| Error::failed(doing(), error))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::failed(doing(), error)),
        }
    }

    /// A record appears whole.
    fn write(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.sandbox_id)?;
        let draft = path.with_extension("draft");
        let write = || {
            make_private(&self.config.cache_dir)?;
            fs::write(&draft, serde_json::to_vec(record)?)?;
            fs::rename(&draft, &path)
        };
        write().map_err(|error: io::Error| Error::failed(format!("writing {}", path.display()), error))
    }

    fn forget(&self, sandbox_id: &str) -> Result<()> {
        let path = self.path(sandbox_id)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::failed(format!("removing {}", path.display()), error))
            }
            _ => Ok(()),
        }
    }
}

impl Network for Plugins {
    fn add<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(self.attach(pod))
    }

    fn del<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.detach(&pod.sandbox_id, Some(pod)))
    }

    fn check<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<Attachment>>> {
        Box::pin(async move {
            match self.read(&pod.sandbox_id)? {
                Some(record) => self.verify(&record, pod).await,
                None => Ok(None),
            }
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.ready())
    }

    fn gc<'a>(&'a self, live: &'a HashSet<String>) -> BoxFuture<'a, Result<()>> {
        self.is_gc_due.store(true, Ordering::Release);
        Box::pin(self.collect(live))
    }
}

fn version(record: &Record) -> Version {
    Version::parse(&record.cni_version).unwrap_or(Version::V0_1)
}

fn kind(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// What one plug-in reads: its own configuration, the network's name, what the pod wants of what it can do, and the answer of
/// the plug-in before.
fn input(record: &Record, plugin: &Map<String, Value>, previous: Option<&Value>) -> Vec<u8> {
    let mut conf = plugin.clone();
    conf.insert("name".to_owned(), json!(record.network));
    conf.insert("cniVersion".to_owned(), json!(record.cni_version));
    let can = plugin.get("capabilities").and_then(Value::as_object);
    let wanted: Map<String, Value> = record
        .capability_args
        .iter()
        .filter(|(name, _)| can.is_some_and(|can| can.get(*name) == Some(&Value::Bool(true))))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if !wanted.is_empty() {
        conf.insert("runtimeConfig".to_owned(), Value::Object(wanted));
    }
    conf.remove("capabilities");
    if let Some(previous) = previous {
        conf.insert("prevResult".to_owned(), previous.clone());
    }
    Value::Object(conf).to_string().into_bytes()
}

/// The namespace as a program of its own sees it; empty if it is gone. A descriptor of ours is not one of the plug-in's.
fn netns(pod: &PodRef) -> String {
    if fs::metadata(&pod.netns).is_err() {
        return String::new();
    }
    match pod.netns.strip_prefix("/proc/self") {
        Ok(rest) => Path::new("/proc").join(std::process::id().to_string()).join(rest).display().to_string(),
        Err(_) => pod.netns.display().to_string(),
    }
}

/// The pod in the words that plug-ins for Kubernetes look for.
fn cni_args(pod: &PodRef) -> String {
    let pairs = [
        ("K8S_POD_NAMESPACE", &pod.namespace),
        ("K8S_POD_NAME", &pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", &pod.sandbox_id),
        ("K8S_POD_UID", &pod.uid),
    ];
    let pairs = pairs.iter().map(|(name, value)| format!(";{name}={value}"));
    std::iter::once("IgnoreUnknown=1".to_owned()).chain(pairs).collect()
}

/// What the pod wants of plug-ins that can do it.
fn capabilities(pod: &PodRef) -> Map<String, Value> {
    let mut wanted = Map::new();
    if !pod.host_ports.is_empty() {
        let port = |port: &crate::PortMapping| {
            let protocol = match port.protocol {
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
                Protocol::Sctp => "sctp",
            };
            let host_ip = port.host_ip.map(|ip| ip.to_string()).unwrap_or_default();
            json!({
                "hostPort": port.host_port, "containerPort": port.container_port,
                "protocol": protocol, "hostIP": host_ip,
            })
        };
        let ports: Vec<Value> = pod.host_ports.iter().map(port).collect();
        wanted.insert("portMappings".to_owned(), json!(ports));
    }
    let mut limits = Map::new();
    for (rate, name) in [(pod.bandwidth.ingress, "ingress"), (pod.bandwidth.egress, "egress")] {
        if let Some(rate) = rate {
            limits.insert(format!("{name}Rate"), json!(rate));
            limits.insert(format!("{name}Burst"), json!(LARGEST_BURST));
        }
    }
    if !limits.is_empty() {
        wanted.insert("bandwidth".to_owned(), Value::Object(limits));
    }
    wanted
}

fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    telemetry::chain(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bandwidth, PortMapping};

    fn pod() -> PodRef {
        PodRef {
            sandbox_id: "s1".into(),
            namespace: "ns".into(),
            name: "p".into(),
            uid: "u".into(),
            host_ports: vec![PortMapping {
                protocol: Protocol::Udp,
                container_port: 53,
                host_port: 5353,
                host_ip: None,
            }],
            bandwidth: Bandwidth { ingress: Some(1000), egress: None },
            ..PodRef::default()
        }
    }

    #[test]
    fn a_plugin_gets_what_it_says_it_can_do_and_nothing_else() {
        let plugin = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap();
        let record = Record {
            sandbox_id: "s1".into(),
            network: "net".into(),
            cni_version: "1.0.0".into(),
            disable_check: false,
            plugins: vec![],
            cni_args: cni_args(&pod()),
            capability_args: capabilities(&pod()),
            result: None,
        };
        let read = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
        let ports = plugin(r#"{"type":"portmap","capabilities":{"portMappings":true,"bandwidth":false}}"#);
        let previous = json!({"ips": []});
        let input_of_ports = read(input(&record, &ports, Some(&previous)));
        assert_eq!(
            input_of_ports,
            json!({
                "type": "portmap", "name": "net", "cniVersion": "1.0.0", "prevResult": {"ips": []},
                "runtimeConfig": {"portMappings": [
                    {"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": ""},
                ]},
            })
        );
        let plain = read(input(&record, &plugin(r#"{"type":"bridge"}"#), None));
        assert_eq!(plain, json!({"type": "bridge", "name": "net", "cniVersion": "1.0.0"}));
        assert_eq!(
            record.cni_args,
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=s1;K8S_POD_UID=u"
        );
    }

    #[test]
    fn a_namespace_of_ours_is_named_so_that_others_find_it() {
        let named = |path: &str| netns(&PodRef { netns: path.into(), ..PodRef::default() });
        assert_eq!(named("/proc/self/ns/net"), format!("/proc/{}/ns/net", std::process::id()));
        assert_eq!(named("/proc/self/fd/gone-1"), "");
    }
}
