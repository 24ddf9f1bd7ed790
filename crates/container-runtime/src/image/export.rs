//! Images to files: an archive that is an OCI layout and, for older readers, a docker-archive at the same time.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use tar::{Builder, Header};

use super::bundle::Bundle;
use super::manifest::OCI_INDEX;

/// Writes the archive. `names` are the tags that its readers shall give to the image.
pub fn write_archive(bundle: &Bundle, names: &[String], out: impl Write) -> io::Result<()> {
    let mut tar = Builder::new(out);
    let blob = |digest: &str| format!("blobs/{}", digest.replacen(':', "/", 1));
    let mut written = std::collections::BTreeSet::new();
    put(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    put(&mut tar, &blob(&bundle.config_descriptor.digest), &bundle.config)?;
    for layer in &bundle.layers {
        if written.insert(&layer.descriptor.digest) {
            put_file(&mut tar, &blob(&layer.descriptor.digest), &layer.path)?;
        }
    }
    put(&mut tar, &blob(&bundle.digest), &bundle.manifest)?;
    put(&mut tar, "index.json", &serde_json::to_vec(&index(bundle, names))?)?;
    let layers: Vec<String> = bundle.layers.iter().map(|layer| blob(&layer.descriptor.digest)).collect();
    let docker = json!([{
        "Config": blob(&bundle.config_descriptor.digest), "RepoTags": names, "Layers": layers,
    }]);
    put(&mut tar, "manifest.json", &serde_json::to_vec(&docker)?)?;
    tar.into_inner()?.flush()
}

/// The `index.json` of a layout with this image.
fn index(bundle: &Bundle, names: &[String]) -> Value {
    let one = |name: Option<&String>| {
        let mut descriptor = json!({
            "mediaType": bundle.media_type, "digest": bundle.digest, "size": bundle.manifest.len(),
        });
        if let Some(name) = name {
            let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
            descriptor["annotations"] =
                json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
        }
        descriptor
    };
    let manifests: Vec<Value> = match names {
        [] => vec![one(None)],
        names => names.iter().map(|name| one(Some(name))).collect(),
    };
    json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
}

fn header(size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header
}

fn put(tar: &mut Builder<impl Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    tar.append_data(&mut header(bytes.len() as u64), name, bytes)
}

fn put_file(tar: &mut Builder<impl Write>, name: &str, path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    tar.append_data(&mut header(size), name, file)
}

/// Writes a bundle as a layout on disk, from which it can be imported.
pub fn write_layout(bundle: &Bundle, directory: &Path) -> io::Result<()> {
    let blobs = directory.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let place = |digest: &str| blobs.join(digest.trim_start_matches("sha256:"));
    std::fs::write(place(&bundle.config_descriptor.digest), &bundle.config)?;
    std::fs::write(place(&bundle.digest), &bundle.manifest)?;
    for layer in &bundle.layers {
        let target = place(&layer.descriptor.digest);
        if target.exists() {
            continue;
        }
        // Of the same store and so mostly of the same filesystem.
        if std::fs::hard_link(&layer.path, &target).is_err() {
            std::fs::copy(&layer.path, &target)?;
        }
    }
    std::fs::write(directory.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    std::fs::write(directory.join("index.json"), serde_json::to_vec(&index(bundle, &[]))?)
}
