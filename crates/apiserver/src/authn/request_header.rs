//! A proxy in front says who the user is, in headers; it proves itself with a certificate of its own CA.

use http::HeaderMap;
use rustls::pki_types::CertificateDer;

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
    pub fn authenticate(&self, chain: &[CertificateDer<'_>], headers: &mut HeaderMap) -> Option<UserInfo> {
        let name = self.username_headers.iter().find_map(|header| {
            headers.get(header.as_str()).and_then(|value| value.to_str().ok()).filter(|name| !name.is_empty())
        })?;
        let proxy = self.authority.authenticate(chain).ok()??;
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&proxy.name) {
            return None;
        }
        let mut user = UserInfo { name: name.to_owned(), ..UserInfo::default() };
        user.uid = self
            .uid_headers
            .iter()
            .find_map(|header| headers.get(header.as_str()).and_then(|value| value.to_str().ok()))
            .unwrap_or_default()
            .to_owned();
        for header in &self.group_headers {
            user.groups.extend(
                headers
                    .get_all(header.as_str())
                    .iter()
                    .filter_map(|value| value.to_str().ok())
                    .map(str::to_owned),
            );
        }
        for prefix in &self.extra_prefixes {
            let prefix = prefix.to_ascii_lowercase();
            for (header, value) in headers.iter() {
                if let Some(key) = header.as_str().strip_prefix(&prefix)
                    && let Ok(value) = value.to_str()
                {
                    user.extra.entry(crate::request_info::decode(key)).or_default().push(value.to_owned());
                }
            }
        }
        Some(user)
    }
}
