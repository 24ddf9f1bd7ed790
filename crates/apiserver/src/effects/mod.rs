//! What a write needs from the world, by name, so that the exceptions to the generic store can be counted.
//!
//! An effect that takes something (an address, a port) reserves it before the write and keeps or undoes it after.

mod binding;
mod eviction;
mod services;
mod token;

use api::Effect;
use apimachinery::status::Status;
use serde_json::Value;

use crate::context::Context;
use crate::server::ApiServer;

/// What was taken for a write that has not happened yet.
#[derive(Default)]
pub struct Reserved {
    services: Option<services::Taken>,
}

impl Reserved {
    /// The write happened: what the old object had and the new one has not goes back.
    pub async fn keep(self, server: &ApiServer, object: &Value) {
        if let Some(taken) = self.services {
            taken.keep(server, object).await;
        }
    }

    /// The write did not happen: everything goes back.
    pub async fn undo(self, server: &ApiServer) {
        if let Some(taken) = self.services {
            taken.undo(server).await;
        }
    }
}

/// Takes what the new object needs and fills it in.
pub async fn reserve(
    server: &ApiServer,
    context: &Context,
    new: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<Reserved, Status> {
    let mut reserved = Reserved::default();
    if context.resource.definition.effects.contains(&Effect::AllocateServiceAddresses)
        && context.info.subresource.is_empty()
    {
        reserved.services = Some(services::Taken::take(server, new, old, dry_run).await?);
    }
    Ok(reserved)
}

/// Makes addresses and ports agree with the Services.
pub async fn repair_services(server: &ApiServer) -> Result<(), Status> {
    services::repair(server).await
}

/// Gives back what a removed object had.
pub async fn removed(server: &ApiServer, context: &Context, object: &Value) {
    if context.resource.definition.effects.contains(&Effect::AllocateServiceAddresses) {
        services::release_all(server, object).await;
    }
}

/// Checks and fills that need the caller's identity, on create.
pub fn prepare_create(server: &ApiServer, context: &Context, object: &mut Value) -> Result<(), Status> {
    prepare(server, context, object, None, "")
}

/// The same on update.
pub fn prepare_update(
    server: &ApiServer,
    context: &Context,
    new: &mut Value,
    old: &Value,
    subresource: &str,
) -> Result<(), Status> {
    prepare(server, context, new, Some(old), subresource)
}

fn prepare(
    server: &ApiServer,
    context: &Context,
    new: &mut Value,
    old: Option<&Value>,
    _subresource: &str,
) -> Result<(), Status> {
    let definition = &context.resource.definition;
    if definition.effects.contains(&Effect::CheckEscalation) {
        server.check_escalation(context, new, old)?;
    }
    let names = &definition.names;
    // A request to sign names its requester, whatever the client wrote.
    if names.group == "certificates.k8s.io" && names.plural == "certificatesigningrequests" && old.is_none() {
        let user = &context.user;
        new["spec"]["username"] = Value::from(user.name.clone());
        new["spec"]["uid"] = Value::from(user.uid.clone());
        new["spec"]["groups"] = Value::from(user.groups.clone());
        if !user.extra.is_empty() {
            new["spec"]["extra"] = serde_json::to_value(&user.extra).unwrap_or_default();
        }
    }
    Ok(())
}
