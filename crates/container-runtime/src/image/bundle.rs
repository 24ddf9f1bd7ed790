//! An image in the form in which it travels: manifest, configuration and compressed layers, ready to push or to export.
//!
//! Where everything was kept as it came, the bundle is that, to the byte. Else the layers are packed again, and the image
//! gets a new identity, because its digests are those of other archives with the same files.

use std::path::PathBuf;

use serde_json::Value;

use super::manifest::{Descriptor, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};
use super::store::{Workspace, sha256};
use super::{ImageError, ImageRecord, Store, pack};

/// One layer.
#[derive(Clone, Debug)]
pub struct Layer {
    pub descriptor: Descriptor,
    pub diff_id: String,
    pub path: PathBuf,
}

/// The image.
#[derive(Clone, Debug)]
pub struct Bundle {
    pub manifest: Vec<u8>,
    pub media_type: String,
    pub digest: String,
    pub config: Vec<u8>,
    pub config_descriptor: Descriptor,
    pub layers: Vec<Layer>,
}

type Result<T> = std::result::Result<T, ImageError>;

impl Bundle {
    /// Of an image of the store. What has to be packed goes to the workspace.
    pub fn of(store: &Store, image: &ImageRecord, work: &Workspace) -> Result<Self> {
        let unusable = |reason: &str| ImageError::Archive {
            path: store.blob_path(&image.id),
            reason: format!("the configuration of {} {reason}", image.resolved_name()),
        };
        let config = store.blob(&image.id).ok_or_else(|| unusable("is not kept"))?;
        if let Some(kept) = store.kept(image) {
            let diff_ids = diff_ids(&config).ok_or_else(|| unusable("names no layers"))?;
            let layers = kept.manifest.layers.iter().zip(diff_ids).map(|(descriptor, diff_id)| Layer {
                path: store.blob_path(&descriptor.digest),
                descriptor: descriptor.clone(),
                diff_id,
            });
            return Ok(Self {
                media_type: kept.manifest.media_type,
                digest: kept.digest,
                config_descriptor: kept.manifest.config.clone(),
                layers: layers.collect(),
                manifest: kept.bytes,
                config,
            });
        }
        let mut layers = Vec::new();
        for (index, name) in image.layers.iter().enumerate() {
            let path = work.path().join(format!("{index}.tar.gz"));
            let packed = pack::pack_layer(&store.layers().join(name), &path)
                .map_err(ImageError::disk("pack layer", &path))?;
            layers.push(Layer {
                descriptor: Descriptor::new(OCI_LAYER, &packed.digest, packed.size),
                diff_id: packed.diff_id,
                path,
            });
        }
        let config: Value = serde_json::from_slice(&config).map_err(|_| unusable("is not JSON"))?;
        Self::assemble(config, layers).map_err(|_| unusable("is not an object"))
    }

    /// From a configuration and the layers that it shall have.
    pub fn assemble(mut config: Value, layers: Vec<Layer>) -> std::result::Result<Self, serde_json::Error> {
        if let Some(fields) = config.as_object_mut() {
            let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
            fields.insert("rootfs".into(), serde_json::json!({"type": "layers", "diff_ids": diff_ids}));
            // A history that speaks of other layers confuses its readers.
            let told = fields.get("history").and_then(Value::as_array).map(|history| {
                history.iter().filter(|step| step["empty_layer"] != Value::Bool(true)).count()
            });
            if told.is_some_and(|told| told != layers.len()) {
                fields.remove("history");
            }
        }
        let config = serde_json::to_vec(&config)?;
        let config_descriptor = Descriptor::new(OCI_CONFIG, &sha256(&config), config.len() as u64);
        let manifest = Manifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            config: config_descriptor.clone(),
            layers: layers.iter().map(|layer| layer.descriptor.clone()).collect(),
        };
        let manifest = serde_json::to_vec(&manifest)?;
        Ok(Self {
            media_type: OCI_MANIFEST.to_owned(),
            digest: sha256(&manifest),
            manifest,
            config,
            config_descriptor,
            layers,
        })
    }
}

fn diff_ids(config: &[u8]) -> Option<Vec<String>> {
    let config: super::ImageConfig = serde_json::from_slice(config).ok()?;
    Some(config.rootfs.diff_ids)
}
