//! `exec`: a command in a container.

use std::io::{IsTerminal, Write};

use clap::Args;
use serde_json::Value;

use crate::error::{CliError, message};
use crate::resource::{FileFlags, Info, Selection, fetch_one, items, name_of, namespace_of};
use crate::session::{Ask, Session};
use crate::stream::{Streams, remote_command};

/// Execute a command in a container
#[derive(Args, Debug)]
pub struct Exec {
    /// POD or TYPE/NAME
    args: Vec<String>,
    /// The command and its arguments
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    files: FileFlagsOfExec,
    /// Container name; if omitted, use the default container of the pod
    #[arg(short, long, default_value = "", hide_default_value = true)]
    container: String,
    /// Pass stdin to the container
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Stdin is a TTY
    #[arg(short = 't', long)]
    tty: bool,
    /// Only print output from the remote session
    #[arg(short, long)]
    quiet: bool,
    /// The length of time to wait until at least one pod is running
    #[arg(long, value_parser = crate::flags::refused)]
    pod_running_timeout: Option<String>,
}

/// `-f` alone.
#[derive(Args, Debug, Clone, Default)]
pub struct FileFlagsOfExec {
    /// A file that names the object to use
    #[arg(short, long, value_delimiter = ',')]
    filename: Vec<String>,
}

impl Exec {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let by_file = !self.files.filename.is_empty();
        let (target, words) = match self.args.split_first() {
            Some((target, words)) if !by_file => (Some(target.clone()), words.to_vec()),
            _ => (None, self.args.clone()),
        };
        if !words.is_empty() {
            eprintln!(
                "error: exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead"
            );
            eprintln!("See '{} exec -h' for help and examples", session.program.name());
            return Err(CliError::Exit(1));
        }
        let command = self.command;
        if target.is_none() && !by_file {
            return Err(message("pod, type/name or --filename must be specified"));
        }
        if command.is_empty() {
            return Err(message("you must specify at least one command for the container"));
        }
        let pod = pod_of(session, target.as_deref(), &self.files.filename).await?;
        let container = container_of(&pod.object, &self.container, self.quiet)?;
        let mut tty = self.tty;
        if tty && self.stdin && !std::io::stdin().is_terminal() {
            eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
            tty = false;
        }
        let mut query: Vec<(&str, &str)> = command.iter().map(|word| ("command", word.as_str())).collect();
        query.push(("container", &container));
        query.extend(flags(self.stdin, tty));
        let streams = Streams { stdin: self.stdin, tty };
        remote_command(session, &pod.subresource("exec"), &query, streams, out).await
    }
}

/// The query's words for the streams.
pub fn flags(stdin: bool, tty: bool) -> Vec<(&'static str, &'static str)> {
    let mut words = vec![("stdout", "true")];
    if stdin {
        words.push(("stdin", "true"));
    }
    words.push(if tty { ("tty", "true") } else { ("stderr", "true") });
    words
}

/// The pod that a word means: itself, or the first ready one that a workload or service selects.
pub async fn pod_of(session: &Session, target: Option<&str>, files: &[String]) -> Result<Info, CliError> {
    let args: Vec<String> = match target {
        Some(word) if word.contains('/') => vec![word.to_owned()],
        Some(word) => vec!["pods".to_owned(), word.to_owned()],
        None => Vec::new(),
    };
    let files = FileFlags { filename: files.to_vec(), ..FileFlags::default() };
    let mut selection = Selection::new(session, &args, &files)?;
    selection.latest = true;
    let info = fetch_one(session, selection).await?;
    if info.resource.name == "pods" {
        return Ok(info);
    }
    let pods = pods_of(session, &info).await?;
    let first = pods.into_iter().next();
    first.ok_or_else(|| {
        message(format!("timed out waiting for the condition on {}: it has no pods", info.object_name()))
    })
}

/// The pods that an object selects, the best ones first.
pub async fn pods_of(session: &Session, info: &Info) -> Result<Vec<Info>, CliError> {
    let spec = &info.object["spec"];
    let selector = match spec["selector"].as_object() {
        Some(map) if map.contains_key("matchLabels") || map.contains_key("matchExpressions") => {
            apimachinery::selector::LabelSelector::from_object(&spec["selector"])
                .map_err(|error| message(error.to_string()))?
        }
        Some(map) => apimachinery::selector::LabelSelector::from_map(map),
        None => {
            return Err(message(format!(
                "cannot attach to {}: selector for {} is not implemented",
                info.object_name(),
                info.resource.kind
            )));
        }
    };
    let resource = session.resource("pods").await?;
    let ask = Ask::get(resource.path(&info.namespace, "", "")).query("labelSelector", selector.to_string());
    let mut pods = items(session.json(ask).await?);
    pods.sort_by_key(|pod| {
        (
            pod["spec"]["nodeName"].is_null(),
            pod["status"]["phase"] != "Running",
            !is_ready(pod),
            pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned(),
        )
    });
    Ok(pods
        .into_iter()
        .map(|object| Info {
            resource: resource.clone(),
            namespace: namespace_of(&object).to_owned(),
            name: name_of(&object).to_owned(),
            object,
            source: String::new(),
        })
        .collect())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The container to use: the named one, the annotated one, or the first.
pub fn container_of(pod: &Value, wanted: &str, quiet: bool) -> Result<String, CliError> {
    let names: Vec<&str> = ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect();
    if !wanted.is_empty() {
        if names.contains(&wanted) {
            return Ok(wanted.to_owned());
        }
        return Err(message(format!("container {wanted} not found in pod {}", name_of(pod))));
    }
    if let Some(name) =
        pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str().filter(|name| names.contains(name))
    {
        return Ok(name.to_owned());
    }
    let containers: Vec<&str> = pod["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|container| container["name"].as_str())
        .collect();
    let Some(first) = containers.first() else {
        return Err(message(format!("pod {} has no containers", name_of(pod))));
    };
    if names.len() > 1 && !quiet {
        let all: Vec<String> = containers
            .iter()
            .map(|name| (*name).to_owned())
            .chain(
                pod["spec"]["ephemeralContainers"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|c| c["name"].as_str())
                    .map(|name| format!("{name} (ephem)")),
            )
            .chain(
                pod["spec"]["initContainers"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|c| c["name"].as_str())
                    .map(|name| format!("{name} (init)")),
            )
            .collect();
        eprintln!("Defaulted container {first:?} out of: {}", all.join(", "));
    }
    Ok((*first).to_owned())
}
