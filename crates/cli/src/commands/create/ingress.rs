//! Ingresses, from rules of the form `host/path=service:port[,tls[=secret]]`.

use clap::Args;
use serde_json::{Value, json};

use super::{Common, one_name};
use crate::error::{CliError, message};

/// Create an ingress with the specified name
#[derive(Args, Debug)]
pub struct Ingress {
    names: Vec<String>,
    /// Ingress Class to be used
    #[arg(long, default_value = "", hide_default_value = true)]
    class: String,
    /// Rule in format host/path=service:port[,tls=secretname]
    #[arg(long)]
    rule: Vec<String>,
    /// Default service for backend, in format of svcname:port
    #[arg(long, default_value = "", hide_default_value = true)]
    default_backend: String,
    /// Annotation to insert in the ingress object, in the format annotation=value
    #[arg(long)]
    annotation: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Ingress {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("ingress", &self.names)?;
        if self.rule.is_empty() && self.default_backend.is_empty() {
            return Err(message(
                "not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)",
            ));
        }
        let mut spec = json!({});
        if !self.class.is_empty() {
            spec["ingressClassName"] = self.class.clone().into();
        }
        if !self.default_backend.is_empty() {
            spec["defaultBackend"] = backend(&self.default_backend)?;
        }
        let (mut rules, mut tls): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        for text in &self.rule {
            let bad = || {
                message(format!(
                    "rule {text} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
                ))
            };
            let (rule, secret) = match text.split_once(',') {
                Some((rule, word)) => {
                    let secret = word.strip_prefix("tls").ok_or_else(bad)?;
                    (rule, Some(secret.strip_prefix('=').unwrap_or_default().to_owned()))
                }
                None => (text.as_str(), None),
            };
            let (place, service) = rule.split_once('=').ok_or_else(bad)?;
            let (host, path) = place.split_once('/').ok_or_else(bad)?;
            let (path, kind) = match path.strip_suffix('*') {
                Some(path) => (path, "Prefix"),
                None => (path, "Exact"),
            };
            let entry = json!({"backend": backend(service)?, "path": format!("/{path}"), "pathType": kind});
            let same = |rule: &&mut Value| rule["host"].as_str().unwrap_or_default() == host;
            match rules.iter_mut().find(same).and_then(|rule| rule["http"]["paths"].as_array_mut()) {
                Some(paths) => paths.push(entry),
                None => {
                    let mut rule = json!({"http": {"paths": [entry]}});
                    if !host.is_empty() {
                        rule["host"] = host.into();
                    }
                    rules.push(rule);
                }
            }
            if let Some(secret) = secret {
                let mut entry = json!({});
                if !host.is_empty() {
                    entry["hosts"] = json!([host]);
                }
                if !secret.is_empty() {
                    entry["secretName"] = secret.into();
                }
                tls.push(entry);
            }
        }
        if !rules.is_empty() {
            spec["rules"] = Value::Array(rules);
        }
        if !tls.is_empty() {
            spec["tls"] = Value::Array(tls);
        }
        let mut metadata = json!({"name": name});
        for pair in &self.annotation {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(message(format!(
                    "annotation {pair} is invalid and should be in format key=[value]"
                )));
            };
            metadata["annotations"][key] = value.into();
        }
        Ok(
            json!({"kind": "Ingress", "apiVersion": "networking.k8s.io/v1", "metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}}),
        )
    }
}

fn backend(text: &str) -> Result<Value, CliError> {
    let Some((name, port)) = text.split_once(':') else {
        return Err(message(format!("service {text:?} must be in format svcname:port")));
    };
    let port = match port.parse::<u16>() {
        Ok(number) => json!({"number": number}),
        Err(_) => json!({"name": port}),
    };
    Ok(json!({"service": {"name": name, "port": port}}))
}
