//! `adm release new`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Args;
use container_runtime::image::builtin::{self, Addition, Additions};
use container_runtime::image::manifest::{Descriptor, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};
use container_runtime::image::pack::{Ownership, Packer};
use container_runtime::image::registry::{Payload as Blob, Repository};
use container_runtime::image::store::sha256;
use container_runtime::image::{Reference, RunConfig, architecture};
use jiff::Timestamp;
use release::components::OPERATOR_LABEL;
use release::payload::{self, About, Input, component_versions};
use release::{File, Payload};
use serde_json::{Map, Value, json};

use crate::info;
use crate::layer::{self, Entry, Layer};
use crate::remote::{AdmError, Image, Remote, RemoteArgs};

/// The image that a release image is made on top of.
const BASE_DIGEST: &str = "io.openshift.release.base-image-digest";
const FROM_RELEASE: &str = "release.openshift.io/from-release";

/// Creates a release image from the images of its components
///
/// Components are given as TAG=IMAGE, in an image stream, or by another release, whose images can be replaced one by one.
/// Images with the label io.openshift.release.operator=true have their /manifests taken into the release.
#[derive(Args, Clone, Debug)]
pub struct NewArgs {
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Components, as TAG=IMAGE
    mappings: Vec<String>,
    /// A file of such components
    #[arg(long)]
    mapping_file: Vec<PathBuf>,
    /// Take the image stream in this file
    #[arg(short = 'f', long)]
    from_image_stream_file: Option<PathBuf>,
    /// Take the components of this release
    #[arg(long)]
    from_release: Option<String>,
    /// Take the components that come with this binary, and push them to the repository of --mirror
    #[arg(long, requires = "mirror")]
    from_built_in: bool,
    /// The repository that the components' images are copied to; the release names them there
    #[arg(long)]
    mirror: Option<String>,
    /// The version of the release
    #[arg(long)]
    name: Option<String>,
    /// Versions from which this one can be reached
    #[arg(long, value_delimiter = ',')]
    previous: Vec<String>,
    /// Versions that can be reached from this one
    #[arg(long, value_delimiter = ',')]
    next: Vec<String>,
    /// A JSON object to attach to the release's metadata
    #[arg(long)]
    metadata: Option<String>,
    /// More versions, as NAME=VERSION,…
    #[arg(long)]
    component_versions: Option<String>,
    /// Leave components out
    #[arg(long, value_delimiter = ',')]
    exclude: Vec<String>,
    /// Keep components that no operator names
    #[arg(long, value_delimiter = ',')]
    include: Vec<String>,
    /// Let operators name images that are not in the release
    #[arg(long)]
    allow_missing_images: bool,
    /// Take files that cannot be read as YAML
    #[arg(long)]
    skip_manifest_check: bool,
    /// Write nothing to registries
    #[arg(long)]
    dry_run: bool,
    /// Push the release image to this place
    #[arg(long)]
    to_image: Option<String>,
    /// Make the release image on top of this one
    #[arg(long)]
    to_image_base: Option<String>,
    /// Make the release image on top of this component
    #[arg(long, default_value = "cluster-version-operator")]
    to_image_base_tag: String,
    /// Write the release's files to this directory instead
    #[arg(long, alias = "dir")]
    to_dir: Option<PathBuf>,
    /// Write the release's layer to this file instead; `-` is the standard output
    #[arg(long)]
    to_file: Option<PathBuf>,
    /// Write what is to be signed for this release to this file
    #[arg(long, requires = "to_image")]
    to_signature: Option<PathBuf>,
}

/// What a release is made of, before it is.
struct Source {
    inputs: Vec<Input>,
    about: About,
    /// When it is made.
    created: Timestamp,
    /// The digest that it must have: a release from its own inputs is the same release.
    expected: Option<String>,
    base: Option<String>,
    /// Whether components that no operator names stay.
    whole: bool,
}

fn usage(text: impl Into<String>) -> AdmError {
    AdmError::Usage(text.into())
}

/// Parses TAG=IMAGE.
pub fn parse_mappings<'a>(words: impl Iterator<Item = &'a str>) -> Result<Vec<(String, String)>, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for word in words {
        let pair = word.split_once('=').filter(|(tag, image)| !tag.is_empty() && !image.is_empty());
        let (tag, image) = pair.ok_or("all arguments must be valid SRC=DST mappings")?;
        if found.iter().any(|(known, _)| known == tag) {
            return Err(format!("each source tag may only be specified once: {tag}"));
        }
        found.push((tag.to_owned(), image.to_owned()));
    }
    Ok(found)
}

fn disk(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> AdmError {
    move |source| AdmError::Disk { doing, path: path.to_owned(), source }
}

impl NewArgs {
    fn mappings(&self) -> Result<Vec<(String, String)>, AdmError> {
        let mut all = Vec::new();
        for path in &self.mapping_file {
            let text = std::fs::read_to_string(path).map_err(disk("read", path))?;
            for (number, line) in text.lines().enumerate() {
                let line = line.split('#').next().unwrap_or_default();
                let found = parse_mappings(line.split_whitespace()).map_err(|reason| {
                    usage(format!("file {}, line {}: {reason}", path.display(), number + 1))
                })?;
                all.extend(found);
            }
        }
        all.extend(parse_mappings(self.mappings.iter().map(String::as_str)).map_err(usage)?);
        Ok(all)
    }

    fn check(&self, mappings: &[(String, String)]) -> Result<(), AdmError> {
        let sources =
            [self.from_image_stream_file.is_some(), self.from_release.is_some(), self.from_built_in];
        match sources.iter().filter(|given| **given).count() {
            0 if mappings.is_empty() => {
                Err(usage("must specify image mappings when no other source is defined"))
            }
            0 | 1 => Ok(()),
            _ => Err(usage(
                "only one of --from-image-stream-file, --from-release, or --from-built-in may be specified",
            )),
        }?;
        if let Some(name) = &self.name {
            semver::Version::parse(name)
                .map_err(|error| usage(format!("--name must be a semantic version: {error}")))?;
        }
        for version in self.previous.iter().chain(&self.next) {
            semver::Version::parse(version)
                .map_err(|error| usage(format!("{version:?} is not a valid semantic version: {error}")))?;
        }
        if self.mirror.is_some() && !self.from_built_in {
            return Err(usage(
                "--mirror is for --from-built-in; other images are copied by `adm release mirror`",
            ));
        }
        Ok(())
    }

    fn metadata(&self) -> Result<Map<String, Value>, AdmError> {
        let Some(text) = &self.metadata else { return Ok(Map::new()) };
        serde_json::from_str(text).map_err(|error| usage(format!("invalid --metadata: {error}")))
    }

    /// Runs the command. `builtin` is what comes with the binary.
    pub async fn run(
        self,
        builtin: &Builtin,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<(), AdmError> {
        let mappings = self.mappings()?;
        self.check(&mappings)?;
        let remote = Remote::new(&self.remote)?;
        let mut source = self.source(&remote, &mappings, builtin, err).await?;
        if let Some(label) = &self.component_versions {
            component_versions(label)
                .map_err(|reason| usage(format!("--component-versions is invalid: {reason}")))?;
            source.about.annotations.insert(release::components::VERSIONS_LABEL.to_owned(), label.clone());
        }
        if source.inputs.is_empty() {
            return Err(usage("no component images defined, unable to build a release payload"));
        }
        if !source.whole {
            prune(&mut source.inputs, &self.include, &self.to_image_base_tag, err)?;
        }
        let made = Payload::assemble(&source.about, &source.inputs)?;
        if made.operators.is_empty() {
            writeln!(
                err,
                "warning: No operator metadata was found, no operators will be part of the release."
            )?;
        }
        self.write(&remote, &source, &made, out, err).await
    }

    async fn source(
        &self,
        remote: &Remote,
        mappings: &[(String, String)],
        builtin: &Builtin,
        err: &mut dyn Write,
    ) -> Result<Source, AdmError> {
        let mut created = now();
        let mut images: BTreeMap<String, String> = BTreeMap::new();
        let mut about = About::new("");
        let (mut expected, mut base, mut whole) = (None, None, false);
        if let Some(path) = &self.from_image_stream_file {
            let text = std::fs::read(path).map_err(disk("read", path))?;
            let stream: Value = serde_yaml_ng::from_slice(&text)
                .map_err(|error| usage(format!("unable to load input image stream file: {error}")))?;
            if stream["kind"] != "ImageStream" || stream["apiVersion"] != "image.openshift.io/v1" {
                let reason =
                    "unrecognized input image stream file, must be an ImageStream in image.openshift.io/v1";
                return Err(usage(reason));
            }
            images.extend(payload::tags(&stream));
            writeln!(err, "info: Found {} images in image stream", images.len())?;
        }
        if let Some(text) = &self.from_release {
            let release = info::load(remote, text).await?;
            about = release.about();
            images.extend(payload::tags(&release.references));
            whole = true;
            base.clone_from(&release.base());
            let changed = self.name.is_some()
                || self.metadata.is_some()
                || !self.previous.is_empty()
                || !self.next.is_empty()
                || self.to_image_base.is_some()
                || !mappings.is_empty()
                || !self.exclude.is_empty()
                || self.component_versions.is_some();
            if changed {
                about.annotations.insert(FROM_RELEASE.to_owned(), text.clone());
                writeln!(err, "info: Found {} images in release", images.len())?;
            } else {
                created = about.created.as_deref().and_then(|time| time.parse().ok()).unwrap_or(created);
                expected = Some(release.digest.clone());
                writeln!(err, "info: Release {} built from {} images", release.digest, images.len())?;
            }
        }
        let mut inputs = Vec::new();
        if self.from_built_in {
            let repository = self.mirror.as_deref().unwrap_or_default();
            inputs = builtin.push(remote, repository, self.dry_run, err).await?;
            about.annotations.extend(payload::missing());
            whole = true;
        }
        for (tag, image) in mappings {
            inputs.retain(|input| input.tag != *tag);
            images.insert(tag.clone(), image.clone());
            writeln!(err, "info: Loading override {image} {tag}")?;
        }
        images.retain(|tag, _| !self.exclude.contains(tag));
        inputs.retain(|input| !self.exclude.contains(&input.tag));
        for (tag, image) in images {
            inputs.push(load(remote, tag, &image).await?);
        }
        if let Some(name) = &self.name {
            about.name.clone_from(name);
        }
        if about.name.is_empty() {
            about.name = match self.from_built_in {
                true => builtin.version.clone(),
                false => format!("0.0.1-{}", created.strftime("%Y-%m-%d-%H%M%S")),
            };
        }
        about.created = Some(created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        if self.metadata.is_some() {
            about.metadata = self.metadata()?;
        }
        let sorted = |versions: &[String]| {
            let unique: BTreeSet<_> =
                versions.iter().filter_map(|text| semver::Version::parse(text).ok()).collect();
            unique.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        if !self.previous.is_empty() {
            about.previous = sorted(&self.previous);
        }
        if !self.next.is_empty() {
            about.next = sorted(&self.next);
        }
        about.allow_missing_images = self.allow_missing_images;
        about.skip_manifest_check = self.skip_manifest_check;
        Ok(Source { inputs, about, created, expected, base, whole })
    }

    async fn write(
        &self,
        remote: &Remote,
        source: &Source,
        made: &Payload,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<(), AdmError> {
        if let Some(directory) = &self.to_dir {
            layer::write_files(directory, &made.files).map_err(disk("write", directory))?;
            return Ok(());
        }
        let time = u64::try_from(source.created.as_second()).unwrap_or_default();
        let packed = layer::pack_files(payload::DIRECTORY, &made.files, time)?;
        if let Some(path) = &self.to_file {
            return match path.as_os_str() == "-" {
                true => Ok(out.write_all(&packed.bytes)?),
                false => std::fs::write(path, &packed.bytes).map_err(disk("write", path)),
            };
        }
        let base = self.base(source)?;
        let base = remote.image(&base).await?;
        let (config, manifest) = release_image(&base, &packed, &made.references, source.created)?;
        let digest = sha256(&manifest);
        let target = match &self.to_image {
            Some(text) if !self.dry_run => Some(text),
            _ => None,
        };
        if let Some(text) = target {
            let mut reference = Reference::parse(text)?;
            if reference.digest.is_some() {
                return Err(usage("--to-image may only point to a repository or tag, not a digest"));
            }
            // A name without a tag means latest elsewhere; a release is called by its version.
            if !text.rsplit('/').next().unwrap_or_default().contains(':') {
                reference.tag = Some(source.about.name.replace('+', "_"));
            }
            let to = remote.target(&reference)?;
            for descriptor in &base.manifest.layers {
                remote.copy_blob(&base, descriptor, &to, text).await?;
            }
            remote.put_blob(&to, text, &packed.digest, Blob::Bytes(packed.bytes.clone().into())).await?;
            remote.put_blob(&to, text, &sha256(&config), Blob::Bytes(config.into())).await?;
            let tag = reference.tag.clone().unwrap_or_else(|| digest.clone());
            remote.put_manifest(&to, text, &tag, OCI_MANIFEST, manifest).await?;
            writeln!(err, "info: Pushed to {text}")?;
            if let Some(path) = &self.to_signature {
                let message =
                    signature_message(&digest, &format!("{}@{digest}", reference.name), source.created);
                std::fs::write(path, message).map_err(disk("write", path))?;
            }
        }
        if source.expected.as_ref().is_some_and(|expected| *expected != digest) {
            return Err(usage("the release could not be reproduced from its inputs"));
        }
        let created = source.about.created.as_deref().unwrap_or_default();
        Ok(writeln!(out, "{digest} {} {created}", source.about.name)?)
    }

    fn base(&self, source: &Source) -> Result<String, AdmError> {
        if let Some(base) = &self.to_image_base {
            return Ok(base.clone());
        }
        let pinned = |digest: &String| {
            source
                .inputs
                .iter()
                .find(|input| input.image.ends_with(digest.as_str()))
                .map(|input| &input.image)
        };
        if let Some(image) = source.base.as_ref().and_then(pinned) {
            return Ok(image.clone());
        }
        let tag = &self.to_image_base_tag;
        let found = source.inputs.iter().find(|input| input.tag == *tag);
        found.map(|input| input.image.clone()).ok_or_else(|| {
            usage(format!(
                "the base image tag {tag:?} could not be found in the input, cannot build a release image"
            ))
        })
    }
}

/// The time at which things are made; SOURCE_DATE_EPOCH makes it another one.
fn now() -> Timestamp {
    let told = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse::<i64>().ok());
    let now = Timestamp::now().as_second();
    Timestamp::from_second(told.unwrap_or(now)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// What is signed for an image: the text that says which one it is.
fn signature_message(digest: &str, reference: &str, created: Timestamp) -> String {
    json!({
        "critical": {
            "type": "atomic container signature",
            "image": {"docker-manifest-digest": digest},
            "identity": {"docker-reference": reference},
        },
        "optional": {"creator": "kelson-adm-release-new", "timestamp": created.as_second()},
    })
    .to_string()
}

/// A component's image, and its objects if it is an operator.
async fn load(remote: &Remote, tag: String, text: &str) -> Result<Input, AdmError> {
    let image = remote.image(text).await?;
    let labels = image.labels();
    let manifests = match labels.contains_key(OPERATOR_LABEL) {
        true => remote.files(&image, "manifests", false).await?,
        false => Vec::new(),
    };
    Ok(Input { tag, image: image.pinned(), labels, manifests })
}

/// Leaves out what neither is an operator nor is named by one.
fn prune(
    inputs: &mut Vec<Input>,
    include: &[String],
    base: &str,
    err: &mut dyn Write,
) -> Result<(), AdmError> {
    let mut kept: BTreeSet<String> = include.iter().cloned().collect();
    kept.insert(base.to_owned());
    let operators = inputs.iter().filter(|input| !input.manifests.is_empty());
    for input in operators.clone() {
        kept.insert(input.tag.clone());
        if let Some(file) = input.manifests.iter().find(|file| file.name == payload::REFERENCES) {
            let stream: Value = serde_yaml_ng::from_slice(&file.bytes).unwrap_or_default(); // refused later
            kept.extend(payload::tags(&stream).into_iter().map(|(tag, _)| tag));
        }
    }
    let (before, count) = (inputs.len(), operators.count());
    inputs.retain(|input| kept.contains(&input.tag));
    if inputs.len() != before {
        writeln!(
            err,
            "info: Included {} images from {count} input operators into the release",
            inputs.len()
        )?;
    }
    Ok(())
}

/// The configuration and the manifest of a release on top of another image.
fn release_image(
    base: &Image,
    added: &Layer,
    references: &Value,
    created: Timestamp,
) -> Result<(Vec<u8>, Vec<u8>), AdmError> {
    let created = created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut config = base.config.clone();
    let unusable =
        |reason: &str| AdmError::Unusable { image: base.reference.to_string(), reason: reason.to_owned() };
    let fields = config.as_object_mut().ok_or_else(|| unusable("its configuration is no object"))?;
    for name in ["container", "container_config", "parent"] {
        fields.remove(name);
    }
    fields.insert("created".to_owned(), json!(created));
    let comment = "Release image for OpenShift";
    fields.insert("history".to_owned(), json!([{"comment": comment, "created": created}]));
    fields.entry("os").or_insert_with(|| json!("linux"));
    fields.entry("architecture").or_insert_with(|| json!(architecture()));
    config["config"]["Labels"] =
        json!({"io.openshift.release": references["metadata"]["name"], BASE_DIGEST: base.digest});
    let diff_ids = config["rootfs"]["diff_ids"].as_array_mut();
    diff_ids.ok_or_else(|| unusable("its configuration names no layers"))?.push(json!(added.diff_id));
    let config = serde_json::to_vec(&config).map_err(|error| unusable(&error.to_string()))?;
    let mut layers = base.manifest.layers.clone();
    layers.push(Descriptor::new(OCI_LAYER, &added.digest, added.bytes.len() as u64));
    let manifest = manifest_of(&config, layers)?;
    Ok((config, manifest))
}

fn manifest_of(config: &[u8], layers: Vec<Descriptor>) -> Result<Vec<u8>, AdmError> {
    let manifest = Manifest {
        schema_version: 2,
        media_type: OCI_MANIFEST.to_owned(),
        config: Descriptor::new(OCI_CONFIG, &sha256(config), config.len() as u64),
        layers,
    };
    serde_json::to_vec(&manifest).map_err(|error| AdmError::Output(error.into()))
}

/// The images that come with the binary.
#[derive(Clone, Debug, Default)]
pub struct Builtin {
    /// The binary.
    pub executable: PathBuf,
    pub version: String,
    pub additions: Additions,
}

impl Builtin {
    /// Pushes every component to a repository, tagged by version and name, and says what a release needs of each.
    async fn push(
        &self,
        remote: &Remote,
        repository: &str,
        dry_run: bool,
        err: &mut dyn Write,
    ) -> Result<Vec<Input>, AdmError> {
        let reference = Reference::parse(repository)?;
        let to = remote.target(&reference)?;
        let work = tempfile::tempdir()?;
        let path = work.path().join("binary.tar.gz");
        let executable = self.executable.clone();
        let packed = {
            let path = path.clone();
            let whose = Ownership { owner: Some((0, 0)), mode: Some(0o755), time: Some(0) };
            let pack = move || {
                let mut packer = Packer::create(&path)?;
                packer.add(&executable, Path::new(builtin::PROGRAM), whose, false)?;
                packer.finish()
            };
            tokio::task::spawn_blocking(pack).await.map_err(std::io::Error::other)??
        };
        let binary = Descriptor::new(OCI_LAYER, &packed.digest, packed.size);
        if !dry_run {
            remote.put_blob(&to, repository, &packed.digest, Blob::File(path)).await?;
        }
        let links = links_layer(&self.additions.programs)?;
        let mut inputs = Vec::new();
        let pod = Addition { name: "pod".to_owned(), ..Addition::default() };
        for image in self.additions.images.iter().filter(|image| image.name != "release").chain([&pod]) {
            let mut layers = vec![(binary.clone(), packed.diff_id.clone(), None)];
            let mut add = |layer: Layer| {
                let descriptor = Descriptor::new(OCI_LAYER, &layer.digest, layer.bytes.len() as u64);
                layers.push((descriptor, layer.diff_id, Some(Bytes::from(layer.bytes))));
            };
            let config = if image.name == "pod" {
                builtin::pause()
            } else {
                add(links.clone());
                RunConfig {
                    entrypoint: image.entrypoint.clone(),
                    labels: image.labels.clone(),
                    ..builtin::base_config()
                }
            };
            let mut manifests = Vec::new();
            for files in &image.layers {
                add(files_layer(files)?);
                let own = files.iter().filter_map(|(path, bytes)| {
                    Some(File::new(path.strip_prefix("manifests/")?, bytes.clone()))
                });
                manifests.extend(own);
            }
            let diff_ids: Vec<&String> = layers.iter().map(|(_, diff_id, _)| diff_id).collect();
            let config = json!({
                "created": "1970-01-01T00:00:00Z", "architecture": architecture(), "os": "linux", "config": config,
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
            });
            let config = config.to_string().into_bytes();
            let manifest = manifest_of(&config, layers.iter().map(|(layer, ..)| layer.clone()).collect())?;
            let digest = sha256(&manifest);
            if !dry_run {
                let blobs = layers.into_iter().filter_map(|(layer, _, bytes)| Some((layer.digest, bytes?)));
                let blobs = blobs.chain([(sha256(&config), Bytes::from(config))]);
                self.push_one(remote, &to, repository, image, blobs, manifest).await?;
            }
            writeln!(err, "info: Loading {digest} {}", image.name)?;
            inputs.push(Input {
                tag: image.name.clone(),
                image: format!("{}@{digest}", reference.name),
                labels: image.labels.clone(),
                manifests,
            });
        }
        Ok(inputs)
    }

    async fn push_one(
        &self,
        remote: &Remote,
        to: &Repository,
        repository: &str,
        image: &Addition,
        blobs: impl Iterator<Item = (String, Bytes)>,
        manifest: Vec<u8>,
    ) -> Result<(), AdmError> {
        for (digest, bytes) in blobs {
            remote.put_blob(to, repository, &digest, Blob::Bytes(bytes)).await?;
        }
        let tag = format!("{}-{}", self.version.replace('+', "_"), image.name);
        remote.put_manifest(to, repository, &tag, OCI_MANIFEST, manifest).await
    }
}

/// The layer with a link for every name of the binary.
fn links_layer(programs: &[String]) -> Result<Layer, AdmError> {
    let directory = tempfile::tempdir()?;
    builtin::fill_links_layer(directory.path(), programs)?;
    // Packed elsewhere, so that it does not hold itself.
    let work = tempfile::tempdir()?;
    let target = work.path().join("links");
    let whose = Ownership { owner: Some((0, 0)), mode: None, time: Some(0) };
    let mut packer = Packer::create(&target)?;
    packer.add(directory.path(), Path::new(""), whose, false)?;
    let packed = packer.finish()?;
    Ok(Layer { bytes: std::fs::read(&target)?, digest: packed.digest, diff_id: packed.diff_id })
}

/// A layer of files, with the directories that they are in.
fn files_layer(files: &[(String, Vec<u8>)]) -> Result<Layer, AdmError> {
    let mut directories = BTreeSet::new();
    for (path, _) in files {
        let mut at = 0;
        while let Some(end) = path[at..].find('/') {
            directories.insert(&path[..at + end]);
            at += end + 1;
        }
    }
    let directories = directories.into_iter().map(|path| Entry::Directory { path, mode: 0o755 });
    let files = files.iter().map(|(path, bytes)| Entry::File { path: path.clone(), mode: 0o644, bytes });
    Ok(layer::pack(directories.chain(files), 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_pairs_and_each_tag_comes_once() {
        let parse = |words: &[&str]| parse_mappings(words.iter().copied());
        assert_eq!(parse(&["a=b:1", "c=d"]).unwrap().len(), 2);
        assert_eq!(parse(&["a"]).unwrap_err(), "all arguments must be valid SRC=DST mappings");
        assert_eq!(parse(&["a="]).unwrap_err(), "all arguments must be valid SRC=DST mappings");
        assert!(parse(&["a=b", "a=c"]).unwrap_err().contains("only be specified once"));
    }

    #[test]
    fn links_are_always_the_same_layer() {
        let programs = ["etcd".to_owned(), "kubelet".to_owned()];
        assert_eq!(links_layer(&programs).unwrap().digest, links_layer(&programs).unwrap().digest);
    }
}
