//! `adm release info`: reads a release and writes about it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;

use clap::Args;
use container_runtime::image::Reference;
use jiff::Timestamp;
use release::components::{self, DISPLAY_NAMES_LABEL, VERSIONS_LABEL};
use release::payload::{self, About, MISSING, component_versions};
use release::{File, Payload};
use serde_json::{Value, json};

use crate::remote::{AdmError, Image, Remote, RemoteArgs};

const COMMIT: &str = "io.openshift.build.commit.id";
const LOCATION: &str = "io.openshift.build.source-location";

/// Shows what is in a release image, or how two of them differ
#[derive(Args, Clone, Debug)]
pub struct InfoArgs {
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Release images; two are compared
    images: Vec<String>,
    /// Print the pull spec of one component
    #[arg(long, value_name = "TAG")]
    image_for: Option<String>,
    /// Show where images are pulled from
    #[arg(long)]
    pullspecs: bool,
    /// Show which sources images were made from
    #[arg(long)]
    commits: bool,
    /// Show how large images are
    #[arg(long)]
    size: bool,
    /// Print every manifest
    #[arg(long)]
    contents: bool,
    /// Check that every image is there and is what its digest says
    #[arg(long)]
    verify: bool,
    /// Compare with this release
    #[arg(long, value_name = "IMAGE")]
    changes_from: Option<String>,
    /// json, name, pullspec or digest
    #[arg(short, long)]
    output: Option<String>,
}

/// A release, read.
#[derive(Clone)]
pub struct Release {
    /// The name that it was asked for by.
    pub text: String,
    pub reference: Reference,
    /// The release image; of the one that comes with the binary there is none.
    pub image: Option<Image>,
    /// Its digest; nothing for that one.
    pub digest: String,
    pub config: Value,
    pub references: Value,
    pub metadata: Value,
    /// Its objects.
    pub manifests: Vec<File>,
    /// Files that are neither objects nor known.
    pub unknown: Vec<String>,
    /// Everything, as it lies in the image.
    pub files: Vec<File>,
    /// Name → version, people's name for it.
    pub versions: BTreeMap<String, (String, String)>,
}

/// Reads a release from its registry, or the binary's own.
pub async fn load(remote: &Remote, text: &str) -> Result<Release, AdmError> {
    let reference = Reference::parse(text)?;
    if reference.registry() == components::REGISTRY {
        let payload = Payload::built_in(env!("CARGO_PKG_VERSION"))?;
        let config = json!({"os": "linux", "architecture": container_runtime::image::architecture()});
        return Release::read(text, reference, None, config, payload.files);
    }
    let image = remote.image(text).await?;
    let files = remote.files(&image, payload::DIRECTORY, true).await?;
    let config = image.config.clone();
    Release::read(text, reference, Some(image), config, files)
}

impl Release {
    fn read(
        text: &str,
        reference: Reference,
        image: Option<Image>,
        config: Value,
        files: Vec<File>,
    ) -> Result<Self, AdmError> {
        let unusable = |reason: String| AdmError::Unusable { image: text.to_owned(), reason };
        let find = |name: &str| files.iter().find(|file| file.name == name);
        let references = find(payload::REFERENCES).ok_or_else(|| {
            unusable("release image did not contain any image-references content".to_owned())
        })?;
        let references: Value = serde_json::from_slice(&references.bytes)
            .map_err(|error| unusable(format!("unable to load release image-references: {error}")))?;
        if references["kind"] != "ImageStream" || references["apiVersion"] != "image.openshift.io/v1" {
            return Err(unusable("unrecognized image-references in release payload".to_owned()));
        }
        let metadata = match find(payload::METADATA) {
            None => Value::Null,
            Some(file) => serde_json::from_slice(&file.bytes)
                .map_err(|error| unusable(format!("unable to load release-metadata: {error}")))?,
        };
        let is_object = |name: &str| [".yaml", ".yml", ".json"].iter().any(|kind| name.ends_with(kind));
        let rest =
            files.iter().filter(|file| ![payload::REFERENCES, payload::METADATA].contains(&&*file.name));
        let (objects, others): (Vec<&File>, Vec<&File>) = rest.partition(|file| is_object(&file.name));
        Ok(Self {
            versions: versions(&references),
            digest: image.as_ref().map(|image| image.digest.clone()).unwrap_or_default(),
            manifests: objects.into_iter().cloned().collect(),
            unknown: others.into_iter().map(|file| file.name.clone()).collect(),
            text: text.to_owned(),
            reference,
            image,
            config,
            references,
            metadata,
            files,
        })
    }

    /// What it calls itself.
    pub fn name(&self) -> &str {
        let own = self.metadata["version"].as_str().filter(|version| !version.is_empty());
        own.or(self.references["metadata"]["name"].as_str()).unwrap_or_default()
    }

    /// What it says of itself, to make another one alike.
    pub fn about(&self) -> About {
        let words = |value: &Value| {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(|one| one.as_str().map(str::to_owned)).collect()
        };
        let annotations = self.references["metadata"]["annotations"].as_object().into_iter().flatten();
        let annotations =
            annotations.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        About {
            created: self.references["metadata"]["creationTimestamp"].as_str().map(str::to_owned),
            previous: words(&self.metadata["previous"]),
            next: words(&self.metadata["next"]),
            metadata: self.metadata["metadata"].as_object().cloned().unwrap_or_default(),
            annotations: annotations.collect(),
            ..About::new(self.name())
        }
    }

    /// The digest of the image that it was made on top of.
    pub fn base(&self) -> Option<String> {
        let label = &self.config["config"]["Labels"]["io.openshift.release.base-image-digest"];
        label.as_str().map(str::to_owned)
    }

    fn tags(&self) -> Vec<(String, String)> {
        payload::tags(&self.references)
    }

    fn annotation<'a>(&'a self, tag: &str, name: &str) -> &'a str {
        let tags = self.references["spec"]["tags"].as_array().into_iter().flatten();
        let found = tags.into_iter().find(|one| one["name"] == tag);
        found.and_then(|one| one["annotations"][name].as_str()).unwrap_or_default()
    }

    fn platform(&self) -> String {
        let text = |name: &str| self.config[name].as_str().unwrap_or("unknown");
        format!("{}/{}", text("os"), text("architecture"))
    }

    fn warnings(&self) -> Vec<String> {
        let missing = self.references["metadata"]["annotations"][MISSING].as_str().unwrap_or_default();
        let tell = |name: &str| format!("{name} is missing from this release: its program does not exist");
        missing.split(',').filter(|name| !name.is_empty()).map(tell).collect()
    }

    fn created(&self) -> Option<Timestamp> {
        self.config["created"].as_str().and_then(|time| time.parse().ok())
    }

    /// The pull spec of a component.
    pub fn image_for(&self, tag: &str) -> Result<String, AdmError> {
        let found = self.tags().into_iter().find(|(name, _)| name == tag).map(|(_, image)| image);
        found.ok_or_else(|| {
            AdmError::Usage(format!("no image tag {tag:?} exists in the release image {}", self.text))
        })
    }

    fn json(&self) -> Value {
        let display: BTreeMap<&String, Value> = self
            .versions
            .iter()
            .map(|(name, (version, shown))| (name, json!({"Version": version, "DisplayName": shown})))
            .collect();
        let plain: BTreeMap<&String, &String> =
            self.versions.iter().map(|(name, (version, _))| (name, version)).collect();
        let list = self.image.as_ref().and_then(|image| image.list_digest.clone()).unwrap_or_default();
        json!({
            "image": self.text, "digest": self.digest, "contentDigest": self.digest, "listDigest": list,
            "config": self.config, "metadata": self.metadata, "references": self.references,
            "versions": plain, "displayVersions": display, "images": null, "warnings": self.warnings(),
        })
    }
}

/// The versions that the images of a release carry.
fn versions(references: &Value) -> BTreeMap<String, (String, String)> {
    let mut all = BTreeMap::new();
    let tags = references["spec"]["tags"].as_array().into_iter().flatten();
    for annotations in tags.map(|tag| &tag["annotations"]).chain([&references["metadata"]["annotations"]]) {
        let text = |name: &str| annotations[name].as_str().unwrap_or_default();
        let shown: BTreeMap<&str, &str> =
            text(DISPLAY_NAMES_LABEL).split(',').filter_map(|pair| pair.trim().split_once('=')).collect();
        for (name, version) in component_versions(text(VERSIONS_LABEL)).unwrap_or_default() {
            let display = shown.get(name.as_str()).copied().unwrap_or_default().to_owned();
            all.entry(name).or_insert((version, display));
        }
    }
    all
}

impl InfoArgs {
    /// Runs the command.
    pub async fn run(mut self, out: &mut dyn Write) -> Result<(), AdmError> {
        let usage = |text: &str| Err(AdmError::Usage(text.to_owned()));
        if self.images.is_empty() {
            return usage("info expects at least one argument, a release image pull spec");
        }
        if self.image_for.is_some() && self.output.is_some() {
            return usage("--output and --image-for may not both be specified");
        }
        let remote = Remote::new(&self.remote)?;
        if self.changes_from.is_none() && self.images.len() == 2 && !self.verify {
            self.changes_from = Some(self.images.remove(0));
        }
        if let (Some(from), false) = (&self.changes_from, self.verify) {
            let (from, to) = (load(&remote, from).await?, load(&remote, &self.images[0]).await?);
            let text = match self.output.as_deref() {
                None => diff(&from, &to, Timestamp::now()),
                Some("json") => format!("{:#}\n", diff_json(&from, &to)),
                Some(other) => return usage(&format!("unrecognized output mode: {other}")),
            };
            return Ok(out.write_all(text.as_bytes())?);
        }
        for text in &self.images {
            let release = load(&remote, text).await?;
            let text = self.describe(&remote, &release).await?;
            out.write_all(text.as_bytes())?;
        }
        Ok(())
    }

    async fn describe(&self, remote: &Remote, release: &Release) -> Result<String, AdmError> {
        if self.verify {
            for (tag, image) in release.tags() {
                if !image.contains("@sha256:") {
                    let reason = format!("{tag} does not point to a digest");
                    return Err(AdmError::Unusable { image: release.text.clone(), reason });
                }
                remote.image(&image).await?;
            }
            let created = release.references["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
            return Ok(format!("{} {created} {}\n", release.digest, release.name()));
        }
        if self.contents {
            let contents = release.manifests.iter().map(|file| {
                format!("# {}\n---\n{}\n", file.name, String::from_utf8_lossy(&file.bytes).trim_end())
            });
            return Ok(contents.collect());
        }
        if let Some(tag) = &self.image_for {
            return Ok(format!("{}\n", release.image_for(tag)?));
        }
        let digest_of = |image: &String| image.split_once('@').map(|(_, digest)| digest.to_owned());
        let lines = |list: Vec<String>| list.into_iter().map(|line| line + "\n").collect::<String>();
        match self.output.as_deref() {
            Some("json") => return Ok(format!("{:#}\n", release.json())),
            Some("name") => return Ok(lines(release.tags().into_iter().map(|(tag, _)| tag).collect())),
            Some("pullspec") => {
                return Ok(lines(release.tags().into_iter().map(|(_, image)| image).collect()));
            }
            Some("digest") => {
                let tags = release.tags();
                return match tags.iter().find(|(_, image)| digest_of(image).is_none()) {
                    Some((tag, _)) => Err(AdmError::Usage(format!("{tag} does not point to a digest"))),
                    None => Ok(lines(tags.iter().filter_map(|(_, image)| digest_of(image)).collect())),
                };
            }
            Some(_) => {
                return Err(AdmError::Usage(
                    "output mode only supports json, pullspec, digest, name".to_owned(),
                ));
            }
            None => {}
        }
        let images = if self.size {
            let mut images = BTreeMap::new();
            for (tag, text) in release.tags() {
                images.insert(tag, remote.image(&text).await?);
            }
            sizes(release, &images, Timestamp::now())
        } else if self.commits {
            commits(release)?
        } else {
            let (title, spec) = if self.pullspecs { ("PULL SPEC", true) } else { ("DIGEST", false) };
            let mut text = format!("  NAME\t{title}\n");
            for (tag, image) in release.tags() {
                let shown = if spec { None } else { digest_of(&image) };
                let _ = writeln!(text, "  {tag}\t{}", shown.unwrap_or(image));
            }
            text
        };
        Ok(describe(release, &images))
    }
}

/// The page about a release.
fn describe(release: &Release, images: &str) -> String {
    let mut text = String::new();
    let or_none = |text: &str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
    let digest =
        release.image.as_ref().and_then(|image| image.list_digest.as_ref()).unwrap_or(&release.digest);
    let created = release.created().map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let _ = write!(
        text,
        "Name:\t{}\nDigest:\t{}\nCreated:\t{}\nOS/Arch:\t{}\nManifests:\t{}\n",
        release.name(),
        or_none(digest),
        or_none(&created.unwrap_or_default()),
        release.platform(),
        release.manifests.len(),
    );
    if !release.unknown.is_empty() {
        let _ = writeln!(text, "Metadata files:\t{}", release.unknown.len());
    }
    let from = match digest.is_empty() {
        true => release.reference.to_string(),
        false => format!("{}@{digest}", release.reference.name),
    };
    let _ = write!(text, "\nPull From:\t{from}\n");
    if !release.metadata.is_null() {
        let _ = write!(text, "\nRelease Metadata:\n  Version:\t{}\n", release.name());
        let mut previous = release.about().previous;
        previous.sort_by_key(|version| semver::Version::parse(version).ok());
        let _ = writeln!(text, "  Upgrades:\t{}", or_none(&previous.join(", ")));
        let mut section = "  Metadata:\n".to_owned();
        let more: BTreeMap<String, Value> = release.about().metadata.into_iter().collect();
        for (name, value) in more.iter().filter(|(_, value)| **value != json!("")) {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ = writeln!(section, "    {name}:\t{shown}");
        }
        text.push_str(&tabs(&section, 1));
    }
    if !release.versions.is_empty() {
        text.push_str("\nComponent Versions:\n");
        for (name, (version, shown)) in &release.versions {
            let _ = writeln!(text, "  {name}\t{version}\t{shown}");
        }
    }
    text.push_str("\nImages:\n");
    text.push_str(&tabs(images, 1));
    let warnings = release.warnings();
    if !warnings.is_empty() {
        text.push_str("\nWarnings:\n");
        for warning in warnings {
            let _ = writeln!(text, "* {warning}");
        }
    }
    text.push('\n');
    tabs(&text, 1)
}

fn commits(release: &Release) -> Result<String, AdmError> {
    let mut text = "  NAME\tREPO\tCOMMIT\t\n".to_owned();
    let mut known = false;
    for (tag, _) in release.tags() {
        let (place, commit) = (release.annotation(&tag, LOCATION), release.annotation(&tag, COMMIT));
        known |= !commit.is_empty();
        let _ = writeln!(text, "  {tag}\t{place}\t{commit}");
    }
    match known {
        true => Ok(text),
        false => {
            let reason = "the release does not say which commits its images were made from".to_owned();
            Err(AdmError::Unusable { image: release.text.clone(), reason })
        }
    }
}

fn sizes(release: &Release, images: &BTreeMap<String, Image>, now: Timestamp) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut total, mut bases) = (0, BTreeSet::new());
    for image in images.values() {
        bases.extend(image.manifest.layers.first().map(|layer| layer.digest.as_str()));
        for layer in &image.manifest.layers {
            let count = counts.entry(&layer.digest).or_default();
            *count += 1;
            if *count == 1 {
                total += layer.bytes();
            }
        }
    }
    let several = bases.len() > 1;
    let mut text =
        format!("  NAME\t AGE\t LAYERS\t SIZE MB\t UNIQUE MB\t {}\n", if several { "BASE" } else { "" });
    let mut order: Vec<&str> = Vec::new();
    let mut covered = BTreeSet::new();
    let mib = |bytes: u64| bytes as f64 / 1024.0 / 1024.0;
    for (tag, _) in release.tags() {
        let Some(image) = images.get(&tag) else { continue };
        let layers = &image.manifest.layers;
        let mut base = String::new();
        if let (true, Some(first)) = (several, layers.first()) {
            let at = order.iter().position(|known| *known == first.digest).unwrap_or_else(|| {
                order.push(&first.digest);
                order.len() - 1
            });
            base = match (bases.len() <= 5, u8::try_from(at)) {
                (true, Ok(letter)) => format!("{}{}", " ".repeat(at), char::from(b'A' + letter)),
                _ => (at + 1).to_string(),
            };
        }
        let size: u64 = layers.iter().map(|layer| layer.bytes()).sum();
        let alone = layers.iter().filter(|layer| counts.get(layer.digest.as_str()) == Some(&1));
        let mut unique: u64 = alone.map(|layer| layer.bytes()).sum();
        if let (0, Some(top)) = (unique, layers.last())
            && covered.insert(&top.digest)
        {
            unique = top.bytes();
        }
        let created: Option<Timestamp> = image.config["created"].as_str().and_then(|time| time.parse().ok());
        let age = created.map(|created| age(created, now)).unwrap_or_default();
        let _ = writeln!(
            text,
            "  {tag}\t{age:>4}\t{:>7}\t{:>8.1}\t{:>10.1}\t {base}",
            layers.len(),
            mib(size),
            mib(unique)
        );
    }
    let more = if several { format!(", {} different base images", bases.len()) } else { String::new() };
    let _ = write!(text, "\n  {} across {} layers{more}\n", human(total), counts.len());
    text
}

fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["B", "kB", "MB", "GB", "TB"].iter();
    let mut unit = units.next().unwrap_or(&"B");
    while value >= 1000.0 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1000.0, next);
    }
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}{unit}");
    if unit == &"B" { format!("{bytes}B") } else { text }
}

fn age(since: Timestamp, now: Timestamp) -> String {
    match now.as_second() - since.as_second() {
        seconds if seconds < -1 => "<invalid>".to_owned(),
        seconds if seconds < 60 => format!("{}s", seconds.max(0)),
        seconds if seconds < 3600 => format!("{}m", seconds / 60),
        seconds if seconds < 24 * 3600 => format!("{}h", seconds / 3600),
        seconds if seconds < 365 * 24 * 3600 => format!("{}d", seconds / (24 * 3600)),
        seconds => format!("{}y", seconds / (365 * 24 * 3600)),
    }
}

/// Tags that differ: name, image before, image now.
type Changed = Vec<(String, Option<String>, Option<String>)>;

fn changed(from: &Release, to: &Release) -> Changed {
    let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (from.tags().into_iter().collect(), to.tags().into_iter().collect());
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name))
        .map(|name| (name.clone(), old.get(name).cloned(), new.get(name).cloned()))
        .collect()
}

fn diff(from: &Release, to: &Release, now: Timestamp) -> String {
    if from.digest == to.digest && !to.digest.is_empty() {
        return "Releases are identical\n".to_owned();
    }
    let since = |release: &Release| release.created().map(|time| age(time, now)).unwrap_or_default();
    let mut text = format!(
        "\tFROM\tTO\nName:\t{}\t{}\nCreated:\t{}\t{}\n",
        from.name(),
        to.name(),
        since(from),
        since(to)
    );
    if from.platform() != to.platform() {
        let _ = writeln!(text, "OS/Arch:\t{}\t{}", from.platform(), to.platform());
    }
    let can = if to.about().previous.iter().any(|version| version == from.name()) { "Yes" } else { "No" };
    let _ = write!(text, "\nVersion:\t{}\t{}\nUpgrade From:\t\t{can}\n", from.name(), to.name());
    let all = changed(from, to);
    let width = all.iter().map(|(name, ..)| name.len()).max().unwrap_or_default();
    let short = |image: &str| image.split_once('@').map_or(image.to_owned(), |(_, digest)| digest.to_owned());
    let code = |name: &str| {
        let (old, new) = (from.annotation(name, COMMIT), to.annotation(name, COMMIT));
        !old.is_empty() && !new.is_empty() && old != new
    };
    let mut sections = [String::new(), String::new(), String::new(), String::new()];
    for (name, old, new) in &all {
        let (place, line) = match (old, new) {
            (Some(old), Some(new)) => {
                (usize::from(!code(name)), format!("  {name:width$}\t{}\t{}\n", short(old), short(new)))
            }
            (None, Some(new)) => (2, format!("  {name:width$}\t{}\n", short(new))),
            _ => (3, format!("  {name:width$}\n")),
        };
        sections[place].push_str(&line);
    }
    let titles = ["Images Changed:", "Images Rebuilt:", "Images Added:", "Images Removed:"];
    for (title, lines) in titles.iter().zip(sections).filter(|(_, lines)| !lines.is_empty()) {
        let _ = write!(text, "\n{title}\n{}", tabs(&lines, 1));
    }
    text.push('\n');
    tabs(&text, 2)
}

fn diff_json(from: &Release, to: &Release) -> Value {
    let tag = |release: &Release, name: &str| {
        let tags = release.references["spec"]["tags"].as_array().into_iter().flatten();
        tags.into_iter().find(|tag| tag["name"] == name).cloned().unwrap_or_default()
    };
    let images: BTreeMap<String, Value> = changed(from, to)
        .into_iter()
        .map(|(name, ..)| {
            (name.clone(), json!({"name": name, "from": tag(from, &name), "to": tag(to, &name)}))
        })
        .collect();
    let content = |release: &Release, name: &str| {
        let found = release.manifests.iter().find(|file| file.name == name);
        found.map(|file| String::from_utf8_lossy(&file.bytes).into_owned())
    };
    let names: BTreeSet<&String> =
        from.manifests.iter().chain(&to.manifests).map(|file| &file.name).collect();
    let manifests: BTreeMap<&String, Value> = names
        .into_iter()
        .filter(|name| content(from, name) != content(to, name))
        .map(|name| (name, json!({"filename": name, "from": content(from, name), "to": content(to, name)})))
        .collect();
    json!({"from": from.json(), "to": to.json(), "changedImages": images, "changedManifests": manifests})
}

/// Aligns cells that end with a tab, column by column, over neighbouring lines that have the column.
pub fn tabs(text: &str, padding: usize) -> String {
    let lines: Vec<Vec<&str>> = text.split('\n').map(|line| line.split('\t').collect()).collect();
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|line| vec![0; line.len()]).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    for column in 0..columns {
        let mut start = 0;
        while start < lines.len() {
            // The last cell of a line ends with the line and is no column.
            let length = lines[start..].iter().take_while(|line| line.len() > column + 1).count();
            let block = start..start + length;
            let width = lines[block.clone()].iter().map(|line| line[column].chars().count()).max();
            for index in block {
                widths[index][column] = width.unwrap_or_default() + padding;
            }
            start += length.max(1);
        }
    }
    let mut out = String::with_capacity(text.len());
    for (number, (line, widths)) in lines.iter().zip(&widths).enumerate() {
        if number > 0 {
            out.push('\n');
        }
        for (cell, width) in line.iter().zip(widths) {
            let _ = write!(out, "{cell:width$}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_in_blocks() {
        assert_eq!(tabs("a\tb\nlonger\tc\n\nx\ty\n", 1), "a      b\nlonger c\n\nx y\n");
        assert_eq!(tabs("\tFROM\tTO\nName:\t1\t2\n", 2), "       FROM  TO\nName:  1     2\n");
        assert_eq!(tabs("plain\n", 1), "plain\n");
    }

    fn built_in() -> Release {
        let payload = Payload::built_in("0.1.0").unwrap();
        let reference = Reference::parse("kelson.local/release:0.1.0").unwrap();
        let config = json!({"os": "linux", "architecture": "amd64"});
        Release::read("kelson.local/release:0.1.0", reference, None, config, payload.files).unwrap()
    }

    #[test]
    fn the_page_says_what_is_in_a_release_and_what_is_missing() {
        let page = describe(&built_in(), "  NAME\tDIGEST\n");
        for line in [
            "Name:      0.1.0\n",
            "  Version:  0.1.0\n",
            "  Upgrades: <none>\n",
            "  kubernetes 1.36.0 Kubernetes\n",
        ] {
            assert!(page.contains(line), "{line:?} is not in\n{page}");
        }
        assert!(page.contains("Warnings:\n* ") && page.contains("machine-os-content is missing"), "{page}");
    }

    #[test]
    fn what_is_no_release_is_refused() {
        let reference = Reference::parse("example.com/app:1").unwrap();
        let read = |files| Release::read("example.com/app:1", reference.clone(), None, json!({}), files);
        let error = read(Vec::new()).err().unwrap().to_string();
        assert!(error.contains("did not contain any image-references"), "{error}");
        let stream = File::new("image-references", "{\"kind\": \"Pod\"}");
        assert!(read(vec![stream]).err().unwrap().to_string().contains("unrecognized image-references"));
    }

    #[test]
    fn two_releases_are_compared_by_their_images() {
        let (from, mut to) = (built_in(), built_in());
        let tags = to.references["spec"]["tags"].as_array_mut().unwrap();
        tags.retain(|tag| tag["name"] != "cli");
        let etcd = tags.iter_mut().find(|tag| tag["name"] == "etcd").unwrap();
        etcd["from"]["name"] = json!("example.com/etcd@sha256:aa");
        let text = diff(&from, &to, Timestamp::UNIX_EPOCH);
        assert!(text.contains("Images Rebuilt:\n  etcd kelson.local/etcd:0.1.0 sha256:aa\n"), "{text}");
        assert!(text.contains("Images Removed:\n  cli "), "{text}");
        assert!(!text.contains("kubelet"), "{text}");
    }

    #[test]
    fn sizes_and_ages_are_for_people() {
        let shown: Vec<String> = [5, 1234, 71_900_000, 123_000_000_000].into_iter().map(human).collect();
        assert_eq!(shown, ["5B", "1.23kB", "71.9MB", "123GB"]);
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!((age(at(0), at(59)), age(at(0), at(7200))), ("59s".to_owned(), "2h".to_owned()));
    }
}
