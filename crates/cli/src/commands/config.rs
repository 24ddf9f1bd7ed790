//! `config`: looks at kubeconfigs and changes them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::error::{CliError, message};
use crate::print::OutputFlags;
use crate::print::tabwriter::TabWriter;
use crate::session::Session;
use crate::session::kubeconfig::{CLUSTERS, CONTEXTS, Kubeconfig, USERS};

/// Modify kubeconfig files
#[derive(Args, Debug)]
pub struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Display merged kubeconfig settings or a specified kubeconfig file
    View(View),
    /// Display the current-context
    CurrentContext,
    /// Set the current-context in a kubeconfig file
    #[command(alias = "use")]
    UseContext { args: Vec<String> },
    /// Describe one or many contexts
    GetContexts {
        args: Vec<String>,
        /// When using the default or custom-column output format, don't print headers
        #[arg(long)]
        no_headers: bool,
        /// Output format; one of: (name)
        #[arg(short, long, default_value = "", hide_default_value = true)]
        output: String,
    },
    /// Display clusters defined in the kubeconfig
    GetClusters,
    /// Display users defined in the kubeconfig
    GetUsers,
    /// Set a context entry in kubeconfig
    SetContext {
        args: Vec<String>,
        /// Modify the current context
        #[arg(long)]
        current: bool,
    },
    /// Set a cluster entry in kubeconfig
    SetCluster {
        args: Vec<String>,
        /// Embed-certs for the cluster entry in kubeconfig
        #[arg(long)]
        embed_certs: bool,
        /// Proxy url for the cluster entry in kubeconfig
        #[arg(long)]
        proxy_url: Option<String>,
    },
    /// Set a user entry in kubeconfig
    SetCredentials(SetCredentials),
    /// Set an individual value in a kubeconfig file
    Set {
        args: Vec<String>,
        /// When writing a []byte value, write the given base64 string directly without decoding
        #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = crate::flags::refused)]
        set_raw_bytes: Option<String>,
    },
    /// Unset an individual value in a kubeconfig file
    Unset { args: Vec<String> },
    /// Delete the specified cluster from the kubeconfig
    DeleteCluster { args: Vec<String> },
    /// Delete the specified context from the kubeconfig
    DeleteContext { args: Vec<String> },
    /// Delete the specified user from the kubeconfig
    DeleteUser { args: Vec<String> },
    /// Rename a context from the kubeconfig file
    RenameContext { args: Vec<String> },
}

#[derive(Args, Debug)]
struct View {
    #[command(flatten)]
    output: OutputFlags,
    /// Flatten the resulting kubeconfig file into self-contained output
    #[arg(long)]
    flatten: bool,
    /// Merge the full hierarchy of kubeconfig files
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    merge: Option<bool>,
    /// Remove all information not used by current-context from the output
    #[arg(long)]
    minify: bool,
    /// Display raw byte data and sensitive data
    #[arg(long)]
    raw: bool,
}

#[derive(Args, Debug)]
struct SetCredentials {
    args: Vec<String>,
    /// Embed client cert/key for the user entry in kubeconfig
    #[arg(long)]
    embed_certs: bool,
    /// Command for the exec credential plugin for the user entry in kubeconfig
    #[arg(long)]
    exec_command: Option<String>,
    /// API version of the exec credential plugin for the user entry in kubeconfig
    #[arg(long)]
    exec_api_version: Option<String>,
    /// New arguments for the exec credential plugin command for the user entry in kubeconfig
    #[arg(long, value_delimiter = ',')]
    exec_arg: Vec<String>,
    /// 'key=value' environment values for the exec credential plugin
    #[arg(long, value_delimiter = ',')]
    exec_env: Vec<String>,
    /// InteractiveMode of the exec credentials plugin for the user entry in kubeconfig
    #[arg(long)]
    exec_interactive_mode: Option<String>,
    /// ProvideClusterInfo of the exec credentials plugin for the user entry in kubeconfig
    #[arg(long)]
    exec_provide_cluster_info: bool,
}

fn usage(command: &str, args: &[String]) -> CliError {
    CliError::Usage {
        message: format!("Unexpected args: [{}]", args.join(" ")),
        command: format!("config {command}"),
    }
}

impl Config {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let config = session.config()?;
        match self.command {
            Command::View(view) => view.run(session, config, out),
            Command::CurrentContext => {
                let name = config.current_context().ok_or_else(|| message("current-context is not set"))?;
                writeln!(out, "{name}")?;
                Ok(())
            }
            Command::UseContext { args } => {
                let [name] = &args[..] else { return Err(usage("use-context", &args)) };
                if config.entry(CONTEXTS, name).is_none() {
                    return Err(message(format!("no context exists with the name: \"{name}\"")));
                }
                change(config, |content| content["current-context"] = name.clone().into())?;
                writeln!(out, "Switched to context \"{name}\".")?;
                Ok(())
            }
            Command::GetContexts { args, no_headers, output } => {
                get_contexts(config, &args, no_headers, &output, out)
            }
            Command::GetClusters => names(config, CLUSTERS, out),
            Command::GetUsers => names(config, USERS, out),
            Command::SetContext { args, current } => set_context(session, config, &args, current, out),
            Command::SetCluster { args, embed_certs, proxy_url } => {
                let [name] = &args[..] else { return Err(usage("set-cluster", &args)) };
                set_cluster(session, config, name, embed_certs, proxy_url)?;
                writeln!(out, "Cluster \"{name}\" set.")?;
                Ok(())
            }
            Command::SetCredentials(set) => set.run(session, config, out),
            Command::Set { args, .. } => {
                let [path, value] = &args[..] else { return Err(usage("set", &args)) };
                set_path(config, path, Some(value))?;
                writeln!(out, "Property \"{path}\" set.")?;
                Ok(())
            }
            Command::Unset { args } => {
                let [path] = &args[..] else { return Err(usage("unset", &args)) };
                set_path(config, path, None)?;
                writeln!(out, "Property \"{path}\" unset.")?;
                Ok(())
            }
            Command::DeleteCluster { args } => {
                delete(config, CLUSTERS, "cluster", "delete-cluster", &args, out)
            }
            Command::DeleteContext { args } => {
                if args.len() == 1
                    && config.current_context() == Some(&args[0])
                    && config.entry(CONTEXTS, &args[0]).is_some()
                {
                    eprintln!(
                        "warning: this removed your active context, use \"kubectl config use-context\" to select a different one"
                    );
                }
                delete(config, CONTEXTS, "context", "delete-context", &args, out)
            }
            Command::DeleteUser { args } => delete(config, USERS, "user", "delete-user", &args, out),
            Command::RenameContext { args } => rename(config, &args, out),
        }
    }
}

fn names(config: &Kubeconfig, list: (&str, &str), out: &mut dyn Write) -> Result<(), CliError> {
    writeln!(out, "NAME")?;
    for name in config.names(list) {
        writeln!(out, "{name}")?;
    }
    Ok(())
}

fn get_contexts(
    config: &Kubeconfig,
    args: &[String],
    no_headers: bool,
    output: &str,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if !matches!(output, "" | "name") {
        return Err(message(format!(
            "--output {output} is not available in kubectl config get-contexts; resetting to default output format"
        )));
    }
    let mut errors = Vec::new();
    let mut table = TabWriter::table();
    if output.is_empty() && !no_headers {
        table.line("CURRENT\tNAME\tCLUSTER\tAUTHINFO\tNAMESPACE");
    }
    let wanted = if args.is_empty() { config.names(CONTEXTS) } else { args.to_vec() };
    for name in wanted {
        let Some((context, _)) = config.entry(CONTEXTS, &name) else {
            errors.push(message(format!("context {name} not found")));
            continue;
        };
        if output == "name" {
            table.line(&name);
            continue;
        }
        let word = |field: &str| context.get(field).and_then(Value::as_str).unwrap_or_default();
        let mark = if config.current_context() == Some(&name) { "*" } else { "" };
        table.line(&format!("{mark}\t{name}\t{}\t{}\t{}", word("cluster"), word("user"), word("namespace")));
    }
    out.write_all(table.finish().as_bytes())?;
    CliError::all(errors)
}

impl View {
    fn run(self, session: &Session, config: &Kubeconfig, out: &mut dyn Write) -> Result<(), CliError> {
        config.require()?;
        let mut merged = config.merged();
        if self.minify {
            minify(&mut merged, session.flags.context.as_deref())?;
        }
        if self.flatten {
            embed(&mut merged)?;
        }
        if !self.raw {
            redact(&mut merged);
        }
        let mut output = self.output.clone();
        if output.output.is_empty() && output.template.is_empty() {
            output.output = "yaml".to_owned();
        }
        if output.output == "json" {
            writeln!(out, "{}", ordered_json(&merged))?;
            return Ok(());
        }
        match output.printer()? {
            Some(mut printer) => printer.print(&merged, out),
            None => Ok(()),
        }
    }
}

/// JSON with the fields in the order that kubectl's own type has.
fn ordered_json(config: &Value) -> String {
    let mut ordered = Map::new();
    for field in ["kind", "apiVersion", "preferences", "clusters", "users", "contexts", "current-context"] {
        let mut value = config[field].clone();
        for entry in value.as_array_mut().into_iter().flatten() {
            let mut whole = Map::new();
            for name in ["name", "cluster", "user", "context"] {
                if let Some(content) = entry.get(name) {
                    whole.insert(name.to_owned(), inner(content));
                }
            }
            *entry = Value::Object(whole);
        }
        ordered.insert(field.to_owned(), value);
    }
    crate::print::json::pretty_unsorted(&Value::Object(ordered))
}

fn inner(content: &Value) -> Value {
    let Some(map) = content.as_object() else { return content.clone() };
    const ORDER: &[&str] = &[
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority",
        "certificate-authority-data",
        "proxy-url",
        "disable-compression",
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "as",
        "username",
        "password",
        "cluster",
        "user",
        "namespace",
    ];
    let mut fields: Vec<(&String, &Value)> = map.iter().collect();
    fields.sort_by_key(|(name, _)| ORDER.iter().position(|known| known == name).unwrap_or(ORDER.len()));
    Value::Object(fields.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn minify(config: &mut Value, wanted: Option<&str>) -> Result<(), CliError> {
    let name = wanted
        .map(str::to_owned)
        .or_else(|| config["current-context"].as_str().map(str::to_owned))
        .unwrap_or_default();
    if name.is_empty() {
        return Err(message("current-context must exist in order to minify"));
    }
    let contexts = config["contexts"].as_array().cloned().unwrap_or_default();
    let Some(context) = contexts.into_iter().find(|entry| entry["name"] == name.as_str()) else {
        return Err(message(format!("cannot locate context {name}")));
    };
    let (cluster, user) = (context["context"]["cluster"].clone(), context["context"]["user"].clone());
    for (list, kept) in [("clusters", cluster), ("users", user), ("contexts", json!(name))] {
        if let Some(entries) = config[list].as_array_mut() {
            entries.retain(|entry| entry["name"] == kept);
        }
    }
    config["current-context"] = name.into();
    Ok(())
}

/// Puts the content of files in place of their names.
fn embed(config: &mut Value) -> Result<(), CliError> {
    for (list, content, fields) in [
        ("clusters", "cluster", &["certificate-authority"][..]),
        ("users", "user", &["client-certificate", "client-key"]),
    ] {
        for entry in config[list].as_array_mut().into_iter().flatten() {
            let Some(map) = entry[content].as_object_mut() else { continue };
            for field in fields {
                let Some(Value::String(path)) = map.shift_remove(*field) else { continue };
                let text = fs::read(&path).map_err(|error| message(crate::go_io(&error, &path)))?;
                map.insert(format!("{field}-data"), STANDARD.encode(text).into());
            }
        }
    }
    Ok(())
}

fn redact(config: &mut Value) {
    for (list, content) in [CLUSTERS, USERS] {
        for entry in config[list].as_array_mut().into_iter().flatten() {
            for (name, value) in entry[content].as_object_mut().into_iter().flatten() {
                match name.as_str() {
                    "certificate-authority-data" | "client-certificate-data" | "client-key-data" => {
                        *value = "DATA+OMITTED".into();
                    }
                    "token" | "password" => *value = "REDACTED".into(),
                    _ => {}
                }
            }
        }
    }
}

/// Changes the file that new things go to.
fn change(config: &Kubeconfig, edit: impl FnOnce(&mut Value)) -> Result<(), CliError> {
    change_in(config, &config.destination, edit)
}

fn change_in(config: &Kubeconfig, path: &Path, edit: impl FnOnce(&mut Value)) -> Result<(), CliError> {
    let known = config.files.iter().find(|file| file.path == path);
    let mut content = known.map_or_else(|| json!({}), |file| file.content.clone());
    edit(&mut content);
    content["apiVersion"] = "v1".into();
    content["kind"] = "Config".into();
    for (field, empty) in [
        ("clusters", Value::Null),
        ("contexts", Value::Null),
        ("users", Value::Null),
        ("preferences", json!({})),
        ("current-context", json!("")),
    ] {
        if content[field].is_null() || content[field].as_array().is_some_and(Vec::is_empty) {
            content[field] = empty;
        }
    }
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    if let Some(directory) = directory {
        fs::create_dir_all(directory)?;
    }
    let fresh = path.with_extension(format!("new{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| file.write_all(apimachinery::yaml::write(&content).as_bytes()))
        .and_then(|()| fs::rename(&fresh, path));
    written.map_err(|error| message(format!("cannot write {}: {error}", path.display())))
}

/// The entry to change, made if it is not there; in the file that has it.
fn with_entry(
    config: &Kubeconfig,
    list: (&str, &str),
    name: &str,
    edit: impl FnOnce(&mut Map<String, Value>),
) -> Result<bool, CliError> {
    let place = config.entry(list, name).map(|(_, path)| path.to_owned());
    let existed = place.is_some();
    change_in(config, &place.unwrap_or_else(|| config.destination.clone()), |content| {
        if !content[list.0].is_array() {
            content[list.0] = json!([]);
        }
        let Some(entries) = content[list.0].as_array_mut() else { return };
        let index = entries.iter().position(|entry| entry["name"] == name).unwrap_or_else(|| {
            entries.push(json!({"name": name, list.1: {}}));
            entries.len() - 1
        });
        if !entries[index][list.1].is_object() {
            entries[index][list.1] = json!({});
        }
        if let Some(map) = entries[index][list.1].as_object_mut() {
            edit(map);
        }
        entries.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    })?;
    Ok(existed)
}

fn set_context(
    session: &Session,
    config: &Kubeconfig,
    args: &[String],
    current: bool,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let name = match (args, current) {
        ([], true) => {
            config.current_context().ok_or_else(|| message("no current context is set"))?.to_owned()
        }
        ([_], true) => return Err(message("you cannot specify both a context name and --current")),
        ([name], false) if !name.is_empty() => name.clone(),
        ([], false) => return Err(message("you must specify a non-empty context name or --current")),
        _ => return Err(usage("set-context", args)),
    };
    let existed = with_entry(config, CONTEXTS, &name, |map| {
        let given = [
            ("cluster", &session.flags.cluster),
            ("user", &session.flags.user),
            ("namespace", &session.flags.namespace),
        ];
        for (field, value) in given {
            match value {
                Some(value) => {
                    map.insert(field.to_owned(), value.clone().into());
                }
                None if field != "namespace" && !map.contains_key(field) => {
                    map.insert(field.to_owned(), "".into());
                }
                None => {}
            }
        }
    })?;
    writeln!(out, "Context \"{name}\" {}.", if existed { "modified" } else { "created" })?;
    Ok(())
}

fn set_cluster(
    session: &Session,
    config: &Kubeconfig,
    name: &str,
    embed: bool,
    proxy: Option<String>,
) -> Result<(), CliError> {
    let flags = &session.flags;
    if flags.certificate_authority.is_some() && flags.insecure_skip_tls_verify {
        return Err(message("you cannot specify a certificate authority and insecure mode at the same time"));
    }
    let authority = match &flags.certificate_authority {
        None if embed => return Err(message("you must specify a --certificate-authority to embed")),
        None => None,
        Some(path) if embed => {
            let shown = path.to_string_lossy();
            let text = fs::read(path).map_err(|error| {
                message(format!(
                    "could not stat certificate-authority file {shown}: {}",
                    crate::go_io(&error, &shown).replace("open ", "stat ")
                ))
            })?;
            Some(("certificate-authority-data", STANDARD.encode(text)))
        }
        Some(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            Some(("certificate-authority", path.to_string_lossy().into_owned()))
        }
    };
    with_entry(config, CLUSTERS, name, |map| {
        map.entry("server").or_insert_with(|| "".into());
        if let Some(server) = &flags.server {
            map.insert("server".to_owned(), server.trim_end_matches('/').into());
        }
        if let Some(server_name) = &flags.tls_server_name {
            map.insert("tls-server-name".to_owned(), server_name.clone().into());
        }
        if flags.insecure_skip_tls_verify {
            map.insert("insecure-skip-tls-verify".to_owned(), true.into());
            map.shift_remove("certificate-authority");
            map.shift_remove("certificate-authority-data");
        }
        if let Some((field, value)) = authority {
            map.shift_remove("certificate-authority");
            map.shift_remove("certificate-authority-data");
            map.shift_remove("insecure-skip-tls-verify");
            map.insert(field.to_owned(), value.into());
        }
        if let Some(proxy) = proxy {
            map.insert("proxy-url".to_owned(), proxy.into());
        }
    })?;
    Ok(())
}

impl SetCredentials {
    fn run(self, session: &Session, config: &Kubeconfig, out: &mut dyn Write) -> Result<(), CliError> {
        let [name] = &self.args[..] else { return Err(usage("set-credentials", &self.args)) };
        let flags = &session.flags;
        if flags.token.is_some() && flags.username.is_some() {
            return Err(message(
                "you cannot specify more than one authentication method at the same time: --token, --username/--password",
            ));
        }
        let mut files = Vec::new();
        for (field, path) in
            [("client-certificate", &flags.client_certificate), ("client-key", &flags.client_key)]
        {
            let Some(path) = path else { continue };
            if self.embed_certs {
                let shown = path.to_string_lossy();
                let text = fs::read(path).map_err(|error| message(crate::go_io(&error, &shown)))?;
                files.push((field, format!("{field}-data"), STANDARD.encode(text)));
            } else {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                files.push((field, field.to_owned(), path.to_string_lossy().into_owned()));
            }
        }
        with_entry(config, USERS, name, |map| {
            for (field, target, value) in files {
                map.shift_remove(field);
                map.shift_remove(&format!("{field}-data"));
                map.insert(target, value.into());
            }
            if let Some(token) = &flags.token {
                map.insert("token".to_owned(), token.clone().into());
                map.shift_remove("username");
                map.shift_remove("password");
            }
            if let Some(user) = &flags.username {
                map.insert("username".to_owned(), user.clone().into());
                map.shift_remove("token");
            }
            if let Some(password) = &flags.password {
                map.insert("password".to_owned(), password.clone().into());
            }
            if let Some(command) = &self.exec_command {
                let mut exec = json!({"command": command, "apiVersion": self.exec_api_version.clone().unwrap_or_default(),
                    "args": if self.exec_arg.is_empty() { Value::Null } else { json!(self.exec_arg) },
                    "env": Value::Null, "provideClusterInfo": self.exec_provide_cluster_info,
                    "interactiveMode": self.exec_interactive_mode.clone().unwrap_or_else(|| "IfAvailable".to_owned())});
                let pairs: Vec<Value> = self
                    .exec_env
                    .iter()
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect();
                if !pairs.is_empty() {
                    exec["env"] = Value::Array(pairs);
                }
                map.insert("exec".to_owned(), exec);
            }
        })?;
        writeln!(out, "User \"{name}\" set.")?;
        Ok(())
    }
}

/// `users.admin.token`: a list, the name of an entry, and the rest.
fn set_path(config: &Kubeconfig, path: &str, value: Option<&String>) -> Result<(), CliError> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    if path.is_empty() {
        return Err(message("you must specify a property"));
    }
    let list = [CLUSTERS, CONTEXTS, USERS].into_iter().find(|(list, _)| *list == first);
    let Some(list) = list else {
        if first == "current-context" {
            return change(config, |content| content[first] = value.cloned().unwrap_or_default().into());
        }
        return Err(message(format!("unable to locate path {path:?} in a kubeconfig")));
    };
    // Names may hold dots: the longest known one counts.
    let known = config
        .names(list)
        .into_iter()
        .filter(|name| rest == name || rest.starts_with(&format!("{name}.")))
        .max_by_key(String::len);
    let name = known.unwrap_or_else(|| rest.split('.').next().unwrap_or_default().to_owned());
    let field = rest.get(name.len()..).unwrap_or_default().trim_start_matches('.').to_owned();
    match (value, field.is_empty()) {
        (Some(_), true) => Err(message(format!("can't set a map to a value: {path}"))),
        (None, true) => change(config, |content| {
            if let Some(entries) = content[list.0].as_array_mut() {
                entries.retain(|entry| entry["name"] != name.as_str());
            }
        }),
        (value, false) => with_entry(config, list, &name, |map| match value {
            None => {
                map.shift_remove(&field);
            }
            Some(value) => {
                let is_yes_or_no =
                    matches!(field.as_str(), "insecure-skip-tls-verify" | "disable-compression");
                let value = match value.as_str() {
                    "true" if is_yes_or_no => true.into(),
                    "false" if is_yes_or_no => false.into(),
                    text => Value::from(text),
                };
                map.insert(field, value);
            }
        })
        .map(|_| ()),
    }
}

fn delete(
    config: &Kubeconfig,
    list: (&str, &str),
    word: &str,
    command: &str,
    args: &[String],
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let [name] = args else { return Err(usage(command, args)) };
    let file = config.destination.display().to_string();
    let Some((_, path)) = config.entry(list, name) else {
        return Err(message(format!("cannot delete {word} {name}, not in {file}")));
    };
    change_in(config, path, |content| {
        if let Some(entries) = content[list.0].as_array_mut() {
            entries.retain(|entry| entry["name"] != name.as_str());
        }
    })?;
    writeln!(out, "deleted {word} {name} from {file}")?;
    Ok(())
}

fn rename(config: &Kubeconfig, args: &[String], out: &mut dyn Write) -> Result<(), CliError> {
    let [old, new] = args else { return Err(usage("rename-context", args)) };
    let file = config.destination.display();
    let Some((_, path)) = config.entry(CONTEXTS, old) else {
        return Err(message(format!("cannot rename the context \"{old}\", it's not in {file}")));
    };
    if config.entry(CONTEXTS, new).is_some() {
        return Err(message(format!(
            "cannot rename the context \"{old}\", the context \"{new}\" already exists in {file}"
        )));
    }
    change_in(config, path, |content| {
        for entry in content["contexts"].as_array_mut().into_iter().flatten() {
            if entry["name"] == old.as_str() {
                entry["name"] = new.clone().into();
            }
        }
        if content["current-context"] == old.as_str() {
            content["current-context"] = new.clone().into();
        }
    })?;
    writeln!(out, "Context \"{old}\" renamed to \"{new}\".")?;
    Ok(())
}
