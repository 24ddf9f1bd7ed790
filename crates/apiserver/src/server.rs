//! The server: everything together, started in order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use etcd::StoreError;
use http::{Request, Response};
use lifecycle::{Stop, Tasks};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::admission::{Admission, policies, webhooks};
use crate::authn::{self, Authenticator};
use crate::authz::{Authorizer, node, rbac};
use crate::body::Body;
use crate::cache::{Hub, Observed, Observer};
use crate::config::Config;
use crate::encryption::Encryption;
use crate::flowcontrol::FlowControl;
use crate::foreign;
use crate::front::Front;
use crate::health::{Progress, Written};
use crate::in_flight::InFlightLimits;
use crate::listen::{self, Connection};
use crate::metrics::Metrics;
use crate::metrics::histogram::{CERTIFICATE_SECONDS, Histogram};
use crate::outbound::Webhook;
use crate::proxy::{Backend, Reach};
use crate::registry::{Registry, Resource};
use crate::reload;
use crate::settings::Settings;
use crate::tls;
use crate::user::UserInfo;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Certificates.
    #[error("TLS cannot be set up")]
    Tls(#[from] tls::TlsError),
    /// Keys.
    #[error("service account keys cannot be used")]
    Jwt(#[from] authn::jwt::JwtError),
    /// A listener.
    #[error("a listener cannot be used")]
    Listener(#[source] std::io::Error),
    /// The store.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    /// Encryption at rest.
    #[error("the encryption configuration cannot be used")]
    Encryption(#[from] crate::encryption::EncryptionError),
    /// API versions.
    #[error("the wanted API versions cannot be served: {0}")]
    Runtime(String),
    /// Admission plug-ins.
    #[error("the admission plug-ins cannot be used")]
    Admission(#[from] crate::admission::optional::PluginError),
    /// Auditing.
    #[error("the audit configuration cannot be used")]
    Audit(#[from] crate::audit::AuditError),
    /// A kubeconfig.
    #[error("a webhook cannot be used")]
    Webhook(#[from] crate::outbound::WebhookError),
    /// A setting of the listeners.
    #[error("clients cannot be served as wanted: {0}")]
    Front(String),
    /// The objects that every cluster has could not be written.
    #[error("the default objects cannot be written: {0}")]
    Bootstrap(String),
    /// The caches did not fill in time.
    #[error("the caches did not fill in time")]
    Caches,
}

/// An API server.
pub struct ApiServer {
    pub(crate) hub: Arc<Hub>,
    pub(crate) registry: Registry,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizers: RwLock<Arc<[Authorizer]>>,
    pub(crate) policy: RwLock<rbac::Policy>,
    pub(crate) graph: RwLock<node::Graph>,
    pub(crate) node_rules: Vec<rbac::Rule>,
    pub(crate) admission: Admission,
    pub(crate) flow: FlowControl,
    /// How users became others last.
    pub(crate) last_modes: crate::impersonate::LastModes,
    pub(crate) audit: Option<Arc<crate::audit::Audit>>,
    pub(crate) metrics: Metrics,
    pub(crate) encryption: Option<Arc<Encryption>>,
    pub(crate) tasks: Tasks,
    pub(crate) stop: Stop,
    pub(crate) event_lease: Mutex<Option<(i64, tokio::time::Instant)>>,
    pub(crate) serving: Arc<tls::ServingCertificates>,
    pub(crate) kubelet_tls: Arc<rustls::ClientConfig>,
    pub(crate) kubelet_address_types: Vec<String>,
    pub(crate) insecure_tls: Arc<rustls::ClientConfig>,
    pub(crate) proxy_identity: Option<crate::config::KeyPair>,
    pub(crate) service_cidrs: Vec<ipnet::IpNet>,
    pub(crate) node_ports: (u16, u16),
    pub(crate) advertise: Option<crate::config::Advertise>,
    /// The port of the first listener.
    pub(crate) secure_port: Option<u16>,
    /// Host and port that clients are told.
    pub(crate) external: Option<String>,
    pub(crate) jwks_uri: String,
    pub(crate) token_limits: (i64, bool),
    pub(crate) request_timeout: Duration,
    pub(crate) event_ttl: Duration,
    pub(crate) extension_config: crate::bootstrap::ExtensionConfig,
    pub(crate) openapi: crate::openapi::Documents,
    pub(crate) crd_changes: crate::crds::Changes,
    pub(crate) policies: crate::admission::policies::Policies,
    pub(crate) webhooks: webhooks::Webhooks,
    pub(crate) discovered: crate::aggregate::Discovered,
    random: SystemRandom,
    ready: AtomicBool,
    pub(crate) written: Progress,
    leaving: AtomicBool,
    addresses: Vec<SocketAddr>,
    pub(crate) settings: Settings,
    pub(crate) in_flight: Option<InFlightLimits>,
    pub(crate) front: Front,
    pub(crate) began: tokio::time::Instant,
    /// Requested when watches are to end, before anything else does.
    pub(crate) last_watches: Stop,
    /// The store's size, and when it was asked for.
    pub(crate) store_size: tokio::sync::Mutex<Option<(tokio::time::Instant, u64)>>,
}

/// The pause before a store that does not answer at the start is asked again.
const STORE_PAUSE: Duration = Duration::from_millis(500);
/// The pause between two looks at what still runs, while stopping.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl ApiServer {
    /// Starts a server: caches filled, default objects written, listeners served. Stops with `tasks`.
    pub async fn start(config: Config, tasks: &Tasks) -> Result<Arc<Self>, StartError> {
        let encryption = match &config.encryption {
            Some(text) => Some(Arc::new(Encryption::parse(text)?)),
            None => None,
        };
        let hub = Hub::new(config.store.clone(), Bytes::from(config.store_prefix.clone()));
        let serving =
            Arc::new(tls::ServingCertificates::new(&config.serving.certificate, &config.serving.key)?);
        for (name, pair) in &config.named_serving {
            serving.add_named(name, &pair.certificate, &pair.key)?;
        }
        let kubelet_identity = match &config.kubelet.client {
            Some(pair) => {
                Some(tls::certified_key(&pair.certificate, &pair.key, "the kubelet client certificate")?)
            }
            None => None,
        };
        let kubelet_tls = match &config.kubelet.ca {
            Some(ca) => tls::client_config(tls::roots(ca, "the kubelet CA")?, kubelet_identity)?,
            None => tls::unverified_client_config(kubelet_identity)?,
        };
        let mut address_types = config.kubelet.address_types.clone();
        if address_types.is_empty() {
            address_types = ["InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname"]
                .map(str::to_owned)
                .into();
        }
        let lookup = Arc::new(crate::lookup::CacheLookup::new(hub.clone()));
        let accounts = &config.service_accounts;
        let signing = accounts.signing_key.as_deref().map(authn::jwt::SigningKey::from_pem).transpose()?;
        let mut keys = Vec::new();
        for pem in &accounts.verifying_keys {
            keys.extend(authn::jwt::VerifyingKey::from_pem(pem)?);
        }
        let issuers = if accounts.issuers.is_empty() {
            vec!["https://kubernetes.default.svc.cluster.local".to_owned()]
        } else {
            accounts.issuers.clone()
        };
        let audiences =
            if accounts.audiences.is_empty() { issuers[..1].to_vec() } else { accounts.audiences.clone() };
        let jwks_uri = if accounts.jwks_uri.is_empty() {
            match external(&config) {
                Some(own) => format!("https://{own}/openid/v1/jwks"),
                None => format!("{}/openid/v1/jwks", issuers[0].trim_end_matches('/')),
            }
        } else {
            accounts.jwks_uri.clone()
        };
        let external = external(&config);
        let secure_port = secure_port(&config);
        let service_accounts = Arc::new(authn::service_account::ServiceAccounts::new(
            signing,
            keys,
            issuers,
            audiences.clone(),
            lookup.clone(),
        ));
        let certificates = match &config.client_ca {
            Some(ca) => {
                Some(authn::x509::CertificateAuthenticator::new(tls::ClientJudge::new(ca, "the client CA")?))
            }
            None => None,
        };
        let request_header = match &config.request_header {
            Some(own) => Some(authn::request_header::RequestHeader {
                authority: authn::x509::CertificateAuthenticator::new(tls::ClientJudge::new(
                    &own.ca,
                    "the request header CA",
                )?),
                allowed_names: own.allowed_names.clone(),
                username_headers: own.username_headers.clone(),
                uid_headers: own.uid_headers.clone(),
                group_headers: own.group_headers.clone(),
                extra_prefixes: own.extra_prefixes.clone(),
            }),
            None => None,
        };
        let oidc = RwLock::new(reload::issuers(&config.oidc, tasks)?);
        let webhook = match &config.token_webhook {
            Some(text) => {
                let mut webhook = Webhook::from_kubeconfig(text, tasks)?;
                webhook.backend.reach.tunnel = config.settings.egress.control_plane.clone();
                Some(authn::webhook::TokenWebhook {
                    webhook,
                    version: config.token_webhook_version.clone(),
                    ttl: config.token_webhook_ttl,
                    remembered: Mutex::default(),
                })
            }
            None => None,
        };
        let authenticator = Authenticator {
            certificate_ends: Histogram::new(CERTIFICATE_SECONDS),
            certificates: RwLock::new(certificates),
            request_header,
            service_accounts,
            static_tokens: authn::static_tokens(&config.static_tokens),
            bootstrap_tokens: config
                .bootstrap_tokens
                .then(|| lookup.clone() as Arc<dyn authn::bootstrap_token::Tokens>),
            oidc,
            webhook,
            anonymous: config.anonymous.clone(),
            audiences,
            remembered: Mutex::default(),
        };
        let authorizers = RwLock::new(reload::authorizers(
            config.authorization,
            config.settings.egress.control_plane.as_ref(),
            tasks,
        )?);
        let audit = match &config.audit {
            Some(own) => Some(Arc::new(crate::audit::Audit::open(own, tasks)?)),
            None => None,
        };
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for listener in config.listeners {
            listener.set_nonblocking(true).map_err(StartError::Listener)?;
            let listener = TcpListener::from_std(listener).map_err(StartError::Listener)?;
            addresses.push(listener.local_addr().map_err(StartError::Listener)?);
            listeners.push(listener);
        }
        let settings = config.settings;
        let front = Front::new(&settings).map_err(StartError::Front)?;
        let speech = listen::Speech { http2: settings.http2, streams: settings.http2_streams };
        let mut definitions = api::builtins();
        config.runtime.check(&definitions).map_err(StartError::Runtime)?;
        definitions.retain(|definition| config.runtime.serves(definition));
        let server = Arc::new(Self {
            hub: hub.clone(),
            registry: Registry::new(definitions),
            authenticator,
            authorizers,
            policy: RwLock::default(),
            graph: RwLock::default(),
            node_rules: node_rules(),
            admission: Admission::new(&config.disabled_admission, &config.enabled_admission, &settings)?,
            flow: FlowControl::new(config.max_in_flight),
            last_modes: Default::default(),
            audit,
            metrics: Metrics::default(),
            encryption,
            tasks: tasks.clone(),
            stop: tasks.stop().child(),
            event_lease: Mutex::default(),
            serving: serving.clone(),
            kubelet_tls: Arc::new(kubelet_tls),
            kubelet_address_types: address_types,
            insecure_tls: Arc::new(tls::unverified_client_config(None)?),
            proxy_identity: config.proxy_client,
            service_cidrs: config.service_cidrs,
            node_ports: config.node_ports,
            advertise: config.advertise,
            secure_port,
            external,
            jwks_uri,
            token_limits: (accounts.max_expiration, accounts.extend_expiration),
            request_timeout: config.request_timeout,
            event_ttl: config.event_ttl,
            extension_config: crate::bootstrap::ExtensionConfig {
                client_ca: config.client_ca.clone(),
                request_header: config.request_header.clone(),
            },
            openapi: crate::openapi::Documents::default(),
            crd_changes: crate::crds::Changes::default(),
            policies: crate::admission::policies::Policies::default(),
            webhooks: webhooks::Webhooks::default(),
            discovered: crate::aggregate::Discovered::default(),
            random: SystemRandom::new(),
            ready: AtomicBool::new(false),
            written: Progress::default(),
            leaving: AtomicBool::new(false),
            addresses,
            in_flight: settings.in_flight.map(|(reading, writing)| InFlightLimits::new(reading, writing)),
            front,
            began: tokio::time::Instant::now(),
            last_watches: tasks.stop().child(),
            store_size: tokio::sync::Mutex::default(),
            settings,
        });
        server.declare_resources();
        tasks.spawn("watch-cache", |stop| hub.clone().run(stop));
        let patience = server.settings.store_patience;
        let until = server.began + patience;
        while let Err(error) = hub.catch_up().await {
            if !matches!(error, StoreError::Unavailable(_)) || tokio::time::Instant::now() >= until {
                return Err(error.into());
            }
            tokio::time::sleep(STORE_PAUSE).await;
        }
        if hub.wait_for(1, patience).await.is_err() {
            return Err(StartError::Caches);
        }
        crate::crds::load(&server).await;
        server.written.note(Written::CustomResources);
        // Listeners answer while the default objects are written: whoever waits for readiness sees it come.
        let mut hints = Vec::new();
        for ca in [&config.client_ca, &config.request_header.map(|own| own.ca)].into_iter().flatten() {
            hints.extend(tls::roots(ca, "a client CA")?.subjects());
        }
        let tls = Arc::new(tls::server_config(serving, hints, &config.tls, speech.http2)?);
        for listener in listeners {
            let (tls, service) = (tls.clone(), server.clone());
            tasks.spawn("api-listener", |stop| listen::serve(listener, tls, speech, service, stop));
        }
        crate::bootstrap::write(&server).await.map_err(|status| StartError::Bootstrap(status.to_string()))?;
        server.ready.store(true, Ordering::Release);
        if let Some(every) = config.compaction_interval {
            let server = server.clone();
            tasks.spawn("compactor", move |stop| async move { server.compact(every, stop).await });
        }
        crate::crds::follow(&server);
        crate::bootstrap::follow(&server);
        crate::kubernetes_service::follow(&server);
        crate::conditions::follow(&server);
        reload::follow(&server, config.reloaded);
        crate::identity::follow(&server);
        let (uses, told) = tokio::sync::mpsc::channel(64);
        server.authenticator.service_accounts.tell_uses(uses);
        crate::legacy_tokens::follow(&server, told);
        info!(addresses = ?server.addresses, revision = server.hub.reached(), "API server is ready");
        Ok(server)
    }

    /// Who is asked what users may do.
    pub(crate) fn authorizers(&self) -> Arc<[Authorizer]> {
        self.authorizers.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Whether its default objects are written.
    pub(crate) fn started(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether it is about to stop.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) || self.stop.is_requested()
    }

    /// Whether it serves and its default objects are written.
    pub fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && !self.is_leaving()
    }

    /// Says no on /readyz from now on, while everything is still served.
    pub fn say_not_ready(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Takes this server out of the endpoints of the `kubernetes` Service.
    pub async fn leave_service(self: &Arc<Self>) {
        crate::kubernetes_service::leave(self).await;
    }

    /// The first part of a gentle stop, as far as it is wanted: new requests are asked to come back later, running ones
    /// are waited for, and watches end one after the other.
    pub async fn send_clients_away(&self) {
        let grace = self.settings.watch_grace;
        if !self.settings.retry_after && grace.is_zero() {
            return;
        }
        self.front.refuse();
        self.until(self.request_timeout, || self.metrics.requests.in_flight() == 0).await;
        if !grace.is_zero() {
            self.last_watches.request();
            let table = self.registry.table();
            let caches: Vec<_> = table.all().filter_map(|one| self.hub.cache(&one.prefix)).collect();
            self.until(grace, || caches.iter().all(|cache| cache.watchers() == 0)).await;
        }
    }

    async fn until(&self, at_most: Duration, done: impl Fn() -> bool) {
        let end = tokio::time::Instant::now() + at_most;
        while !done() && tokio::time::Instant::now() < end {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Serves another certificate from the next connection on.
    pub fn replace_serving_certificate(&self, certificate: &[u8], key: &[u8]) -> Result<(), tls::TlsError> {
        self.serving.replace(certificate, key)
    }

    /// Answers a request in process, as `identity`: the same chain as over the network, without authentication.
    pub async fn handle(self: &Arc<Self>, identity: UserInfo, request: Request<Body>) -> Response<Body> {
        self.clone().serve(Arc::new(identity), request, None).await
    }

    pub(crate) fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        // The system's randomness does not fail after start; zeros would only collide, which every user handles.
        let _ = self.random.fill(&mut bytes);
        bytes
    }

    pub(crate) fn random_u32(&self) -> u32 {
        u32::from_ne_bytes(self.random_bytes())
    }

    /// Between 0 and 1.
    pub(crate) fn chance(&self) -> f64 {
        f64::from(self.random_u32()) / (f64::from(u32::MAX) + 1.0)
    }

    /// A built-in resource by group and plural name.
    pub(crate) fn builtin(
        &self,
        group: &str,
        plural: &str,
    ) -> Result<Arc<Resource>, apimachinery::status::Status> {
        self.registry
            .builtin(group, plural)
            .ok_or_else(|| apimachinery::status::Status::internal(format!("{plural} are not served")))
    }

    fn declare_resources(self: &Arc<Self>) {
        let table = self.registry.table();
        let mut seen = std::collections::HashSet::new();
        for resource in table.all().filter(|resource| resource.definition.is_stored()) {
            if !seen.insert(resource.prefix.clone()) {
                continue;
            }
            let open = self
                .encryption
                .as_ref()
                .map(|encryption| encryption.declare(&resource.prefix, resource.group(), resource.plural()));
            let open = foreign::opener(resource, open);
            self.hub.declare(resource.prefix.clone(), Some(open), self.observers(resource));
        }
    }

    fn observers(self: &Arc<Self>, resource: &Resource) -> Vec<Observer> {
        if resource.plural() == "customresourcedefinitions" {
            return vec![self.crd_changes.observer()];
        }
        let weak = Arc::downgrade(self);
        let kind = match (resource.group(), resource.plural()) {
            ("rbac.authorization.k8s.io", plural) => plural.to_owned(),
            ("", plural @ ("pods" | "persistentvolumes")) => plural.to_owned(),
            ("storage.k8s.io", plural @ "volumeattachments") => plural.to_owned(),
            ("resource.k8s.io", plural @ "resourceslices") => plural.to_owned(),
            ("flowcontrol.apiserver.k8s.io", plural) => plural.to_owned(),
            (policies::GROUP, plural) if policies::KINDS.contains(&plural) => plural.to_owned(),
            (policies::GROUP, plural) if webhooks::KINDS.contains(&plural) => plural.to_owned(),
            _ => return Vec::new(),
        };
        vec![Arc::new(move |observed| {
            if let Some(server) = weak.upgrade() {
                server.observe(&kind, observed);
            }
        })]
    }

    /// Keeps what is derived from objects: the RBAC policy, the node graph, priority levels.
    fn observe(&self, kind: &str, observed: Observed<'_>) {
        let write_policy = || self.policy.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let compiled = &self.metrics.admission.compilation;
        let write_graph = || self.graph.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        match observed {
            Observed::Put(entry) => {
                let (namespace, name) = (entry.namespace(), entry.name());
                if kind == "pods" {
                    let references = node::PodReferences::read(&entry.value);
                    return write_graph().set_pod(namespace, name, references);
                }
                let object = entry.parse();
                match kind {
                    "roles" | "clusterroles" => {
                        let rules = serde_json::from_value(object["rules"].clone()).unwrap_or_default();
                        write_policy().set_role(namespace, name, rules);
                    }
                    "rolebindings" | "clusterrolebindings" => {
                        let subjects: Vec<rbac::Subject> =
                            serde_json::from_value(object["subjects"].clone()).unwrap_or_default();
                        if let Ok(role) = serde_json::from_value(object["roleRef"].clone()) {
                            write_policy().set_binding(namespace, name, role, &subjects);
                        }
                    }
                    "persistentvolumes" => write_graph().set_volume(name, &object),
                    "volumeattachments" => write_graph().set_attachment(name, &object),
                    "resourceslices" => write_graph().set_slice(name, &object),
                    kind if policies::KINDS.contains(&kind) => {
                        self.policies.set(kind, name, Some(&object), compiled)
                    }
                    kind if webhooks::KINDS.contains(&kind) => {
                        self.webhooks.set(kind, name, Some(&object), compiled)
                    }
                    _ => self.flow.set(kind, &object),
                }
            }
            Observed::Gone(entry) => {
                let (namespace, name) = (entry.namespace(), entry.name());
                match kind {
                    "roles" | "clusterroles" => write_policy().remove_role(namespace, name),
                    "rolebindings" | "clusterrolebindings" => write_policy().remove_binding(namespace, name),
                    "pods" => write_graph().remove_pod(namespace, name),
                    "persistentvolumes" => write_graph().remove_volume(name),
                    "volumeattachments" => write_graph().remove_attachment(name),
                    "resourceslices" => write_graph().remove_slice(name),
                    kind if policies::KINDS.contains(&kind) => self.policies.set(kind, name, None, compiled),
                    kind if webhooks::KINDS.contains(&kind) => self.webhooks.set(kind, name, None, compiled),
                    _ => self.flow.remove(kind, name),
                }
            }
        }
    }

    /// Forgets old revisions: each turn those that were current one turn ago.
    async fn compact(&self, every: Duration, stop: Stop) {
        let mut previous = 0;
        while stop.or(tokio::time::sleep(every)).await.is_some() {
            if previous > 0 {
                match self.hub.store().compact(previous).await {
                    // Nothing was written meanwhile, or another API server on the same store was quicker.
                    Ok(()) | Err(etcd::StoreError::Compacted { .. }) => {}
                    Err(error) => warn!(error = %telemetry::chain(&error), "cannot compact the store"),
                }
            }
            previous = self.hub.reached();
        }
    }

    /// The kubelet of a node.
    pub(crate) fn kubelet_backend(&self, host: String, port: u16) -> Backend {
        let reach = Reach { patience: self.settings.kubelet_timeout, ..self.reach() };
        Backend { host, port, tls: Some(self.kubelet_tls.clone()), server_name: None, reach }
    }

    /// How pods and nodes are reached.
    pub(crate) fn reach(&self) -> Reach {
        Reach {
            rate: self.settings.stream_rate,
            tunnel: self.settings.egress.cluster.clone(),
            ..Reach::default()
        }
    }
}

impl listen::Service for ApiServer {
    fn handshake_failed(&self) {
        self.metrics.chain.handshake_errors.fetch_add(1, Ordering::Relaxed);
    }

    async fn call(self: Arc<Self>, connection: Connection, mut request: Request<Body>) -> Response<Body> {
        let pass = match self.front.enter(&connection, &request, || self.chance()) {
            Ok(pass) => pass,
            Err(answer) => return *answer,
        };
        let path = request.uri().path().to_owned();
        let began = std::time::Instant::now();
        let known = self.authenticator.authenticate(&connection, request.headers_mut(), &path).await;
        let name = known.as_ref().ok().map(|user| user.name.as_str());
        self.metrics.chain.authenticated(name, began.elapsed());
        let answer = match known {
            Ok(user) => self.clone().serve(user, request, Some(connection.remote)).await,
            Err(authn::Unauthorized) => Box::pin(self.unauthorized(request, connection.remote)).await,
        };
        self.front.finish(pass, answer)
    }
}

/// The port of the first listener.
fn secure_port(config: &Config) -> Option<u16> {
    Some(config.listeners.first()?.local_addr().ok()?.port())
}

/// Host and port that clients outside know the server by.
fn external(config: &Config) -> Option<String> {
    let port = secure_port(config).unwrap_or(443);
    match (&config.settings.external_host, config.advertise) {
        (Some(host), _) if host.contains(':') => Some(format!("[{host}]:{port}")),
        (Some(host), _) => Some(format!("{host}:{port}")),
        (None, Some(own)) => Some(SocketAddr::new(own.address, own.port).to_string()),
        (None, None) => None,
    }
}

/// The rules of the role `system:node`, from the default policy.
fn node_rules() -> Vec<rbac::Rule> {
    crate::authz::default_policy::objects()
        .into_iter()
        .find(|one| one.object["metadata"]["name"] == "system:node" && one.resource == "clusterroles")
        .and_then(|one| serde_json::from_value(one.object["rules"].clone()).ok())
        .unwrap_or_default()
}
