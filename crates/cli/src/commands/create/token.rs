//! Tokens of service accounts.

use std::io::Write;

use clap::Args;
use http::Method;
use serde_json::json;

use super::one_name;
use crate::error::{CliError, message};
use crate::flags::duration;
use crate::print::OutputFlags;
use crate::session::{Ask, Session, escape};

/// Request a service account token
#[derive(Args, Debug)]
pub struct Token {
    names: Vec<String>,
    /// Audience of the requested token
    #[arg(long, value_delimiter = ',')]
    audience: Vec<String>,
    /// Requested lifetime of the issued token
    #[arg(long, default_value = "0s")]
    duration: String,
    /// Kind of an object to bind the token to: Pod, Secret, Node
    #[arg(long, default_value = "", hide_default_value = true)]
    bound_object_kind: String,
    /// Name of an object to bind the token to
    #[arg(long, default_value = "", hide_default_value = true)]
    bound_object_name: String,
    /// UID of an object to bind the token to
    #[arg(long, default_value = "", hide_default_value = true)]
    bound_object_uid: String,
    #[command(flatten)]
    output: OutputFlags,
}

impl Token {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let name = one_name("token", &self.names)?;
        let length = duration(&self.duration).map_err(message)?;
        let mut spec = json!({"audiences": self.audience});
        if length.as_secs() > 0 {
            spec["expirationSeconds"] = length.as_secs().into();
        } else {
            spec["expirationSeconds"] = serde_json::Value::Null;
        }
        if self.bound_object_kind.is_empty() {
            if !self.bound_object_name.is_empty() {
                return Err(message(
                    "--bound-object-name can only be set if --bound-object-kind is provided",
                ));
            }
        } else {
            if self.bound_object_name.is_empty() {
                return Err(message("--bound-object-name is required if --bound-object-kind is provided"));
            }
            if !matches!(self.bound_object_kind.as_str(), "Pod" | "Secret" | "Node") {
                return Err(message(format!(
                    "supported --bound-object-kind values are Node, Pod, Secret, not {}",
                    self.bound_object_kind
                )));
            }
            spec["boundObjectRef"] = json!({"kind": self.bound_object_kind, "apiVersion": "v1", "name": self.bound_object_name, "uid": self.bound_object_uid});
        }
        let (namespace, _) = session.namespace()?;
        let path =
            format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", escape(&namespace), escape(&name));
        let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec});
        let answer = session
            .json(Ask::new(Method::POST, path).json(&request))
            .await
            .map_err(|error| message(format!("failed to create token: {error}")))?;
        if let Some(mut printer) = self.output.printer()? {
            return printer.print(&answer, out);
        }
        let token = answer["status"]["token"].as_str().filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| message("failed to create token: no token in server response"))?;
        writeln!(out, "{token}")?;
        Ok(())
    }
}
