//! Namespaces, config maps, secrets and service accounts.

use std::fs;
use std::io::Write;
use std::path::Path;

use apimachinery::names;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::{Common, one_name};
use crate::error::{CliError, message};
use crate::session::Session;

/// Create a namespace with the specified name
#[derive(Args, Debug)]
pub struct Namespace {
    names: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Namespace {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("namespace", &self.names)?;
        Ok(
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}, "spec": {}, "status": {}}),
        )
    }
}

/// Create a service account with the specified name
#[derive(Args, Debug)]
pub struct ServiceAccount {
    names: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl ServiceAccount {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("serviceaccount", &self.names)?;
        Ok(json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": name}}))
    }
}

/// Where the data of a config map or secret comes from.
#[derive(Args, Debug, Clone)]
pub struct DataFlags {
    /// Key files can be specified using their file path, in which case a default name will be given to them, or optionally with a name and file path
    #[arg(long)]
    from_file: Vec<String>,
    /// Specify a key and literal value to insert (i.e. mykey=somevalue)
    #[arg(long)]
    from_literal: Vec<String>,
    /// Specify the path to a file to read lines of key=val pairs
    #[arg(long)]
    from_env_file: Vec<String>,
    /// Append a hash of the object to its name
    #[arg(long)]
    append_hash: bool,
    /// What is made of it is a secret.
    #[arg(skip)]
    secret: bool,
}

impl DataFlags {
    fn entries(&self) -> Result<Vec<(String, Vec<u8>)>, CliError> {
        let others = !self.from_file.is_empty() || !self.from_literal.is_empty();
        if others && !self.from_env_file.is_empty() {
            return Err(message("from-env-file cannot be combined with from-file or from-literal"));
        }
        let mut found: Vec<(String, Vec<u8>)> = Vec::new();
        let mut add = |key: String, value: Vec<u8>| {
            if found.iter().any(|(known, _)| *known == key) {
                return Err(message(format!(
                    "cannot add key \"{key}\", another key by that name already exists"
                )));
            }
            let problems = names::is_config_map_key(&key);
            if !problems.is_empty() {
                return Err(message(match self.secret {
                    false => {
                        format!("\"{key}\" is not a valid key name for a ConfigMap: {}", problems.join(","))
                    }
                    true => format!("\"{key}\" is not valid key name for a Secret {}", problems.join(";")),
                }));
            }
            found.push((key, value));
            Ok(())
        };
        for pair in &self.from_file {
            let (key, path) = match pair.split_once('=') {
                Some((key, path)) if key.is_empty() || path.is_empty() => {
                    return Err(message(format!(
                        "{} is not a valid file source",
                        if key.is_empty() {
                            format!("key name for file path {path} missing")
                        } else {
                            format!("file path for key name {key} missing")
                        }
                    )));
                }
                Some((key, path)) => (Some(key.to_owned()), path),
                None => (None, pair.as_str()),
            };
            let kind = fs::metadata(path).map_err(|error| {
                message(format!(
                    "error reading {path}: {}",
                    crate::go_io(&error, path).replace(&format!("open {path}: "), "")
                ))
            })?;
            if !kind.is_dir() {
                let base = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
                add(key.unwrap_or(base), read(path)?)?;
                continue;
            }
            if pair.contains('=') {
                return Err(message("cannot give a key name for a directory path"));
            }
            let mut entries: Vec<_> = fs::read_dir(path)?.filter_map(Result::ok).collect();
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in
                entries.into_iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            {
                let text = read(&entry.path().to_string_lossy())?;
                add(entry.file_name().to_string_lossy().into_owned(), text)?;
            }
        }
        for pair in &self.from_literal {
            let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.is_empty()) else {
                return Err(message(format!("invalid literal source {pair}, expected key=value")));
            };
            let quoted = value.len() > 1
                && ((value.starts_with('"') && value.ends_with('"'))
                    || (value.starts_with('\'') && value.ends_with('\'')));
            let value = if quoted { &value[1..value.len() - 1] } else { value };
            add(key.to_owned(), value.as_bytes().to_vec())?;
        }
        for path in &self.from_env_file {
            let text = read(path)?;
            for line in String::from_utf8_lossy(&text).trim_start_matches('\u{feff}').lines() {
                let line = line.trim_start();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let (key, value) = match line.split_once('=') {
                    Some((key, value)) => (key.to_owned(), value.to_owned()),
                    None => (line.to_owned(), std::env::var(line).unwrap_or_default()),
                };
                add(key, value.into_bytes())?;
            }
        }
        Ok(found)
    }
}

fn read(path: &str) -> Result<Vec<u8>, CliError> {
    fs::read(path).map_err(|error| message(crate::go_io(&error, path)))
}

/// Create a config map from a local file, directory or literal value
#[derive(Args, Debug)]
pub struct ConfigMap {
    names: Vec<String>,
    #[command(flatten)]
    data: DataFlags,
    #[command(flatten)]
    pub common: Common,
}

impl ConfigMap {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("configmap", &self.names)?;
        let (mut data, mut binary) = (Map::new(), Map::new());
        for (key, value) in self.data.entries()? {
            match String::from_utf8(value) {
                Ok(text) => data.insert(key, text.into()),
                Err(error) => binary.insert(key, STANDARD.encode(error.into_bytes()).into()),
            };
        }
        let mut object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}});
        if !data.is_empty() {
            object["data"] = Value::Object(data);
        }
        if !binary.is_empty() {
            object["binaryData"] = Value::Object(binary);
        }
        if self.data.append_hash {
            append_hash(&mut object, &["binaryData", "data", "kind", "name"]);
        }
        Ok(object)
    }
}

/// Adds ten letters to the name that stand for the content: the first of its SHA-256, without those that make words.
fn append_hash(object: &mut Value, fields: &[&str]) {
    let mut content = Map::new();
    for field in fields {
        let value = match *field {
            "name" => object["metadata"]["name"].clone(),
            "data" if object["data"].is_null() => {
                if object["kind"] == "Secret" {
                    json!({})
                } else {
                    json!("")
                }
            }
            "type" if object["type"].is_null() => json!(""),
            other => object[other].clone(),
        };
        if *field == "binaryData" && value.is_null() {
            continue;
        }
        content.insert((*field).to_owned(), value);
    }
    let digest = ring::digest::digest(
        &ring::digest::SHA256,
        crate::print::json::compact(&Value::Object(content)).as_bytes(),
    );
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let letters: String = hex
        .chars()
        .take(10)
        .map(|letter| match letter {
            '0' => 'g',
            '1' => 'h',
            '3' => 'k',
            'a' => 'm',
            'e' => 't',
            other => other,
        })
        .collect();
    let name = format!("{}-{letters}", object["metadata"]["name"].as_str().unwrap_or_default());
    object["metadata"]["name"] = name.into();
}

/// Create a secret using a specified subcommand
#[derive(Args, Debug)]
pub struct Secret {
    #[command(subcommand)]
    kind: SecretKind,
}

#[derive(Subcommand, Debug)]
enum SecretKind {
    /// Create a secret from a local file, directory, or literal value
    Generic {
        names: Vec<String>,
        #[command(flatten)]
        data: DataFlags,
        /// The type of secret to create
        #[arg(long = "type", default_value = "", hide_default_value = true)]
        kind: String,
        #[command(flatten)]
        common: Common,
    },
    /// Create a TLS secret
    Tls {
        names: Vec<String>,
        /// Path to PEM encoded public key certificate
        #[arg(long, default_value = "", hide_default_value = true)]
        cert: String,
        /// Path to private key associated with given certificate
        #[arg(long, default_value = "", hide_default_value = true)]
        key: String,
        /// Append a hash of the secret to its name
        #[arg(long)]
        append_hash: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Create a secret for use with a Docker registry
    DockerRegistry {
        names: Vec<String>,
        /// Username for Docker registry authentication
        #[arg(long, default_value = "", hide_default_value = true)]
        docker_username: String,
        /// Password for Docker registry authentication
        #[arg(long, default_value = "", hide_default_value = true)]
        docker_password: String,
        /// Email for Docker registry
        #[arg(long, default_value = "", hide_default_value = true)]
        docker_email: String,
        /// Server location for Docker registry
        #[arg(long, default_value = "https://index.docker.io/v1/")]
        docker_server: String,
        /// Key files
        #[arg(long)]
        from_file: Vec<String>,
        /// Append a hash of the secret to its name
        #[arg(long)]
        append_hash: bool,
        #[command(flatten)]
        common: Common,
    },
}

impl Secret {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let secret = |name: String, data: Vec<(String, Vec<u8>)>, kind: &str| {
            let data: Map<String, Value> =
                data.into_iter().map(|(key, value)| (key, STANDARD.encode(value).into())).collect();
            let mut object = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}});
            if !data.is_empty() {
                object["data"] = Value::Object(data);
            }
            if !kind.is_empty() {
                object["type"] = kind.into();
            }
            object
        };
        const HASHED: &[&str] = &["data", "kind", "name", "type"];
        match self.kind {
            SecretKind::Generic { names, mut data, kind, common } => {
                data.secret = true;
                let mut object = secret(one_name("secret generic", &names)?, data.entries()?, &kind);
                if data.append_hash {
                    append_hash(&mut object, HASHED);
                }
                common.finish(session, object, out).await
            }
            SecretKind::Tls { names, cert, key, append_hash: hash, common } => {
                let name = one_name("secret tls", &names)?;
                if cert.is_empty() || key.is_empty() {
                    return Err(message("key and cert must be specified"));
                }
                let (cert, key) = (read(&cert)?, read(&key)?);
                client::tls_client(client::Trust::Anyone, Some((&cert, &key)), "h2")
                    .map_err(|error| message(format!("tls: {}", crate::session::transport::chain(&error))))?;
                let data = vec![("tls.crt".to_owned(), cert), ("tls.key".to_owned(), key)];
                let mut object = secret(name, data, "kubernetes.io/tls");
                if hash {
                    append_hash(&mut object, HASHED);
                }
                common.finish(session, object, out).await
            }
            SecretKind::DockerRegistry {
                names,
                docker_username,
                docker_password,
                docker_email,
                docker_server,
                from_file,
                append_hash: hash,
                common,
            } => {
                let name = one_name("secret docker-registry", &names)?;
                let data = if from_file.is_empty() {
                    if docker_username.is_empty() || docker_password.is_empty() || docker_server.is_empty() {
                        return Err(message(
                            "either --from-file or the combination of --docker-username, --docker-password and --docker-server is required",
                        ));
                    }
                    let mut entry = json!({"username": docker_username, "password": docker_password});
                    if !docker_email.is_empty() {
                        entry["email"] = docker_email.into();
                    }
                    entry["auth"] = STANDARD.encode(format!("{docker_username}:{docker_password}")).into();
                    let config = json!({"auths": {docker_server: entry}});
                    vec![(".dockerconfigjson".to_owned(), config.to_string().into_bytes())]
                } else {
                    let flags = DataFlags {
                        from_file,
                        from_literal: Vec::new(),
                        from_env_file: Vec::new(),
                        append_hash: false,
                        secret: true,
                    };
                    flags.entries()?
                };
                let mut object = secret(name, data, "kubernetes.io/dockerconfigjson");
                if hash {
                    append_hash(&mut object, HASHED);
                }
                common.finish(session, object, out).await
            }
        }
    }
}
