//! Every namespace has a ServiceAccount named `default`.

use std::sync::Arc;

use controller_runtime::{Context, Controller, Key, Kind, Plan};
use serde_json::json;

use crate::kinds::{Namespace, ServiceAccount};

const NAME: &str = "default";

/// What one namespace's accounts depend on.
pub struct View {
    /// The namespace.
    pub namespace: Arc<Namespace>,
    /// Whether the account is there.
    pub exists: bool,
}

/// Decides on one namespace.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    if !view.exists
        && !view.namespace.metadata.is_terminating()
        && &*view.namespace.status.phase != "Terminating"
    {
        let account = json!({"metadata": {"name": NAME, "namespace": view.namespace.metadata.name}});
        plan.create(&ServiceAccount::RESOURCE, account).tolerant();
    }
    plan
}

fn gather(context: &Context) -> Option<View> {
    let namespace = context.object::<Namespace>()?;
    let key = Key::new(&namespace.metadata.name, NAME);
    Some(View { namespace, exists: context.caches.of::<ServiceAccount>().get(&key).is_some() })
}

/// The controller.
pub fn controller() -> Controller {
    Controller::new("serviceaccount-controller", gather, reconcile)
        .acting_as("service-account-controller")
        .for_kind::<Namespace>()
        .watching::<ServiceAccount>(|_, change| {
            let gone = change.new.is_none() && &*change.latest().metadata.name == NAME;
            if gone { vec![Key::cluster(&change.latest().metadata.namespace)] } else { Vec::new() }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn the_account_is_made_where_it_is_missing_and_the_namespace_stays() {
        let cases = [
            (json!({"metadata":{"name":"n"}}), false, 1),
            (json!({"metadata":{"name":"n"}}), true, 0),
            (json!({"metadata":{"name":"n","deletionTimestamp":"2026-01-01T00:00:00Z"}}), false, 0),
        ];
        for (namespace, exists, wanted) in cases {
            let view = View { namespace: Arc::new(object(namespace)), exists };
            assert_eq!(reconcile(&view).creates().len(), wanted);
        }
    }
}
