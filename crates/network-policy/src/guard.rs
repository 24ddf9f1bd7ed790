//! A pod network whose pods are let in only once their policies are in force.

use std::collections::HashSet;
use std::sync::Arc;

use cni::{Attachment, BoxFuture, Network, PodRef};
use tracing::warn;

use crate::compile::Attached;
use crate::sync::{Error, Policies};

/// Any network, with policies. A pod is connected first and shut: the rules drop what comes from or goes to an address that was
/// not let in. `add` answers when it is.
pub struct Guard<N: ?Sized> {
    policies: Policies,
    network: Arc<N>,
}

impl<N: Network + ?Sized> Guard<N> {
    pub fn new(policies: Policies, network: Arc<N>) -> Self {
        Self { policies, network }
    }

    async fn connect(&self, pod: &PodRef) -> cni::Result<Attachment> {
        let explain = |error| match error {
            Error::NotSynced | Error::UnknownPod { .. } => cni::Error::NotReady { reason: error.to_string() },
            error => {
                let doing = format!("putting the policies of pod {}/{} in force", pod.namespace, pod.name);
                cni::Error::failed(doing, error)
            }
        };
        // Rules that an earlier process left may let in an address that is to be this pod's.
        self.policies.ready().await.map_err(explain)?;
        let attachment = self.network.add(pod).await?;
        let attached = Attached {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            addresses: attachment.addresses.clone(),
        };
        self.policies.admit(&pod.sandbox_id, attached).await.map_err(explain)?;
        Ok(attachment)
    }
}

impl<N: Network + ?Sized> Network for Guard<N> {
    fn add<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, cni::Result<Attachment>> {
        Box::pin(self.connect(pod))
    }

    fn del<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, cni::Result<()>> {
        Box::pin(async {
            // Before the address is free: whoever has it next must not begin with this pod's rules.
            if let Err(error) = self.policies.release(&pod.sandbox_id).await {
                warn!(sandbox = %pod.sandbox_id, error = %telemetry::chain(&error), "rules of a pod stay for now");
            }
            self.network.del(pod).await
        })
    }

    fn check<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, cni::Result<Option<Attachment>>> {
        self.network.check(pod)
    }

    fn status(&self) -> BoxFuture<'_, cni::Result<()>> {
        self.network.status()
    }

    fn gc<'a>(&'a self, live: &'a HashSet<String>) -> BoxFuture<'a, cni::Result<()>> {
        self.policies.retain(live);
        self.network.gc(live)
    }
}
