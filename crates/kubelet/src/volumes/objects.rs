//! ConfigMaps and Secrets that pods of this node refer to, each followed by its own watch while someone needs it.
//!
//! A pod worker holds a [`Watching`] per reference; the last one dropped ends the watch. So the node reads only objects
//! of its own pods, as the Node authorizer demands, and an update reaches the files at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Informer, Key, ListOptions, Metadata, Projection, resources};
use lifecycle::Tasks;
use serde::Deserialize;
use thiserror::Error;
use tokio::sync::Notify;

use crate::environment::Data;

/// How long a first read may take before the caller tries again later.
const FIRST_READ: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }
}

#[derive(Debug, Error)]
pub enum ObjectError {
    #[error("{kind} {namespace}/{name} could not be read from the API server in time")]
    Unread { kind: &'static str, namespace: String, name: String },
}

/// An object with its values decoded.
#[derive(Debug)]
struct Keyed {
    metadata: Metadata,
    data: Data,
}

impl Projection for Keyed {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl<'de> Deserialize<'de> for Keyed {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            metadata: Metadata,
            #[serde(default)]
            data: Option<std::collections::BTreeMap<String, Option<String>>>,
            /// Only ConfigMaps have it; only Secrets have a type. That tells the two apart.
            #[serde(default)]
            binary_data: Option<std::collections::BTreeMap<String, String>>,
            #[serde(default)]
            r#type: Option<String>,
        }
        let wire = Wire::deserialize(input)?;
        let decode = |text: &str| STANDARD.decode(text).map_err(serde::de::Error::custom);
        let mut data = Data::new();
        for (key, value) in wire.data.unwrap_or_default() {
            let value = value.unwrap_or_default();
            let bytes = if wire.r#type.is_some() { decode(&value)? } else { value.into_bytes() };
            data.insert(key, bytes);
        }
        for (key, value) in wire.binary_data.unwrap_or_default() {
            data.insert(key, decode(&value)?);
        }
        Ok(Self { metadata: wire.metadata, data })
    }
}

type Address = (Kind, String, String);

type Listeners = Arc<Mutex<Vec<Weak<Notify>>>>;

struct Followed {
    informer: Informer<Keyed>,
    listeners: Listeners,
    tasks: Tasks,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.tasks.stop().request();
    }
}

/// Keeps an object followed.
#[derive(Clone)]
pub struct Watching(#[allow(dead_code, reason = "held for its Drop")] Arc<Followed>);

/// The followed objects.
pub struct Objects {
    client: Client,
    tasks: Tasks,
    followed: Mutex<HashMap<Address, Weak<Followed>>>,
}

impl Objects {
    pub fn new(client: Client, tasks: Tasks) -> Self {
        Self { client, tasks, followed: Mutex::default() }
    }

    /// Follows an object until the result is dropped; `changed` is notified of each change of it.
    pub fn follow(&self, kind: Kind, namespace: &str, name: &str, changed: &Arc<Notify>) -> Watching {
        let followed = self.followed(kind, namespace, name);
        let mut listeners = followed.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|known| known.strong_count() > 0);
        listeners.push(Arc::downgrade(changed));
        drop(listeners);
        Watching(followed)
    }

    fn followed(&self, kind: Kind, namespace: &str, name: &str) -> Arc<Followed> {
        let mut all = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let address = (kind, namespace.to_owned(), name.to_owned());
        if let Some(known) = all.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let resource = match kind {
            Kind::ConfigMap => &resources::CONFIG_MAPS,
            Kind::Secret => &resources::SECRETS,
        };
        let tasks = Tasks::under(&self.tasks.stop());
        let which = ListOptions::fields(format!("metadata.name={name}"));
        let informer = Informer::start(&self.client, resource, namespace, which, &tasks);
        let listeners = Listeners::default();
        let told = listeners.clone();
        informer.on_change(move |_| {
            for listener in
                told.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade)
            {
                listener.notify_one();
            }
        });
        let followed = Arc::new(Followed { informer, listeners, tasks });
        all.insert(address, Arc::downgrade(&followed));
        followed
    }

    /// The values of an object; `None` if there is none. Not being able to look is an error.
    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Data>, ObjectError> {
        let followed = self.followed(kind, namespace, name);
        tokio::time::timeout(FIRST_READ, followed.informer.synced()).await.map_err(|_| {
            ObjectError::Unread { kind: kind.name(), namespace: namespace.to_owned(), name: name.to_owned() }
        })?;
        Ok(followed.informer.get(&Key::new(namespace, name)).map(|object| object.data.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_by_kind() {
        let map: Keyed = serde_json::from_str(
            r#"{"metadata":{"name":"m"},"data":{"a":"YQ=="},"binaryData":{"b":"Yg=="}}"#,
        )
        .unwrap();
        assert_eq!((map.data["a"].as_slice(), map.data["b"].as_slice()), (&b"YQ=="[..], &b"b"[..]));
        let secret: Keyed =
            serde_json::from_str(r#"{"metadata":{"name":"s"},"type":"Opaque","data":{"a":"YQ=="}}"#).unwrap();
        assert_eq!(secret.data["a"], b"a");
    }
}
