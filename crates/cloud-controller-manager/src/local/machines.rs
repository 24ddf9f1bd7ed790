//! What is known of machines: a file per machine, or what its node says of itself.

use std::io::ErrorKind;
use std::path::Path;

use crate::kinds::{MACHINE, Node};
use crate::provider::{Address, CloudError, Instance};

/// The machine of a node by the file of its name. A file that is missing from a directory that can be read says that
/// the machine is gone; so does one that describes another machine than the node was made by.
pub async fn from_file(directory: &Path, node: &Node) -> Result<Option<Instance>, CloudError> {
    let name = &node.metadata.name;
    for ending in ["json", "yaml"] {
        let path = directory.join(format!("{name}.{ending}"));
        let text = match tokio::fs::read_to_string(&path).await {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(CloudError::caused(format!("cannot read {}", path.display()), error)),
        };
        let mut instance: Instance = serde_yaml_ng::from_str(&text).map_err(|error| {
            CloudError::caused(format!("{} does not describe a machine", path.display()), error)
        })?;
        if instance.provider_id.is_empty() {
            instance.provider_id = format!("local://{name}");
        }
        let replaced = !node.spec.provider_id.is_empty() && *node.spec.provider_id != *instance.provider_id;
        return Ok(Some(instance).filter(|_| !replaced));
    }
    // Without the directory nothing is known of any machine.
    match tokio::fs::metadata(directory).await {
        Ok(found) if found.is_dir() => Ok(None),
        Ok(_) => Err(CloudError::new(format!("{} is not a directory", directory.display()))),
        Err(error) => Err(CloudError::caused(format!("cannot read {}", directory.display()), error)),
    }
}

/// The machine of a node by its annotations `machine.kelson.io/zone`, `…/region`, `…/instance-type` and `…/addresses`
/// (`InternalIP=10.0.0.5,ExternalIP=192.0.2.5`).
pub fn from_annotations(node: &Node) -> Result<Instance, CloudError> {
    let text = |name: &str| node.metadata.annotation(&format!("{MACHINE}{name}")).unwrap_or("").to_owned();
    let address = |word: &str| {
        let (kind, address) = word.split_once('=').ok_or_else(|| {
            CloudError::new(format!("{word:?} on node {} is not <type>=<address>", node.metadata.name))
        })?;
        Ok(Address { kind: kind.trim().into(), address: address.trim().into() })
    };
    let listed = text("addresses");
    let words = listed.split(',').filter(|word| !word.trim().is_empty());
    let name = &node.metadata.name;
    let known = Some(node.spec.provider_id.to_string()).filter(|id| !id.is_empty());
    Ok(Instance {
        provider_id: known.unwrap_or_else(|| format!("local://{name}")),
        instance_type: text("instance-type"),
        zone: text("zone"),
        region: text("region"),
        addresses: words.map(address).collect::<Result<_, CloudError>>()?,
        ..Instance::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, provider_id: &str) -> Node {
        serde_json::from_value(json!({"metadata":{"name":name},"spec":{"providerID":provider_id}})).unwrap()
    }

    #[tokio::test]
    async fn a_file_tells_and_a_missing_one_tells_too() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        std::fs::write(
            at.join("a.json"),
            r#"{"zone":"z1","addresses":[{"type":"InternalIP","address":"10.0.0.5"}]}"#,
        )
        .unwrap();
        std::fs::write(at.join("b.yaml"), "shutDown: true\nproviderID: local://m7").unwrap();
        std::fs::write(at.join("c.json"), "{\"zone\": 7, \"zoon\": 1}").unwrap();
        let a = from_file(at, &node("a", "")).await.unwrap().unwrap();
        assert_eq!((&*a.provider_id, &*a.zone, a.addresses.len()), ("local://a", "z1", 1));
        assert!(from_file(at, &node("b", "local://m7")).await.unwrap().unwrap().shut_down);
        assert_eq!(from_file(at, &node("b", "local://m6")).await.unwrap(), None, "another machine by now");
        assert!(from_file(at, &node("c", "")).await.is_err());
        assert_eq!(from_file(at, &node("d", "")).await.unwrap(), None, "gone");
        assert!(from_file(&at.join("none"), &node("d", "")).await.is_err(), "not known is not gone");
    }

    #[test]
    fn annotations_tell_where_no_file_does() {
        let annotated = json!({"metadata":{"name":"a","annotations":{"machine.kelson.io/zone":"z1",
            "machine.kelson.io/addresses":"InternalIP=10.0.0.5, ExternalIP=192.0.2.5"}}});
        let instance = from_annotations(&serde_json::from_value(annotated).unwrap()).unwrap();
        assert_eq!((&*instance.zone, instance.addresses.len()), ("z1", 2));
        let wrong = json!({"metadata":{"name":"a","annotations":{"machine.kelson.io/addresses":"10.0.0.5"}}});
        assert!(from_annotations(&serde_json::from_value(wrong).unwrap()).is_err());
    }
}
