//! Every namespace has a ConfigMap with the certificate authority of the API server.

use std::sync::Arc;

use controller_runtime::{Context, Controller, Key, Kind, Plan};
use serde_json::json;

use crate::kinds::{ConfigMap, Namespace};

const NAME: &str = "kube-root-ca.crt";
const ENTRY: &str = "ca.crt";

/// What one namespace's copy depends on.
pub struct View {
    /// The namespace.
    pub namespace: Arc<Namespace>,
    /// The copy.
    pub copy: Option<Arc<ConfigMap>>,
    /// What it should say.
    pub pem: Arc<str>,
}

/// Decides on one namespace.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    if view.namespace.metadata.is_terminating() || &*view.namespace.status.phase == "Terminating" {
        return plan;
    }
    match &view.copy {
        None => {
            let note =
                "The certificate authority that vouches for this cluster's API server inside the cluster";
            let map = json!({
                "metadata": {"name": NAME, "namespace": view.namespace.metadata.name,
                    "annotations": {"kubernetes.io/description": note}},
                "data": {ENTRY: &*view.pem},
            });
            plan.create(&ConfigMap::RESOURCE, map).tolerant();
        }
        Some(copy) => {
            let right = copy.data.len() == 1 && copy.data.get(ENTRY).is_some_and(|pem| **pem == *view.pem);
            if !right {
                let mut data = serde_json::Map::new();
                data.extend(copy.data.keys().map(|name| (name.to_string(), serde_json::Value::Null)));
                data.insert(ENTRY.into(), json!(&*view.pem));
                plan.update(&**copy, json!({"data": data}));
            }
        }
    }
    plan
}

/// The controller, publishing this certificate.
pub fn controller(pem: Arc<str>) -> Controller {
    let gather = move |context: &Context| {
        let namespace = context.object::<Namespace>()?;
        let key = Key::new(&namespace.metadata.name, NAME);
        Some(View { copy: context.caches.of::<ConfigMap>().get(&key), namespace, pem: pem.clone() })
    };
    Controller::new("root-ca-certificate-publisher-controller", gather, reconcile)
        .acting_as("root-ca-cert-publisher")
        .for_kind::<Namespace>()
        .watching::<ConfigMap>(|_, change| {
            let metadata = &change.latest().metadata;
            if &*metadata.name == NAME { vec![Key::cluster(&metadata.namespace)] } else { Vec::new() }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn plan(copy: Option<serde_json::Value>) -> Plan {
        let namespace = Arc::new(object(json!({"metadata":{"name":"n"}})));
        reconcile(&View { namespace, copy: copy.map(|copy| Arc::new(object(copy))), pem: "PEM".into() })
    }

    #[test]
    fn the_copy_is_made_and_kept_right() {
        let copy = |data| json!({"metadata":{"name":NAME,"namespace":"n"},"data":data});
        assert_eq!(plan(None).creates()[0]["data"], json!({"ca.crt":"PEM"}));
        assert!(plan(Some(copy(json!({"ca.crt":"PEM"})))).is_empty());
        let changed = plan(Some(copy(json!({"ca.crt":"old","x":"y"}))));
        assert_eq!(changed.changes()[0].1["data"], json!({"ca.crt":"PEM","x":null}));
    }
}
