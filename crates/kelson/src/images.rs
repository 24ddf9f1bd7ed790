//! The images that the binary is: one for every component, and the release that pins them.

use anyhow::Context;
use container_runtime::image::builtin::{Addition, Additions};
use release::components::{self, Made};
use release::{File, Payload, payload};

/// The version under which all of them are tagged, and the release's.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

fn below(directory: &str, files: Vec<File>) -> Vec<(String, Vec<u8>)> {
    files.into_iter().map(|file| (format!("{directory}/{}", file.name), file.bytes)).collect()
}

/// What the container runtime keeps beside its own images.
pub fn built_in() -> anyhow::Result<Additions> {
    let program = |name: &str| vec![format!("/usr/bin/{name}")];
    let mut images: Vec<Addition> = components::present()
        .filter(|component| component.made != Made::Runtime)
        .map(|component| {
            let manifests = component.manifests();
            Addition {
                name: component.name.to_owned(),
                entrypoint: component.program().map(program).unwrap_or_default(),
                labels: component.labels(),
                layers: if manifests.is_empty() { Vec::new() } else { vec![below("manifests", manifests)] },
            }
        })
        .collect();
    let payload = Payload::built_in(VERSION).context("the binary's own manifests make no release")?;
    // A release image is the version operator's and one layer more.
    let base = images.iter().find(|image| image.name == "cluster-version-operator").cloned();
    let mut release = base.context("there is no cluster-version-operator")?;
    release.name = "release".to_owned();
    release.labels.insert("io.openshift.release".to_owned(), VERSION.to_owned());
    release.layers.push(below(payload::DIRECTORY, payload.files));
    images.push(release);
    let programs = components::programs().into_iter().map(str::to_owned).collect();
    Ok(Additions { programs, images })
}

/// The same, to make releases of.
pub fn for_releases() -> Result<adm_release::Builtin, adm_release::AdmError> {
    let unusable = |error: anyhow::Error| adm_release::AdmError::Usage(format!("{error:#}"));
    Ok(adm_release::Builtin {
        executable: std::env::current_exe()?,
        version: VERSION.to_owned(),
        additions: built_in().map_err(unusable)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_image_is_the_version_operators_and_one_layer_more() {
        let images = built_in().unwrap().images;
        let find = |name: &str| images.iter().find(|image| image.name == name).unwrap();
        let (base, release) = (find("cluster-version-operator"), find("release"));
        assert_eq!(release.layers[..1], base.layers[..]);
        assert!(release.layers[1].iter().any(|(path, _)| path == "release-manifests/image-references"));
        assert!(base.layers[0].iter().any(|(path, _)| path.contains("0000_00_cluster-version-operator_")));
    }
}
