//! Services of four types.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Common, one_name};
use crate::error::{CliError, message};
use crate::session::Session;

/// Create a service using a specified subcommand
#[derive(Args, Debug)]
pub struct Service {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand, Debug)]
enum Kind {
    /// Create a ClusterIP service
    Clusterip {
        #[command(flatten)]
        made: Made,
        /// Assign your own ClusterIP or set to 'None' for a 'headless' service (no loadbalancing)
        #[arg(long, default_value = "", hide_default_value = true)]
        clusterip: String,
    },
    /// Create a NodePort service
    Nodeport {
        #[command(flatten)]
        made: Made,
        /// Port used to expose the service on each node in a cluster
        #[arg(long, default_value = "0", hide_default_value = true)]
        node_port: i32,
    },
    /// Create a LoadBalancer service
    Loadbalancer(Made),
    /// Create an ExternalName service
    Externalname {
        #[command(flatten)]
        made: Made,
        /// External name of service
        #[arg(long, default_value = "", hide_default_value = true)]
        external_name: String,
    },
}

#[derive(Args, Debug)]
struct Made {
    names: Vec<String>,
    /// Port pairs can be specified as '<port>:<targetPort>'
    #[arg(long, value_delimiter = ',')]
    tcp: Vec<String>,
    #[command(flatten)]
    common: Common,
}

impl Service {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let (made, kind, more) = match self.kind {
            Kind::Clusterip { made, clusterip } => {
                let more = if clusterip.is_empty() { json!({}) } else { json!({"clusterIP": clusterip}) };
                (made, "ClusterIP", more)
            }
            Kind::Nodeport { made, node_port } => (made, "NodePort", json!({"nodePort": node_port})),
            Kind::Loadbalancer(made) => (made, "LoadBalancer", json!({})),
            Kind::Externalname { made, external_name } => {
                if external_name.is_empty() {
                    return Err(message("required flag(s) \"external-name\" not set"));
                }
                (made, "ExternalName", json!({"externalName": external_name}))
            }
        };
        let name = one_name(&format!("service {}", kind.to_lowercase()), &made.names)?;
        let headless = more["clusterIP"] == "None";
        if made.tcp.is_empty() && kind != "ExternalName" && !headless {
            return Err(message("at least one tcp port specifier must be provided"));
        }
        let mut ports = Vec::new();
        for pair in &made.tcp {
            let mut port = port(pair)?;
            if let Some(node_port) = more["nodePort"].as_i64().filter(|port| *port > 0) {
                port["nodePort"] = node_port.into();
            }
            ports.push(port);
        }
        let mut spec = json!({"selector": {"app": name}, "type": kind});
        if !ports.is_empty() {
            spec["ports"] = Value::Array(ports);
        }
        for field in ["clusterIP", "externalName"] {
            if !more[field].is_null() {
                spec[field] = more[field].clone();
            }
        }
        let object = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": name, "labels": {"app": name}},
            "spec": spec, "status": {"loadBalancer": {}}});
        made.common.finish(session, object, out).await
    }
}

/// `80`, `80:8080`, `80:http`.
fn port(pair: &str) -> Result<Value, CliError> {
    let (port, target) = pair.split_once(':').unwrap_or((pair, pair));
    let number: u16 = port.parse().map_err(|_| {
        message(
            format!("invalid port: strconv.Atoi: parsing {port:?}: invalid syntax")
                .replace("invalid port: ", ""),
        )
    })?;
    let target: Value = match target.parse::<u16>() {
        Ok(0) => return Err(message("invalid target port, must be between 1 and 65535")),
        Ok(number) => number.into(),
        Err(_) => target.into(),
    };
    Ok(json!({"name": pair.replace(':', "-"), "port": number, "protocol": "TCP", "targetPort": target}))
}
