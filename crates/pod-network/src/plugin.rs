//! The CNI plug-in: called by the runtime for every pod, it passes the question on to the agent and the answer back.
//!
//! It holds no state and no knowledge of the network, so the one on the machine may be older or newer than the agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cni::conf::Version;
use cni::{Attachment, Bandwidth, PodRef, PortMapping, Protocol};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::INTERFACE;
use crate::socket::{self, Answer, Request};

/// What the program is called as a plug-in.
pub const NAME: &str = "kelson-cni";

const LARGEST: u64 = 1 << 20;

/// Codes of the protocol.
mod code {
    pub const ENVIRONMENT: u32 = 4;
    pub const INPUT: u32 = 6;
    pub const CONFIGURATION: u32 = 7;
    pub const TRY_AGAIN: u32 = 11;
    pub const NOT_AVAILABLE: u32 = 50;
    pub const OTHER: u32 = 100;
}

/// What is wrong, as the runtime is told.
struct Failure {
    code: u32,
    message: String,
}

impl Failure {
    fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Runs the plug-in if that is what the program was called as.
pub fn dispatch(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let called = arguments.next()?;
    (Path::new(&called).file_name()? == NAME).then(run)
}

fn run() -> ExitCode {
    // Its parameters are its environment: the protocol says so.
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let mut input = Vec::new();
    let read = io::stdin().take(LARGEST).read_to_end(&mut input);
    let conf: Result<Conf, _> = serde_json::from_slice(&input);
    let version =
        conf.as_ref().ok().map(|conf| conf.cni_version.clone()).unwrap_or_else(|| "1.1.0".to_owned());
    let outcome = match (read, conf) {
        _ if variable("CNI_COMMAND") == "VERSION" => Ok(Some(versions(&version))),
        (Err(error), _) => {
            Err(Failure::new(code::INPUT, format!("the configuration cannot be read: {error}")))
        }
        (_, Err(error)) => {
            Err(Failure::new(code::INPUT, format!("the configuration cannot be read: {error}")))
        }
        (_, Ok(conf)) => act(&conf, &variable),
    };
    match outcome {
        Ok(answer) => {
            if let Some(answer) = answer {
                println!("{answer}");
            }
            ExitCode::SUCCESS
        }
        Err(Failure { code, message }) => {
            println!("{}", json!({"cniVersion": version, "code": code, "msg": message}));
            ExitCode::FAILURE
        }
    }
}

/// What is read of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    cni_version: String,
    socket: PathBuf,
    runtime_config: RuntimeConfig,
    prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Vec<ValidAttachment>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    port_mappings: Vec<Port>,
    bandwidth: Limits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    #[serde(rename = "hostPort")]
    host: u16,
    #[serde(rename = "containerPort")]
    container: u16,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Limits {
    ingress_rate: Option<u64>,
    egress_rate: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
}

fn versions(asked: &str) -> Value {
    let spoken = Version::ALL.iter().filter(|(version, _)| *version >= Version::V0_3_0);
    let spoken: Vec<&str> = spoken.map(|(_, text)| *text).collect();
    json!({"cniVersion": asked, "supportedVersions": spoken})
}

fn act(conf: &Conf, variable: &dyn Fn(&str) -> String) -> Result<Option<Value>, Failure> {
    let version = Version::parse(&conf.cni_version)
        .filter(|version| *version >= Version::V0_3_0)
        .ok_or_else(|| Failure::new(1, format!("cniVersion {:?} is not spoken here", conf.cni_version)))?;
    if conf.socket.as_os_str().is_empty() {
        return Err(Failure::new(code::CONFIGURATION, "socket is missing: where the agent listens"));
    }
    let command = variable("CNI_COMMAND");
    let netns = variable("CNI_NETNS");
    let (request, descriptor) = match command.as_str() {
        "ADD" => {
            if conf.prev_result.is_some() {
                return Err(Failure::new(code::CONFIGURATION, "it must be the first plug-in of its chain"));
            }
            let file = File::open(&netns).map_err(|error| {
                Failure::new(code::ENVIRONMENT, format!("CNI_NETNS {netns:?} cannot be opened: {error}"))
            })?;
            (Request::Add(pod(conf, variable)?), Some(OwnedFd::from(file)))
        }
        "DEL" => (Request::Del(pod(conf, variable)?), None),
        "CHECK" => (Request::Check(pod(conf, variable)?), None),
        "STATUS" => (Request::Status, None),
        "GC" => {
            let live = conf.valid_attachments.iter().map(|one| one.container_id.clone());
            (Request::Gc(live.collect()), None)
        }
        other => return Err(Failure::new(code::ENVIRONMENT, format!("unknown CNI_COMMAND {other:?}"))),
    };
    let is_check = command == "CHECK";
    let answer = socket::ask(&conf.socket, &request, descriptor).map_err(|error| {
        let code = if command == "STATUS" { code::NOT_AVAILABLE } else { code::TRY_AGAIN };
        let place = conf.socket.display();
        Failure::new(code, format!("the pod network's agent does not answer on {place}: {error}"))
    })?;
    match answer {
        Answer::Attached { .. } if is_check => Ok(None),
        Answer::Attached { attachment, link } => Ok(Some(result(version, &attachment, &link, &netns))),
        Answer::Done => Ok(None),
        Answer::Detached => Err(Failure::new(code::OTHER, "the pod is not connected")),
        Answer::Failed { code, message } => Err(Failure { code, message }),
    }
}

/// The pod, from the parameters and what the runtime puts into the configuration.
fn pod(conf: &Conf, variable: &dyn Fn(&str) -> String) -> Result<PodRef, Failure> {
    let environment = |message: String| Failure::new(code::ENVIRONMENT, message);
    let interface = variable("CNI_IFNAME");
    if interface != INTERFACE {
        return Err(environment(format!("CNI_IFNAME is {interface:?}: only {INTERFACE} can be made")));
    }
    let sandbox_id = variable("CNI_CONTAINERID");
    if sandbox_id.is_empty() {
        return Err(environment("CNI_CONTAINERID is missing".to_owned()));
    }
    let arguments = variable("CNI_ARGS");
    let arguments: BTreeMap<&str, &str> =
        arguments.split(';').filter_map(|pair| pair.split_once('=')).collect();
    let argument = |name: &str| arguments.get(name).copied().unwrap_or_default().to_owned();
    let port = |port: &Port| -> Result<PortMapping, Failure> {
        let protocol = match port.protocol.to_ascii_lowercase().as_str() {
            "tcp" | "" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            other => return Err(Failure::new(code::CONFIGURATION, format!("unknown protocol {other:?}"))),
        };
        let host_ip: Option<IpAddr> =
            match port.host_ip.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|_| {
                    Failure::new(code::CONFIGURATION, format!("hostIP {text:?} is no address"))
                })?),
            };
        Ok(PortMapping { protocol, container_port: port.container, host_port: port.host, host_ip })
    };
    let wanted = conf.runtime_config.port_mappings.iter().filter(|port| port.host != 0);
    let limits = &conf.runtime_config.bandwidth;
    Ok(PodRef {
        sandbox_id,
        netns: PathBuf::new(),
        namespace: argument("K8S_POD_NAMESPACE"),
        name: argument("K8S_POD_NAME"),
        uid: argument("K8S_POD_UID"),
        host_ports: wanted.map(port).collect::<Result<_, _>>()?,
        bandwidth: Bandwidth { ingress: limits.ingress_rate, egress: limits.egress_rate },
    })
}

/// The attachment in the protocol's words.
fn result(version: Version, attachment: &Attachment, link: &str, netns: &str) -> Value {
    let address = |address: &IpAddr| {
        let mut one = json!({
            "address": ipnet::IpNet::from(*address), "gateway": attachment.gateway, "interface": 1,
        });
        if version < Version::V1_0 {
            one["version"] = json!(if address.is_ipv4() { "4" } else { "6" });
        }
        one
    };
    let is_v6 = attachment.gateway.is_some_and(|gateway| gateway.is_ipv6());
    let route = json!({"dst": if is_v6 { "::/0" } else { "0.0.0.0/0" }, "gw": attachment.gateway});
    json!({
        "cniVersion": version.text(),
        "interfaces": [{"name": link}, {"name": attachment.interface, "sandbox": netns}],
        "ips": attachment.addresses.iter().map(address).collect::<Vec<_>>(),
        "routes": [route],
        "dns": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(conf: &str, environment: &[(&str, &str)]) -> Result<PodRef, String> {
        let environment: BTreeMap<&str, &str> = environment.iter().copied().collect();
        let variable = |name: &str| environment.get(name).copied().unwrap_or_default().to_owned();
        pod(&serde_json::from_str(conf).unwrap(), &variable).map_err(|failure| failure.message)
    }

    #[test]
    fn the_pod_is_read_from_the_protocols_parameters() {
        let conf = r#"{"cniVersion":"1.1.0","runtimeConfig":{"portMappings":[
            {"hostPort":80,"containerPort":8080,"protocol":"TCP"},{"hostPort":0,"containerPort":1}],
            "bandwidth":{"ingressRate":5}}}"#;
        let environment = [
            ("CNI_IFNAME", "eth0"),
            ("CNI_CONTAINERID", "s1"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u"),
        ];
        let found = ask(conf, &environment).unwrap();
        assert_eq!((found.namespace.as_str(), found.name.as_str(), found.uid.as_str()), ("ns", "p", "u"));
        assert_eq!((found.host_ports.len(), found.bandwidth.ingress), (1, Some(5)));
        assert!(ask(conf, &[("CNI_IFNAME", "net1")]).unwrap_err().contains("only eth0"));
        assert!(ask(conf, &[("CNI_IFNAME", "eth0")]).unwrap_err().contains("CNI_CONTAINERID"));
        let bad = r#"{"runtimeConfig":{"portMappings":[{"hostPort":80,"protocol":"icmp"}]}}"#;
        assert!(ask(bad, &environment).unwrap_err().contains("icmp"));
    }

    #[test]
    fn the_answer_is_one_that_runtimes_of_each_version_read() {
        let attachment = Attachment {
            addresses: vec!["10.128.0.5".parse().unwrap()],
            gateway: Some("10.128.0.1".parse().unwrap()),
            interface: "eth0".to_owned(),
        };
        let new = result(Version::V1_1, &attachment, "kpod1", "/proc/1/fd/3");
        assert_eq!(
            new["ips"][0],
            json!({"address": "10.128.0.5/32", "gateway": "10.128.0.1", "interface": 1})
        );
        assert_eq!(new["interfaces"][1], json!({"name": "eth0", "sandbox": "/proc/1/fd/3"}));
        assert_eq!(result(Version::V0_4, &attachment, "kpod1", "x")["ips"][0]["version"], "4");
        assert_eq!(versions("1.1.0")["supportedVersions"].as_array().unwrap().len(), 5);
    }
}
