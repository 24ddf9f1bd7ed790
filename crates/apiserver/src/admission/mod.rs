//! Admission: what a cluster insists on beyond what a kind says. Small plug-ins, asked in upstream's order.
//!
//! Mutating plug-ins see the new object before validation, validating ones after; quota is charged last, because
//! nothing may refuse the write after that except the store. Policies run between the built-in plug-ins and quota; a
//! policy that changed the object gives the plug-ins and the policies that want it a second turn. Webhooks are asked after
//! the policies, before anything is charged.

mod certificates;
pub mod configuration;
mod limit_ranger;
mod namespace_lifecycle;
mod node_restriction;
pub mod optional;
mod pod_resize;
pub mod pod_security;
mod pods;
pub mod policies;
mod privileged;
pub mod quota;
mod service_account;
mod storage;
pub mod webhooks;

use std::time::Instant;

use apimachinery::status::Status;
use serde_json::Value;

use crate::context::Context;
use crate::metrics::chain::Steps;
use crate::metrics::page::Page;
use crate::server::ApiServer;
use crate::settings::Settings;

/// What a request does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes it.
    Create,
    /// Changes it.
    Update,
    /// Removes it.
    Delete,
    /// Opens a stream to it.
    Connect,
}

/// A request as plug-ins see it.
pub struct Request<'a> {
    /// Who, what, where.
    pub context: &'a Context,
    /// Create, update, delete or connect.
    pub operation: Operation,
    /// The subresource, or nothing.
    pub subresource: &'a str,
    /// Nothing will be stored.
    pub dry_run: bool,
    charges: Vec<quota::Charge>,
}

impl<'a> Request<'a> {
    /// A request.
    pub fn new(context: &'a Context, operation: Operation, subresource: &'a str, dry_run: bool) -> Self {
        Self { context, operation, subresource, dry_run, charges: Vec::new() }
    }

    /// Whether it is about this core or group resource itself.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty()
            && self.context.resource.group() == group
            && self.context.resource.plural() == plural
    }

    /// 403 with a reason.
    pub fn forbid(&self, name: &str, why: &str) -> Status {
        Status::forbidden(self.context.resource.group(), self.context.resource.plural(), name, why)
    }
}

/// One rule of the cluster. It looks into the server's caches and never waits.
pub trait Plugin: Send + Sync {
    /// Upstream's name of it.
    fn name(&self) -> &'static str;

    /// Changes the new object.
    fn mutate(
        &self,
        _server: &ApiServer,
        _request: &Request<'_>,
        _object: &mut Value,
        _old: Option<&Value>,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// Refuses what may not be.
    fn validate(
        &self,
        _server: &ApiServer,
        _request: &Request<'_>,
        _object: Option<&Value>,
        _old: Option<&Value>,
    ) -> Result<(), Status> {
        Ok(())
    }
}

/// All plug-ins that are on.
pub struct Admission {
    plugins: Vec<(Box<dyn Plugin>, Steps)>,
    mutating_policies: bool,
    validating_policies: bool,
    mutating_webhooks: bool,
    validating_webhooks: bool,
    quota: bool,
}

impl Admission {
    /// The default plug-ins, less `disabled`, with `enabled`.
    pub fn new(
        disabled: &[String],
        enabled: &[String],
        settings: &Settings,
    ) -> Result<Self, optional::PluginError> {
        let all: Vec<Box<dyn Plugin>> = vec![
            Box::new(namespace_lifecycle::NamespaceLifecycle),
            Box::new(limit_ranger::LimitRanger),
            Box::new(service_account::ServiceAccount),
            Box::new(node_restriction::NodeRestriction {
                registration_labels: settings.node_registration_labels.clone(),
            }),
            Box::new(pods::TaintNodesByCondition),
            Box::new(pod_security::PodSecurity {
                defaults: settings.admission.defaults.clone(),
                exemptions: settings.admission.exemptions.clone(),
            }),
            Box::new(pods::Priority),
            Box::new(pods::DefaultTolerationSeconds {
                not_ready: settings.not_ready_seconds,
                unreachable: settings.unreachable_seconds,
            }),
            Box::new(storage::DefaultStorageClass),
            Box::new(storage::StorageObjectInUseProtection),
            Box::new(storage::PersistentVolumeClaimResize),
            Box::new(pods::RuntimeClass),
            Box::new(certificates::CertificateApproval),
            Box::new(certificates::CertificateSigning),
            Box::new(certificates::CertificateSubjectRestriction),
            Box::new(storage::DefaultIngressClass),
            Box::new(pods::PodTopologyLabels),
            Box::new(pod_resize::PodResizeValidator),
        ];
        let further = optional::all();
        let mut built_in: Vec<&str> = all.iter().chain(&further).map(|plugin| plugin.name()).collect();
        built_in.extend([
            "MutatingAdmissionPolicy",
            "MutatingAdmissionWebhook",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionWebhook",
            "ResourceQuota",
        ]);
        optional::check(&built_in, disabled, enabled)?;
        let off = |name: &str| disabled.iter().any(|own| own == name);
        let on = |name: &str| enabled.iter().any(|own| own == name);
        let mut plugins: Vec<Box<dyn Plugin>> =
            all.into_iter().filter(|plugin| !off(plugin.name())).collect();
        plugins.extend(further.into_iter().filter(|plugin| on(plugin.name())));
        let plugins = plugins.into_iter().map(|plugin| (plugin, Steps::default())).collect();
        Ok(Self {
            plugins,
            mutating_policies: !off("MutatingAdmissionPolicy"),
            validating_policies: !off("ValidatingAdmissionPolicy"),
            mutating_webhooks: !off("MutatingAdmissionWebhook"),
            validating_webhooks: !off("ValidatingAdmissionWebhook"),
            quota: !off("ResourceQuota"),
        })
    }

    /// Lets every plug-in change the object.
    pub async fn mutate(
        &self,
        server: &ApiServer,
        request: &mut Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let began = Instant::now();
        let outcome = self.change(server, request, object, old).await;
        server.metrics.chain.steps.add(false, request.operation, outcome.is_err(), began.elapsed());
        outcome
    }

    /// Plug-ins, then policies, then webhooks. If one of the latter changed something, plug-ins have a second turn, and
    /// so have the policies and webhooks that want it.
    async fn change(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        self.plug_ins(server, request, object, old)?;
        let policies = self.mutating_policies && server.policies.any_mutating();
        let webhooks = self.mutating_webhooks && server.webhooks.any_mutating();
        let mut changed = policies && server.policies.mutate(server, request, object, old, false)?;
        let mut seen = Vec::new();
        if webhooks {
            let patched;
            (seen, patched) = Box::pin(server.webhooks.mutate(server, request, object, old)).await?;
            changed |= patched;
        }
        if changed {
            self.plug_ins(server, request, object, old)?;
            if policies {
                server.policies.mutate(server, request, object, old, true)?;
            }
        }
        if !seen.is_empty() {
            Box::pin(server.webhooks.mutate_again(server, request, object, old, &seen)).await?;
        }
        Ok(())
    }

    /// All of admission for an object that is told, not stored: a binding, an eviction, the wish for a token.
    pub async fn admit_told(
        &self,
        server: &ApiServer,
        context: &Context,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<(), Status> {
        let mut request = Request::new(context, Operation::Create, &context.info.subresource, dry_run);
        self.mutate(server, &mut request, object, None).await?;
        self.validate(server, &mut request, Some(object), None).await
    }

    /// The built-in plug-ins alone, for what the server writes itself because of an object that was told.
    pub fn plug_ins(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let mut at = Instant::now();
        for (plugin, steps) in &self.plugins {
            let outcome = plugin.mutate(server, request, object, old);
            let now = Instant::now();
            steps.add(false, request.operation, outcome.is_err(), now - at);
            at = now;
            outcome?;
        }
        Ok(())
    }

    /// Lets every plug-in refuse.
    pub async fn validate(
        &self,
        server: &ApiServer,
        request: &mut Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let began = Instant::now();
        let outcome = self.judge(server, request, object, old).await;
        server.metrics.chain.steps.add(true, request.operation, outcome.is_err(), began.elapsed());
        outcome
    }

    async fn judge(
        &self,
        server: &ApiServer,
        request: &mut Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if !server.settings.privileged {
            privileged::check(request, object, old)?;
        }
        let mut at = Instant::now();
        for (plugin, steps) in &self.plugins {
            let outcome = plugin.validate(server, request, object, old);
            let now = Instant::now();
            steps.add(true, request.operation, outcome.is_err(), now - at);
            at = now;
            outcome?;
        }
        if self.validating_policies {
            server.policies.validate(server, request, object, old)?;
        }
        let (mutating, validating) = (self.mutating_webhooks, self.validating_webhooks);
        if (mutating || validating) && server.webhooks.any() {
            let asking = server.webhooks.validate(server, request, mutating, validating, object, old);
            Box::pin(asking).await?;
        }
        if self.quota {
            request.charges = quota::charge(server, request, object, old).await?;
        }
        Ok(())
    }

    /// The times of each plug-in.
    pub fn print(&self, page: &mut Page) {
        let name = "apiserver_admission_controller_admission_duration_seconds";
        page.head(name, "histogram", "Each admission plug-in by operation and step (admit, validate).");
        for (plugin, steps) in &self.plugins {
            steps.print(page, name, &format!("name=\"{}\",", plugin.name()));
        }
    }

    /// Gives back what validation charged, because the write did not happen.
    pub async fn release(&self, server: &ApiServer, request: Request<'_>) {
        quota::release(server, request.charges).await;
    }
}
