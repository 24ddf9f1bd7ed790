//! The members: one that decides, and learners that follow it.
//!
//! Each has an entry among the store's settings (`member/ID`), so learners know all of them too. A learner's entry
//! is made by `member add --learner`, and completed when it comes for the first time ([`crate::replication`]). There is no consensus
//! here and so never a second member that decides: asking for one is refused with a sentence that says what to do.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use crate::engine::Transaction;
use crate::local::free_lease_id;
use crate::mutation::Mutation;
use crate::v3::auth::{self, Caller};
use crate::v3::frame;
use crate::v3::messages::*;
use crate::v3::service::{Service, decode};
use crate::v3::status::{self, Status};

/// The ids of the cluster and of the member that decides.
const IDENTITY: &[u8] = b"identity";
const MEMBER: &str = "member/";

type Settings = BTreeMap<Bytes, Bytes>;

/// The ids of the cluster and of the member that decides, once they are made.
pub fn identity(settings: &Settings) -> Option<(u64, u64)> {
    let ids = settings.get(IDENTITY)?;
    let number = |at: usize| Some(u64::from_le_bytes(ids.get(at..at + 8)?.try_into().ok()?));
    Some((number(0)?, number(8)?))
}

/// Whether a setting belongs to one cluster and means nothing in another.
pub fn is_of_one_cluster(name: &[u8]) -> bool {
    name == IDENTITY || name.starts_with(MEMBER.as_bytes())
}

/// All members, in the order of their ids.
pub fn members(settings: &Settings) -> Vec<Member> {
    let entries = settings.range(Bytes::from_static(MEMBER.as_bytes())..);
    let entries = entries.take_while(|(name, _)| name.starts_with(MEMBER.as_bytes()));
    entries.filter_map(|(_, value)| Member::decode(value.clone()).ok()).collect()
}

/// One member.
pub fn member(settings: &Settings, id: u64) -> Option<Member> {
    Member::decode(settings.get(&entry_name(id))?.clone()).ok()
}

fn entry_name(id: u64) -> Bytes {
    format!("{MEMBER}{id:016x}").into()
}

/// Records a member, if that changes anything.
pub fn record(transaction: &mut Transaction<'_>, member: &Member) {
    let (name, value) = (entry_name(member.id), Bytes::from(member.encode_to_vec()));
    if transaction.settings().get(&name) != Some(&value) {
        transaction.apply(Mutation::Setting { name, value: Some(value) });
    }
}

fn forget(transaction: &mut Transaction<'_>, id: u64) {
    transaction.apply(Mutation::Setting { name: entry_name(id), value: None });
}

fn fresh_id(transaction: &Transaction<'_>) -> u64 {
    free_lease_id(transaction.leases()) as u64
}

/// Whether the store gets other members than it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reform {
    /// No.
    Keep,
    /// Learners are forgotten.
    Alone,
    /// The learner with this id takes over. It becomes another cluster, so that whoever followed the old one, and may have
    /// come further, does not mistake one for the other.
    TakeOver(u64),
}

/// Makes the ids if there are none, and records the member that decides as it is started now. Returns the ids.
pub fn prepare(transaction: &mut Transaction<'_>, mut own: Member, reform: Reform) -> (u64, u64) {
    let known = identity(transaction.settings());
    let (cluster, id) = match (known, reform) {
        (Some(known), Reform::Keep | Reform::Alone) => known,
        (_, Reform::TakeOver(id)) => (fresh_id(transaction), id),
        (None, _) => (fresh_id(transaction), fresh_id(transaction)),
    };
    if known != Some((cluster, id)) {
        let value = Some([cluster.to_le_bytes(), id.to_le_bytes()].concat().into());
        transaction.apply(Mutation::Setting { name: Bytes::from_static(IDENTITY), value });
    }
    if reform != Reform::Keep {
        for other in members(transaction.settings()).into_iter().filter(|member| member.id != id) {
            forget(transaction, other.id);
        }
    }
    // What `member update` said about where it is reached outlasts the flags.
    if let Some(known) = member(transaction.settings(), id) {
        own.peer_urls = known.peer_urls;
    }
    record(transaction, &Member { id, is_learner: false, ..own });
    (cluster, id)
}

/// The learner that a newcomer claims to be: by the id that it was once told, or by where it is reached.
pub fn learner(settings: &Settings, id: u64, peer_urls: &[String]) -> Result<Member, Status> {
    if id != 0 {
        return member(settings, id).filter(|member| member.is_learner).ok_or(status::MEMBER_REMOVED);
    }
    let sorted = |urls: &[String]| {
        let mut urls = urls.to_vec();
        urls.sort();
        urls
    };
    let wanted = sorted(peer_urls);
    let found = members(settings).into_iter().find(|member| sorted(&member.peer_urls) == wanted);
    found.filter(|member| member.is_learner).ok_or(status::MEMBER_NOT_ADDED)
}

/// The Cluster service.
pub async fn unary(service: &Service, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
    let shared = &service.etcd.shared;
    let listed =
        || MembersResponse { header: Some(service.header_at(0)), members: members(&shared.read().settings) };
    if method == "MemberList" {
        return Ok(frame::framed(&listed()));
    }
    auth::check_root(&shared.read(), caller)?;
    match method {
        "MemberAdd" => {
            let request: MemberAddRequest = decode(body)?;
            let max = service.max_learners;
            let added = service.etcd.transact(|transaction| add(transaction, request, max)).await?;
            let MembersResponse { header, members } = listed();
            Ok(frame::framed(&MemberAddResponse { header, member: Some(added), members }))
        }
        "MemberRemove" => {
            let id = decode::<MemberIdRequest>(body)?.id;
            service.etcd.transact(|transaction| remove(transaction, id)).await?;
            Ok(frame::framed(&listed()))
        }
        "MemberUpdate" => {
            let request: MemberUpdateRequest = decode(body)?;
            service.etcd.transact(|transaction| update(transaction, request)).await?;
            Ok(frame::framed(&listed()))
        }
        "MemberPromote" => {
            let id = decode::<MemberIdRequest>(body)?.id;
            let found = member(&shared.read().settings, id).ok_or(status::MEMBER_NOT_FOUND)?;
            Err(if found.is_learner { status::ONE_VOTER } else { status::MEMBER_NOT_LEARNER })
        }
        _ => Err(status::UNKNOWN_METHOD),
    }
}

/// Whether these can be where a member is reached, and no other one is.
fn check_urls(transaction: &Transaction<'_>, id: u64, urls: &[String]) -> Result<(), Status> {
    let fine = |url: &String| {
        let uri: Option<http::Uri> = url.parse().ok();
        uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.port_u16().is_some())
    };
    if urls.is_empty() || !urls.iter().all(fine) {
        return Err(status::BAD_PEER_URLS);
    }
    let others = members(transaction.settings()).into_iter().filter(|member| member.id != id);
    let taken: Vec<String> = others.flat_map(|member| member.peer_urls).collect();
    if urls.iter().any(|url| taken.contains(url)) { Err(status::PEER_URL_EXISTS) } else { Ok(()) }
}

fn add(transaction: &mut Transaction<'_>, request: MemberAddRequest, max: usize) -> Result<Member, Status> {
    check_urls(transaction, 0, &request.peer_urls)?;
    if !request.is_learner {
        return Err(status::ONE_VOTER);
    }
    let learners = members(transaction.settings()).iter().filter(|member| member.is_learner).count();
    if learners >= max {
        return Err(status::TOO_MANY_LEARNERS);
    }
    let id = fresh_id(transaction);
    let added = Member { id, peer_urls: request.peer_urls, is_learner: true, ..Member::default() };
    record(transaction, &added);
    Ok(added)
}

fn remove(transaction: &mut Transaction<'_>, id: u64) -> Result<(), Status> {
    let found = member(transaction.settings(), id).ok_or(status::MEMBER_NOT_FOUND)?;
    if !found.is_learner {
        return Err(status::NOT_ENOUGH_STARTED);
    }
    forget(transaction, id);
    Ok(())
}

fn update(transaction: &mut Transaction<'_>, request: MemberUpdateRequest) -> Result<(), Status> {
    let mut found = member(transaction.settings(), request.id).ok_or(status::MEMBER_NOT_FOUND)?;
    check_urls(transaction, request.id, &request.peer_urls)?;
    found.peer_urls = request.peer_urls;
    record(transaction, &found);
    Ok(())
}
