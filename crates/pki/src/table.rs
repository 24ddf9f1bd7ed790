//! Which certificates a cluster has, who signs each, whom it speaks for, and when it is replaced.
//!
//! A row's texts may hold placeholders (`{node}`, `{node_ips}`); [`Facts`] supplies their values, and a placeholder
//! with several values yields several texts. Rows stand after their signers.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

mod install;

pub use install::{BOOTSTRAPPER_NAME, BUNDLES, Bundle, FRONT_PROXY_NAME, INSTALL, KEYS};

use crate::PkiError;
use crate::cert::{BACKDATE, Request, San, Subject};
use crate::usage::Usages;

/// What a certificate is for, as far as X.509 is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Role {
    /// Signs other certificates.
    Authority,
    /// Is shown by servers.
    Server,
    /// Is shown by clients.
    Client,
    /// Is shown by those who are both, such as etcd members.
    Peer,
}

impl Role {
    /// The usages of this role.
    pub fn usages(self) -> Usages {
        match self {
            Self::Authority => Usages::authority(),
            Self::Server => Usages::server(),
            Self::Client => Usages::client(),
            Self::Peer => Usages::peer(),
        }
    }
}

/// What happens when the end of validity comes near.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Rotation {
    /// The same key gets a new certificate, so that everything it signed stays valid.
    Resign,
    /// A new key and a new certificate, made by whoever keeps the files.
    Renew,
    /// An operator in the cluster replaces it soon after installation.
    Operator,
    /// It stays until someone installs anew.
    Never,
}

/// One certificate of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CertSpec {
    /// Its name, which is also the stem of its files.
    pub name: &'static str,
    /// The row that signs it; none for one that signs itself.
    pub signer: Option<&'static str>,
    /// CN.
    pub common_name: &'static str,
    /// Each O.
    pub organizations: &'static [&'static str],
    /// Names and addresses.
    pub sans: &'static [&'static str],
    /// Its use.
    pub role: Role,
    /// Days of validity.
    pub days: u32,
    /// What replaces it.
    pub rotation: Rotation,
    /// Who uses it, and for what.
    pub purpose: &'static str,
}

const YEAR: u32 = 365;
const DECADE: u32 = 3652;

/// The row of a certificate that signs itself and others for ten years.
const fn authority(name: &'static str, purpose: &'static str) -> CertSpec {
    CertSpec {
        name,
        signer: None,
        common_name: name,
        organizations: &[],
        sans: &[],
        role: Role::Authority,
        days: DECADE,
        rotation: Rotation::Resign,
        purpose,
    }
}

const fn client(
    name: &'static str,
    signer: &'static str,
    common_name: &'static str,
    organizations: &'static [&'static str],
    purpose: &'static str,
) -> CertSpec {
    CertSpec {
        name,
        signer: Some(signer),
        common_name,
        organizations,
        sans: &[],
        role: Role::Client,
        days: YEAR,
        rotation: Rotation::Renew,
        purpose,
    }
}

const fn server(
    name: &'static str,
    signer: &'static str,
    common_name: &'static str,
    sans: &'static [&'static str],
    purpose: &'static str,
) -> CertSpec {
    CertSpec {
        name,
        signer: Some(signer),
        common_name,
        organizations: &[],
        sans,
        role: Role::Server,
        days: YEAR,
        rotation: Rotation::Renew,
        purpose,
    }
}

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Names of the rows of [`LOCAL`], so that a typo is a compile error.
#[allow(missing_docs)] // each is explained by its row
pub mod names {
    pub const SERVER_CA: &str = "server-ca";
    pub const CLIENT_CA: &str = "client-ca";
    pub const FRONT_PROXY_CA: &str = "front-proxy-ca";
    pub const ETCD_CA: &str = "etcd-ca";
    pub const APISERVER: &str = "kube-apiserver";
    pub const APISERVER_KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
    pub const APISERVER_ETCD_CLIENT: &str = "kube-apiserver-etcd-client";
    pub const FRONT_PROXY_CLIENT: &str = "front-proxy-client";
    pub const ADMIN: &str = "admin";
    pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
    pub const SCHEDULER: &str = "kube-scheduler";
    pub const KUBE_PROXY: &str = "kube-proxy";
    pub const KUBELET: &str = "kubelet";
    pub const KUBELET_SERVING: &str = "kubelet-serving";
    pub const ETCD_SERVER: &str = "etcd-server";
    pub const ETCD_PEER: &str = "etcd-peer";
    /// The key pair that signs service account tokens; it has no certificate.
    pub const SERVICE_ACCOUNT: &str = "service-account";
}

/// The certificates of `kelson up`: one machine, one directory, kept for as long as the cluster lives.
pub const LOCAL: &[CertSpec] = &[
    authority(
        names::SERVER_CA,
        "signs what the API server and the kubelets show; stands in every kubeconfig",
    ),
    authority(names::CLIENT_CA, "signs whom the API server and the kubelets believe, CSRs included"),
    authority(names::FRONT_PROXY_CA, "signs the client that may speak for others to aggregated API servers"),
    authority(names::ETCD_CA, "signs members and clients of etcd, and nobody else"),
    server(
        names::APISERVER,
        names::SERVER_CA,
        "kube-apiserver",
        &[
            "localhost",
            "127.0.0.1",
            "::1",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.{domain}",
            "{service_ips}",
            "{node}",
            "{node_ips}",
            "{api_sans}",
        ],
        "shown by the API server to everyone",
    ),
    client(
        names::APISERVER_KUBELET_CLIENT,
        names::CLIENT_CA,
        "kube-apiserver-kubelet-client",
        &["system:masters"],
        "shown by the API server to kubelets for logs, exec and port-forward",
    ),
    client(
        names::APISERVER_ETCD_CLIENT,
        names::ETCD_CA,
        "kube-apiserver-etcd-client",
        &[],
        "shown by the API server to an etcd outside its process",
    ),
    client(
        names::FRONT_PROXY_CLIENT,
        names::FRONT_PROXY_CA,
        "front-proxy-client",
        &[],
        "shown by the API server to aggregated API servers",
    ),
    client(
        names::ADMIN,
        names::CLIENT_CA,
        "system:admin",
        &["system:masters"],
        "in the administrator's kubeconfig",
    ),
    client(
        names::CONTROLLER_MANAGER,
        names::CLIENT_CA,
        "system:kube-controller-manager",
        &[],
        "shown by the controllers to the API server",
    ),
    client(
        names::SCHEDULER,
        names::CLIENT_CA,
        "system:kube-scheduler",
        &[],
        "shown by the scheduler to the API server",
    ),
    client(
        names::KUBE_PROXY,
        names::CLIENT_CA,
        "system:kube-proxy",
        &["system:node-proxier"],
        "shown by the service proxy to the API server",
    ),
    client(
        names::KUBELET,
        names::CLIENT_CA,
        "system:node:{node}",
        &["system:nodes"],
        "shown by this machine's kubelet to the API server",
    ),
    CertSpec {
        organizations: &["system:nodes"],
        ..server(
            names::KUBELET_SERVING,
            names::SERVER_CA,
            "system:node:{node}",
            &["{node}", "{node_ips}", "localhost", "127.0.0.1", "::1"],
            "shown by this machine's kubelet to the API server that asks for logs",
        )
    },
    CertSpec {
        role: Role::Peer, // etcd's own gateway dials its server port with the server's certificate
        ..server(
            names::ETCD_SERVER,
            names::ETCD_CA,
            "etcd-server",
            &["{node}", "{node_ips}", LOOPBACK[0], LOOPBACK[1], LOOPBACK[2]],
            "shown by etcd to its clients",
        )
    },
    CertSpec {
        role: Role::Peer,
        ..server(
            names::ETCD_PEER,
            names::ETCD_CA,
            "etcd-peer",
            &["{node}", "{node_ips}", LOOPBACK[0], LOOPBACK[1], LOOPBACK[2]],
            "shown by etcd members to one another",
        )
    },
];

/// Values of the placeholders in a table.
#[derive(Debug, Clone, Default)]
pub struct Facts(Vec<(&'static str, Vec<String>)>);

impl Facts {
    /// Adds the values of one placeholder.
    pub fn with<T: ToString>(mut self, name: &'static str, values: impl IntoIterator<Item = T>) -> Self {
        self.0.push((name, values.into_iter().map(|value| value.to_string()).collect()));
        self
    }

    /// Every text that `template` stands for; none if a placeholder in it has no value.
    pub fn expand(&self, template: &str) -> Result<Vec<String>, String> {
        let Some(start) = template.find('{') else { return Ok(vec![template.to_owned()]) };
        let Some(length) = template[start..].find('}') else { return Err(template.to_owned()) };
        let name = &template[start + 1..start + length];
        let (_, values) =
            self.0.iter().find(|(known, _)| *known == name).ok_or_else(|| template.to_owned())?;
        let mut out = Vec::new();
        for value in values {
            let rest = self.expand(&template[start + length + 1..])?;
            out.extend(rest.iter().map(|rest| format!("{}{value}{rest}", &template[..start])));
        }
        Ok(out)
    }
}

impl CertSpec {
    /// The certificate that this row asks for at `now`.
    pub fn request(&self, facts: &Facts, now: Timestamp) -> Result<Request, PkiError> {
        let expand = |template: &str| {
            facts
                .expand(template)
                .map_err(|reference| PkiError::Table { certificate: self.name.to_owned(), reference })
        };
        let one = |template: &str| {
            let mut texts = expand(template)?;
            if texts.len() == 1 {
                return Ok(texts.remove(0));
            }
            Err(PkiError::Table { certificate: self.name.to_owned(), reference: template.to_owned() })
        };
        let mut sans: Vec<San> = Vec::new();
        for template in self.sans {
            for text in expand(template)? {
                let san = San::parse(&text);
                if !sans.contains(&san) {
                    sans.push(san);
                }
            }
        }
        Ok(Request {
            subject: Subject {
                common_name: one(self.common_name)?,
                organizations: self.organizations.iter().map(|o| one(o)).collect::<Result<_, _>>()?,
                units: Vec::new(),
            },
            sans,
            usages: self.role.usages(),
            is_ca: self.role == Role::Authority,
            not_before: now - BACKDATE,
            not_after: now + SignedDuration::from_hours(24 * i64::from(self.days)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_multiply_and_unknown_ones_are_refused() {
        let facts = Facts::default().with("n", ["a", "b"]).with("d", ["x"]).with("none", [] as [&str; 0]);
        assert_eq!(facts.expand("{n}.{d}").unwrap(), ["a.x", "b.x"]);
        assert!(facts.expand("{none}").unwrap().is_empty());
        assert_eq!(facts.expand("{what}").unwrap_err(), "{what}");
    }

    #[test]
    fn rows_stand_after_their_signers_and_have_names_of_their_own() {
        for table in [LOCAL, INSTALL] {
            for (index, row) in table.iter().enumerate() {
                assert!(table[..index].iter().all(|earlier| earlier.name != row.name), "{}", row.name);
                if let Some(signer) = row.signer {
                    let signer = table[..index].iter().find(|earlier| earlier.name == signer);
                    assert_eq!(signer.unwrap().role, Role::Authority, "{}", row.name);
                }
            }
        }
        for bundle in BUNDLES {
            for member in bundle.members {
                assert!(
                    INSTALL.iter().any(|row| row.name == *member && row.role == Role::Authority),
                    "{member}"
                );
            }
        }
    }
}
