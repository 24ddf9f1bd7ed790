//! Who speaks to the API server, from where, as whom: every kubeconfig of the installation, from one table.

use pki::Kubeconfig;
use pki::kubeconfig::{Cluster, Context, NamedCluster, NamedContext, NamedUser, User};

use crate::graph::{AssetError, AssetFile, Files, Inputs};
use crate::tls;

/// Where a kubeconfig's server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// `api.<domain>`: people.
    External,
    /// `api-int.<domain>`: machines and operators.
    Internal,
    /// The same machine.
    Localhost,
}

struct Row {
    file: &'static str,
    /// The row of the certificate table; none for a node's own, which it fetches itself.
    identity: Option<&'static str>,
    user: &'static str,
    server: Server,
}

const ROWS: &[Row] = &[
    Row { file: "admin.kubeconfig", identity: Some("admin"), user: "admin", server: Server::External },
    Row { file: "lb-int.kubeconfig", identity: Some("admin"), user: "admin", server: Server::Internal },
    Row { file: "localhost.kubeconfig", identity: Some("admin"), user: "admin", server: Server::Localhost },
    Row {
        file: "kubelet-bootstrap.kubeconfig",
        identity: Some("kubelet-bootstrap"),
        user: "kubelet-bootstrap",
        server: Server::Internal,
    },
    Row { file: "node.kubeconfig", identity: None, user: "node", server: Server::Internal },
    Row {
        file: "controller-manager.kubeconfig",
        identity: Some("kube-controller-manager"),
        user: "kube-controller-manager",
        server: Server::Internal,
    },
    Row {
        file: "scheduler.kubeconfig",
        identity: Some("kube-scheduler"),
        user: "kube-scheduler",
        server: Server::Internal,
    },
    Row {
        file: "kube-proxy.kubeconfig",
        identity: Some("kube-proxy"),
        user: "kube-proxy",
        server: Server::Internal,
    },
];

/// What the kubeconfigs are made from.
pub fn parents() -> Vec<String> {
    let mut out = vec!["install-config".to_owned(), tls::asset_name("kube-apiserver-server-ca")];
    for identity in ROWS.iter().filter_map(|row| row.identity) {
        let name = tls::asset_name(identity);
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

/// Makes all of them and loads each again, as its user will.
pub fn generate(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let config = inputs.config()?;
    let domain = config.cluster_domain();
    let bundle = tls::asset_name("kube-apiserver-server-ca");
    let ca = inputs.file(&bundle, &tls::certificate_path("kube-apiserver-server-ca"))?;
    let mut files = Files::new();
    for row in ROWS {
        let server = match row.server {
            Server::External => format!("https://api.{domain}:6443"),
            Server::Internal => format!("https://api-int.{domain}:6443"),
            Server::Localhost => "https://localhost:6443".to_owned(),
        };
        let mut kubeconfig = match row.identity {
            Some(identity) => {
                let pair = tls::pair(inputs, identity)?;
                Kubeconfig::with_certificate(&config.metadata.name, &server, ca, row.user, &pair)
            }
            None => of_node(&config.metadata.name, &server),
        };
        if row.identity.is_none() {
            kubeconfig.clusters[0].cluster.certificate_authority = Some("/etc/kubernetes/ca.crt".into());
        }
        let text = kubeconfig.to_yaml()?;
        let loaded = Kubeconfig::parse(&text)?;
        if row.identity.is_some() {
            loaded.access(None)?;
        }
        files.push(AssetFile::secret(format!("auth/{}", row.file), text));
    }
    Ok(files)
}

/// What a kubelet uses once its request is signed: the certificate is a file that it rotates itself.
fn of_node(cluster: &str, server: &str) -> Kubeconfig {
    const CURRENT: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
    let mut kubeconfig = Kubeconfig::empty();
    kubeconfig.clusters = vec![NamedCluster {
        name: cluster.to_owned(),
        cluster: Cluster { server: server.to_owned(), ..Cluster::default() },
    }];
    kubeconfig.users = vec![NamedUser {
        name: "node".to_owned(),
        user: User {
            client_certificate: Some(CURRENT.into()),
            client_key: Some(CURRENT.into()),
            ..User::default()
        },
    }];
    kubeconfig.contexts = vec![NamedContext {
        name: "node".to_owned(),
        context: Context { cluster: cluster.to_owned(), user: "node".to_owned(), namespace: None },
    }];
    kubeconfig.current_context = "node".to_owned();
    kubeconfig
}
