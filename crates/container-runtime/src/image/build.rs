//! Images from a directory: its content as one layer, or what its Containerfile says, without running anything.
//!
//! The result is imported like any other image; its archives are kept, because an image is built to be pushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::bundle::{Bundle, Layer};
use super::containerfile::{self, BadFile, Step};
use super::export::write_layout;
use super::import::import;
use super::manifest::{Descriptor, OCI_LAYER};
use super::pack::{Ownership, Packer, inside};
use super::store::Workspace;
use super::{ImageError, ImageRecord, Store, architecture};

/// Why an image could not be built.
#[derive(Debug, Error)]
pub enum BuildError {
    #[error("{path}")]
    File {
        path: PathBuf,
        #[source]
        source: BadFile,
    },
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0} would leave files out, which is not supported: move it away")]
    Ignore(PathBuf),
    #[error("the base image {0} is not present: pull it first")]
    Base(String),
    #[error("cannot copy {0}")]
    Copy(String, #[source] io::Error),
    #[error(transparent)]
    Image(#[from] ImageError),
}

type Result<T> = std::result::Result<T, BuildError>;

/// What to build from.
#[derive(Clone, Debug)]
pub struct Context {
    pub directory: PathBuf,
    /// Another file than the directory's own.
    pub file: Option<PathBuf>,
}

impl Context {
    /// The steps, if there is a file that says them. `variables` are those of the base image.
    fn steps(&self, variables: &BTreeMap<String, String>) -> Result<Option<Vec<Step>>> {
        let candidates = match &self.file {
            Some(file) => vec![file.clone()],
            None => ["Containerfile", "Dockerfile"].map(|name| self.directory.join(name)).to_vec(),
        };
        for path in candidates {
            match fs::read_to_string(&path) {
                Ok(text) => {
                    let steps = containerfile::parse(&text, variables.clone());
                    return steps.map(Some).map_err(|source| BuildError::File { path, source });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.file.is_none() => {}
                Err(source) => return Err(BuildError::Read { path, source }),
            }
        }
        Ok(None)
    }

    /// The image that it starts from, if it has one.
    pub fn base(&self) -> Result<Option<String>> {
        let steps = self.steps(&BTreeMap::new())?.unwrap_or_default();
        Ok(steps.into_iter().find_map(|step| match step {
            Step::From(base) => base,
            _ => None,
        }))
    }
}

/// Builds an image and gives it a name.
pub fn build(store: &Store, context: &Context, tag: &str) -> Result<ImageRecord> {
    let base = match context.base()? {
        Some(name) => Some(store.find(&name)?.ok_or(BuildError::Base(name))?),
        None => None,
    };
    let environment = base.iter().flat_map(|base| &base.config.env);
    let variables = environment.filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into()));
    let steps = context.steps(&variables.collect())?;
    if steps.is_some() {
        for name in [".dockerignore", ".containerignore"] {
            let path = context.directory.join(name);
            if path.exists() {
                return Err(BuildError::Ignore(path));
            }
        }
    }
    let work = store.workspace(base.as_ref().map_or(&[][..], |base| &base.layers))?;
    let mut image = Building::on(store, base.as_ref(), &work)?;
    match steps {
        Some(steps) => {
            for step in steps {
                image.step(step, context)?;
            }
        }
        None => {
            let path = image.next_path();
            let pack = || {
                let mut packer = Packer::create(&path)?;
                packer.add(&context.directory, Path::new(""), Ownership::default(), false)?;
                packer.finish()
            };
            let packed =
                pack().map_err(|source| BuildError::Read { path: context.directory.clone(), source })?;
            image.push(path, packed);
        }
    }
    let bundle = image.finish()?;
    let layout = work.path().join("layout");
    write_layout(&bundle, &layout).map_err(ImageError::disk("write", &layout))?;
    let mut imported = import(store, &layout, Some(tag))?;
    keep(store, &bundle)?;
    Ok(imported.remove(0))
}

/// Keeps the archives of an image that is recorded.
fn keep(store: &Store, bundle: &Bundle) -> std::result::Result<(), ImageError> {
    let _lock = store.lock(true)?;
    store.put_blob(&bundle.manifest)?;
    for layer in &bundle.layers {
        let place = store.blob_path(&layer.descriptor.digest);
        if !place.exists() {
            fs::rename(&layer.path, &place).map_err(ImageError::disk("create", &place))?;
        }
    }
    Ok(())
}

struct Building<'a> {
    config: Value,
    layers: Vec<Layer>,
    work: &'a Workspace,
}

impl<'a> Building<'a> {
    fn on(store: &Store, base: Option<&ImageRecord>, work: &'a Workspace) -> Result<Self> {
        let Some(base) = base else {
            let config = json!({"architecture": architecture(), "os": "linux", "config": {}});
            return Ok(Self { config, layers: Vec::new(), work });
        };
        let bundle = Bundle::of(store, base, work)?;
        let config = serde_json::from_slice(&bundle.config).map_err(|error| ImageError::Archive {
            path: store.blob_path(&base.id),
            reason: error.to_string(),
        })?;
        Ok(Self { config, layers: bundle.layers, work })
    }

    fn next_path(&self) -> PathBuf {
        self.work.path().join(format!("built-{}.tar.gz", self.layers.len()))
    }

    fn push(&mut self, path: PathBuf, packed: super::pack::Packed) {
        self.layers.push(Layer {
            descriptor: Descriptor::new(OCI_LAYER, &packed.digest, packed.size),
            diff_id: packed.diff_id,
            path,
        });
    }

    /// The part of the configuration that says how to run the image.
    fn run(&mut self) -> &mut Map<String, Value> {
        if !self.config["config"].is_object() {
            self.config["config"] = json!({});
        }
        match &mut self.config["config"] {
            Value::Object(fields) => fields,
            _ => unreachable!("it was made an object just now"),
        }
    }

    fn working_directory(&self) -> String {
        self.config["config"]["WorkingDir"].as_str().filter(|path| !path.is_empty()).unwrap_or("/").to_owned()
    }

    fn absolute(&self, path: &str) -> String {
        match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("{}/{path}", self.working_directory().trim_end_matches('/')),
        }
    }

    fn step(&mut self, step: Step, context: &Context) -> Result<()> {
        match step {
            Step::From(_) => {}
            Step::Env(pairs) => {
                let list = self.run().entry("Env").or_insert_with(|| json!([]));
                let mut all: Vec<String> = serde_json::from_value(list.take()).unwrap_or_default();
                for (key, value) in pairs {
                    let start = format!("{key}=");
                    all.retain(|known| !known.starts_with(&start));
                    all.push(format!("{start}{value}"));
                }
                self.run().insert("Env".into(), json!(all));
            }
            Step::Label(pairs) => {
                let labels = self.run().entry("Labels").or_insert_with(|| json!({}));
                if !labels.is_object() {
                    *labels = json!({});
                }
                for (key, value) in pairs {
                    labels[key] = json!(value);
                }
            }
            Step::Entrypoint(words) => {
                self.run().insert("Entrypoint".into(), json!(words));
                // The base's arguments were for its own program.
                self.run().remove("Cmd");
            }
            Step::Cmd(words) => drop(self.run().insert("Cmd".into(), json!(words))),
            Step::User(user) => drop(self.run().insert("User".into(), json!(user))),
            Step::WorkDir(path) => {
                let path = format!("/{}", inside(&self.absolute(&path)).display());
                self.run().insert("WorkingDir".into(), json!(path));
            }
            Step::Copy { sources, target, owner, mode } => {
                let ownership = Ownership { owner: Some(owner.unwrap_or((0, 0))), mode, time: None };
                self.copy(context, &sources, &target, ownership)?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, context: &Context, sources: &[String], target: &str, how: Ownership) -> Result<()> {
        let is_directory =
            target.ends_with('/') || sources.len() > 1 || target.ends_with("/.") || target == ".";
        let target = inside(&self.absolute(target));
        let path = self.next_path();
        let failed = |text: &str| {
            let text = text.to_owned();
            move |source| BuildError::Copy(text, source)
        };
        let root = open_directory(&context.directory).map_err(failed("from the context"))?;
        let mut packer = Packer::create(&path).map_err(failed("into a layer"))?;
        for source in sources {
            let opened = open_inside(&root, source).map_err(failed(source))?;
            // Through the descriptor: whatever the name means by now, this is what was checked.
            let place = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
            let file = File::from(opened.as_fd().try_clone_to_owned().map_err(failed(source))?);
            if file.metadata().map_err(failed(source))?.is_dir() {
                packer.add(&place.join("."), &target, how, false).map_err(failed(source))?;
                continue;
            }
            let name = match is_directory {
                true => target.join(inside(source).file_name().unwrap_or_default()),
                false => target.clone(),
            };
            let real = fs::read_link(&place).map_err(failed(source))?;
            packer.add(&real, &name, how, false).map_err(failed(source))?;
        }
        let packed = packer.finish().map_err(failed("into a layer"))?;
        self.push(path, packed);
        Ok(())
    }

    fn finish(mut self) -> Result<Bundle> {
        self.config["created"] = json!(jiff::Timestamp::now().to_string());
        Bundle::assemble(self.config, self.layers).map_err(|error| {
            ImageError::Archive { path: self.work.path().to_owned(), reason: error.to_string() }.into()
        })
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// A file or directory of the context; links lead nowhere outside of it.
fn open_inside(root: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let name = inside(name);
    let name = if name.as_os_str().is_empty() { Path::new(".") } else { &name };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(root, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}
