//! Impersonation: a user asks to be treated as another one, and must be allowed to.
//!
//! There are five ways. Four are bounded: who may act as a node, an account or somebody else (`impersonate:MODE`) may do so
//! only in requests that `impersonate-on:MODE:VERB` allows. The fifth, `impersonate`, allows whatever the other one may.
//! The way that let a user through last is tried first; what is told is the first refusal.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use apimachinery::names;
use apimachinery::status::Status;
use http::{HeaderMap, HeaderValue};

use crate::authz::Attributes;
use crate::request_info::decode;
use crate::server::ApiServer;
use crate::user::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED, UserInfo, split_service_account};

const GROUP: &str = "authentication.k8s.io";
/// Where a token says on which node its pod runs.
pub(crate) const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// From this many names on, the right to all of them is asked for first.
const MANY: usize = 4;
/// The most users whose last way is remembered.
const REMEMBER_AT_MOST: usize = 10_000;

/// One of the ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An account acts as the node that its pod runs on.
    AssociatedNode,
    /// Somebody acts as a node.
    ArbitraryNode,
    /// Somebody acts as a service account.
    ServiceAccount,
    /// Somebody acts as somebody who is neither.
    UserInfo,
    /// Unbounded.
    Legacy,
}

impl Mode {
    /// In the order in which they are tried.
    pub const ALL: [Self; 5] =
        [Self::AssociatedNode, Self::ArbitraryNode, Self::ServiceAccount, Self::UserInfo, Self::Legacy];

    /// The right that is asked for. Of a bounded way, the audit log tells it.
    pub fn verb(self) -> &'static str {
        match self {
            Self::AssociatedNode => "impersonate:associated-node",
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => "impersonate",
        }
    }

    /// As metrics call it.
    pub fn name(self) -> &'static str {
        self.verb().strip_prefix("impersonate:").unwrap_or("legacy")
    }

    /// What the audit log says of it.
    pub fn constraint(self) -> Option<&'static str> {
        (self != Self::Legacy).then(|| self.verb())
    }

    /// Whether `user` could become `other` this way.
    fn fits(self, user: &UserInfo, other: &UserInfo) -> bool {
        let plain = other.uid.is_empty() && other.groups.is_empty() && other.extra.is_empty();
        let node = node_of(&other.name);
        match self {
            Self::AssociatedNode => {
                let own =
                    user.extra.get(NODE_NAME).filter(|names| names.len() == 1).map(|names| names[0].as_str());
                plain && node.is_some() && node == own && split_service_account(&user.name).is_some()
            }
            Self::ArbitraryNode => plain && node.is_some(),
            Self::ServiceAccount => plain && split_service_account(&other.name).is_some(),
            Self::UserInfo => node.is_none() && split_service_account(&other.name).is_none(),
            Self::Legacy => true,
        }
    }
}

/// Which way let whom through last, by user name.
#[derive(Debug, Default)]
pub struct LastModes(Mutex<HashMap<String, Mode>>);

impl LastModes {
    fn get(&self, user: &str) -> Option<Mode> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(user).copied()
    }

    fn set(&self, user: &str, mode: Mode) {
        let mut modes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if modes.len() >= REMEMBER_AT_MOST {
            modes.clear();
        }
        modes.insert(user.to_owned(), mode);
    }
}

/// The node that a user name is of.
fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| names::is_dns1123_subdomain(name).is_empty())
}

/// The user that the headers ask for, with nothing added. What cannot be read is refused: left out, the request would run
/// with rights that it did not ask for.
pub fn wanted(headers: &HeaderMap) -> Result<Option<UserInfo>, Status> {
    let read = |name: &str, value: &HeaderValue| match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Status::bad_request(format!("the value of the header {name:?} is not valid UTF-8"))),
    };
    let mut user = UserInfo::default();
    if let Some(value) = headers.get("impersonate-user") {
        user.name = read("Impersonate-User", value)?;
    }
    if let Some(value) = headers.get("impersonate-uid") {
        user.uid = read("Impersonate-Uid", value)?;
    }
    for value in headers.get_all("impersonate-group") {
        user.groups.push(read("Impersonate-Group", value)?);
    }
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix("impersonate-extra-") {
            user.extra.entry(decode(key)).or_default().push(read(header.as_str(), value)?);
        }
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty() {
        return Ok(None);
    }
    Err(Status::bad_request(format!("requested {} without impersonating a user name", go_syntax(&user))))
}

/// The other user with the groups that authentication would have given.
fn complete(mode: Mode, mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty() {
        if let Some((namespace, account)) = split_service_account(&user.name) {
            user.groups = UserInfo::service_account(namespace, account).groups;
        } else if matches!(mode, Mode::AssociatedNode | Mode::ArbitraryNode) {
            user.groups = vec!["system:nodes".to_owned()];
        }
    }
    if user.name == ANONYMOUS {
        if !user.is_in(UNAUTHENTICATED) {
            user.groups.push(UNAUTHENTICATED.to_owned());
        }
    } else if !user.is_in(AUTHENTICATED) && !user.is_in(UNAUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

impl ApiServer {
    /// Whom the request is from if `user` may be `other` in it, and which way; otherwise 403. `asked` is what the request
    /// asks of the authorizers.
    pub(crate) async fn impersonate(
        &self,
        user: &UserInfo,
        other: UserInfo,
        asked: &Attributes<'_>,
    ) -> Result<(UserInfo, Mode), Status> {
        let last = self.last_modes.get(&user.name);
        let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != last);
        let mut refusal = None;
        for mode in last.into_iter().chain(others).filter(|mode| mode.fits(user, &other)) {
            match self.may_impersonate(mode, user, &other, asked).await {
                Ok(()) => {
                    self.last_modes.set(&user.name, mode);
                    return Ok((complete(mode, other), mode));
                }
                Err(status) => refusal = refusal.or(Some(status)),
            }
        }
        Err(refusal.unwrap_or_else(|| Status::internal("all impersonation modes failed")))
    }

    async fn may_impersonate(
        &self,
        mode: Mode,
        user: &UserInfo,
        other: &UserInfo,
        asked: &Attributes<'_>,
    ) -> Result<(), Status> {
        // The account of an agent on every node is one asker: what its token says beyond that does not count.
        let of_node;
        let user = if mode == Mode::AssociatedNode {
            let keys = user.extra.keys().cloned().collect();
            let mut plain = user.clone();
            plain.extra = [("authentication.kubernetes.io/associated-node-keys".to_owned(), keys)].into();
            of_node = plain;
            &of_node
        } else {
            user
        };
        let judge = async |asked: Attributes<'_>| {
            let began = Instant::now();
            let allowed = self.authorize_or_refuse(&asked).await;
            self.metrics.chain.impersonation_right(mode, allowed.is_ok(), began.elapsed());
            allowed
        };
        let bounded = mode != Mode::Legacy;
        if let Some(way) = mode.verb().strip_prefix("impersonate:") {
            let verb = format!("impersonate-on:{way}:{}", asked.verb);
            judge(Attributes { user, verb: &verb, ..asked.clone() }).await?;
        }
        let verb = mode.verb();
        let ask = async |group: &str, resource: &str, namespace: &str, name: &str| {
            judge(Attributes {
                version: "v1",
                ..Attributes::resource(user, verb, group, resource, namespace, name)
            })
            .await
        };
        let forbidden = |resource: &str, name: &str, why: &str| {
            let asked = Attributes::resource(user, verb, GROUP, resource, "", name);
            Status::forbidden(GROUP, resource, name, &format!("{}: {why}", asked.refusal()))
        };
        let group = if bounded { GROUP } else { "" };
        match (split_service_account(&other.name), node_of(&other.name).filter(|_| bounded)) {
            (Some((namespace, name)), _) => ask(group, "serviceaccounts", namespace, name).await?,
            (None, Some(_)) if mode == Mode::AssociatedNode => ask(group, "nodes", "", "*").await?,
            (None, Some(node)) => ask(group, "nodes", "", node).await?,
            (None, None) => ask(group, "users", "", &other.name).await?,
        }
        if !other.uid.is_empty() {
            ask(GROUP, "uids", "", &other.uid).await?;
        }
        if bounded {
            if other.is_in("") {
                return Err(forbidden("groups", "", "impersonating the empty string group is not allowed"));
            }
            if other.is_in(MASTERS) {
                let why = "impersonating the system:masters group is not allowed";
                return Err(forbidden("groups", MASTERS, why));
            }
            if let Some(why) = other.extra.iter().find_map(|(key, values)| wrong_extra(key, values)) {
                return Err(forbidden("userextras", "", &why));
            }
        }
        let all = bounded && other.groups.len() >= MANY && ask(group, "groups", "", "*").await.is_ok();
        for name in other.groups.iter().filter(|_| !all) {
            ask(group, "groups", "", name).await?;
        }
        let many = other.extra.len() >= MANY || other.extra.values().map(Vec::len).sum::<usize>() >= MANY;
        if bounded && many && ask(GROUP, "userextras/*", "", "*").await.is_ok() {
            return Ok(());
        }
        for (key, values) in &other.extra {
            for value in values {
                ask(GROUP, &format!("userextras/{key}"), "", value).await?;
            }
        }
        Ok(())
    }
}

/// What the bounded ways do not take of an extra field.
fn wrong_extra(key: &str, values: &[String]) -> Option<String> {
    let bad_path = || {
        let (domain, path) = key.split_once('/')?;
        let good = names::is_dns1123_subdomain(domain).is_empty() && !path.is_empty();
        good.then_some(())
    };
    if key.is_empty() {
        Some("impersonating the empty string key in extra is not allowed".to_owned())
    } else if bad_path().is_none() {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        Some(format!(
            "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {key:?}: {why}"
        ))
    } else if key.chars().any(char::is_uppercase) {
        Some(format!("impersonating a non-lowercase key in extra is not allowed: {key:?}"))
    } else if values.iter().any(String::is_empty) {
        Some("impersonating the empty string value in extra is not allowed".to_owned())
    } else {
        None
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
        assert_eq!((user.name.as_str(), user.groups.as_slice()), ("ann", &["g".to_owned()][..]));
        assert_eq!(user.extra["scopes/x"], ["view"]);
        assert_eq!(complete(Mode::Legacy, user).groups, ["g", AUTHENTICATED]);
    }

    #[test]
    fn names_are_read_in_every_script_or_refused() {
        let names = [
            ("impersonate-user", "j\u{fc}rgen"),
            ("impersonate-uid", "\u{df}"),
            ("impersonate-group", "\u{e9}quipe"),
            ("impersonate-extra-scopes", "\u{65e5}\u{672c}"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in names {
            headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let user = wanted(&headers).unwrap().expect("the name is not dropped");
        assert_eq!((user.name.as_str(), user.uid.as_str()), (names[0].1, names[1].1));
        assert_eq!(
            (&user.groups[..], &user.extra["scopes"][..]),
            (&[names[2].1.to_owned()][..], &[names[3].1.to_owned()][..])
        );
        for (name, _) in names {
            let mut headers = headers.clone();
            headers.insert(name, HeaderValue::from_bytes(b"j\xfcrgen").unwrap());
            assert_eq!(wanted(&headers).expect_err(name).code, 400);
        }
    }

    #[test]
    fn who_is_wanted_says_which_ways_there_are() {
        let fitting = |user: &UserInfo, other: &UserInfo| -> Vec<Mode> {
            Mode::ALL.into_iter().filter(|mode| mode.fits(user, other)).collect()
        };
        let named = |name: &str| UserInfo { name: name.to_owned(), ..UserInfo::default() };
        let ann = named("ann");
        assert_eq!(fitting(&ann, &named("bob")), [Mode::UserInfo, Mode::Legacy]);
        assert_eq!(fitting(&ann, &named("system:node:n1")), [Mode::ArbitraryNode, Mode::Legacy]);
        assert_eq!(fitting(&ann, &named("system:node:N!")), [Mode::UserInfo, Mode::Legacy]);
        let account = named("system:serviceaccount:a:b");
        assert_eq!(fitting(&ann, &account), [Mode::ServiceAccount, Mode::Legacy]);
        let with_groups = UserInfo { groups: vec!["g".to_owned()], ..account.clone() };
        assert_eq!(fitting(&ann, &with_groups), [Mode::Legacy]);
        let mut agent = account;
        agent.extra.insert(NODE_NAME.to_owned(), vec!["n1".to_owned()]);
        let both = [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::Legacy];
        assert_eq!(fitting(&agent, &named("system:node:n1")), both);
        assert_eq!(fitting(&agent, &named("system:node:n2")), both[1..]);
        assert_eq!(
            complete(Mode::ArbitraryNode, named("system:node:n1")).groups,
            ["system:nodes", AUTHENTICATED]
        );
        assert_eq!(complete(Mode::Legacy, named("system:node:n1")).groups, [AUTHENTICATED]);
    }
}
