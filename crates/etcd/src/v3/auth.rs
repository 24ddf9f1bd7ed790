//! Users, roles and range permissions, as etcd has them.
//!
//! Everything durable is a setting of the store (`auth/...`), changed by transactions; users and roles have etcd's own form, so
//! that they move with backups. Tokens live in memory and die with the process or after a while without use. While authentication
//! is off, everyone may do everything.
//!
//! Hashing a password takes tens of milliseconds on purpose: it happens on a thread of its own, and never under the state's lock.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use ring::rand::{SecureRandom, SystemRandom};

use crate::engine::{Shared, Transaction};
use crate::mutation::{Mutation, State};
use crate::mvcc::range::KeyRange;
use crate::v3::messages::{Permission, StoredRole, StoredUser, UserAddOptions};
use crate::v3::status::{self, Status};

/// The settings that hold it all.
pub const ENABLED: &[u8] = b"auth/enabled";
pub const REVISION: &[u8] = b"auth/revision";
pub const USER: &str = "auth/user/";
pub const ROLE: &str = "auth/role/";
const ROOT: &str = "root";
/// What bcrypt does not look at any more.
const MAX_PASSWORD: usize = 72;

const READ: i32 = 0;
const WRITE: i32 = 1;
const READ_WRITE: i32 = 2;

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Authentication is off.
    Anyone,
    /// A user that has proven who it is.
    User(String),
}

/// What a caller wants to do with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// See them.
    Read,
    /// Change them.
    Write,
}

/// The tokens, and whether they are asked for.
#[derive(Default)]
pub struct Auth {
    enabled: AtomicBool,
    tokens: Mutex<HashMap<String, (String, Instant)>>,
    /// How long an unused token lives.
    token_life: Duration,
    /// The revision of the state that was followed last.
    seen: AtomicU64,
}

fn setting_name(kind: &str, name: &str) -> Bytes {
    format!("{kind}{name}").into()
}

fn load<M: Message + Default>(
    settings: &std::collections::BTreeMap<Bytes, Bytes>,
    kind: &str,
    name: &str,
) -> Option<M> {
    M::decode(settings.get(&setting_name(kind, name))?.clone()).ok()
}

fn names(settings: &std::collections::BTreeMap<Bytes, Bytes>, kind: &'static str) -> Vec<String> {
    settings
        .keys()
        .filter_map(|name| name.strip_prefix(kind.as_bytes()))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

fn store(transaction: &mut Transaction<'_>, kind: &str, name: &str, value: Option<Vec<u8>>) {
    transaction.apply(Mutation::Setting { name: setting_name(kind, name), value: value.map(Bytes::from) });
    bump(transaction);
}

/// Notes that something about authentication changed.
fn bump(transaction: &mut Transaction<'_>) {
    let next = revision_in(transaction.settings()) + 1;
    let value = Some(Bytes::copy_from_slice(&next.to_le_bytes()));
    transaction.apply(Mutation::Setting { name: Bytes::from_static(REVISION), value });
}

fn revision_in(settings: &std::collections::BTreeMap<Bytes, Bytes>) -> u64 {
    let bytes = settings.get(REVISION).and_then(|value| value.as_ref().try_into().ok());
    bytes.map_or(1, u64::from_le_bytes)
}

/// Runs something slow beside the runtime's threads.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|_| status::STOPPED)
}

/// A password as it is stored.
pub async fn hashed(password: String, cost: u32) -> Result<Bytes, Status> {
    if password.len() > MAX_PASSWORD {
        return Err(status::PASSWORD_TOO_LONG);
    }
    let hashed = beside(move || bcrypt::hash_with_result(password, cost)).await?;
    // The version that Go's bcrypt writes; they differ for broken implementations of long ago only.
    let text = hashed.map_err(|_| status::AUTH_FAILED)?.format_for_version(bcrypt::Version::TwoA);
    Ok(text.into())
}

/// Whether a password is the one that was stored.
async fn matches(password: String, stored: Bytes) -> Result<bool, Status> {
    if password.len() > MAX_PASSWORD {
        return Ok(false);
    }
    let right =
        beside(move || bcrypt::verify(password, std::str::from_utf8(&stored).unwrap_or_default())).await?;
    // What is no hash matches nothing.
    Ok(right.unwrap_or(false))
}

fn random<const N: usize>() -> Result<[u8; N], Status> {
    let mut out = [0; N];
    SystemRandom::new().fill(&mut out).map_err(|_| status::AUTH_FAILED)?;
    Ok(out)
}

impl Auth {
    /// As the state says.
    pub fn new(state: &State, token_life: Duration) -> Self {
        let auth = Self { token_life, ..Self::default() };
        auth.enabled.store(state.settings.contains_key(ENABLED), Ordering::Release);
        auth.seen.store(revision_in(&state.settings), Ordering::Release);
        auth
    }

    /// Follows the state. Tokens are asked for anew when anything about authentication has changed, unless this server has decided it (`own`): then it
    /// has forgotten those that it had to.
    pub fn refresh(&self, state: &State, own: bool) {
        self.enabled.store(state.settings.contains_key(ENABLED), Ordering::Release);
        let revision = revision_in(&state.settings);
        if self.seen.swap(revision, Ordering::AcqRel) != revision && !own {
            self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
        }
    }

    /// Whose token this is.
    pub fn user_of(&self, token: &str) -> Option<String> {
        let now = Instant::now();
        let mut tokens = self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        tokens.retain(|_, (_, used)| now.duration_since(*used) < self.token_life);
        let (user, used) = tokens.get_mut(token)?;
        *used = now;
        Some(user.clone())
    }

    /// Notes whose token this is.
    pub fn note(&self, token: &str, user: &str) {
        let mut tokens = self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        tokens.insert(token.to_owned(), (user.to_owned(), Instant::now()));
    }

    /// The token in a call's headers.
    pub fn token_in(headers: &HeaderMap) -> Option<&str> {
        let token = headers.get("token").or_else(|| headers.get("authorization"));
        token.and_then(|value| value.to_str().ok())
    }

    /// Whether authentication is on.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// How often anything about authentication has changed.
    pub fn revision(state: &State) -> u64 {
        revision_in(&state.settings)
    }

    /// Who calls: by token, or by the name in a verified client certificate.
    pub fn identify(&self, headers: &HeaderMap, certificate_name: Option<&str>) -> Result<Caller, Status> {
        if !self.is_enabled() {
            return Ok(Caller::Anyone);
        }
        if let Some(token) = Self::token_in(headers) {
            return self.user_of(token).map(Caller::User).ok_or(status::INVALID_AUTH_TOKEN);
        }
        certificate_name.map(|name| Caller::User(name.to_owned())).ok_or(status::USER_EMPTY)
    }

    /// A token for a user who knows the password.
    pub(crate) async fn authenticate(
        &self,
        shared: &Shared,
        name: &str,
        password: String,
    ) -> Result<String, Status> {
        if !self.is_enabled() {
            return Err(status::AUTH_NOT_ENABLED);
        }
        let find = || load::<StoredUser>(&shared.read().settings, USER, name).ok_or(status::AUTH_FAILED);
        let user = find()?;
        if has_no_password(&user) || !matches(password, user.password.clone()).await? {
            return Err(status::AUTH_FAILED);
        }
        // It may have been changed meanwhile, and its tokens forgotten.
        if find()?.password != user.password {
            return Err(status::AUTH_FAILED);
        }
        let token: String = random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut tokens = self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        tokens.insert(token.clone(), (name.to_owned(), Instant::now()));
        Ok(token)
    }

    fn forget(&self, user: &str) {
        let mut tokens = self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        tokens.retain(|_, (name, _)| name != user);
    }

    /// Turns authentication on; `root` must exist and have the role of that name.
    pub fn enable(&self, transaction: &mut Transaction<'_>) -> Result<(), Status> {
        if transaction.setting(ENABLED).is_some() {
            return Ok(());
        }
        let root: StoredUser = load(transaction.settings(), USER, ROOT).ok_or(status::ROOT_USER_NOT_EXIST)?;
        if !root.roles.iter().any(|role| role == ROOT) {
            return Err(status::ROOT_ROLE_NOT_EXIST);
        }
        let value = Some(Bytes::from_static(b"1"));
        transaction.apply(Mutation::Setting { name: Bytes::from_static(ENABLED), value });
        bump(transaction);
        Ok(())
    }

    /// Turns authentication off.
    pub fn disable(&self, transaction: &mut Transaction<'_>) {
        if transaction.setting(ENABLED).is_none() {
            return;
        }
        transaction.apply(Mutation::Setting { name: Bytes::from_static(ENABLED), value: None });
        bump(transaction);
        self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }
}

/// Whether a caller may touch a range of keys.
pub fn check(state: &State, caller: &Caller, range: &KeyRange, access: Access) -> Result<(), Status> {
    check_in(&state.settings, caller, range, access)
}

/// The same inside of a transaction.
pub fn check_in(
    settings: &std::collections::BTreeMap<Bytes, Bytes>,
    caller: &Caller,
    range: &KeyRange,
    access: Access,
) -> Result<(), Status> {
    let Caller::User(name) = caller else { return Ok(()) };
    let user: StoredUser = load(settings, USER, name).ok_or(status::PERMISSION_DENIED)?;
    if user.roles.iter().any(|role| role == ROOT) {
        return Ok(());
    }
    let mut granted: Vec<KeyRange> = Vec::new();
    for role in &user.roles {
        let Some(role) = load::<StoredRole>(settings, ROLE, role) else { continue };
        for permission in role.permissions {
            let suits = permission.kind == READ_WRITE
                || permission.kind == if access == Access::Read { READ } else { WRITE };
            if suits {
                granted.push(KeyRange::from_wire(permission.key, permission.range_end));
            }
        }
    }
    if covered(range, granted) { Ok(()) } else { Err(status::PERMISSION_DENIED) }
}

/// Whether several ranges together cover one.
fn covered(range: &KeyRange, mut by: Vec<KeyRange>) -> bool {
    if range.is_empty() {
        return true;
    }
    // Everything as [start, end), an end of `None` being beyond all keys.
    let ends = |range: &KeyRange| -> Option<Bytes> {
        match range {
            KeyRange::One(key) => Some([key, &b"\0"[..]].concat().into()),
            KeyRange::Span(_, end) => Some(end.clone()),
            KeyRange::From(_) => None,
        }
    };
    by.retain(|range| !range.is_empty());
    by.sort_by(|left, right| left.first().cmp(right.first()));
    let wanted = ends(range);
    let mut reached = Bytes::copy_from_slice(range.first());
    for one in by {
        if one.first() > &reached[..] {
            return false;
        }
        match ends(&one) {
            None => return true,
            Some(end) if end > reached => reached = end,
            Some(_) => {}
        }
        if wanted.as_ref().is_some_and(|wanted| reached >= *wanted) {
            return true;
        }
    }
    false
}

/// Whether a caller may administer.
pub fn check_root(state: &State, caller: &Caller) -> Result<(), Status> {
    let Caller::User(name) = caller else { return Ok(()) };
    let user: Option<StoredUser> = load(&state.settings, USER, name);
    let root = user.is_some_and(|user| user.roles.iter().any(|role| role == ROOT));
    if root { Ok(()) } else { Err(status::PERMISSION_DENIED) }
}

fn has_no_password(user: &StoredUser) -> bool {
    user.options.as_ref().is_some_and(|options| options.no_password)
}

/// Adds a user; without a hash it has no password.
pub fn add_user(
    transaction: &mut Transaction<'_>,
    name: &str,
    password: Option<Bytes>,
) -> Result<(), Status> {
    if name.is_empty() {
        return Err(status::USER_EMPTY);
    }
    if load::<StoredUser>(transaction.settings(), USER, name).is_some() {
        return Err(status::USER_EXISTS);
    }
    let user = StoredUser {
        name: name.to_owned(),
        options: Some(UserAddOptions { no_password: password.is_none() }),
        password: password.unwrap_or_default(),
        roles: Vec::new(),
    };
    store(transaction, USER, name, Some(user.encode_to_vec()));
    Ok(())
}

fn existing_user(transaction: &Transaction<'_>, name: &str) -> Result<StoredUser, Status> {
    load(transaction.settings(), USER, name).ok_or(status::USER_NOT_FOUND)
}

fn existing_role(transaction: &Transaction<'_>, name: &str) -> Result<StoredRole, Status> {
    load(transaction.settings(), ROLE, name).ok_or(status::ROLE_NOT_FOUND)
}

/// Changes a password to another, given by its hash.
pub fn change_password(
    auth: &Auth,
    transaction: &mut Transaction<'_>,
    name: &str,
    password: Bytes,
) -> Result<(), Status> {
    let mut user = existing_user(transaction, name)?;
    user.options = Some(UserAddOptions { no_password: false });
    user.password = password;
    store(transaction, USER, name, Some(user.encode_to_vec()));
    auth.forget(name);
    Ok(())
}

/// Removes a user.
pub fn delete_user(auth: &Auth, transaction: &mut Transaction<'_>, name: &str) -> Result<(), Status> {
    if auth.is_enabled() && name == ROOT {
        return Err(status::INVALID_AUTH_MANAGEMENT);
    }
    existing_user(transaction, name)?;
    store(transaction, USER, name, None);
    auth.forget(name);
    Ok(())
}

/// The roles of a user.
pub fn user_roles(state: &State, name: &str) -> Result<Vec<String>, Status> {
    let user: StoredUser = load(&state.settings, USER, name).ok_or(status::USER_NOT_FOUND)?;
    Ok(user.roles)
}

/// All users.
pub fn users(state: &State) -> Vec<String> {
    names(&state.settings, USER)
}

/// All roles.
pub fn roles(state: &State) -> Vec<String> {
    names(&state.settings, ROLE)
}

/// Gives a user a role.
pub fn grant_role(transaction: &mut Transaction<'_>, user: &str, role: &str) -> Result<(), Status> {
    let mut found = existing_user(transaction, user)?;
    if role != ROOT {
        existing_role(transaction, role)?;
    }
    if !found.roles.iter().any(|known| known == role) {
        found.roles.push(role.to_owned());
        found.roles.sort();
    }
    store(transaction, USER, user, Some(found.encode_to_vec()));
    Ok(())
}

/// Takes a role from a user.
pub fn revoke_role(
    auth: &Auth,
    transaction: &mut Transaction<'_>,
    user: &str,
    role: &str,
) -> Result<(), Status> {
    if auth.is_enabled() && user == ROOT && role == ROOT {
        return Err(status::INVALID_AUTH_MANAGEMENT);
    }
    let mut found = existing_user(transaction, user)?;
    let before = found.roles.len();
    found.roles.retain(|known| known != role);
    if found.roles.len() == before {
        return Err(status::ROLE_NOT_GRANTED);
    }
    store(transaction, USER, user, Some(found.encode_to_vec()));
    Ok(())
}

/// Adds a role.
pub fn add_role(transaction: &mut Transaction<'_>, name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Err(status::ROLE_EMPTY);
    }
    if load::<StoredRole>(transaction.settings(), ROLE, name).is_some() {
        return Err(status::ROLE_EXISTS);
    }
    let role = StoredRole { name: name.to_owned(), ..StoredRole::default() };
    store(transaction, ROLE, name, Some(role.encode_to_vec()));
    Ok(())
}

/// The permissions of a role.
pub fn role_permissions(state: &State, name: &str) -> Result<Vec<Permission>, Status> {
    let role: Option<StoredRole> = load(&state.settings, ROLE, name);
    match role {
        Some(role) => Ok(role.permissions),
        // The root role needs no entry: it may do everything.
        None if name == ROOT => {
            Ok(vec![Permission { kind: READ_WRITE, key: Bytes::new(), range_end: Bytes::from_static(b"\0") }])
        }
        None => Err(status::ROLE_NOT_FOUND),
    }
}

/// Removes a role, also from all users.
pub fn delete_role(auth: &Auth, transaction: &mut Transaction<'_>, name: &str) -> Result<(), Status> {
    if auth.is_enabled() && name == ROOT {
        return Err(status::INVALID_AUTH_MANAGEMENT);
    }
    existing_role(transaction, name)?;
    store(transaction, ROLE, name, None);
    for user in names(transaction.settings(), USER) {
        let mut found = existing_user(transaction, &user)?;
        if found.roles.iter().any(|role| role == name) {
            found.roles.retain(|role| role != name);
            let value = Some(Bytes::from(found.encode_to_vec()));
            transaction.apply(Mutation::Setting { name: setting_name(USER, &user), value });
        }
    }
    Ok(())
}

/// Gives a role a permission; one for the same range is replaced.
pub fn grant_permission(
    transaction: &mut Transaction<'_>,
    name: &str,
    permission: Option<Permission>,
) -> Result<(), Status> {
    let permission = permission.ok_or(status::PERMISSION_NOT_GIVEN)?;
    let mut role = existing_role(transaction, name)?;
    let same = |known: &Permission| known.key == permission.key && known.range_end == permission.range_end;
    role.permissions.retain(|known| !same(known));
    role.permissions.push(permission);
    role.permissions.sort_by(|left, right| left.key.cmp(&right.key));
    store(transaction, ROLE, name, Some(role.encode_to_vec()));
    Ok(())
}

/// Takes a permission from a role.
pub fn revoke_permission(
    transaction: &mut Transaction<'_>,
    name: &str,
    key: &Bytes,
    range_end: &Bytes,
) -> Result<(), Status> {
    let mut role = existing_role(transaction, name)?;
    let before = role.permissions.len();
    role.permissions.retain(|known| known.key != *key || known.range_end != *range_end);
    if role.permissions.len() == before {
        return Err(status::PERMISSION_NOT_GRANTED);
    }
    store(transaction, ROLE, name, Some(role.encode_to_vec()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_that_touch_cover_a_range_together() {
        let span = |start: &'static str, end: &'static str| KeyRange::Span(start.into(), end.into());
        let one = |key: &'static str| KeyRange::One(key.into());
        let cases = [
            (span("a", "c"), vec![span("a", "b"), span("b", "c")], true),
            (span("a", "c"), vec![span("a", "b"), span("b0", "c")], false),
            (span("a", "c"), vec![span("b", "c"), span("a", "b")], true),
            (one("a"), vec![one("a")], true),
            (one("a"), vec![span("0", "b")], true),
            (span("a", "b"), vec![one("a")], false),
            (KeyRange::From("a".into()), vec![span("a", "z")], false),
            (KeyRange::From("b".into()), vec![KeyRange::From("a".into())], true),
            (one("a"), vec![], false),
        ];
        for (range, by, expected) in cases {
            assert_eq!(covered(&range, by.clone()), expected, "{range:?} by {by:?}");
        }
    }
}
