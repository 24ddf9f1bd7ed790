//! `kube-apiserver` as a program: upstream's flags, completed into a [`Config`].

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lifecycle::{Stop, Tasks};

use crate::authn::Anonymous;
use crate::authn::oidc::IssuerConfig;
use crate::config::{Advertise, AuditConfig, AuthorizationMode, Config, KeyPair, RequestHeaderConfig};
use crate::server::{ApiServer, StartError};
use crate::tls;

/// Why the flags do not make a server.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// A file.
    #[error("cannot read {} (--{flag})", path.display())]
    Read {
        /// Which flag.
        flag: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A flag's value.
    #[error("--{flag}: {why}")]
    Value {
        /// Which flag.
        flag: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The listener.
    #[error("cannot listen on {address}:{port}")]
    Listen {
        /// Address.
        address: IpAddr,
        /// Port.
        port: u16,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// TLS towards etcd.
    #[error("TLS towards etcd cannot be set up")]
    Tls(#[from] tls::TlsError),
    /// etcd.
    #[error("etcd cannot be used")]
    Etcd(#[from] etcd::remote::RemoteError),
    /// The server itself.
    #[error("the API server did not start")]
    Start(#[from] StartError),
}

/// The flags of kube-apiserver.
#[derive(Args, Clone, Debug)]
pub struct KubeApiserverArgs {
    /// etcd servers to connect to, comma separated.
    #[arg(long, value_delimiter = ',', required = true)]
    pub etcd_servers: Vec<String>,
    /// CA of the etcd servers.
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd.
    #[arg(long)]
    pub etcd_certfile: Option<PathBuf>,
    /// Its key.
    #[arg(long)]
    pub etcd_keyfile: Option<PathBuf>,
    /// The address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The port to serve HTTPS on.
    #[arg(long, default_value_t = 6443)]
    pub secure_port: u16,
    /// The address under which the cluster reaches this server.
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// The serving certificate.
    #[arg(long)]
    pub tls_cert_file: PathBuf,
    /// Its key.
    #[arg(long)]
    pub tls_private_key_file: PathBuf,
    /// CA of client certificates.
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// CA of the front proxy.
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that the front proxy may have.
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with the user name.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-User")]
    pub requestheader_username_headers: Vec<String>,
    /// Headers with the user's uid.
    #[arg(long, value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers with groups.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Group")]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with extra fields.
    #[arg(long, value_delimiter = ',', default_value = "X-Remote-Extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// The identity of this server towards aggregated servers.
    #[arg(long)]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long)]
    pub proxy_client_key_file: Option<PathBuf>,
    /// The identity of this server towards kubelets.
    #[arg(long)]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Its key.
    #[arg(long)]
    pub kubelet_client_key: Option<PathBuf>,
    /// CA of the kubelets' serving certificates.
    #[arg(long)]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Kinds of node addresses, most wanted first.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP"
    )]
    pub kubelet_preferred_address_types: Vec<String>,
    /// Issuers of service account tokens; the first signs.
    #[arg(long)]
    pub service_account_issuer: Vec<String>,
    /// The key that signs service account tokens.
    #[arg(long)]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Keys that verify service account tokens.
    #[arg(long)]
    pub service_account_key_file: Vec<PathBuf>,
    /// Where the keys are published.
    #[arg(long, default_value = "")]
    pub service_account_jwks_uri: String,
    /// Whether tokens of pods live longer than asked for.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub service_account_extend_token_expiration: bool,
    /// Audiences of tokens for this server.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Ranges of cluster IPs, at most one per family.
    #[arg(long, value_delimiter = ',', default_value = "10.0.0.0/24")]
    pub service_cluster_ip_range: Vec<ipnet::IpNet>,
    /// The range of node ports.
    #[arg(long, default_value = "30000-32767")]
    pub service_node_port_range: String,
    /// Authorizers, asked in order.
    #[arg(long, value_delimiter = ',', default_value = "AlwaysAllow")]
    pub authorization_mode: Vec<String>,
    /// Whether requests without credentials are taken.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
    /// Whether bootstrap tokens are taken.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// Tokens with their users.
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// A kubeconfig of the server that judges tokens.
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// An OIDC issuer.
    #[arg(long)]
    pub oidc_issuer_url: Option<String>,
    /// The audience of its tokens.
    #[arg(long, default_value = "")]
    pub oidc_client_id: String,
    /// The claim with the user name.
    #[arg(long, default_value = "sub")]
    pub oidc_username_claim: String,
    /// Put before the user name.
    #[arg(long, default_value = "")]
    pub oidc_username_prefix: String,
    /// The claim with the groups.
    #[arg(long, default_value = "")]
    pub oidc_groups_claim: String,
    /// Put before each group.
    #[arg(long, default_value = "")]
    pub oidc_groups_prefix: String,
    /// CA of the issuer.
    #[arg(long)]
    pub oidc_ca_file: Option<PathBuf>,
    /// Admission plug-ins to add.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plug-ins to leave out.
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// The audit policy.
    #[arg(long)]
    pub audit_policy_file: Option<PathBuf>,
    /// The audit log; `-` is standard output.
    #[arg(long)]
    pub audit_log_path: Option<PathBuf>,
    /// Rotate the audit log at this size in MiB.
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxsize: u64,
    /// Keep so many rotated audit logs.
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxbackup: usize,
    /// Encryption of chosen resources in the store.
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Reading requests in flight.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Writing requests in flight.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Seconds until a request that is no watch ends.
    #[arg(long, default_value = "1m0s")]
    pub request_timeout: String,
    /// Whether containers may be privileged; taken for compatibility, pod security decides.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allow_privileged: bool,
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, ArgsError> {
    std::fs::read(path).map_err(|source| ArgsError::Read { flag, path: path.to_owned(), source })
}

fn read_text(flag: &'static str, path: &Path) -> Result<String, ArgsError> {
    Ok(String::from_utf8_lossy(&read(flag, path)?).into_owned())
}

fn maybe(flag: &'static str, path: Option<&PathBuf>) -> Result<Option<Vec<u8>>, ArgsError> {
    path.map(|path| read(flag, path)).transpose()
}

fn pair(
    flag: &'static str,
    certificate: Option<&PathBuf>,
    key: Option<&PathBuf>,
) -> Result<Option<KeyPair>, ArgsError> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            Ok(Some(KeyPair { certificate: read(flag, certificate)?, key: read(flag, key)? }))
        }
        (None, None) => Ok(None),
        _ => Err(ArgsError::Value { flag, why: "certificate and key go together".to_owned() }),
    }
}

impl KubeApiserverArgs {
    /// Connects to etcd, reads every file, binds the port: a configuration that can only be started.
    pub async fn complete(&self, tasks: &Tasks) -> Result<Config, ArgsError> {
        let serving = KeyPair {
            certificate: read("tls-cert-file", &self.tls_cert_file)?,
            key: read("tls-private-key-file", &self.tls_private_key_file)?,
        };
        let mut config = Config::new(etcd::remote::connect(&self.etcd()?, tasks).await?, serving);
        config.client_ca = maybe("client-ca-file", self.client_ca_file.as_ref())?;
        if let Some(ca) = maybe("requestheader-client-ca-file", self.requestheader_client_ca_file.as_ref())? {
            config.request_header = Some(RequestHeaderConfig {
                ca,
                allowed_names: self.requestheader_allowed_names.clone(),
                username_headers: self.requestheader_username_headers.clone(),
                uid_headers: self.requestheader_uid_headers.clone(),
                group_headers: self.requestheader_group_headers.clone(),
                extra_prefixes: self.requestheader_extra_headers_prefix.clone(),
            });
        }
        config.proxy_client = pair(
            "proxy-client-cert-file",
            self.proxy_client_cert_file.as_ref(),
            self.proxy_client_key_file.as_ref(),
        )?;
        config.kubelet.client = pair(
            "kubelet-client-certificate",
            self.kubelet_client_certificate.as_ref(),
            self.kubelet_client_key.as_ref(),
        )?;
        config.kubelet.ca =
            maybe("kubelet-certificate-authority", self.kubelet_certificate_authority.as_ref())?;
        config.kubelet.address_types = self.kubelet_preferred_address_types.clone();
        let accounts = &mut config.service_accounts;
        accounts.signing_key =
            maybe("service-account-signing-key-file", self.service_account_signing_key_file.as_ref())?;
        for path in &self.service_account_key_file {
            accounts.verifying_keys.push(read("service-account-key-file", path)?);
        }
        accounts.issuers = self.service_account_issuer.clone();
        accounts.audiences = self.api_audiences.clone();
        accounts.jwks_uri = self.service_account_jwks_uri.clone();
        accounts.extend_expiration = self.service_account_extend_token_expiration;
        config.service_cidrs = self.service_cluster_ip_range.clone();
        config.node_ports = node_ports(&self.service_node_port_range)?;
        config.authorization =
            self.authorization_mode.iter().map(|mode| authorization(mode)).collect::<Result<_, _>>()?;
        config.anonymous = if self.anonymous_auth { Anonymous::Always } else { Anonymous::Never };
        config.bootstrap_tokens = self.enable_bootstrap_token_auth;
        if let Some(path) = &self.token_auth_file {
            config.static_tokens = read_text("token-auth-file", path)?;
        }
        if let Some(path) = &self.authentication_token_webhook_config_file {
            config.token_webhook = Some(read_text("authentication-token-webhook-config-file", path)?);
        }
        if let Some(issuer) = self.oidc(maybe("oidc-ca-file", self.oidc_ca_file.as_ref())?) {
            config.oidc.push(issuer);
        }
        config.enabled_admission = self.enable_admission_plugins.clone();
        config.disabled_admission = self.disable_admission_plugins.clone();
        if let (Some(policy), Some(path)) = (&self.audit_policy_file, &self.audit_log_path) {
            config.audit = Some(AuditConfig {
                policy: read_text("audit-policy-file", policy)?,
                path: path.clone(),
                max_size: self.audit_log_maxsize,
                max_backup: self.audit_log_maxbackup,
            });
        }
        if let Some(path) = &self.encryption_provider_config {
            config.encryption = Some(read_text("encryption-provider-config", path)?);
        }
        config.max_in_flight = self.max_requests_inflight + self.max_mutating_requests_inflight;
        let nanos = apimachinery::time::parse_duration(&self.request_timeout).filter(|nanos| *nanos > 0);
        config.request_timeout =
            nanos.map(|nanos| Duration::from_nanos(nanos as u64)).ok_or_else(|| ArgsError::Value {
                flag: "request-timeout",
                why: format!("{:?} is no duration", self.request_timeout),
            })?;
        let own =
            self.advertise_address.or((!self.bind_address.is_unspecified()).then_some(self.bind_address));
        config.advertise =
            own.filter(|own| !own.is_loopback()).map(|address| Advertise { address, port: self.secure_port });
        let listener = TcpListener::bind((self.bind_address, self.secure_port)).map_err(|source| {
            ArgsError::Listen { address: self.bind_address, port: self.secure_port, source }
        })?;
        config.listeners.push(listener);
        Ok(config)
    }

    fn etcd(&self) -> Result<etcd::remote::RemoteConfig, ArgsError> {
        let identity = pair("etcd-certfile", self.etcd_certfile.as_ref(), self.etcd_keyfile.as_ref())?;
        let tls = match maybe("etcd-cafile", self.etcd_cafile.as_ref())? {
            Some(ca) => {
                let identity = identity
                    .map(|own| tls::certified_key(&own.certificate, &own.key, "the etcd client certificate"))
                    .transpose()?;
                Some(Arc::new(tls::client_config(tls::roots(&ca, "the etcd CA")?, identity)?))
            }
            None => None,
        };
        Ok(etcd::remote::RemoteConfig { endpoints: self.etcd_servers.clone(), tls })
    }

    fn oidc(&self, ca: Option<Vec<u8>>) -> Option<(IssuerConfig, Option<Vec<u8>>)> {
        let url = self.oidc_issuer_url.clone()?;
        let prefix = match self.oidc_username_prefix.as_str() {
            // As upstream: names other than mail addresses are marked with their issuer; "-" says not to.
            "" if self.oidc_username_claim != "email" => format!("{url}#"),
            "-" => String::new(),
            prefix => prefix.to_owned(),
        };
        let issuer = IssuerConfig {
            url,
            audiences: vec![self.oidc_client_id.clone()],
            username_claim: self.oidc_username_claim.clone(),
            username_prefix: prefix,
            groups_claim: self.oidc_groups_claim.clone(),
            groups_prefix: self.oidc_groups_prefix.clone(),
            required_claims: Vec::new(),
        };
        Some((issuer, ca))
    }
}

fn node_ports(text: &str) -> Result<(u16, u16), ArgsError> {
    let wrong = || ArgsError::Value {
        flag: "service-node-port-range",
        why: format!("{text:?} is not of the form 30000-32767"),
    };
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last && first > 0 => Ok((first, last)),
        _ => Err(wrong()),
    }
}

fn authorization(mode: &str) -> Result<AuthorizationMode, ArgsError> {
    match mode {
        "AlwaysAllow" => Ok(AuthorizationMode::AlwaysAllow),
        "AlwaysDeny" => Ok(AuthorizationMode::AlwaysDeny),
        "Node" => Ok(AuthorizationMode::Node),
        "RBAC" => Ok(AuthorizationMode::Rbac),
        other => {
            Err(ArgsError::Value { flag: "authorization-mode", why: format!("{other:?} is not supported") })
        }
    }
}

/// Runs an API server until stopped.
pub async fn run(args: KubeApiserverArgs, stop: &Stop) -> Result<(), ArgsError> {
    let tasks = Tasks::under(stop);
    let config = args.complete(&tasks).await?;
    let _server = ApiServer::start(config, &tasks).await?;
    stop.requested().await;
    tasks.drain(Duration::from_secs(20)).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_modes_are_read() {
        assert_eq!(node_ports("30000-32767").unwrap(), (30000, 32767));
        assert!(node_ports("5").is_err() && node_ports("9-1").is_err());
        assert_eq!(authorization("RBAC").unwrap(), AuthorizationMode::Rbac);
        assert!(authorization("Maybe").is_err());
    }
}
