//! Names of images.

/// `Always` for the tag latest (given or implied), `IfNotPresent` for a pinned image and for what names none.
pub fn pull_policy(image: &str) -> &'static str {
    match tag(image) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// The tag of an image: none when there is a digest instead, and none when this is no name of an image.
fn tag(image: &str) -> Option<&str> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if image.len() == 64 && image.bytes().all(hex) {
        // This is the id of one.
        return None;
    }
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    // Without a dot, a port or capitals the first part is no host.
    let is_host =
        |part: &str| part == "localhost" || part.contains(['.', ':']) || part.chars().any(char::is_uppercase);
    let (host, rest) = match named.split_once('/').filter(|(first, _)| is_host(first)) {
        Some((host, rest)) => (Some(host), rest),
        None => (None, named),
    };
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    // Names without a host and a user belong to the library.
    let library = if host.is_none() && !path.contains('/') { "library/".len() } else { 0 };
    let fine = host.is_none_or(looks_like_host)
        && path.split('/').all(looks_like_path_part)
        && library + path.len() <= 255
        && tag.is_none_or(looks_like_tag)
        && digest.is_none_or(looks_like_digest);
    match (fine, tag, digest) {
        (false, ..) => None,
        (true, None, None) => Some("latest"),
        (true, tag, _) => tag,
    }
}

fn looks_like_host(text: &str) -> bool {
    let (host, port) = match text.rfind(']') {
        Some(end) => text.split_at(end + 1),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let numeric = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fine = match numeric {
        Some(address) => {
            !address.is_empty() && address.bytes().all(|byte| byte == b':' || byte.is_ascii_hexdigit())
        }
        // As long as it wants to be, and in capitals if it wants to.
        None => host.split('.').all(|part| {
            let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            edge(part.bytes().next())
                && edge(part.bytes().last())
                && part.bytes().all(|byte| byte == b'-' || byte.is_ascii_alphanumeric())
        }),
    };
    fine && (port.is_empty() || port.strip_prefix(':').is_some_and(digits))
}

/// Small letters and digits; between them a dot, one or two underscores, or dashes.
fn looks_like_path_part(part: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    part.starts_with(word)
        && part.ends_with(word)
        && part
            .split(word)
            .all(|between| matches!(between, "" | "." | "_" | "__") || between.chars().all(|c| c == '-'))
}

fn looks_like_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= 128 && tag.starts_with(word) && tag.chars().all(|c| word(c) || c == '.' || c == '-')
}

fn looks_like_digest(digest: &str) -> bool {
    let length = match digest.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha384", _)) => 96,
        Some(("sha512", _)) => 128,
        _ => return false,
    };
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    digest.split_once(':').is_some_and(|(_, text)| text.len() == length && text.bytes().all(hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_decide_the_pull_policy() {
        let digest = format!("@sha256:{}", "0".repeat(64));
        for always in [
            "nginx",
            "nginx:latest",
            "host:5000/nginx",
            "Host/nginx",
            "[::1]:5000/a__b/c--d",
            "localhost/a.b",
            &format!("nginx:latest{digest}"),
            &"x".repeat(247),
        ] {
            assert_eq!(pull_policy(always), "Always", "{always}");
        }
        for pinned in [
            "",
            " nginx",
            "nginx:1.25",
            "host:5000/nginx:1",
            "nginx@sha256:00",
            "-1",
            "a/-1",
            "a._b",
            "a___b",
            "Nginx",
            "host.io/Nginx",
            "host:port/nginx",
            "nginx:",
            "nginx/",
            &"0".repeat(64),
            &"x".repeat(248),
            &format!("nginx{digest}"),
        ] {
            assert_eq!(pull_policy(pinned), "IfNotPresent", "{pinned}");
        }
    }
}
