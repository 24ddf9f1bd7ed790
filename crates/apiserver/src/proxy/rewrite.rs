//! Makes pages behind `…/proxy/` work in a browser: absolute paths in HTML and in Location headers get the proxy's
//! path in front.

use std::io::{Read, Write};

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION};

use crate::body::Body;

/// Attributes that hold URLs.
const ATTRIBUTES: [&str; 8] = ["href", "src", "action", "background", "cite", "formaction", "poster", "data"];
/// Larger pages pass as they are.
const LIMIT: usize = 8 << 20;

/// Rewrites what leads out of the proxy. `prefix` ends before the slash: `/api/v1/namespaces/x/pods/p/proxy`.
pub async fn response(answer: Response<Body>, prefix: &str, backend_authority: &str) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    if let Some(location) = parts.headers.get(LOCATION).and_then(|value| value.to_str().ok()) {
        let rewritten = url(location, prefix, backend_authority);
        if let Ok(value) = HeaderValue::from_str(&rewritten) {
            parts.headers.insert(LOCATION, value);
        }
    }
    let is_html = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|kind| kind.trim_start().starts_with("text/html"));
    let encoding = parts.headers.get(CONTENT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("");
    if !is_html || !matches!(encoding, "" | "identity" | "gzip") {
        return Response::from_parts(parts, body);
    }
    let gzip = encoding == "gzip";
    let Ok(bytes) = body.read(LIMIT).await else {
        let message = Body::from("the proxied page is too large or did not arrive whole");
        parts.status = http::StatusCode::BAD_GATEWAY;
        parts.headers.remove(CONTENT_LENGTH);
        return Response::from_parts(parts, message);
    };
    let text = if gzip { gunzip(&bytes) } else { Some(bytes.to_vec()) };
    let bytes = match text.and_then(|text| String::from_utf8(text).ok()) {
        None => bytes,
        Some(text) => {
            let page = html(&text, prefix, backend_authority);
            if gzip { gzipped(page.as_bytes()).unwrap_or(bytes) } else { Bytes::from(page) }
        }
    };
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    Response::from_parts(parts, bytes.into())
}

fn gunzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes).take(LIMIT as u64).read_to_end(&mut out).ok()?;
    Some(out)
}

fn gzipped(bytes: &[u8]) -> Option<Bytes> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// Puts the prefix before an absolute path, or before the path of a URL to the backend itself.
fn url(url: &str, prefix: &str, backend_authority: &str) -> String {
    if url.starts_with("//") {
        return url.to_owned();
    }
    if url.starts_with('/') {
        return if url.starts_with(prefix) { url.to_owned() } else { format!("{prefix}{url}") };
    }
    for scheme in ["http://", "https://"] {
        if let Some(rest) = url.strip_prefix(scheme)
            && let Some(path) = rest.strip_prefix(backend_authority)
        {
            return format!("{prefix}{}{path}", if path.starts_with('/') { "" } else { "/" });
        }
    }
    url.to_owned()
}

/// Rewrites the URL attributes inside of tags.
fn html(page: &str, prefix: &str, backend_authority: &str) -> String {
    let mut out = String::with_capacity(page.len() + 256);
    let mut rest = page;
    while let Some(open) = rest.find('<') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let end = rest.find('>').map_or(rest.len(), |at| at + 1);
        out.push_str(&tag(&rest[..end], prefix, backend_authority));
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn tag(tag: &str, prefix: &str, backend_authority: &str) -> String {
    let lower = tag.to_ascii_lowercase();
    let mut out = String::with_capacity(tag.len());
    let mut at = 0;
    while let Some((value_start, value_end)) = next_attribute(&lower, at) {
        out.push_str(&tag[at..value_start]);
        out.push_str(&url(&tag[value_start..value_end], prefix, backend_authority));
        at = value_end;
    }
    out.push_str(&tag[at..]);
    out
}

/// The next quoted value of a URL attribute after `from`.
fn next_attribute(tag: &str, from: usize) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for name in ATTRIBUTES {
        for quote in ['"', '\''] {
            let mark = format!(" {name}={quote}");
            if let Some(at) = tag[from..].find(&mark) {
                let start = from + at + mark.len();
                let end = tag[start..].find(quote).map_or(tag.len(), |at| start + at);
                if best.is_none_or(|(first, _)| start < first) {
                    best = Some((start, end));
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_inside_the_proxy() {
        let page = r#"<html><a href="/x?y=1">x</a> <a class="b" href='z'>z</a><img src="//cdn/x"> <form action="/go" data="/d">/not</form></html>"#;
        let want = r#"<html><a href="/p/proxy/x?y=1">x</a> <a class="b" href='z'>z</a><img src="//cdn/x"> <form action="/p/proxy/go" data="/p/proxy/d">/not</form></html>"#;
        assert_eq!(html(page, "/p/proxy", "10.0.0.1:80"), want);
        assert_eq!(url("http://10.0.0.1:80/a", "/p/proxy", "10.0.0.1:80"), "/p/proxy/a");
        assert_eq!(url("http://other/a", "/p/proxy", "10.0.0.1:80"), "http://other/a");
    }
}
