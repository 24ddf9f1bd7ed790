//! Impersonation: a user asks to be treated as another one, and must be allowed to.

use std::time::Instant;

use apimachinery::status::Status;
use http::HeaderMap;

use crate::authz::Attributes;
use crate::request_info::decode;
use crate::server::ApiServer;
use crate::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo, split_service_account};

/// The user that the headers ask for.
pub fn wanted(headers: &HeaderMap) -> Result<Option<UserInfo>, Status> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = text("impersonate-user");
    let uid = text("impersonate-uid");
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    let mut user = UserInfo { name: name.to_owned(), uid: uid.to_owned(), groups, ..UserInfo::default() };
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix("impersonate-extra-")
            && let Ok(value) = value.to_str()
        {
            user.extra.entry(decode(key)).or_default().push(value.to_owned());
        }
    }
    if name.is_empty() {
        if user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty() {
            return Ok(None);
        }
        return Err(Status::bad_request(format!(
            "requested {} without impersonating a user name",
            go_syntax(&user)
        )));
    }
    // Groups that authentication would have given.
    if user.groups.is_empty()
        && let Some((namespace, account)) = split_service_account(name)
    {
        user.groups = UserInfo::service_account(namespace, account).groups;
    }
    if name == ANONYMOUS {
        if !user.is_in(UNAUTHENTICATED) {
            user.groups.push(UNAUTHENTICATED.to_owned());
        }
    } else if !user.is_in(AUTHENTICATED) && !user.is_in(UNAUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    Ok(Some(user))
}

impl ApiServer {
    /// 403 unless `user` may act as `other` in every part.
    pub(crate) async fn may_impersonate(&self, user: &UserInfo, other: &UserInfo) -> Result<(), Status> {
        let ask = async |group: &str, resource: &str, namespace: &str, name: &str| {
            let asked = Attributes::resource(user, "impersonate", group, resource, namespace, name);
            let began = Instant::now();
            let allowed = self.authorize_or_refuse(&asked).await.map(drop);
            self.metrics.chain.impersonation_right(allowed.is_ok(), began.elapsed());
            allowed
        };
        let own = split_service_account(&other.name);
        match own {
            Some((namespace, name)) => ask("", "serviceaccounts", namespace, name).await?,
            None => ask("", "users", "", &other.name).await?,
        }
        let given = own
            .map(|(namespace, name)| UserInfo::service_account(namespace, name).groups)
            .unwrap_or_default();
        for group in &other.groups {
            let implied = group == AUTHENTICATED
                || given.contains(group)
                || (other.name == ANONYMOUS && group == UNAUTHENTICATED);
            if !implied {
                ask("", "groups", "", group).await?;
            }
        }
        for (key, values) in &other.extra {
            for value in values {
                ask("authentication.k8s.io", &format!("userextras/{key}"), "", value).await?;
            }
        }
        if !other.uid.is_empty() {
            ask("authentication.k8s.io", "uids", "", &other.uid).await?;
        }
        Ok(())
    }
}

/// A user as Go prints its own struct.
fn go_syntax(user: &UserInfo) -> String {
    let list = |items: &[String]| {
        let items: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
        format!("[]string{{{}}}", items.join(", "))
    };
    let groups = if user.groups.is_empty() { "[]string(nil)".to_owned() } else { list(&user.groups) };
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{key:?}:{}", list(values))).collect();
    let extra = match extra.is_empty() {
        true => "map[string][]string(nil)".to_owned(),
        false => format!("map[string][]string{{{}}}", extra.join(", ")),
    };
    format!("&user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}}", user.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_other_user() {
        let mut headers = HeaderMap::new();
        assert_eq!(wanted(&headers).unwrap(), None);
        headers.insert("impersonate-group", "g".parse().unwrap());
        assert!(wanted(&headers).is_err());
        headers.insert("impersonate-user", "ann".parse().unwrap());
        headers.insert("impersonate-extra-scopes%2Fx", "view".parse().unwrap());
        let user = wanted(&headers).unwrap().unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups.as_slice()),
            ("ann", &["g".to_owned(), AUTHENTICATED.to_owned()][..])
        );
        assert_eq!(user.extra["scopes/x"], ["view"]);
    }
}
