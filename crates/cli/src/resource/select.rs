//! What arguments and selectors choose.

use serde_json::Value;

use super::files::{self, FileFlags};
use super::{Info, namespace_of};
use crate::error::{CliError, message};
use crate::session::discovery::ApiResource;
use crate::session::{Ask, Session, mapper};

/// Everything that says which objects a command is about.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub args: Vec<String>,
    pub files: FileFlags,
    pub namespace: String,
    /// The namespace was named on the command line, and files must agree with it.
    pub enforce_namespace: bool,
    pub all_namespaces: bool,
    pub labels: String,
    pub fields: String,
    /// A type alone means all of its objects.
    pub select_all: bool,
    pub subresource: String,
    pub chunk: u64,
    /// Objects of files are fetched from the server.
    pub latest: bool,
    /// Says that a selection has only one type.
    pub single_type: bool,
}

/// One request to make, or an object that a file holds.
#[derive(Clone, Debug)]
pub enum Wanted {
    Object { resource: ApiResource, namespace: String, name: String, subresource: String },
    Collection { resource: ApiResource, namespace: String, labels: String, fields: String, chunk: u64 },
    File { info: Box<Info>, latest: bool },
}

impl Selection {
    /// With the namespace of the session.
    pub fn new(session: &Session, args: &[String], files: &FileFlags) -> Result<Self, CliError> {
        let (namespace, explicit) = session.namespace()?;
        Ok(Self {
            args: args.to_vec(),
            files: files.clone(),
            namespace,
            enforce_namespace: explicit,
            ..Self::default()
        })
    }

    /// Turns the words into requests, asking discovery for resources.
    pub async fn plan(&self, session: &Session) -> Result<Vec<Wanted>, CliError> {
        let selector = !self.labels.is_empty() || !self.fields.is_empty();
        if !self.files.is_empty() {
            if !self.args.is_empty() {
                return Err(message(
                    "when paths, URLs, or stdin is provided as resource input, you may not specify resource arguments as well",
                ));
            }
            if selector && !self.select_all {
                return Err(message(
                    "a selector may not be specified when paths, URLs, or stdin is provided as resource input",
                ));
            }
            let infos = files::infos(session, self).await?;
            return Ok(infos
                .into_iter()
                .map(|info| Wanted::File { info: Box::new(info), latest: self.latest })
                .collect());
        }
        let pairs = match combined(&self.args)? {
            Some(pairs) => {
                if selector {
                    return Err(message(
                        "selectors and the all flag cannot be used when passing resource/name arguments",
                    ));
                }
                pairs
            }
            None => match &self.args[..] {
                [] => {
                    return Err(message(
                        "You must provide one or more resources by argument or filename.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'",
                    ));
                }
                [types] => return self.collections(session, types).await,
                [types, names @ ..] => {
                    if selector {
                        return Err(message("name cannot be provided when a selector is specified"));
                    }
                    let types: Vec<&str> = types.split(',').filter(|word| !word.is_empty()).collect();
                    if types.len() > 1 && self.single_type {
                        return Err(message("you may only specify a single resource type"));
                    }
                    let cross = types
                        .iter()
                        .flat_map(|kind| names.iter().map(|name| ((*kind).to_owned(), name.clone())));
                    cross.collect()
                }
            },
        };
        let mut wanted = Vec::new();
        for (kind, name) in pairs {
            if name.is_empty() {
                return Err(message("resource name may not be empty"));
            }
            let resource = session.resource(&kind).await?;
            if self.all_namespaces && resource.namespaced {
                return Err(message("a resource cannot be retrieved by name across all namespaces"));
            }
            wanted.push(Wanted::Object {
                namespace: if resource.namespaced { self.namespace.clone() } else { String::new() },
                resource,
                name,
                subresource: self.subresource.clone(),
            });
        }
        Ok(wanted)
    }

    async fn collections(&self, session: &Session, types: &str) -> Result<Vec<Wanted>, CliError> {
        if !self.select_all && self.labels.is_empty() && self.fields.is_empty() {
            return Err(message("resource(s) were provided, but no name was specified"));
        }
        if !self.subresource.is_empty() {
            return Err(message("subresource cannot be used when bulk resources are specified"));
        }
        let mut wanted = Vec::new();
        let words: Vec<&str> = types.split(',').filter(|word| !word.is_empty()).collect();
        let mut resources: Vec<ApiResource> = Vec::new();
        for word in words {
            let discovery = session.discovery().await?;
            let category = mapper::in_category(&discovery, word);
            if category.is_empty() {
                resources.push(session.resource(word).await?);
            } else {
                resources.extend(category.into_iter().cloned());
            }
        }
        if self.single_type && resources.len() > 1 {
            return Err(message("you may only specify a single resource type"));
        }
        for resource in resources {
            let everywhere = self.all_namespaces || !resource.namespaced;
            wanted.push(Wanted::Collection {
                namespace: if everywhere { String::new() } else { self.namespace.clone() },
                resource,
                labels: self.labels.clone(),
                fields: self.fields.clone(),
                chunk: self.chunk,
            });
        }
        Ok(wanted)
    }
}

/// `type/name` arguments; `None` where none is of that form.
fn combined(args: &[String]) -> Result<Option<Vec<(String, String)>>, CliError> {
    if !args.iter().any(|arg| arg.contains('/')) {
        return Ok(None);
    }
    let mut pairs = Vec::new();
    for arg in args {
        let Some((kind, name)) = arg.split_once('/') else {
            return Err(message(
                "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'kubectl get resource/<resource_name>' instead of 'kubectl get resource resource/<resource_name>'",
            ));
        };
        if name.contains('/') {
            return Err(message("arguments in resource/name form may not have more than one slash"));
        }
        if kind.is_empty() || name.is_empty() {
            return Err(message("arguments in resource/name form must have a single resource and name"));
        }
        for kind in kind.split(',') {
            pairs.push((kind.to_owned(), name.to_owned()));
        }
    }
    Ok(Some(pairs))
}

impl Wanted {
    /// Fetches; `accept` may ask for a table, and `query` has more to say.
    pub async fn fetch(
        self,
        session: &Session,
        accept: Option<&str>,
        query: &[(&str, &str)],
    ) -> Result<Vec<Info>, CliError> {
        let ask = |path: String| {
            let mut ask = Ask::get(path);
            ask.accept = accept.map(str::to_owned);
            query.iter().fold(ask, |ask, (name, value)| ask.query(name, *value))
        };
        match self {
            Self::File { info, latest: false } => Ok(vec![*info]),
            Self::File { mut info, latest: true } => {
                info.object = session.json(ask(info.path())).await?;
                Ok(vec![*info])
            }
            Self::Object { resource, namespace, name, subresource } => {
                let object = session.json(ask(resource.path(&namespace, &name, &subresource))).await?;
                Ok(vec![Info { resource, namespace, name, object, source: String::new() }])
            }
            Self::Collection { resource, namespace, labels, fields, chunk } => {
                let path = resource.path(&namespace, "", "");
                let mut found: Vec<Info> = Vec::new();
                let mut next = String::new();
                loop {
                    let mut page = ask(path.clone())
                        .query_some("labelSelector", &labels)
                        .query_some("fieldSelector", &fields)
                        .query_some("continue", &next);
                    if chunk > 0 {
                        page = page.query("limit", chunk.to_string());
                    }
                    let object = session
                        .json(page)
                        .await
                        .map_err(|error| about_list(error, &resource, &labels, &fields))?;
                    next = object["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                    found.push(Info {
                        resource: resource.clone(),
                        namespace: namespace.clone(),
                        name: String::new(),
                        object,
                        source: String::new(),
                    });
                    if next.is_empty() {
                        return Ok(found);
                    }
                }
            }
        }
    }

    pub fn resource(&self) -> &ApiResource {
        match self {
            Self::Object { resource, .. } | Self::Collection { resource, .. } => resource,
            Self::File { info, .. } => &info.resource,
        }
    }
}

/// Says which list was refused.
fn about_list(error: CliError, resource: &ApiResource, labels: &str, fields: &str) -> CliError {
    match error {
        CliError::Status(mut failure) if matches!(failure.status["code"].as_u64(), Some(400 | 404)) => {
            let shown = format!("\"{}/{}, Resource={}\"", resource.group, resource.version, resource.name);
            let said = failure.message();
            let text = if labels.is_empty() && fields.is_empty() {
                format!("Unable to list {shown}: {said}")
            } else {
                format!(
                    "Unable to find {shown} that match label selector {labels:?}, field selector {fields:?}: {said}"
                )
            };
            failure.status["message"] = text.into();
            CliError::Status(failure)
        }
        other => other,
    }
}

/// Where an object of a file belongs.
pub(super) fn place(
    resource: &ApiResource,
    object: &mut Value,
    namespace: &str,
    enforce: bool,
) -> Result<String, CliError> {
    if !resource.namespaced {
        return Ok(String::new());
    }
    let own = namespace_of(object).to_owned();
    if own.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
        return Ok(namespace.to_owned());
    }
    if enforce && own != namespace {
        return Err(message(format!(
            "the namespace from the provided object \"{own}\" does not match the namespace \"{namespace}\". You must pass '--namespace={own}' to perform this operation."
        )));
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_their_types_are_not_mixed_with_others() {
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(combined(&words(&["pods", "a"])).expect("plain"), None);
        let pairs = combined(&words(&["pod/a", "svc/b"])).expect("pairs").expect("some");
        assert_eq!(pairs, [("pod".to_owned(), "a".to_owned()), ("svc".to_owned(), "b".to_owned())]);
        assert!(combined(&words(&["pods", "pod/a"])).is_err());
        assert!(combined(&words(&["pod/"])).is_err());
        assert!(combined(&words(&["pod/a/b"])).is_err());
    }
}
