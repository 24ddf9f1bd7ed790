//! `logs`: of one container, of all of a pod's, or of several pods at once.

use std::io::Write;

use clap::Args;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt;

use super::exec::{DEFAULT_CONTAINER, pods_of};
use crate::error::{CliError, message};
use crate::flags::duration;
use crate::resource::{FileFlags, Info, Selection, fetch_all, items, name_of, namespace_of};
use crate::session::{Ask, Session};

/// Print the logs for a container in a pod
#[derive(Args, Debug)]
pub struct Logs {
    /// POD or TYPE/NAME, and a container
    args: Vec<String>,
    /// Specify if the logs should be streamed
    #[arg(short, long)]
    follow: bool,
    /// If true, print the logs for the previous instance of the container in a pod if it exists
    #[arg(short, long)]
    previous: bool,
    /// Print the logs of this container
    #[arg(short, long, default_value = "", hide_default_value = true)]
    container: String,
    /// Get all containers' logs in the pod(s)
    #[arg(long)]
    all_containers: bool,
    /// Get logs from all pod(s)
    #[arg(long)]
    all_pods: bool,
    /// Prefix each log line with the log source (pod name and container name)
    #[arg(long)]
    prefix: bool,
    /// Include timestamps on each line in the log output
    #[arg(long)]
    timestamps: bool,
    /// Lines of recent log file to display; -1 shows all
    #[arg(long, default_value = "-1", hide_default_value = true)]
    tail: i64,
    /// Only return logs newer than a relative duration like 5s, 2m, or 3h
    #[arg(long, default_value = "0s", hide_default_value = true)]
    since: String,
    /// Only return logs after a specific date (RFC3339)
    #[arg(long, default_value = "", hide_default_value = true)]
    since_time: String,
    /// Maximum bytes of logs to return
    #[arg(long, default_value = "0", hide_default_value = true)]
    limit_bytes: i64,
    /// If watching / following pod logs, allow for any errors that occur to be non-fatal
    #[arg(long)]
    ignore_errors: bool,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Specify maximum number of concurrent logs to follow when using by a selector
    #[arg(long, default_value = "5")]
    max_log_requests: usize,
    /// Skip verifying the identity of the kubelet that logs are requested from
    #[arg(long)]
    insecure_skip_tls_verify_backend: bool,
    /// The length of time to wait until at least one pod is running
    #[arg(long, value_parser = crate::flags::refused)]
    pod_running_timeout: Option<String>,
}

/// One log to read.
struct Source {
    ask: Ask,
    prefix: String,
}

impl Logs {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let (target, container) = match (&self.args[..], self.selector.is_empty()) {
            ([], true) => return Err(self.usage("'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command")),
            ([], false) => (None, self.container.clone()),
            ([_, ..], false) => return Err(self.usage("only a selector (-l) or a POD name is allowed")),
            ([target], true) => (Some(target.clone()), self.container.clone()),
            ([target, container], true) => {
                if !self.container.is_empty() {
                    return Err(self.usage("only one of -c or an inline [CONTAINER] arg is allowed"));
                }
                (Some(target.clone()), container.clone())
            }
            _ => return Err(self.usage("'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command")),
        };
        if self.all_containers && !container.is_empty() {
            return Err(message(format!(
                "--all-containers=true should not be specified with container name {container}"
            )));
        }
        if !self.since_time.is_empty() && self.since != "0s" {
            return Err(message("at most one of `sinceTime` or `sinceSeconds` may be specified"));
        }
        if self.tail < -1 {
            return Err(message(format!("--tail must be greater than or equal to -1, not {}", self.tail)));
        }
        let pods = self.pods(session, target.as_deref()).await?;
        let mut sources = Vec::new();
        for pod in &pods {
            self.sources(pod, &container, &mut sources)?;
        }
        if self.follow && sources.len() > 1 && sources.len() > self.max_log_requests {
            return Err(message(format!(
                "you are attempting to follow {} log streams, but maximum allowed concurrency is {}, use --max-log-requests to increase the limit",
                sources.len(),
                self.max_log_requests
            )));
        }
        if self.follow && sources.len() > 1 {
            return self.together(session, sources, out).await;
        }
        for source in sources {
            if let Err(error) = self.copy(session, source, out).await {
                if !self.ignore_errors {
                    return Err(error);
                }
                writeln!(out, "error: {error}")?;
            }
        }
        Ok(())
    }

    fn usage(&self, text: &str) -> CliError {
        let prefix = if text.starts_with('\'') { "expected " } else { "" };
        CliError::Usage { message: format!("{prefix}{text}"), command: "logs".to_owned() }
    }

    async fn pods(&self, session: &Session, target: Option<&str>) -> Result<Vec<Info>, CliError> {
        let Some(target) = target else {
            let resource = session.resource("pods").await?;
            let (namespace, _) = session.namespace()?;
            let ask =
                Ask::get(resource.path(&namespace, "", "")).query("labelSelector", self.selector.clone());
            let pods = items(session.json(ask).await?);
            if pods.is_empty() {
                eprintln!("No resources found in {namespace} namespace.");
            }
            return Ok(pods
                .into_iter()
                .map(|object| Info {
                    resource: resource.clone(),
                    namespace: namespace_of(&object).to_owned(),
                    name: name_of(&object).to_owned(),
                    object,
                    source: String::new(),
                })
                .collect());
        };
        let args: Vec<String> = if target.contains('/') {
            vec![target.to_owned()]
        } else {
            vec!["pods".to_owned(), target.to_owned()]
        };
        let selection = Selection::new(session, &args, &FileFlags::default())?;
        let namespace = selection.namespace.clone();
        let (infos, errors) = fetch_all(session, selection.plan(session).await?).await?;
        CliError::all(errors).map_err(|error| match error {
            CliError::Status(failure) if failure.reason() == "NotFound" => message(format!(
                "error from server (NotFound): {} in namespace {namespace:?}",
                failure.message()
            )),
            other => other,
        })?;
        let mut pods = Vec::new();
        for info in infos {
            if info.resource.name == "pods" {
                pods.push(info);
                continue;
            }
            let mut found = pods_of(session, &info).await?;
            if found.is_empty() {
                return Err(message("timed out waiting for the condition"));
            }
            if !self.all_pods {
                if found.len() > 1 {
                    eprintln!("Found {} pods, using pod/{}", found.len(), found[0].name);
                }
                found.truncate(1);
            }
            pods.append(&mut found);
        }
        Ok(pods)
    }

    fn sources(&self, pod: &Info, container: &str, sources: &mut Vec<Source>) -> Result<(), CliError> {
        let spec = &pod.object["spec"];
        let names = |list: &str| -> Vec<String> {
            let containers = spec[list].as_array().into_iter().flatten();
            containers.filter_map(|container| container["name"].as_str()).map(str::to_owned).collect()
        };
        let (init, usual, debug) =
            (names("initContainers"), names("containers"), names("ephemeralContainers"));
        let chosen: Vec<String> = if self.all_containers {
            init.into_iter().chain(usual).chain(debug).collect()
        } else if container.is_empty() {
            let annotated = pod.object["metadata"]["annotations"][DEFAULT_CONTAINER].as_str();
            match annotated.filter(|name| usual.iter().any(|known| known == name)) {
                Some(name) => vec![name.to_owned()],
                None => {
                    let Some(first) = usual.first().cloned() else { return Ok(()) };
                    if usual.len() + init.len() + debug.len() > 1 {
                        let all: Vec<String> = usual
                            .iter()
                            .cloned()
                            .chain(debug.iter().map(|name| format!("{name} (ephem)")))
                            .chain(init.iter().map(|name| format!("{name} (init)")))
                            .collect();
                        eprintln!("Defaulted container {first:?} out of: {}", all.join(", "));
                    }
                    vec![first]
                }
            }
        } else {
            if !init.iter().chain(&usual).chain(&debug).any(|known| known == container) {
                return Err(message(format!("container {container} is not valid for pod {}", pod.name)));
            }
            vec![container.to_owned()]
        };
        for name in chosen {
            let prefix = if self.prefix { format!("[pod/{}/{name}] ", pod.name) } else { String::new() };
            sources.push(Source { ask: self.ask(pod, &name)?, prefix });
        }
        Ok(())
    }

    fn ask(&self, pod: &Info, container: &str) -> Result<Ask, CliError> {
        let mut ask = Ask::get(pod.subresource("log")).query("container", container);
        for (name, set) in [
            ("follow", self.follow),
            ("previous", self.previous),
            ("timestamps", self.timestamps),
            ("insecureSkipTLSVerifyBackend", self.insecure_skip_tls_verify_backend),
        ] {
            if set {
                ask = ask.query(name, "true");
            }
        }
        // A selector means many logs, of which the last lines are enough.
        let tail = if self.tail == -1 && !self.selector.is_empty() && !self.follow { 10 } else { self.tail };
        if tail >= 0 {
            ask = ask.query("tailLines", tail.to_string());
        }
        let since = duration(&self.since).map_err(message)?;
        if !since.is_zero() {
            ask = ask.query("sinceSeconds", since.as_secs().max(1).to_string());
        }
        if self.limit_bytes > 0 {
            ask = ask.query("limitBytes", self.limit_bytes.to_string());
        }
        Ok(ask.query_some("sinceTime", &self.since_time))
    }

    async fn copy(&self, session: &Session, source: Source, out: &mut dyn Write) -> Result<(), CliError> {
        if source.prefix.is_empty() {
            return session.copy(source.ask, out).await;
        }
        let mut lines = Lines::new(session, source).await?;
        while let Some(line) = lines.next().await? {
            out.write_all(&line)?;
            out.flush()?;
        }
        Ok(())
    }

    /// Several logs, line by line as they come.
    async fn together(
        &self,
        session: &Session,
        sources: Vec<Source>,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let mut waiting = FuturesUnordered::new();
        for source in sources {
            waiting.push(Lines::new(session, source).await?.step());
        }
        while let Some((lines, line)) = waiting.next().await {
            match line {
                Ok(Some(line)) => {
                    out.write_all(&line)?;
                    out.flush()?;
                    waiting.push(lines.step());
                }
                Ok(None) => {}
                Err(error) if self.ignore_errors => writeln!(out, "error: {error}")?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The lines of one log, each with its prefix.
struct Lines {
    body: hyper::body::Incoming,
    buffer: Vec<u8>,
    prefix: String,
    ended: bool,
}

impl Lines {
    async fn new(session: &Session, source: Source) -> Result<Self, CliError> {
        let body = session.send(source.ask).await?.into_body();
        Ok(Self { body, buffer: Vec::new(), prefix: source.prefix, ended: false })
    }

    /// The next line, and the rest.
    async fn step(mut self) -> (Self, Result<Option<Vec<u8>>, CliError>) {
        let line = self.next().await;
        (self, line)
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        loop {
            let end = self.buffer.iter().position(|byte| *byte == b'\n');
            if let Some(end) =
                end.or((self.ended && !self.buffer.is_empty()).then(|| self.buffer.len().saturating_sub(1)))
            {
                let mut line = self.prefix.clone().into_bytes();
                line.extend(self.buffer.drain(..=end));
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(None);
            }
            match self.body.frame().await {
                None => self.ended = true,
                Some(Err(error)) => return Err(message(format!("the log broke off: {error}"))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
