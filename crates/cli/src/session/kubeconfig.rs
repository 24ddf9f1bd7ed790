//! Kubeconfigs: which files, how they are merged, and what the chosen context says.
//!
//! Files are kept as values, so that what this program does not know survives a change of what it knows.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use apimachinery::yaml;
use serde_json::{Map, Value, json};

use crate::error::{CliError, message};
use crate::flags::GlobalFlags;

/// One file.
#[derive(Clone, Debug)]
pub struct File {
    pub path: PathBuf,
    pub content: Value,
}

/// The files in the order of their weight: the first that says something wins.
#[derive(Clone, Debug, Default)]
pub struct Kubeconfig {
    pub files: Vec<File>,
    /// Where new things are written.
    pub destination: PathBuf,
    /// Named on the command line, so that it must exist to be used.
    pub explicit: bool,
}

/// The three lists of a kubeconfig: the list's name and the name of its entries' content.
pub const CLUSTERS: (&str, &str) = ("clusters", "cluster");
pub const CONTEXTS: (&str, &str) = ("contexts", "context");
pub const USERS: (&str, &str) = ("users", "user");

impl Kubeconfig {
    /// `--kubeconfig`, then `KUBECONFIG`, then the user's own file, or before it the running cluster of this machine if the
    /// program is called by its own name.
    pub fn find(flags: &GlobalFlags, own_name: bool) -> Result<Self, CliError> {
        if let Some(path) = flags.kubeconfig.as_ref().filter(|path| !path.as_os_str().is_empty()) {
            return Self::load(vec![path.clone()], true);
        }
        if let Some(list) = env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
            let mut paths: Vec<PathBuf> = Vec::new();
            for path in env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()) {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
            return Self::load(paths, false);
        }
        let home = env::home_dir().unwrap_or_default();
        let usual = home.join(".kube/config");
        let elsewhere = flags.context.is_some() || flags.cluster.is_some() || flags.server.is_some();
        let local = local_cluster(&home);
        let path = match local {
            Some(local) if (own_name && !elsewhere) || !usual.exists() => local,
            _ => usual,
        };
        Self::load(vec![path], false)
    }

    fn load(paths: Vec<PathBuf>, explicit: bool) -> Result<Self, CliError> {
        let mut files = Vec::new();
        for path in &paths {
            match fs::read(path) {
                Ok(text) => files.push(File { path: path.clone(), content: parse(&text, path)? }),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(message(format!(
                        "error loading config file \"{}\": {error}",
                        path.display()
                    )));
                }
            }
        }
        let destination = files.first().map(|file| file.path.clone());
        let destination =
            destination.or_else(|| paths.last().cloned()).unwrap_or_else(|| PathBuf::from(".kube/config"));
        Ok(Self { files, destination, explicit })
    }

    /// A file that was asked for by name must be there for whoever wants to use it.
    pub fn require(&self) -> Result<(), CliError> {
        if self.explicit && self.files.is_empty() {
            let path = self.destination.display();
            return Err(message(format!("stat {path}: no such file or directory")));
        }
        Ok(())
    }

    pub fn current_context(&self) -> Option<&str> {
        self.files
            .iter()
            .filter_map(|file| file.content["current-context"].as_str())
            .find(|name| !name.is_empty())
    }

    /// The content of an entry, and the file that holds it.
    pub fn entry(&self, list: (&str, &str), name: &str) -> Option<(&Map<String, Value>, &Path)> {
        self.files.iter().find_map(|file| {
            let found = find(&file.content, list, name)?;
            Some((found, file.path.as_path()))
        })
    }

    pub fn names(&self, list: (&str, &str)) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for file in &self.files {
            for entry in file.content[list.0].as_array().into_iter().flatten() {
                if let Some(name) = entry["name"].as_str() {
                    names.push(name.to_owned());
                }
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// All files as one, with file names made absolute.
    pub fn merged(&self) -> Value {
        let mut merged = json!({"apiVersion": "v1", "kind": "Config", "preferences": {}});
        for list in [CLUSTERS, CONTEXTS, USERS] {
            let mut entries = Vec::new();
            for name in self.names(list) {
                let Some((content, path)) = self.entry(list, &name) else { continue };
                let mut content = content.clone();
                if self.files.len() > 1 || !self.explicit {
                    absolute(&mut content, path);
                }
                entries.push(json!({"name": name, list.1: content}));
            }
            merged[list.0] = if entries.is_empty() { Value::Null } else { Value::Array(entries) };
        }
        merged["current-context"] = json!(self.current_context().unwrap_or_default());
        for file in &self.files {
            if file.content["preferences"].as_object().is_some_and(|map| !map.is_empty()) {
                merged["preferences"] = file.content["preferences"].clone();
                break;
            }
        }
        merged
    }
}

fn find<'a>(content: &'a Value, list: (&str, &str), name: &str) -> Option<&'a Map<String, Value>> {
    let entries = content[list.0].as_array()?;
    entries.iter().find(|entry| entry["name"] == name)?[list.1].as_object()
}

/// Names of files in a kubeconfig are relative to it.
fn absolute(content: &mut Map<String, Value>, file: &Path) {
    let directory = file.parent().unwrap_or(Path::new(""));
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    for name in ["certificate-authority", "client-certificate", "client-key", "tokenFile"] {
        if let Some(Value::String(path)) = content.get_mut(name)
            && !path.is_empty()
        {
            *path = directory.join(&*path).to_string_lossy().into_owned();
        }
    }
}

pub fn parse(text: &[u8], path: &Path) -> Result<Value, CliError> {
    let fail =
        |reason: String| message(format!("error loading config file \"{}\": {reason}", path.display()));
    let json = yaml::to_json(text).map_err(fail)?;
    let value: Value = serde_json::from_str(&json.text).map_err(|error| fail(error.to_string()))?;
    match value {
        Value::Null => Ok(json!({})),
        Value::Object(_) => Ok(value),
        _ => Err(fail("it is not a map".to_owned())),
    }
}

/// The administrator's file of the cluster that `kelson up` runs here, if this user may read it.
fn local_cluster(home: &Path) -> Option<PathBuf> {
    let data = match env::var_os("KELSON_DATA_DIR") {
        Some(given) => PathBuf::from(given),
        None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib/kelson"),
        None => home.join(".local/share/kelson"),
    };
    let file = data.join("admin.kubeconfig");
    fs::File::open(&file).is_ok().then_some(file)
}

/// What a connection needs, with files still named and not read.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub server: String,
    pub proxy: Option<String>,
    pub tls_server_name: Option<String>,
    pub insecure: bool,
    pub authority: Option<Material>,
    pub certificate: Option<Material>,
    pub key: Option<Material>,
    pub token: Option<String>,
    pub token_file: Option<PathBuf>,
    pub basic: Option<(String, String)>,
    pub exec: Option<Value>,
    pub namespace: Option<String>,
    pub impersonate: Vec<(String, String)>,
    /// As the kubeconfig has it, for plug-ins that want to know the cluster.
    pub cluster: Map<String, Value>,
}

/// PEM, here or in a file.
#[derive(Clone, Debug)]
pub enum Material {
    Data(Vec<u8>),
    File(PathBuf),
}

impl Material {
    pub fn read(&self, what: &str) -> Result<Vec<u8>, CliError> {
        match self {
            Self::Data(data) => Ok(data.clone()),
            Self::File(path) => fs::read(path)
                .map_err(|error| message(format!("unable to read {what} {} due to {error}", path.display()))),
        }
    }
}

/// The context in use, with what the flags say instead.
pub fn access(config: &Kubeconfig, flags: &GlobalFlags) -> Result<Access, CliError> {
    config.require()?;
    let invalid = |reason: String| CliError::Message(reason);
    let mut access = Access::default();
    let context_name = flags.context.as_deref().or(config.current_context());
    let context = match context_name {
        Some(name) => match config.entry(CONTEXTS, name) {
            Some((context, _)) => context.clone(),
            None if flags.context.is_some() => {
                return Err(CliError::Plain(format!(
                    "Error in configuration: context was not found for specified context: {name}"
                )));
            }
            None => Map::new(),
        },
        None => Map::new(),
    };
    let word = |map: &Map<String, Value>, field: &str| {
        map.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    access.namespace = word(&context, "namespace");

    if let Some(name) = flags.cluster.clone().or_else(|| word(&context, "cluster")) {
        match config.entry(CLUSTERS, &name) {
            Some((cluster, file)) => {
                let mut cluster = cluster.clone();
                absolute(&mut cluster, file);
                access.server = word(&cluster, "server").unwrap_or_default();
                access.proxy = word(&cluster, "proxy-url");
                access.tls_server_name = word(&cluster, "tls-server-name");
                access.insecure = cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true));
                access.authority = material(&cluster, "certificate-authority")?;
                access.cluster = cluster;
            }
            None if flags.server.is_none() => {
                return Err(invalid(format!("no server found for cluster {name:?}")));
            }
            None => {}
        }
    }
    if let Some(name) = flags.user.clone().or_else(|| word(&context, "user")) {
        match config.entry(USERS, &name) {
            Some((user, file)) => {
                let mut user = user.clone();
                absolute(&mut user, file);
                access.certificate = material(&user, "client-certificate")?;
                access.key = material(&user, "client-key")?;
                access.token = word(&user, "token");
                access.token_file = word(&user, "tokenFile").map(PathBuf::from);
                access.basic =
                    word(&user, "username").map(|name| (name, word(&user, "password").unwrap_or_default()));
                access.exec = user.get("exec").filter(|exec| exec.is_object()).cloned();
                if user.get("auth-provider").is_some_and(Value::is_object) {
                    return Err(invalid(format!(
                        "user {name:?} uses an auth-provider, which was removed; use an exec credential plug-in instead"
                    )));
                }
                impersonation_of(&user, &mut access.impersonate);
            }
            None if flags.user.is_some() => {
                return Err(invalid(format!("auth info {name:?} does not exist")));
            }
            None => {}
        }
    }
    override_by_flags(&mut access, flags)?;
    Ok(access)
}

fn impersonation_of(user: &Map<String, Value>, out: &mut Vec<(String, String)>) {
    let mut add = |header: String, value: &Value| {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            out.push((header, text.to_owned()));
        }
    };
    let get = |field: &str| user.get(field).cloned().unwrap_or_default();
    add("Impersonate-User".to_owned(), &get("as"));
    add("Impersonate-Uid".to_owned(), &get("as-uid"));
    for group in get("as-groups").as_array().into_iter().flatten() {
        add("Impersonate-Group".to_owned(), group);
    }
    for (key, values) in get("as-user-extra").as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten() {
            add(format!("Impersonate-Extra-{}", escaped(key)), value);
        }
    }
}

fn override_by_flags(access: &mut Access, flags: &GlobalFlags) -> Result<(), CliError> {
    if let Some(server) = &flags.server {
        access.server = server.clone();
        if flags.certificate_authority.is_none() && flags.insecure_skip_tls_verify {
            access.authority = None;
        }
    }
    if let Some(file) = flags.certificate_authority.as_ref().filter(|file| !file.as_os_str().is_empty()) {
        access.authority = Some(Material::File(file.clone()));
    }
    access.insecure |= flags.insecure_skip_tls_verify;
    if flags.tls_server_name.is_some() {
        access.tls_server_name = flags.tls_server_name.clone();
    }
    if let Some(file) = flags.client_certificate.as_ref().filter(|file| !file.as_os_str().is_empty()) {
        access.certificate = Some(Material::File(file.clone()));
    }
    if let Some(file) = flags.client_key.as_ref().filter(|file| !file.as_os_str().is_empty()) {
        access.key = Some(Material::File(file.clone()));
    }
    if let Some(token) = &flags.token {
        (access.token, access.token_file) = (Some(token.clone()), None);
        (access.basic, access.exec) = (None, None);
    }
    if let Some(name) = &flags.username {
        access.basic = Some((name.clone(), flags.password.clone().unwrap_or_default()));
        (access.token, access.token_file) = (None, None);
    }
    if !flags.as_user.is_empty()
        || !flags.as_group.is_empty()
        || flags.as_uid.is_some()
        || !flags.as_user_extra.is_empty()
    {
        if flags.as_user.is_empty() {
            return Err(message("requesting uid, groups or user-extra for  without impersonating a user"));
        }
        access.impersonate.clear();
        access.impersonate.push(("Impersonate-User".to_owned(), flags.as_user.clone()));
        if let Some(uid) = &flags.as_uid {
            access.impersonate.push(("Impersonate-Uid".to_owned(), uid.clone()));
        }
        for group in flags.as_group.iter().flat_map(|list| list.split(',')) {
            access.impersonate.push(("Impersonate-Group".to_owned(), group.to_owned()));
        }
        for pair in &flags.as_user_extra {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| message(format!("--as-user-extra must be key=value, not {pair:?}")))?;
            access.impersonate.push((format!("Impersonate-Extra-{}", escaped(key)), value.to_owned()));
        }
    }
    Ok(())
}

fn escaped(key: &str) -> String {
    let mut out = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Data wins over the file beside it.
fn material(map: &Map<String, Value>, name: &str) -> Result<Option<Material>, CliError> {
    let data = map.get(&format!("{name}-data")).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(data) = data {
        let decoded = apimachinery::golang::base64(data)
            .map_err(|at| message(format!("{name}-data: illegal base64 data at input byte {at}")))?;
        return Ok(Some(Material::Data(decoded)));
    }
    let file = map.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    Ok(file.map(|file| Material::File(PathBuf::from(file))))
}
