//! Deployments.

use clap::Args;
use serde_json::{Value, json};

use super::{Common, one_name};
use crate::error::{CliError, message};

/// Create a deployment with the specified name
#[derive(Args, Debug)]
pub struct Deployment {
    names: Vec<String>,
    /// Image names to run
    #[arg(long, value_delimiter = ',')]
    image: Vec<String>,
    /// Number of replicas to create
    #[arg(short, long, default_value = "1")]
    replicas: i32,
    /// The containerPort that this deployment exposes
    #[arg(long, default_value = "-1", hide_default_value = true)]
    port: i32,
    /// The command of the container
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Deployment {
    pub fn object(&self) -> Result<Value, CliError> {
        if self.image.is_empty() {
            return Err(message("required flag(s) \"image\" not set"));
        }
        let name = one_name("deployment", &self.names)?;
        if self.image.len() > 1 && !self.command.is_empty() {
            return Err(message("cannot specify multiple --image options and command"));
        }
        if self.replicas < 0 {
            return Err(message(format!(
                "replicas must be greater than or equal to 0, not {}",
                self.replicas
            )));
        }
        let mut containers = Vec::new();
        for image in &self.image {
            let mut container = json!({"name": container_name(image), "image": image});
            if !self.command.is_empty() {
                container["command"] = json!(self.command);
            }
            if self.port >= 0 {
                container["ports"] = json!([{"containerPort": self.port}]);
            }
            container["resources"] = json!({});
            containers.push(container);
        }
        Ok(json!({
            "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers}},
                "strategy": {},
            },
            "status": {},
        }))
    }
}

/// The last part of an image's name, without tag and digest.
pub fn container_name(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    let name = name.split('@').next().unwrap_or(name).split(':').next().unwrap_or(name);
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '-' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_called_after_their_images() {
        assert_eq!(container_name("registry.example:5000/a/Web_app:v1@sha256:00"), "web-app");
        assert_eq!(container_name("nginx"), "nginx");
    }
}
