//! Credentials for registries: a pod's pull secrets, then the node's own files.

use std::path::Path;

use cri::{AuthConfig, Keyring};
use sha2::{Digest, Sha256};

use super::records::{Access, SecretAccess};
use crate::environment::Data;

/// A credential that fits an image, and whose it is.
#[derive(Debug, Clone)]
pub struct Offered {
    pub auth: AuthConfig,
    /// Namespace and name of its secret; `None` for the node's own.
    secret: Option<(String, String)>,
}

impl Offered {
    /// Who may use an image that was pulled with it.
    pub fn access(&self) -> Access {
        match &self.secret {
            None => Access::Node,
            Some((namespace, name)) => Access::Secret(SecretAccess {
                namespace: namespace.clone(),
                name: name.clone(),
                credential_hash: self.hash(),
                ..SecretAccess::default()
            }),
        }
    }

    /// Tells equal credentials without keeping them.
    pub fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        let AuthConfig { username, password, auth, server_address, identity_token, registry_token } =
            &self.auth;
        for field in [username, password, auth, server_address, identity_token, registry_token] {
            hasher.update((field.len() as u64).to_be_bytes());
            hasher.update(field.as_bytes());
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// All credentials of a pod on this node, in the order of their use.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    rings: Vec<(Keyring, Option<(String, String)>)>,
}

impl Credentials {
    /// Adds a pull secret. What is no pull secret adds nothing, as upstream has it.
    pub fn add_secret(&mut self, namespace: &str, name: &str, data: &Data) {
        let mut keyring = Keyring::default();
        let read = match (data.get(".dockerconfigjson"), data.get(".dockercfg")) {
            (Some(text), _) => keyring.add_config(text),
            (None, Some(text)) => keyring.add_legacy(text),
            (None, None) => Ok(()),
        };
        if let Err(error) = read {
            tracing::debug!(namespace, name, %error, "a pull secret cannot be read");
        }
        self.rings.push((keyring, Some((namespace.to_owned(), name.to_owned()))));
    }

    pub fn extend(&mut self, other: Self) {
        self.rings.extend(other.rings);
    }

    /// What fits an image: the pod's secrets in their order, the longest place of each first, then the node's.
    pub fn for_image(&self, image: &str) -> Vec<Offered> {
        let name = repository(image);
        let offered = |(keyring, secret): &(Keyring, Option<(String, String)>)| {
            let fitting = keyring.lookup(&name).into_iter().cloned();
            fitting.map(|auth| Offered { auth, secret: secret.clone() }).collect::<Vec<_>>()
        };
        self.rings.iter().flat_map(offered).collect()
    }
}

/// The node's own, where upstream's kubelet looks for them.
pub fn of_node(root: &Path) -> Credentials {
    let mut keyring = Keyring::default();
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker"));
    for directory in [Some(root.to_owned()), home, Some("/.docker".into())].into_iter().flatten() {
        let path = directory.join("config.json");
        let Ok(text) = std::fs::read(&path) else { continue };
        match keyring.add_config(&text) {
            Ok(()) => break, // the first that is there
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot read registry credentials"),
        }
    }
    Credentials { rings: vec![(keyring, None)] }
}

/// Registry and repository of an image, completed by Docker's rules.
pub fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_named_in_full() {
        let cases = [
            ("nginx", "docker.io/library/nginx"),
            ("team/app:1", "docker.io/team/app"),
            ("r.io:5000/a/b:2", "r.io:5000/a/b"),
            ("r.io/a@sha256:00", "r.io/a"),
            ("localhost/a:1@sha256:00", "localhost/a"),
        ];
        for (image, name) in cases {
            assert_eq!(repository(image), name);
        }
    }

    #[test]
    fn secrets_are_tried_in_their_order_and_the_longest_place_first() {
        let mut all = Credentials::default();
        let secret =
            |text: &str| -> Data { [(".dockerconfigjson".to_owned(), text.as_bytes().to_vec())].into() };
        let auth = |name: &str| format!(r#"{{"username":"{name}","password":"p"}}"#);
        all.add_secret(
            "ns",
            "a",
            &secret(&format!(r#"{{"auths":{{"r.io":{},"r.io/team":{}}}}}"#, auth("host"), auth("team"))),
        );
        all.add_secret("ns", "broken", &secret("no json"));
        all.add_secret(
            "ns",
            "b",
            &secret(&format!(r#"{{"auths":{{"https://index.docker.io/v1/":{}}}}}"#, auth("hub"))),
        );
        let names = |image: &str| {
            let fitting = all.for_image(image);
            fitting.iter().map(|one| one.auth.username.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("r.io/team/app:1"), ["team", "host"]);
        assert_eq!(names("nginx"), ["hub"]);
        assert!(names("other.io/x").is_empty());
        let fitting = all.for_image("nginx");
        assert!(
            matches!(fitting[0].access(), Access::Secret(one) if one.name == "b" && one.credential_hash.len() == 64)
        );
    }
}
