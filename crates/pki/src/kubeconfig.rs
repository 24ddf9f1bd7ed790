//! Kubeconfigs: written with everything embedded, read with everything that kubectl's own files may hold.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::cert::Pair;
use crate::{PkiError, files};

/// A kubeconfig file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kubeconfig {
    /// `v1`.
    #[serde(rename = "apiVersion", default = "v1")]
    pub api_version: String,
    /// `Config`.
    #[serde(default = "config")]
    pub kind: String,
    /// Where API servers are.
    #[serde(default)]
    pub clusters: Vec<NamedCluster>,
    /// Who may be spoken as.
    #[serde(default)]
    pub users: Vec<NamedUser>,
    /// Pairs of the two.
    #[serde(default)]
    pub contexts: Vec<NamedContext>,
    /// The pair to use.
    #[serde(default)]
    pub current_context: String,
    /// kubectl's own settings, kept as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferences: Option<serde_yaml_ng::Value>,
    /// Directory against which file names in it are read; not part of the file.
    #[serde(skip)]
    base: PathBuf,
}

fn v1() -> String {
    "v1".to_owned()
}

fn config() -> String {
    "Config".to_owned()
}

/// An entry of `clusters`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCluster {
    /// Its name.
    pub name: String,
    /// Its content.
    pub cluster: Cluster,
}

/// Where an API server is and how to know it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cluster {
    /// URL.
    pub server: String,
    /// Bundle in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    /// Bundle in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority: Option<PathBuf>,
    /// Name to expect in its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// Whether to believe anyone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
}

/// An entry of `users`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedUser {
    /// Its name.
    pub name: String,
    /// Its content.
    #[serde(default)]
    pub user: User,
}

/// How to prove who one is.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct User {
    /// Certificate in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_data: Option<String>,
    /// Key in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key_data: Option<String>,
    /// Certificate in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<PathBuf>,
    /// Key in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<PathBuf>,
    /// Bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Bearer token in a file.
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Basic authentication: name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Basic authentication: password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Command that supplies credentials; kept, not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<serde_yaml_ng::Value>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("User(secret)")
    }
}

/// An entry of `contexts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedContext {
    /// Its name.
    pub name: String,
    /// Its content.
    pub context: Context,
}

/// Which user speaks to which cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the user.
    pub user: String,
    /// Namespace where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A context resolved: everything needed to connect, with files already read.
#[derive(Clone)]
pub struct Access {
    /// URL.
    pub server: String,
    /// PEM bundle of authorities to believe.
    pub certificate_authority: Option<Vec<u8>>,
    /// Name to expect instead of the URL's.
    pub tls_server_name: Option<String>,
    /// Whether to believe anyone.
    pub insecure_skip_tls_verify: bool,
    /// PEM of the client certificate.
    pub client_certificate: Option<Vec<u8>>,
    /// PEM of its key.
    pub client_key: Option<Vec<u8>>,
    /// Bearer token.
    pub token: Option<String>,
    /// The file that the token was read from, for those who read it again: such tokens rotate.
    pub token_file: Option<PathBuf>,
    /// Basic authentication.
    pub basic: Option<(String, String)>,
    /// Namespace where none is given.
    pub namespace: Option<String>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Access").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Kubeconfig {
    /// One cluster, one user with a certificate, one context, all embedded.
    pub fn with_certificate(cluster: &str, server: &str, ca: &[u8], user: &str, pair: &Pair) -> Self {
        Self {
            api_version: v1(),
            kind: config(),
            clusters: vec![NamedCluster {
                name: cluster.to_owned(),
                cluster: Cluster {
                    server: server.to_owned(),
                    certificate_authority_data: Some(STANDARD.encode(ca)),
                    ..Cluster::default()
                },
            }],
            users: vec![NamedUser {
                name: user.to_owned(),
                user: User {
                    client_certificate_data: Some(STANDARD.encode(pair.certificate_pem())),
                    client_key_data: Some(STANDARD.encode(pair.key_pem())),
                    ..User::default()
                },
            }],
            contexts: vec![NamedContext {
                name: user.to_owned(),
                context: Context { cluster: cluster.to_owned(), user: user.to_owned(), namespace: None },
            }],
            current_context: user.to_owned(),
            preferences: None,
            base: PathBuf::new(),
        }
    }

    /// A kubeconfig of nothing, to be filled.
    pub fn empty() -> Self {
        Self {
            api_version: v1(),
            kind: config(),
            clusters: Vec::new(),
            users: Vec::new(),
            contexts: Vec::new(),
            current_context: String::new(),
            preferences: None,
            base: PathBuf::new(),
        }
    }

    /// Reads YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, PkiError> {
        Ok(serde_yaml_ng::from_str(text)?)
    }

    /// Reads a file; names of files inside it are relative to it.
    pub fn load(path: &Path) -> Result<Self, PkiError> {
        let text = fs::read_to_string(path).map_err(|source| PkiError::File {
            operation: "read",
            path: path.to_owned(),
            source,
        })?;
        let mut config = Self::parse(&text)?;
        config.base = path.parent().map(Path::to_owned).unwrap_or_default();
        Ok(config)
    }

    /// The file's text.
    pub fn to_yaml(&self) -> Result<String, PkiError> {
        Ok(serde_yaml_ng::to_string(self)?)
    }

    /// Writes the file for its owner only.
    pub fn write(&self, path: &Path) -> Result<(), PkiError> {
        files::write(path, self.to_yaml()?.as_bytes(), files::SECRET)
    }

    /// Resolves a context, the current one if none is named.
    pub fn access(&self, context: Option<&str>) -> Result<Access, PkiError> {
        let context = context.unwrap_or(&self.current_context);
        let fail = |reason: String| PkiError::Kubeconfig { place: format!("context {context:?}"), reason };
        let pair = &self
            .contexts
            .iter()
            .find(|entry| entry.name == context)
            .ok_or_else(|| fail("it is not defined".to_owned()))?
            .context;
        let cluster = &self
            .clusters
            .iter()
            .find(|entry| entry.name == pair.cluster)
            .ok_or_else(|| fail(format!("cluster {:?} is not defined", pair.cluster)))?
            .cluster;
        let user = &self
            .users
            .iter()
            .find(|entry| entry.name == pair.user)
            .ok_or_else(|| fail(format!("user {:?} is not defined", pair.user)))?
            .user;
        // A file wins over a token beside it, as kubectl has it.
        let token = match &user.token_file {
            Some(file) => Some(String::from_utf8_lossy(&self.read(file)?).trim().to_owned()),
            None => user.token.clone(),
        };
        Ok(Access {
            server: cluster.server.clone(),
            certificate_authority: self
                .data_or_file(&cluster.certificate_authority_data, &cluster.certificate_authority)
                .map_err(|error| {
                    unwrap_base64(error, fail("certificate-authority-data is not base64".to_owned()))
                })?,
            tls_server_name: cluster.tls_server_name.clone(),
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            client_certificate: self
                .data_or_file(&user.client_certificate_data, &user.client_certificate)
                .map_err(|error| {
                    unwrap_base64(error, fail("client-certificate-data is not base64".to_owned()))
                })?,
            client_key: self
                .data_or_file(&user.client_key_data, &user.client_key)
                .map_err(|error| unwrap_base64(error, fail("client-key-data is not base64".to_owned())))?,
            token,
            token_file: user.token_file.as_ref().map(|file| self.base.join(file)),
            basic: user.username.clone().map(|name| (name, user.password.clone().unwrap_or_default())),
            namespace: pair.namespace.clone(),
        })
    }

    /// Embedded data wins over a file, as kubectl has it.
    fn data_or_file(
        &self,
        data: &Option<String>,
        file: &Option<PathBuf>,
    ) -> Result<Option<Vec<u8>>, DataError> {
        match (data, file) {
            (Some(data), _) if !data.is_empty() => {
                STANDARD.decode(data.trim()).map(Some).map_err(|_| DataError::Base64)
            }
            (_, Some(file)) if !file.as_os_str().is_empty() => {
                self.read(file).map(Some).map_err(DataError::File)
            }
            _ => Ok(None),
        }
    }

    fn read(&self, file: &Path) -> Result<Vec<u8>, PkiError> {
        let path = self.base.join(file);
        fs::read(&path).map_err(|source| PkiError::File { operation: "read", path, source })
    }
}

enum DataError {
    Base64,
    File(PkiError),
}

fn unwrap_base64(error: DataError, otherwise: PkiError) -> PkiError {
    match error {
        DataError::Base64 => otherwise,
        DataError::File(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_named_in_a_config_are_read_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), "CA").unwrap();
        fs::write(dir.path().join("token"), "secret\n").unwrap();
        let text = "
clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: ca.pem}}]
users: [{name: u, user: {tokenFile: token}}]
contexts: [{name: k, context: {cluster: c, user: u, namespace: n}}]
current-context: k";
        fs::write(dir.path().join("config"), text).unwrap();
        let access = Kubeconfig::load(&dir.path().join("config")).unwrap().access(None).unwrap();
        assert_eq!(access.certificate_authority.as_deref(), Some(b"CA".as_slice()));
        assert_eq!(access.token.as_deref(), Some("secret"));
        assert_eq!(access.namespace.as_deref(), Some("n"));
    }

    #[test]
    fn a_context_that_points_nowhere_says_so() {
        let config = Kubeconfig::parse("contexts: [{name: k, context: {cluster: c, user: u}}]").unwrap();
        let error = config.access(Some("k")).unwrap_err().to_string();
        assert!(error.contains("cluster \"c\" is not defined"), "{error}");
        assert!(config.access(None).is_err());
    }
}
