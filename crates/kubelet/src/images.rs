//! Makes a container's image present, by its pull policy and with the pod's credentials.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cri::{AuthConfig, ImageService, ImageSpec, PodSandboxConfig};
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::environment::Data;
use crate::pod::Container;
use crate::security::ImageUser;
use crate::state::Waiting;

/// What happened, for events.
#[derive(Debug, PartialEq)]
pub enum Note {
    Pulling,
    Pulled(String),
    Failed(&'static str, String),
}

/// An image that is present.
#[derive(Debug, Clone)]
pub struct Present {
    /// What the container is created from.
    pub reference: String,
    pub user: ImageUser,
}

/// Makes the image present. `note` hears of each step.
pub async fn ensure(
    images: &dyn ImageService,
    container: &Container,
    credentials: &[AuthConfig],
    sandbox: &PodSandboxConfig,
    note: &(dyn Fn(Note) + Send + Sync),
) -> Result<Present, Waiting> {
    let image = container.image.as_str();
    if !is_reference(image) {
        let message = format!(
            "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
        );
        note(Note::Failed("InspectFailed", message.clone()));
        return Err(Waiting { reason: "InvalidImageName", message });
    }
    let spec = ImageSpec { user_specified_image: image.to_owned(), ..ImageSpec::from(image) };
    let policy = container.pull_policy();
    let present = images.image_status(&spec).await.map_err(|error| {
        let message = format!("Failed to inspect image {image:?}: {}", telemetry::chain(&error));
        note(Note::Failed("InspectFailed", message.clone()));
        Waiting { reason: "ImageInspectError", message }
    })?;
    let here = |found: cri::Image| Present {
        reference: found.id.clone(),
        user: ImageUser { uid: found.uid, name: found.username },
    };
    match (policy, present) {
        ("Never" | "IfNotPresent", Some(found)) => {
            note(Note::Pulled(format!(
                "Container image {image:?} already present on machine and can be accessed by the pod"
            )));
            return Ok(here(found));
        }
        ("Never", None) => {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            note(Note::Failed("ErrImageNeverPull", message.clone()));
            return Err(Waiting { reason: "ErrImageNeverPull", message });
        }
        _ => {}
    }
    note(Note::Pulling);
    let started = std::time::Instant::now();
    let registry = registry_of(image);
    let mut matching: Vec<&AuthConfig> =
        credentials.iter().filter(|auth| auth.server_address == registry).collect();
    if matching.is_empty() {
        matching = Vec::new();
    }
    let mut last = None;
    // Without credentials one try, else one per credential that fits, as upstream does.
    let tries: Vec<Option<&AuthConfig>> =
        if matching.is_empty() { vec![None] } else { matching.into_iter().map(Some).collect() };
    for auth in tries {
        match images.pull_image(&spec, auth, sandbox).await {
            Ok(_) => {
                last = None;
                break;
            }
            Err(error) => last = Some(error),
        }
    }
    if let Some(error) = last {
        let reason = telemetry::chain(&error).to_string();
        note(Note::Failed("Failed", format!("Failed to pull image {image:?}: {reason}")));
        return Err(Waiting { reason: "ErrImagePull", message: reason });
    }
    let found = images.image_status(&spec).await.ok().flatten().ok_or_else(|| Waiting {
        reason: "ErrImagePull",
        message: format!("image {image:?} is not there after it was pulled"),
    })?;
    let took = started.elapsed();
    note(Note::Pulled(format!(
        "Successfully pulled image {image:?} in {}ms ({}ms including waiting). Image size: {} bytes.",
        took.as_millis(),
        took.as_millis(),
        found.size
    )));
    Ok(here(found))
}

/// Whether the text can be an image reference at all.
fn is_reference(image: &str) -> bool {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    !name.is_empty()
        && !name.starts_with(['/', '-', '.', ':'])
        && !name.ends_with(['/', ':'])
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte))
        // Upper case is only for hosts and tags.
        && name.split('/').skip(usize::from(name.contains('/'))).all(|part| {
            part.split(':').next().is_some_and(|path| !path.bytes().any(|byte| byte.is_ascii_uppercase()))
        })
}

/// The registry of an image, by docker's rules.
pub fn registry_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
}

/// The credentials in a pull secret.
pub fn credentials(secret: &Data) -> Vec<AuthConfig> {
    let config = if let Some(text) = secret.get(".dockerconfigjson") {
        serde_json::from_slice::<DockerConfig>(text).ok()
    } else {
        secret
            .get(".dockercfg")
            .and_then(|text| serde_json::from_slice(text).ok())
            .map(|auths| DockerConfig { auths })
    };
    let Some(config) = config else { return Vec::new() };
    config
        .auths
        .into_iter()
        .map(|(server, entry)| {
            let (mut username, mut password) = (entry.username, entry.password);
            if let Ok(decoded) = STANDARD.decode(&entry.auth)
                && let Ok(text) = String::from_utf8(decoded)
                && let Some((name, secret)) = text.split_once(':')
            {
                (username, password) = (name.to_owned(), secret.to_owned());
            }
            let host = server.trim_start_matches("https://").trim_start_matches("http://");
            let host = host.split('/').next().unwrap_or(host);
            let host = if host == "index.docker.io" { "docker.io" } else { host };
            AuthConfig {
                username,
                password,
                server_address: host.to_owned(),
                identity_token: entry.identitytoken,
                ..AuthConfig::default()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_from_rubbish() {
        for good in ["a", "a:1", "Host.example:5000/a/b:TAG", "a@sha256:00", "docker.io/library/nginx:latest"]
        {
            assert!(is_reference(good), "{good}");
        }
        for bad in ["", "A/B:x/", "a b", "INVALID/Upper", ":x", "a/UPPER"] {
            assert!(!is_reference(bad), "{bad}");
        }
        assert_eq!(registry_of("nginx"), "docker.io");
        assert_eq!(registry_of("reg.io/a/b"), "reg.io");
    }

    #[test]
    fn pull_secrets_yield_credentials() {
        let text = br#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"r.io":{"username":"a","password":"b"}}}"#;
        let secret: Data = [(".dockerconfigjson".to_owned(), text.to_vec())].into();
        let all = credentials(&secret);
        assert_eq!(
            (all[0].server_address.as_str(), all[0].username.as_str(), all[0].password.as_str()),
            ("docker.io", "u", "p")
        );
        assert_eq!(all[1].server_address, "r.io");
    }
}
