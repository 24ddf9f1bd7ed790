//! Binds a pod with a request to the API server.

use client::resources;
use futures::future::BoxFuture;
use serde::de::IgnoredAny;
use serde_json::json;

use crate::events::Events;
use crate::framework::{Bind, Bound, Cycle, Plugin};
use crate::handle::Handle;
use crate::types::Pod;

pub struct DefaultBinder;

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }
    fn wakes_on(&self) -> Events {
        Events::NONE
    }
    fn bind(&self) -> Option<&dyn Bind> {
        Some(self)
    }
}

impl Bind for DefaultBinder {
    fn bind<'a>(
        &'a self,
        _cycle: &'a Cycle,
        pod: &'a Pod,
        node: &'a str,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<Bound, client::Error>> {
        Box::pin(async move {
            let meta = &pod.metadata;
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            });
            let api = handle.client.api(&resources::PODS).within(&meta.namespace);
            api.create_sub::<IgnoredAny>(&meta.name, "binding", &binding).await?;
            Ok(Bound::Yes)
        })
    }
}
