//! Bootstrap tokens: `id.secret`, kept in secrets of kube-system, for nodes that join.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::user::UserInfo;

const DEFAULT_GROUP: &str = "system:bootstrappers";

/// Where the secrets are.
pub trait Tokens: Send + Sync {
    /// Type and decoded data of `kube-system/bootstrap-token-<id>`, unless it is being deleted.
    fn secret(&self, name: &str) -> Option<(String, HashMap<String, String>)>;
}

/// The user of a bootstrap token.
pub fn authenticate(token: &str, tokens: &dyn Tokens, now: Timestamp) -> Option<UserInfo> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    if id.len() != 6 || secret.len() != 16 || !plain(id) || !plain(secret) {
        return None;
    }
    let (kind, data) = tokens.secret(&format!("bootstrap-token-{id}"))?;
    let field = |name: &str| data.get(name).map(String::as_str).unwrap_or_default();
    let same = constant_time_eq(field("token-secret").as_bytes(), secret.as_bytes());
    if kind != "bootstrap.kubernetes.io/token" || !same || field("token-id") != id {
        return None;
    }
    if field("usage-bootstrap-authentication") != "true" {
        return None;
    }
    let expiration = field("expiration");
    if !expiration.is_empty() && expiration.parse::<Timestamp>().ok()? <= now {
        return None;
    }
    let mut groups = vec![DEFAULT_GROUP];
    for group in field("auth-extra-groups").split(',').filter(|group| !group.is_empty()) {
        if !group.starts_with("system:bootstrappers:") {
            return None;
        }
        groups.push(group);
    }
    groups.sort_unstable();
    groups.dedup();
    Some(UserInfo::new(format!("system:bootstrap:{id}"), &groups))
}

fn constant_time_eq(one: &[u8], two: &[u8]) -> bool {
    one.len() == two.len() && one.iter().zip(two).fold(0, |all, (one, two)| all | (one ^ two)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(HashMap<String, String>);
    impl Tokens for One {
        fn secret(&self, name: &str) -> Option<(String, HashMap<String, String>)> {
            (name == "bootstrap-token-abcdef")
                .then(|| ("bootstrap.kubernetes.io/token".to_owned(), self.0.clone()))
        }
    }

    fn data(pairs: &[(&str, &str)]) -> One {
        let base = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ];
        One(base.iter().chain(pairs).map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    #[test]
    fn only_a_live_token_with_its_secret_is_taken() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let good = "abcdef.0123456789abcdef";
        let user =
            authenticate(good, &data(&[("auth-extra-groups", "system:bootstrappers:x")]), now).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert!(user.is_in("system:bootstrappers:x"));
        let several = data(&[("auth-extra-groups", "system:bootstrappers:z,system:bootstrappers:y")]);
        let groups = authenticate(good, &several, now).unwrap().groups;
        assert_eq!(groups[..3], ["system:bootstrappers", "system:bootstrappers:y", "system:bootstrappers:z"]);
        assert!(authenticate("abcdef.0123456789abcdee", &data(&[]), now).is_none());
        assert!(authenticate("abcdef.short", &data(&[]), now).is_none());
        assert!(authenticate(good, &data(&[("expiration", "2025-01-01T00:00:00Z")]), now).is_none());
        assert!(authenticate(good, &data(&[("usage-bootstrap-authentication", "false")]), now).is_none());
        assert!(authenticate(good, &data(&[("auth-extra-groups", "system:masters")]), now).is_none());
    }
}
