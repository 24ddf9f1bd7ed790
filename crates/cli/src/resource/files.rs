//! Objects from files, directories, URLs and standard input.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use apimachinery::yaml;
use clap::Args;
use serde_json::Value;

use super::select::place;
use super::{Info, Selection, name_of, namespace_of};
use crate::error::{CliError, message};
use crate::session::Session;
use crate::session::kubeconfig::Access;
use crate::session::transport::{Call, Transport, whole};

const MAX_REDIRECTS: usize = 10;

/// `-f`, `-k` and `-R`.
#[derive(Args, Clone, Debug, Default)]
pub struct FileFlags {
    /// Filename, directory, or URL to files that contain the objects
    #[arg(short, long, value_delimiter = ',', value_name = "FILE")]
    pub filename: Vec<String>,
    /// Process a kustomization directory
    #[arg(short, long, value_name = "DIR")]
    pub kustomize: Option<String>,
    /// Process the directory used in -f, --filename recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

impl FileFlags {
    pub fn is_empty(&self) -> bool {
        self.filename.is_empty() && self.kustomize.as_deref().unwrap_or_default().is_empty()
    }
}

/// One document and where it came from.
pub struct Source {
    pub name: String,
    pub text: Vec<u8>,
}

/// The documents of all files, in order.
pub async fn sources(files: &FileFlags) -> Result<Vec<Source>, CliError> {
    if let Some(directory) = files.kustomize.as_deref().filter(|directory| !directory.is_empty()) {
        return Err(message(format!(
            "kustomizations are not built here; give the output of `kustomize build {directory}` to -f -"
        )));
    }
    let mut found = Vec::new();
    for name in &files.filename {
        if name == "-" {
            let mut text = Vec::new();
            std::io::stdin().lock().read_to_end(&mut text)?;
            found.push(Source { name: "STDIN".to_owned(), text });
        } else if name.starts_with("http://") || name.starts_with("https://") {
            found.push(Source { name: name.clone(), text: download(name).await? });
        } else {
            read_path(Path::new(name), files.recursive, &mut found)?;
        }
    }
    Ok(found)
}

fn read_path(path: &Path, recursive: bool, found: &mut Vec<Source>) -> Result<(), CliError> {
    let shown = path.display();
    let kind = match fs::metadata(path) {
        Ok(kind) => kind,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(message(format!("the path \"{shown}\" does not exist")));
        }
        Err(error) => return Err(message(format!("the path \"{shown}\" cannot be accessed: {error}"))),
    };
    let read =
        |path: &Path| fs::read(path).map_err(|error| message(format!("open {}: {error}", path.display())));
    if !kind.is_dir() {
        found.push(Source { name: path.to_string_lossy().into_owned(), text: read(path)? });
        return Ok(());
    }
    let before = found.len();
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .map_err(|error| message(format!("open {shown}: {error}")))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            if recursive {
                // A directory without manifests below one that has some is nothing wrong.
                let _ = read_path(&entry, true, found);
            }
        } else if entry
            .extension()
            .is_some_and(|ending| ["json", "yaml", "yml"].iter().any(|known| ending == *known))
        {
            found.push(Source { name: entry.to_string_lossy().into_owned(), text: read(&entry)? });
        }
    }
    if found.len() == before {
        return Err(message(format!(
            "error reading [{shown}]: recognized file extensions are [.json .yaml .yml]"
        )));
    }
    Ok(())
}

async fn download(url: &str) -> Result<Vec<u8>, CliError> {
    let mut url = url.to_owned();
    for _ in 0..MAX_REDIRECTS {
        let (root, path) =
            match url.find("://").and_then(|at| url[at + 3..].find('/').map(|slash| at + 3 + slash)) {
                Some(slash) => url.split_at(slash),
                None => (url.as_str(), "/"),
            };
        let access = Access { server: root.to_owned(), ..Access::default() };
        let transport = Transport::new(&access, "kubectl")?;
        let call = Call {
            method: http::Method::GET,
            path: path.to_owned(),
            headers: Vec::new(),
            body: bytes::Bytes::new(),
        };
        let answer = transport.send(call).await?;
        if answer.status().is_redirection()
            && let Some(to) = answer.headers().get(http::header::LOCATION).and_then(|to| to.to_str().ok())
        {
            url = if to.starts_with('/') { format!("{root}{to}") } else { to.to_owned() };
            continue;
        }
        if !answer.status().is_success() {
            return Err(message(format!(
                "unable to read URL {url:?}, server reported {}, status code={}",
                answer.status(),
                answer.status().as_u16()
            )));
        }
        return Ok(whole(answer.into_body()).await?.to_vec());
    }
    Err(message(format!("unable to read URL {url:?}: too many redirects")))
}

/// The documents of a text: YAML between lines of `---`, or JSON values one after another.
pub fn documents(source: &Source) -> Result<Vec<Value>, CliError> {
    let fail = |reason: String| message(format!("error parsing {}: {reason}", source.name));
    let first = source.text.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'{') {
        let values: Result<Vec<Value>, _> =
            serde_json::Deserializer::from_slice(&source.text).into_iter().collect();
        // What only begins like JSON may still be YAML.
        if let Ok(values) = values {
            return Ok(values);
        }
    }
    let text = String::from_utf8_lossy(&source.text);
    let mut found = Vec::new();
    for document in split(&text) {
        let json = yaml::to_json(document.as_bytes())
            .map_err(|reason| fail(format!("error converting YAML to JSON: {reason}")))?;
        let value: Value = serde_json::from_str(&json.text).map_err(|error| fail(error.to_string()))?;
        if !value.is_null() {
            found.push(value);
        }
    }
    Ok(found)
}

fn split(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line.starts_with("---") && line[3..].trim_start().is_empty() {
            documents.push(String::new());
            continue;
        }
        if let Some(current) = documents.last_mut() {
            // What follows the marker on its line belongs to the document.
            match line.strip_prefix("--- ") {
                Some(rest) => {
                    documents.push(format!("{rest}\n"));
                }
                None => {
                    current.push_str(line);
                    current.push('\n');
                }
            }
        }
    }
    documents
}

/// The objects of a selection's files, lists taken apart, each with its resource.
pub(super) async fn infos(session: &Session, selection: &Selection) -> Result<Vec<Info>, CliError> {
    let mut infos = Vec::new();
    for source in sources(&selection.files).await? {
        for document in documents(&source)? {
            for object in flatten(document) {
                infos.push(info(session, selection, object, &source.name).await?);
            }
        }
    }
    if infos.is_empty() {
        return Err(message("no objects passed to the command"));
    }
    Ok(infos)
}

fn flatten(object: Value) -> Vec<Value> {
    let is_list =
        object["items"].is_array() && object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    if !is_list {
        return vec![object];
    }
    super::items(object).into_iter().flat_map(flatten).collect()
}

async fn info(
    session: &Session,
    selection: &Selection,
    mut object: Value,
    source: &str,
) -> Result<Info, CliError> {
    let word = |field: &str| object[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let Some(kind) = word("kind") else {
        return Err(message(format!(
            "error validating {source:?}: error validating data: kind not set; if you choose to ignore these errors, turn validation off with --validate=false"
        )));
    };
    let Some(api_version) = word("apiVersion") else {
        return Err(message(format!(
            "error validating {source:?}: error validating data: apiVersion not set; if you choose to ignore these errors, turn validation off with --validate=false"
        )));
    };
    let (name, namespace) = (name_of(&object).to_owned(), namespace_of(&object).to_owned());
    let Some(resource) = session.resource_of(&api_version, &kind).await? else {
        return Err(message(format!(
            "resource mapping not found for name: \"{name}\" namespace: \"{namespace}\" from \"{source}\": no matches for kind \"{kind}\" in version \"{api_version}\"\nensure CRDs are installed first"
        )));
    };
    let namespace = place(&resource, &mut object, &selection.namespace, selection.enforce_namespace)?;
    Ok(Info { resource, namespace, name, object, source: source.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_apart() {
        let read = |text: &str| {
            documents(&Source { name: "x".into(), text: text.as_bytes().to_vec() }).expect("read").len()
        };
        assert_eq!(read("a: 1\n---\nb: 2\n--- \n# nothing\n"), 2);
        assert_eq!(read("{\"a\":1}\n{\"b\":2}"), 2);
        assert_eq!(read("{a: 1}"), 1);
        assert_eq!(read(""), 0);
    }
}
