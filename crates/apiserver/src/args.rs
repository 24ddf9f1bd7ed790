//! `kube-apiserver` as a program: upstream's flags, completed into a [`Config`].

mod audit;
mod gates;
mod logging;
mod others;
mod serving;
mod settings;
mod values;

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lifecycle::{Stop, Tasks};

pub use self::values::ArgsError;
use self::values::{duration, maybe, node_ports, pair, read, read_text};
use crate::admission::configuration::Configuration;
use crate::admission::optional;
use crate::authn::Anonymous;
use crate::authn::oidc::IssuerConfig;
use crate::authz::abac::Policies;
use crate::authz::webhook::WebhookConfig;
use crate::config::{Advertise, AuthorizationMode, Config, KeyPair, RequestHeaderConfig};
use crate::config_files;
use crate::registry::RuntimeConfig;
use crate::reload::Followed;
use crate::rooted::Rooted;
use crate::server::ApiServer;
use crate::tls;

/// The flags of kube-apiserver. One that is given twice counts as it is given last, as with Go's programs.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true, disable_version_flag = true)]
pub struct KubeApiserverArgs {
    /// etcd servers to connect to, comma separated.
    #[arg(long, value_delimiter = ',')]
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
    /// What the keys in etcd begin with.
    #[arg(long, default_value = "/registry")]
    pub etcd_prefix: String,
    /// How often old revisions are compacted away; 0 leaves it to others.
    #[arg(long, default_value = "5m0s")]
    pub etcd_compaction_interval: String,
    /// The kind of store.
    #[arg(long, default_value = "etcd3")]
    pub storage_backend: String,
    /// How long events are kept.
    #[arg(long, default_value = "1h0m0s")]
    pub event_ttl: String,
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
    pub tls_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long)]
    pub tls_private_key_file: Option<PathBuf>,
    /// Further certificates by name: `cert.pem,key.pem` or `cert.pem,key.pem:name,other`.
    #[arg(long)]
    pub tls_sni_cert_key: Vec<String>,
    /// The oldest TLS that is spoken: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = "VersionTLS12")]
    pub tls_min_version: String,
    /// The cipher suites that are spoken, by their IANA names; all that are safe if none is named.
    #[arg(long, value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// The key exchanges that are spoken, by the numbers of their curves; all that are safe if none is named.
    #[arg(long, value_delimiter = ',')]
    pub tls_curve_preferences: Vec<u16>,
    /// Where the serving certificate is, or is made if it is missing, unless --tls-cert-file names one.
    #[arg(long, default_value = "/var/run/kubernetes")]
    pub cert_dir: PathBuf,
    /// Let the port be shared with other processes.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub permit_port_sharing: bool,
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
    /// The longest life of a service account token; 0 is no bound.
    #[arg(long, default_value = "0s")]
    pub service_account_max_token_expiration: String,
    /// Whether tokens are checked against the accounts that they name; they always are.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub service_account_lookup: bool,
    /// Audiences of tokens for this server.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Ranges of cluster IPs, at most one per family.
    #[arg(long, value_delimiter = ',', default_value = "10.0.0.0/24")]
    pub service_cluster_ip_range: Vec<ipnet::IpNet>,
    /// The range of node ports.
    #[arg(long, default_value = "30000-32767")]
    pub service_node_port_range: String,
    /// Authorizers, asked in order: AlwaysAllow, AlwaysDeny, Node, RBAC, ABAC, Webhook. AlwaysAllow if nothing is said.
    #[arg(long, value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// An AuthorizationConfiguration, instead of the other flags about authorization.
    #[arg(long, conflicts_with_all = ["authorization_mode", "authorization_webhook_config_file"])]
    pub authorization_config: Option<PathBuf>,
    /// The policies of the mode ABAC, one per line.
    #[arg(long)]
    pub authorization_policy_file: Option<PathBuf>,
    /// A kubeconfig of the server that the mode Webhook asks.
    #[arg(long)]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// The version of SubjectAccessReview that it understands.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authorization_webhook_version: String,
    /// How long a yes of it is remembered.
    #[arg(long, default_value = "5m0s")]
    pub authorization_webhook_cache_authorized_ttl: String,
    /// How long a no of it is remembered.
    #[arg(long, default_value = "30s")]
    pub authorization_webhook_cache_unauthorized_ttl: String,
    /// Whether requests without credentials are taken.
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// An AuthenticationConfiguration, instead of the flags about OIDC.
    #[arg(long, conflicts_with = "oidc_issuer_url")]
    pub authentication_config: Option<PathBuf>,
    /// Whether bootstrap tokens are taken.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// Tokens with their users.
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// A kubeconfig of the server that judges tokens.
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The version of TokenReview that it understands.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: String,
    /// How long its answers are remembered.
    #[arg(long, default_value = "2m0s", value_parser = settings::go_duration)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// An OIDC issuer.
    #[arg(long, requires = "oidc_client_id")]
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
    /// Claims that its tokens must have, as `claim=value`.
    #[arg(long, value_delimiter = ',')]
    pub oidc_required_claim: Vec<String>,
    /// The algorithms that its tokens may be signed with.
    #[arg(long, value_delimiter = ',', default_value = "RS256", value_parser = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"])]
    pub oidc_signing_algs: Vec<String>,
    /// CA of the issuer.
    #[arg(long)]
    pub oidc_ca_file: Option<PathBuf>,
    /// Admission plug-ins to add.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plug-ins to leave out.
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// All admission plug-ins that are on, instead of the two flags above; upstream has given it up.
    #[arg(long, value_delimiter = ',')]
    pub admission_control: Vec<String>,
    /// An AdmissionConfiguration: what plug-ins are told.
    #[arg(long)]
    pub admission_control_config_file: Option<PathBuf>,
    /// Auditing.
    #[command(flatten)]
    pub audit: audit::AuditArgs,
    /// Encryption of chosen resources in the store.
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Whether that file is read again when it changes.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub encryption_provider_config_automatic_reload: bool,
    /// Reading requests in flight.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Writing requests in flight.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Seconds until a request that is no watch ends.
    #[arg(long, default_value = "1m0s")]
    pub request_timeout: String,
    /// On a stop, serve on for so long while /readyz already says no.
    #[arg(long, default_value = "0s")]
    pub shutdown_delay_duration: String,
    /// API versions to serve or not: `group/version=false`, `api/all=true`, `api/beta=false`.
    #[arg(long, value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// Feature gates, as `Name=true`. Features are as v1.36 has them by default; other wishes are logged as vain.
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    #[command(flatten)]
    pub logging: logging::LoggingArgs,
    /// Print the version and end.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub version: Option<String>,
    #[command(flatten)]
    pub settings: settings::SettingsArgs,
    #[command(flatten)]
    pub others: others::OtherArgs,
}

impl KubeApiserverArgs {
    /// Connects to etcd, reads every file, binds the port: a configuration that can only be started.
    pub async fn complete(&self, tasks: &Tasks) -> Result<Config, ArgsError> {
        self.check()?;
        let settings =
            self.settings.complete((self.max_requests_inflight, self.max_mutating_requests_inflight))?;
        let own = self
            .advertise_address
            .or((!self.bind_address.is_unspecified()).then_some(self.bind_address))
            .or_else(|| serving::own_address(self.bind_address));
        let given = pair("tls-cert-file", self.tls_cert_file.as_ref(), self.tls_private_key_file.as_ref())?;
        let serving = match given {
            Some(pair) => pair,
            None => serving::certificate(&self.cert_dir, own, settings.external_host.as_deref())?,
        };
        let mut store: Arc<dyn etcd::Store> = etcd::remote::connect(&self.etcd()?, tasks).await?;
        let root = self.etcd_prefix.trim_end_matches('/');
        if root != "/registry" {
            store = Arc::new(Rooted::new(store, root));
        }
        let mut config = Config::new(store, serving);
        config.settings = settings;
        config.named_serving = self.named_certificates()?;
        config.tls =
            tls::Limits::parse(&self.tls_min_version, &self.tls_cipher_suites, &self.tls_curve_preferences)?;
        config.runtime = RuntimeConfig::parse(&self.runtime_config)
            .map_err(|why| ArgsError::Value { flag: "runtime-config", why })?;
        config.event_ttl = duration("event-ttl", &self.event_ttl)?;
        let every = duration("etcd-compaction-interval", &self.etcd_compaction_interval)?;
        config.compaction_interval = (!every.is_zero()).then_some(every);
        config.client_ca = maybe("client-ca-file", self.client_ca_file.as_ref())?;
        if let Some(ca) = maybe("requestheader-client-ca-file", self.requestheader_client_ca_file.as_ref())? {
            if self.requestheader_allowed_names.is_empty() && overlap(&ca, config.client_ca.as_deref()) {
                let why = "must be specified to ensure regular client certificates cannot set authenticating proxy headers for \
                     arbitrary users: --requestheader-client-ca-file and --client-ca-file contain overlapping certificates";
                return Err(ArgsError::Value { flag: "requestheader-allowed-names", why: why.to_owned() });
            }
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
        accounts.max_expiration =
            duration("service-account-max-token-expiration", &self.service_account_max_token_expiration)?
                .as_secs() as i64;
        accounts.extend_expiration = self.service_account_extend_token_expiration;
        config.service_cidrs = self.service_cluster_ip_range.clone();
        config.node_ports = node_ports(&self.service_node_port_range)?;
        let policies = self.policies()?;
        config.authorization = self.authorizers(policies.as_ref())?;
        if let Some(path) = &self.authorization_config {
            let text = read_text("authorization-config", path)?;
            config.reloaded.authorization = Some((Followed { path: path.clone(), text }, policies));
        }
        config.anonymous = Anonymous::Always;
        if let Some(path) = &self.authentication_config {
            let text = read_text("authentication-config", path)?;
            // Tokens of the server's own issuers are never judged by somebody else's rules.
            let own = self.service_account_issuer.clone();
            let (issuers, anonymous) = config_files::authentication(&text, &own)
                .map_err(|source| ArgsError::File { flag: "authentication-config", source })?;
            config.oidc = issuers;
            config.reloaded.authentication = Some((Followed { path: path.clone(), text }, own));
            match (anonymous, self.anonymous_auth) {
                (Some(_), Some(_)) => {
                    let why = "the file of --authentication-config decides about it".to_owned();
                    return Err(ArgsError::Value { flag: "anonymous-auth", why });
                }
                (Some(anonymous), None) => config.anonymous = anonymous,
                (None, _) => {}
            }
        }
        if self.anonymous_auth == Some(false) {
            config.anonymous = Anonymous::Never;
        } else if config.authorization.iter().any(|mode| matches!(mode, AuthorizationMode::AlwaysAllow)) {
            // Else whoever reaches the server could do everything.
            tracing::warn!("anonymous requests are refused, since the authorizer AlwaysAllow is on");
            config.anonymous = Anonymous::Never;
        }
        config.bootstrap_tokens = self.enable_bootstrap_token_auth;
        if let Some(path) = &self.token_auth_file {
            config.static_tokens = read_text("token-auth-file", path)?;
        }
        if let Some(path) = &self.authentication_token_webhook_config_file {
            config.token_webhook = Some(read_text("authentication-token-webhook-config-file", path)?);
            config.token_webhook_version = self.authentication_token_webhook_version.clone();
            config.token_webhook_ttl = self.authentication_token_webhook_cache_ttl;
        }
        if let Some(issuer) = self.oidc(maybe("oidc-ca-file", self.oidc_ca_file.as_ref())?)? {
            config.oidc.push(issuer);
        }
        config.enabled_admission = self.enable_admission_plugins.clone();
        config.disabled_admission = self.disable_admission_plugins.clone();
        if !self.admission_control.is_empty() {
            config.enabled_admission = self.admission_control.clone();
            config.disabled_admission = optional::all_but(&self.admission_control);
        }
        if let Some(path) = &self.admission_control_config_file {
            config.settings.admission = Configuration::load(path)?;
        }
        config.audit = self.audit.complete()?;
        if let Some(path) = &self.encryption_provider_config {
            let text = read_text("encryption-provider-config", path)?;
            if self.encryption_provider_config_automatic_reload {
                config.reloaded.encryption = Some(Followed { path: path.clone(), text: text.clone() });
            }
            config.encryption = Some(text);
        }
        config.max_in_flight = self.max_requests_inflight + self.max_mutating_requests_inflight;
        config.request_timeout = duration("request-timeout", &self.request_timeout)?;
        // Told to clients: in the document about the issuer, and where discovery says who serves.
        let external = &mut config.settings.external_host;
        *external = external.take().or_else(|| own.map(|own| own.to_string()));
        config.advertise =
            own.filter(|own| !own.is_loopback()).map(|address| Advertise { address, port: self.secure_port });
        let listener =
            serving::listen(self.bind_address, self.secure_port, self.permit_port_sharing).map_err(
                |source| ArgsError::Listen { address: self.bind_address, port: self.secure_port, source },
            )?;
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
                let mut client = tls::client_config(tls::roots(&ca, "the etcd CA")?, identity)?;
                // Without it etcd takes the connection for one of its HTTP/1 clients.
                client.alpn_protocols = vec![b"h2".to_vec()];
                Some(Arc::new(client))
            }
            None => None,
        };
        Ok(etcd::remote::RemoteConfig { endpoints: self.etcd_servers.clone(), tls })
    }

    /// What can be judged without touching anything.
    fn check(&self) -> Result<(), ArgsError> {
        let wrong = |flag, why: &str| Err(ArgsError::Value { flag, why: why.to_owned() });
        if self.etcd_servers.is_empty() {
            return wrong("etcd-servers", "is missing");
        }
        if self.storage_backend != "etcd3" {
            return wrong("storage-backend", "only etcd3 is supported");
        }
        if !self.etcd_prefix.starts_with('/') {
            return wrong("etcd-prefix", "must begin with a slash");
        }
        self.audit.check()?;
        match gates::check(&self.feature_gates) {
            Ok(vain) if vain.is_empty() => {}
            Ok(vain) => tracing::warn!(gates = vain.join(","), "these feature gates have no effect here"),
            Err(why) => return wrong("feature-gates", &why),
        }
        let chosen = self.enable_admission_plugins.is_empty() && self.disable_admission_plugins.is_empty();
        if !self.admission_control.is_empty() && !chosen {
            return wrong("admission-control", "does not go with the flags that enable and disable plug-ins");
        }
        if duration("request-timeout", &self.request_timeout)?.is_zero() {
            return wrong("request-timeout", "must not be zero");
        }
        if self.max_requests_inflight + self.max_mutating_requests_inflight == 0
            && self.settings.enable_priority_and_fairness
        {
            return wrong("max-requests-inflight", "leaves no room for any request");
        }
        Ok(())
    }

    fn policies(&self) -> Result<Option<Arc<Policies>>, ArgsError> {
        let flag = "authorization-policy-file";
        let Some(path) = &self.authorization_policy_file else { return Ok(None) };
        match Policies::parse(&read_text(flag, path)?) {
            Ok(policies) => Ok(Some(Arc::new(policies))),
            Err(error) => Err(ArgsError::Value { flag, why: telemetry::chain(&error).to_string() }),
        }
    }

    fn authorizers(&self, policies: Option<&Arc<Policies>>) -> Result<Vec<AuthorizationMode>, ArgsError> {
        if let Some(path) = &self.authorization_config {
            return config_files::authorization(&read_text("authorization-config", path)?, policies)
                .map_err(|source| ArgsError::File { flag: "authorization-config", source });
        }
        let modes = &self.authorization_mode;
        if modes.is_empty() {
            return Ok(vec![AuthorizationMode::AlwaysAllow]);
        }
        if modes.iter().any(|mode| mode == "Webhook") != self.authorization_webhook_config_file.is_some() {
            let why = "goes together with the mode Webhook".to_owned();
            return Err(ArgsError::Value { flag: "authorization-webhook-config-file", why });
        }
        if modes.iter().any(|mode| mode == "ABAC") != policies.is_some() {
            let why = "goes together with the mode ABAC".to_owned();
            return Err(ArgsError::Value { flag: "authorization-policy-file", why });
        }
        modes.iter().map(|mode| self.authorizer(mode, policies)).collect()
    }

    fn authorizer(
        &self,
        mode: &str,
        policies: Option<&Arc<Policies>>,
    ) -> Result<AuthorizationMode, ArgsError> {
        if let ("ABAC", Some(policies)) = (mode, policies) {
            return Ok(AuthorizationMode::Abac(policies.clone()));
        }
        Ok(match (mode, &self.authorization_webhook_config_file) {
            ("AlwaysAllow", _) => AuthorizationMode::AlwaysAllow,
            ("AlwaysDeny", _) => AuthorizationMode::AlwaysDeny,
            ("Node", _) => AuthorizationMode::Node,
            ("RBAC", _) => AuthorizationMode::Rbac,
            ("Webhook", Some(path)) => {
                let text = read_text("authorization-webhook-config-file", path)?;
                let mut webhook = WebhookConfig::new(text, &self.authorization_webhook_version);
                webhook.allowed_for = duration(
                    "authorization-webhook-cache-authorized-ttl",
                    &self.authorization_webhook_cache_authorized_ttl,
                )?;
                webhook.refused_for = duration(
                    "authorization-webhook-cache-unauthorized-ttl",
                    &self.authorization_webhook_cache_unauthorized_ttl,
                )?;
                AuthorizationMode::Webhook(Box::new(webhook))
            }
            (other, _) => {
                let why = format!("{other:?} is not supported");
                return Err(ArgsError::Value { flag: "authorization-mode", why });
            }
        })
    }

    /// Certificates with the names that they are for: those that were said, or those that stand in them.
    fn named_certificates(&self) -> Result<Vec<(String, KeyPair)>, ArgsError> {
        let flag = "tls-sni-cert-key";
        let mut found = Vec::new();
        for text in &self.tls_sni_cert_key {
            let (files, names) = text.split_once(':').unwrap_or((text, ""));
            let (certificate, key) = files.split_once(',').ok_or_else(|| ArgsError::Value {
                flag,
                why: format!("{text:?} is not of the form cert.pem,key.pem:name"),
            })?;
            let pair = KeyPair {
                certificate: read(flag, Path::new(certificate.trim()))?,
                key: read(flag, Path::new(key.trim()))?,
            };
            let names: Vec<String> = if names.is_empty() {
                tls::names(&pair.certificate, "a certificate by name")?
            } else {
                names.split(',').map(|name| name.trim().to_owned()).collect()
            };
            found.extend(names.into_iter().map(|name| (name, pair.clone())));
        }
        Ok(found)
    }

    /// Logs as these flags say; call it before anything else.
    pub fn start_logging(&self) {
        self.logging.start();
    }

    fn oidc(&self, ca: Option<Vec<u8>>) -> Result<Option<(IssuerConfig, Option<Vec<u8>>)>, ArgsError> {
        let Some(url) = self.oidc_issuer_url.clone() else { return Ok(None) };
        let wrong = |flag, why: String| ArgsError::Value { flag, why };
        if !url.starts_with("https://") {
            return Err(wrong("oidc-issuer-url", "URL scheme must be https".to_owned()));
        }
        let mut required_claims = Vec::new();
        for text in &self.oidc_required_claim {
            let pair = text.split_once('=').ok_or_else(|| {
                wrong("oidc-required-claim", format!("{text:?} is not of the form claim=value"))
            })?;
            required_claims.push((pair.0.to_owned(), pair.1.to_owned()));
        }
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
            required_claims,
            algorithms: self.oidc_signing_algs.clone(),
            ..IssuerConfig::default()
        };
        Ok(Some((issuer, ca)))
    }
}

/// Whether two bundles have a certificate in common.
fn overlap(one: &[u8], other: Option<&[u8]>) -> bool {
    let certificates = |pem: &[u8]| pki::pem::certificates(pem).unwrap_or_default();
    let other = other.map(certificates).unwrap_or_default();
    certificates(one).iter().any(|own| other.contains(own))
}

/// Runs an API server until stopped. After the stop it serves on for `--shutdown-delay-duration`, so that whoever
/// watches /readyz sends nobody any more; then requests in flight finish and watches end.
pub async fn run(args: KubeApiserverArgs, stop: &Stop) -> Result<(), ArgsError> {
    match args.version.as_deref() {
        None | Some("false") => {}
        Some(version) if version.starts_with('v') => {
            crate::endpoints::report(version).map_err(|why| ArgsError::Value { flag: "version", why })?;
        }
        Some(form) => {
            // Standard output is where people look for the answer to this question.
            let _ = match form {
                "raw" => writeln!(std::io::stdout(), "{}", crate::endpoints::version()),
                _ => writeln!(std::io::stdout(), "Kubernetes {}", crate::endpoints::VERSION),
            };
            return Ok(());
        }
    }
    let delay = duration("shutdown-delay-duration", &args.shutdown_delay_duration)?;
    let tasks = Tasks::new();
    let starting = async {
        let config = args.complete(&tasks).await?;
        Ok::<_, ArgsError>(ApiServer::start(config, &tasks).await?)
    };
    if let Some(server) = stop.or(starting).await {
        let server = server?;
        stop.requested().await;
        server.say_not_ready();
        server.leave_service().await;
        tokio::time::sleep(delay).await;
        server.send_clients_away().await;
    }
    let late = tasks.drain(Duration::from_secs(20)).await;
    if !late.is_empty() {
        tracing::warn!(?late, "tasks did not end in time");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: KubeApiserverArgs,
    }

    fn parse(more: &[&str]) -> Result<KubeApiserverArgs, String> {
        let base = ["x", "--etcd-servers=http://a", "--tls-cert-file=c", "--tls-private-key-file=k"];
        let program = <Program as clap::Parser>::try_parse_from(base.iter().chain(more));
        program.map(|program| program.args).map_err(|error| error.to_string())
    }

    #[test]
    fn it_can_be_a_subcommand_of_a_program_with_a_version() {
        #[derive(clap::Parser)]
        #[command(version, propagate_version = true)]
        enum Whole {
            KubeApiserver(Box<KubeApiserverArgs>),
        }
        <Whole as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn another_version_is_told_only_of_this_one() {
        assert!(crate::endpoints::report("v1.35.0-custom").is_err());
        assert!(crate::endpoints::report("v1.36.01").is_err());
        assert!(parse(&["--version=v1.36.0-custom"]).is_ok());
    }

    #[test]
    fn an_authority_of_clients_is_not_one_of_proxies() {
        let key =
            || std::sync::Arc::new(pki::PrivateKey::generate(pki::Algorithm::EcdsaP256).expect("a key"));
        let authority = |name: &str| {
            let now = jiff::Timestamp::now();
            let request = pki::Request {
                subject: pki::Subject::new(name, &[]),
                sans: Vec::new(),
                usages: pki::Usages::authority(),
                is_ca: true,
                not_before: now,
                not_after: now + jiff::SignedDuration::from_hours(1),
            };
            pki::Pair::self_signed(&request, key()).expect("a certificate").certificate_pem().into_bytes()
        };
        let (one, two) = (authority("one"), authority("two"));
        let both = [one.clone(), two.clone()].concat();
        assert!(overlap(&one, Some(&both)) && !overlap(&one, Some(&two)) && !overlap(&one, None));
    }

    /// Every flag that upstream's program has, each with a value that it takes there.
    #[test]
    fn every_flag_of_upstream_is_taken_or_refused_with_a_sentence() {
        for line in include_str!("args/flags.txt").lines() {
            let (flag, refusal) =
                line.split_once(" ! ").map_or((line, None), |(flag, why)| (flag, Some(why)));
            let more = if flag.starts_with("--oidc-issuer") { "--oidc-client-id=x" } else { "--v=2" };
            match (parse(&[flag, more]), refusal) {
                (Ok(_), None) => {}
                (Err(said), Some(why)) => assert!(said.contains(why), "{flag}: {said}"),
                (Ok(_), Some(_)) => panic!("{flag} is taken, though the table says that it is refused"),
                (Err(said), None) => panic!("{flag}: {said}"),
            }
        }
    }

    #[test]
    fn the_guide_names_every_flag_that_is_not_honoured() {
        let guide = include_str!("../../../docs/guides/apiserver.md");
        let missing: Vec<&str> =
            others::names().filter(|name| !guide.contains(&format!("`--{name}`"))).collect();
        assert_eq!(missing, ["x"; 0]);
    }

    #[test]
    fn contradictions_and_unknown_flags_are_refused_by_name() {
        let said = |more: &[&str]| match parse(more) {
            Err(text) => text,
            Ok(args) => match args.check().and_then(|()| args.authorizers(None).map(drop)) {
                Ok(()) => args.oidc(None).expect_err("refused").to_string(),
                Err(error) => error.to_string(),
            },
        };
        for (more, want) in [
            (&["--no-such-flag"][..], "--no-such-flag"),
            (&["--authorization-mode=Maybe"], "Maybe"),
            (&["--authorization-mode=Webhook"], "authorization-webhook-config-file"),
            (&["--authorization-mode=ABAC"], "authorization-policy-file"),
            (&["--authorization-mode=RBAC", "--authorization-config=f"], "--authorization-config"),
            (&["--storage-backend=etcd2"], "etcd3"),
            (&["--audit-log-path=-"], "audit-policy-file"),
            (&["--feature-gates=Loud"], "Loud"),
            (&["--feature-gates=Loud=true"], "unrecognized"),
            (&["--admission-control=AlwaysAdmit", "--enable-admission-plugins=AlwaysAdmit"], "does not go"),
            (&["--request-timeout=0s"], "request-timeout"),
            (&["--oidc-issuer-url=http://x", "--oidc-client-id=y"], "https"),
            (
                &["--oidc-issuer-url=https://x", "--oidc-client-id=y", "--oidc-required-claim=z"],
                "claim=value",
            ),
        ] {
            let text = said(more);
            assert!(text.contains(want), "{more:?}: {text}");
        }
    }
}
