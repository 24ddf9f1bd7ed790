//! The certificates and bundles of an installed cluster: many machines, behind load balancers, kept by operators.
//!
//! Several small signers instead of one, so that each can be replaced while the others stay: who can sign for the
//! service network cannot make an administrator.

use super::{CertSpec, DECADE, Role, Rotation, YEAR, authority, client, server};

/// How long a certificate lives that an operator replaces once the cluster stands. A month leaves room for a slow
/// installation; upstream's single day makes every directory worthless overnight.
const UNTIL_OPERATORS: u32 = 30;

const fn for_operator(spec: CertSpec) -> CertSpec {
    CertSpec { days: UNTIL_OPERATORS, rotation: Rotation::Operator, ..spec }
}

const fn signer(name: &'static str, days: u32, purpose: &'static str) -> CertSpec {
    CertSpec { days, rotation: Rotation::Operator, ..authority(name, purpose) }
}

/// The front proxy's user name; the API server's list of allowed names is made from the same constant.
pub const FRONT_PROXY_NAME: &str = "system:openshift-aggregator";

/// Identity that nodes have until they own a certificate; the manifests bind exactly this user.
pub const BOOTSTRAPPER_NAME: &str = "system:bootstrapper";

/// Every certificate that the installer makes.
pub const INSTALL: &[CertSpec] = &[
    CertSpec {
        rotation: Rotation::Never,
        ..authority("root-ca", "signs the machine config server; machines find it in their pointer ignition")
    },
    CertSpec {
        days: DECADE,
        rotation: Rotation::Operator,
        ..server(
            "machine-config-server",
            "root-ca",
            "system:machine-config-server",
            &["api-int.{domain}", "{api_vips}"],
            "shown on port 22623 to machines that fetch their ignition",
        )
    },
    signer("etcd-signer", DECADE, "signs members and clients of etcd, and nobody else"),
    CertSpec {
        days: 3 * YEAR,
        role: Role::Peer,
        rotation: Rotation::Operator,
        ..server(
            "etcd-server",
            "etcd-signer",
            "system:etcd-server:etcd",
            &["localhost", "127.0.0.1", "::1", "etcd.openshift-etcd.svc", "{etcd_names}", "{etcd_ips}"],
            "shown by etcd on port 2379",
        )
    },
    CertSpec {
        days: 3 * YEAR,
        role: Role::Peer,
        rotation: Rotation::Operator,
        ..server(
            "etcd-peer",
            "etcd-signer",
            "system:etcd-peer:etcd",
            &["localhost", "127.0.0.1", "::1", "{etcd_names}", "{etcd_ips}"],
            "shown by etcd members to one another on port 2380",
        )
    },
    CertSpec {
        days: 3 * YEAR,
        rotation: Rotation::Operator,
        ..client(
            "etcd-client",
            "etcd-signer",
            "system:etcd-client",
            &["etcd"],
            "shown by the API server to etcd",
        )
    },
    signer("etcd-metric-signer", DECADE, "signs who may read etcd's metrics, and nothing else of it"),
    CertSpec {
        days: 3 * YEAR,
        rotation: Rotation::Operator,
        ..client(
            "etcd-metric-client",
            "etcd-metric-signer",
            "system:etcd-metric:etcd-client",
            &["etcd-metric"],
            "shown by monitoring to etcd on port 9979",
        )
    },
    signer("kube-apiserver-localhost-signer", DECADE, "signs what the API server shows on its own machine"),
    for_operator(server(
        "kube-apiserver-localhost-server",
        "kube-apiserver-localhost-signer",
        "system:kube-apiserver",
        &["localhost", "127.0.0.1", "::1"],
        "shown by the API server to clients on its own machine",
    )),
    signer("kube-apiserver-service-network-signer", DECADE, "signs what the API server shows to pods"),
    for_operator(server(
        "kube-apiserver-service-network-server",
        "kube-apiserver-service-network-signer",
        "system:kube-apiserver",
        &[
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "openshift",
            "openshift.default",
            "openshift.default.svc",
            "openshift.default.svc.cluster.local",
            "{service_ips}",
        ],
        "shown by the API server to pods, which reach it by its Service",
    )),
    signer("kube-apiserver-lb-signer", DECADE, "signs what the API server shows through load balancers"),
    for_operator(server(
        "kube-apiserver-lb-server",
        "kube-apiserver-lb-signer",
        "system:kube-apiserver",
        &["api.{domain}", "{api_vips}"],
        "shown by the API server to administrators and users",
    )),
    for_operator(server(
        "kube-apiserver-internal-lb-server",
        "kube-apiserver-lb-signer",
        "system:kube-apiserver",
        &["api-int.{domain}", "{api_vips}"],
        "shown by the API server to nodes and operators",
    )),
    signer("kube-apiserver-to-kubelet-signer", YEAR, "signs whom kubelets obey"),
    CertSpec {
        rotation: Rotation::Operator,
        ..client(
            "kube-apiserver-to-kubelet-client",
            "kube-apiserver-to-kubelet-signer",
            "system:kube-apiserver",
            &[],
            "shown by the API server to kubelets for logs, exec and port-forward; bound to system:kubelet-api-admin",
        )
    },
    signer("aggregator-signer", UNTIL_OPERATORS, "signs the client that may speak for others"),
    for_operator(client(
        "aggregator-client",
        "aggregator-signer",
        FRONT_PROXY_NAME,
        &[],
        "shown by the API server to aggregated API servers",
    )),
    signer("kube-control-plane-signer", YEAR, "signs the control plane's own clients"),
    CertSpec {
        rotation: Rotation::Operator,
        ..client(
            "kube-controller-manager",
            "kube-control-plane-signer",
            "system:kube-controller-manager",
            &[],
            "in the controller manager's kubeconfig",
        )
    },
    CertSpec {
        rotation: Rotation::Operator,
        ..client(
            "kube-scheduler",
            "kube-control-plane-signer",
            "system:kube-scheduler",
            &[],
            "in the scheduler's kubeconfig",
        )
    },
    CertSpec {
        rotation: Rotation::Operator,
        ..client(
            "kube-proxy",
            "kube-control-plane-signer",
            "system:kube-proxy",
            &["system:node-proxier"],
            "in the kubeconfig of the service proxy on masters, until the network operator takes over",
        )
    },
    signer(
        "kubelet-signer",
        UNTIL_OPERATORS,
        "signs the nodes' certificates when their requests are approved",
    ),
    signer(
        "kubelet-bootstrap-kubeconfig-signer",
        DECADE,
        "signs the identity that nodes ask for certificates with",
    ),
    CertSpec {
        days: DECADE,
        rotation: Rotation::Operator,
        ..client(
            "kubelet-bootstrap",
            "kubelet-bootstrap-kubeconfig-signer",
            BOOTSTRAPPER_NAME,
            &[],
            "in every machine's first kubeconfig: may ask for certificates, and nothing else",
        )
    },
    CertSpec {
        rotation: Rotation::Never,
        ..authority("admin-kubeconfig-signer", "signs the administrator, whom no operator replaces")
    },
    CertSpec {
        days: DECADE,
        rotation: Rotation::Never,
        ..client(
            "admin",
            "admin-kubeconfig-signer",
            "system:admin",
            &["system:masters"],
            "in auth/kubeconfig; the way in when everything else fails",
        )
    },
    signer("ingress-signer", 2 * YEAR, "signs the routers' default certificate"),
    CertSpec {
        days: 2 * YEAR,
        rotation: Rotation::Operator,
        ..server(
            "ingress",
            "ingress-signer",
            "*.apps.{domain}",
            &["*.apps.{domain}"],
            "shown by the routers for every route without a certificate of its own",
        )
    },
];

/// Key pairs without certificate, with their purpose.
pub const KEYS: &[(&str, &str)] = &[
    ("service-account", "signs service account tokens"),
    ("bound-service-account-signing-key", "signs the tokens that pods get projected"),
];

/// A file of several authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bundle {
    /// Its name, which is also the stem of its file.
    pub name: &'static str,
    /// The rows whose certificates are in it.
    pub members: &'static [&'static str],
    /// Who believes it, and whom.
    pub purpose: &'static str,
}

/// Every bundle that the installer makes.
pub const BUNDLES: &[Bundle] = &[
    Bundle {
        name: "kube-apiserver-server-ca",
        members: &[
            "kube-apiserver-localhost-signer",
            "kube-apiserver-service-network-signer",
            "kube-apiserver-lb-signer",
        ],
        purpose: "whom clients of the API server believe; stands in every kubeconfig",
    },
    Bundle {
        name: "kube-apiserver-client-ca",
        members: &[
            "admin-kubeconfig-signer",
            "kubelet-signer",
            "kube-control-plane-signer",
            "kubelet-bootstrap-kubeconfig-signer",
        ],
        purpose: "whom the API server believes about users",
    },
    Bundle {
        name: "kubelet-client-ca",
        members: &["kube-apiserver-to-kubelet-signer"],
        purpose: "whom kubelets believe about callers",
    },
    Bundle {
        name: "kubelet-serving-ca",
        members: &["kubelet-signer"],
        purpose: "whom the API server believes about kubelets",
    },
    Bundle {
        name: "aggregator-ca",
        members: &["aggregator-signer"],
        purpose: "whom aggregated API servers believe about the front proxy",
    },
    Bundle { name: "etcd-ca", members: &["etcd-signer"], purpose: "whom etcd and its clients believe" },
    Bundle {
        name: "etcd-metric-ca",
        members: &["etcd-metric-signer"],
        purpose: "whom etcd's metrics port believes",
    },
    Bundle { name: "ingress-ca", members: &["ingress-signer"], purpose: "whom users of routes believe" },
];
