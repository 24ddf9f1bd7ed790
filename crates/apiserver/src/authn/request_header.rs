//! A proxy in front says who the user is, in headers; it proves itself with a certificate of its own CA.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::CertificateDer;

use super::Unauthorized;
use super::x509::CertificateAuthenticator;
use crate::user::UserInfo;

/// Which proxies are trusted and what their headers are called.
#[derive(Clone, Debug)]
pub struct RequestHeader {
    /// Judges the proxy's certificate.
    pub authority: CertificateAuthenticator,
    /// The common names that it may have; empty is any.
    pub allowed_names: Vec<String>,
    /// Headers that hold the user name, the first that is set counts.
    pub username_headers: Vec<String>,
    /// Headers that hold the uid.
    pub uid_headers: Vec<String>,
    /// Headers that hold groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers that hold extra fields.
    pub extra_prefixes: Vec<String>,
}

impl RequestHeader {
    /// The user that the headers name, if the proxy is trusted. The headers are removed once read.
    pub fn authenticate(
        &self,
        chain: &[CertificateDer<'_>],
        headers: &mut HeaderMap,
    ) -> Result<Option<UserInfo>, Unauthorized> {
        let is_set = |name: &String| headers.get(name.as_str()).is_some_and(|value| !value.is_empty());
        if !self.username_headers.iter().any(is_set) {
            return Ok(None);
        }
        let Ok(Some(proxy)) = self.authority.authenticate(chain) else { return Ok(None) };
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&proxy.name) {
            return Ok(None);
        }
        let user = self.read(headers)?;
        let spent: Vec<HeaderName> = headers.keys().filter(|name| self.is_read(name)).cloned().collect();
        spent.iter().for_each(|name| drop(headers.remove(name)));
        Ok(Some(user))
    }

    /// What cannot be read is refused: left out, the request would be the proxy's own, or of somebody with other groups.
    fn read(&self, headers: &HeaderMap) -> Result<UserInfo, Unauthorized> {
        let text = |value: &HeaderValue| {
            std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| Unauthorized)
        };
        let first = |names: &[String]| {
            let set = names.iter().filter_map(|name| headers.get(name.as_str()));
            set.into_iter().find(|value| !value.is_empty()).map_or(Ok(String::new()), text)
        };
        let (name, uid) = (first(&self.username_headers)?, first(&self.uid_headers)?);
        let mut user = UserInfo { name, uid, ..UserInfo::default() };
        for header in &self.group_headers {
            for value in headers.get_all(header.as_str()).iter().filter(|value| !value.is_empty()) {
                user.groups.push(text(value)?);
            }
        }
        for prefix in &self.extra_prefixes {
            let prefix = prefix.to_ascii_lowercase();
            for (header, value) in headers {
                if let Some(key) = header.as_str().strip_prefix(&prefix) {
                    user.extra.entry(crate::request_info::decode(key)).or_default().push(text(value)?);
                }
            }
        }
        Ok(user)
    }

    fn is_read(&self, name: &HeaderName) -> bool {
        let mut names =
            [&self.username_headers, &self.uid_headers, &self.group_headers].into_iter().flatten();
        let starts = |prefix: &String| name.as_str().starts_with(&prefix.to_ascii_lowercase());
        names.any(|own| name.as_str().eq_ignore_ascii_case(own)) || self.extra_prefixes.iter().any(starts)
    }
}

#[cfg(test)]
mod tests {
    use pki::table::names;
    use pki::{Algorithm, ClusterPki, ClusterSpec};

    use super::*;
    use crate::tls::ClientJudge;

    #[test]
    fn names_are_read_in_every_script_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let spec = ClusterSpec {
            node_name: "local".to_owned(),
            node_ips: Vec::new(),
            service_ips: Vec::new(),
            api_sans: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            algorithm: Algorithm::EcdsaP256,
        };
        let pki = ClusterPki::ensure(dir.path(), &spec).unwrap();
        let ca = pki.pair(names::FRONT_PROXY_CA).unwrap().certificate_pem();
        let chain = [pki.pair(names::FRONT_PROXY_CLIENT).unwrap().certificate.to_der()];
        let list = |name: &str| vec![name.to_owned()];
        let proxy = RequestHeader {
            authority: CertificateAuthenticator::new(ClientJudge::new(ca.as_bytes(), "the CA").unwrap()),
            allowed_names: Vec::new(),
            username_headers: list("X-Remote-User"),
            uid_headers: list("X-Remote-Uid"),
            group_headers: list("X-Remote-Group"),
            extra_prefixes: list("X-Remote-Extra-"),
        };
        let said = [
            ("x-remote-user", "j\u{fc}rgen"),
            ("x-remote-uid", "\u{df}"),
            ("x-remote-group", "\u{e9}quipe"),
            ("x-remote-extra-scopes", "\u{65e5}"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in said {
            headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers.insert("accept", HeaderValue::from_static("*/*"));
        let mut read = headers.clone();
        let user = proxy.authenticate(&chain, &mut read).unwrap().expect("the name is not dropped");
        assert_eq!((user.name.as_str(), user.uid.as_str()), (said[0].1, said[1].1));
        assert_eq!((user.groups[0].as_str(), user.extra["scopes"][0].as_str()), (said[2].1, said[3].1));
        assert_eq!(read.len(), 1, "nobody behind sees {read:?}");
        assert_eq!(proxy.authenticate(&[], &mut headers.clone()), Ok(None));
        for (name, _) in said {
            let mut headers = headers.clone();
            headers.insert(name, HeaderValue::from_bytes(b"j\xfcrgen").unwrap());
            assert_eq!(proxy.authenticate(&chain, &mut headers), Err(Unauthorized), "{name}");
        }
    }
}
