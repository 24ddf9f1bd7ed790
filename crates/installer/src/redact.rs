//! Taking secrets out of texts that others may see.

/// A URL without its user and password.
pub fn url(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) => match rest.split_once('@') {
            Some((_, host)) => format!("{scheme}://{host}"),
            None => text.to_owned(),
        },
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn credentials_leave_the_url() {
        assert_eq!(super::url("http://user:pass@proxy:3128"), "http://proxy:3128");
        assert_eq!(super::url("http://proxy:3128"), "http://proxy:3128");
        assert_eq!(super::url(""), "");
    }
}
