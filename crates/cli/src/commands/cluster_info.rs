//! `cluster-info`: where the control plane and its services are, and a dump of what there is.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::error::{CliError, message};
use crate::print::json::pretty;
use crate::resource::{items, name_of, namespace_of};
use crate::session::{Ask, Session};

/// Display addresses of the control plane and services
#[derive(Args, Debug)]
pub struct ClusterInfo {
    #[command(subcommand)]
    dump: Option<Dumping>,
}

#[derive(Subcommand, Debug)]
enum Dumping {
    /// Dump relevant information for debugging and diagnosis
    Dump(Dump),
}

#[derive(Args, Debug)]
struct Dump {
    /// Where to output the files; if empty or '-' uses stdout
    #[arg(long, default_value = "", hide_default_value = true)]
    output_directory: String,
    /// A comma separated list of namespaces to dump
    #[arg(long, value_delimiter = ',')]
    namespaces: Vec<String>,
    /// If true, dump all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Output format
    #[arg(short, long, default_value = "json")]
    output: String,
}

impl ClusterInfo {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        if let Some(Dumping::Dump(dump)) = self.dump {
            return dump.run(session, out).await;
        }
        let namespace = session.flags.namespace.clone().unwrap_or_else(|| "kube-system".to_owned());
        let path = format!("/api/v1/namespaces/{}/services", crate::session::escape(&namespace));
        let list =
            session.json(Ask::get(path).query("labelSelector", "kubernetes.io/cluster-service=true")).await?;
        let server = session.transport()?.url();
        // The colours of the terminal's own set, as kubectl has them, where there is a terminal.
        let color = std::io::IsTerminal::is_terminal(&std::io::stdout());
        let mut line = |name: &str, link: &str| match color {
            true => writeln!(out, "\u{1b}[0;32m{name}\u{1b}[0m is running at \u{1b}[0;33m{link}\u{1b}[0m"),
            false => writeln!(out, "{name} is running at {link}"),
        };
        line("Kubernetes control plane", &server)?;
        for service in items(list) {
            let label =
                service["metadata"]["labels"]["kubernetes.io/name"].as_str().filter(|name| !name.is_empty());
            line(label.unwrap_or_else(|| name_of(&service)), &link(&service, &server))?;
        }
        writeln!(
            out,
            "\nTo further debug and diagnose cluster problems, use '{} cluster-info dump'.",
            session.program.name()
        )?;
        Ok(())
    }
}

fn link(service: &Value, server: &str) -> String {
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let ingress = &service["status"]["loadBalancer"]["ingress"][0];
    if let Some(host) = ingress["ip"].as_str().or(ingress["hostname"].as_str()) {
        return ports.iter().map(|port| format!("http://{host}:{} ", port["port"])).collect();
    }
    let mut name = name_of(service).to_owned();
    if let Some(port) = ports.first() {
        let port_name = port["name"].as_str().unwrap_or_default();
        let secure = port_name == "https" || port["port"] == 443;
        name = match (secure, port_name.is_empty()) {
            (true, _) => format!("https:{name}:{port_name}"),
            (false, false) => format!("{name}:{port_name}"),
            (false, true) => name,
        };
    }
    format!("{server}/api/v1/namespaces/{}/services/{name}/proxy", namespace_of(service))
}

const DUMPED: &[(&str, &str)] = &[
    ("events", "/api/v1"),
    ("replicationcontrollers", "/api/v1"),
    ("services", "/api/v1"),
    ("daemonsets", "/apis/apps/v1"),
    ("deployments", "/apis/apps/v1"),
    ("replicasets", "/apis/apps/v1"),
    ("pods", "/api/v1"),
];

impl Dump {
    async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        if !matches!(self.output.as_str(), "json" | "yaml") {
            return Err(message("--output must be json or yaml"));
        }
        let directory = match self.output_directory.as_str() {
            "" | "-" => None,
            directory => Some(PathBuf::from(directory)),
        };
        let put = |out: &mut dyn Write, place: &str, text: &str| -> Result<(), CliError> {
            match &directory {
                None => out.write_all(text.as_bytes())?,
                Some(directory) => {
                    let file = directory.join(place);
                    fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
                    fs::write(file, text)?;
                }
            }
            Ok(())
        };
        let shown = |value: &Value| match self.output.as_str() {
            "json" => format!("{}\n", pretty(value)),
            _ => apimachinery::yaml::write(value),
        };
        let nodes = session.json(Ask::get("/api/v1/nodes")).await?;
        put(out, &format!("nodes.{}", self.output), &shown(&nodes))?;
        let namespaces: Vec<String> = if self.all_namespaces {
            let list = session.json(Ask::get("/api/v1/namespaces")).await?;
            items(list).iter().map(|object| name_of(object).to_owned()).collect()
        } else if self.namespaces.is_empty() {
            vec!["kube-system".to_owned(), session.namespace()?.0]
        } else {
            self.namespaces.clone()
        };
        for namespace in &namespaces {
            for (resource, root) in DUMPED {
                let list =
                    session.json(Ask::get(format!("{root}/namespaces/{namespace}/{resource}"))).await?;
                put(out, &format!("{namespace}/{resource}.{}", self.output), &shown(&list))?;
                if *resource != "pods" {
                    continue;
                }
                for pod in items(list) {
                    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
                        let (pod, container) =
                            (name_of(&pod), container["name"].as_str().unwrap_or_default());
                        let ask = Ask::get(format!("/api/v1/namespaces/{namespace}/pods/{pod}/log"))
                            .query("container", container);
                        let log = match session.text(ask).await {
                            Ok(log) => String::from_utf8_lossy(&log).into_owned(),
                            Err(error) => format!("Request log error: {error}\n"),
                        };
                        let text = format!(
                            "==== START logs for container {container} of pod {namespace}/{pod} ====\n{log}==== END logs for container {container} of pod {namespace}/{pod} ====\n"
                        );
                        put(out, &format!("{namespace}/{pod}/logs.txt"), &text)?;
                    }
                }
            }
        }
        if let Some(directory) = directory {
            writeln!(out, "Cluster info dumped to {}", directory.display())?;
        }
        Ok(())
    }
}
