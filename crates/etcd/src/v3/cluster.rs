//! The members, as the log has them.
//!
//! Each has an entry among the store's settings (`member/ID`), so all members know all of them; who votes since when is one setting more
//! ([`Membership`]), for raft. An entry is made by `member add`, and completed when the member comes for the first time ([`publish`]). Changes are made one at a time, and a change that
//! would endanger the majority is refused as etcd refuses it.

use bytes::Bytes;
use prost::Message;

use crate::engine::Transaction;
use crate::local::free_lease_id;
use crate::mutation::Mutation;
use crate::raft::{Electorate, Membership};
use crate::replication::driver::Report;
use crate::replication::member::Settings;
use crate::v3::auth::{self, Caller};
use crate::v3::frame;
use crate::v3::messages::*;
use crate::v3::service::{Service, decode};
use crate::v3::status::{self, Status};

/// The ids of the cluster and of the member that founded it.
const IDENTITY: &[u8] = b"identity";
const MEMBER: &str = "member/";
/// Who votes, for raft.
pub const MEMBERSHIP: &[u8] = b"raft/members";
/// Where the log's terms begin.
pub const TERMS: &[u8] = b"raft/terms";
const REMOVED: &str = "raft/removed/";
/// The term of a log that no leader of several has written to.
pub const TERM: u64 = 2;

/// The ids of the cluster and of the member that founded it, once they are made.
pub fn identity(settings: &Settings) -> Option<(u64, u64)> {
    let ids = settings.get(IDENTITY)?;
    let number = |at: usize| Some(u64::from_le_bytes(ids.get(at..at + 8)?.try_into().ok()?));
    Some((number(0)?, number(8)?))
}

/// Whether a setting belongs to one cluster and means nothing in another.
pub fn is_of_one_cluster(name: &[u8]) -> bool {
    name == IDENTITY
        || name == b"downgrade"
        || name.starts_with(MEMBER.as_bytes())
        || name.starts_with(crate::alarm::PREFIX.as_bytes())
        || name.starts_with(b"raft/")
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

/// The member that is reached at some URLs.
pub fn at<'a>(members: &'a [Member], urls: &[String]) -> Option<&'a Member> {
    let sorted = |urls: &[String]| {
        let mut urls = urls.to_vec();
        urls.sort();
        urls
    };
    let wanted = sorted(urls);
    members.iter().find(|member| sorted(&member.peer_urls) == wanted)
}

/// Who votes.
pub fn membership(settings: &Settings) -> Option<Membership> {
    Membership::read(settings.get(MEMBERSHIP)?)
}

/// Whether there was such a member and is not any more.
pub fn was_removed(settings: &Settings, id: u64) -> bool {
    settings.contains_key(&removed_name(id))
}

fn entry_name(id: u64) -> Bytes {
    format!("{MEMBER}{id:016x}").into()
}

fn removed_name(id: u64) -> Bytes {
    format!("{REMOVED}{id:016x}").into()
}

fn identity_value(cluster: u64, member: u64) -> Bytes {
    [cluster.to_le_bytes(), member.to_le_bytes()].concat().into()
}

fn set(transaction: &mut Transaction<'_>, name: Bytes, value: Option<Bytes>) {
    if transaction.settings().get(&name) != value.as_ref() {
        transaction.apply(Mutation::Setting { name, value });
    }
}

/// The settings of a new cluster of several members, whose first record has this index.
pub fn founding(cluster: u64, members: &[Member], voters: Electorate, index: u64) -> Vec<(Bytes, Bytes)> {
    let first = members.first().map_or(0, |member| member.id);
    let membership = Membership { index, current: Some(voters.clone()), previous: Some(voters) };
    let mut settings = vec![
        (Bytes::from_static(IDENTITY), identity_value(cluster, first)),
        (Bytes::from_static(MEMBERSHIP), membership.encode_to_vec().into()),
    ];
    settings.extend(members.iter().map(|member| (entry_name(member.id), member.encode_to_vec().into())));
    settings
}

/// Records a member, if that changes anything.
pub fn record(transaction: &mut Transaction<'_>, member: &Member) {
    set(transaction, entry_name(member.id), Some(member.encode_to_vec().into()));
}

/// Records what a member says about itself.
pub fn publish(transaction: &mut Transaction<'_>, said: Member) -> Result<(), Status> {
    let known = member(transaction.settings(), said.id).ok_or(status::MEMBER_REMOVED)?;
    record(transaction, &Member { name: said.name, client_urls: said.client_urls, ..known });
    Ok(())
}

fn fresh_id(transaction: &Transaction<'_>) -> u64 {
    free_lease_id(transaction) as u64
}

/// Whether the store gets other members than it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reform {
    /// No.
    Keep,
    /// The others are forgotten.
    Alone,
    /// The member with this id goes on without the others. It becomes another cluster, so that whoever was of the old one, and may have
    /// come further, does not mistake one for the other.
    TakeOver(u64),
}

/// Makes the ids of a lone server if there are none, and records it as it is started now. Returns the ids.
pub fn prepare(transaction: &mut Transaction<'_>, mut own: Member, reform: Reform) -> (u64, u64) {
    let known = identity(transaction.settings());
    let (cluster, id) = match (known, reform) {
        (Some(known), Reform::Keep | Reform::Alone) => known,
        (_, Reform::TakeOver(id)) => (fresh_id(transaction), id),
        (None, _) => (fresh_id(transaction), fresh_id(transaction)),
    };
    set(transaction, Bytes::from_static(IDENTITY), Some(identity_value(cluster, id)));
    if reform != Reform::Keep {
        let others = transaction.settings().keys().filter(|name| {
            name.starts_with(MEMBER.as_bytes()) && **name != entry_name(id) || name.starts_with(b"raft/")
        });
        for name in others.cloned().collect::<Vec<_>>() {
            set(transaction, name, None);
        }
    }
    // What `member update` said about where it is reached outlasts the flags.
    if let Some(known) = member(transaction.settings(), id) {
        own.peer_urls = known.peer_urls;
    }
    record(transaction, &Member { id, is_learner: false, ..own });
    (cluster, id)
}

/// The Cluster service, on the member that decides; the list on any.
pub async fn unary(service: &Service, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
    let shared = &service.etcd.shared;
    let listed =
        || MembersResponse { header: Some(service.header_at(0)), members: members(&shared.read().settings) };
    if method == "MemberList" {
        return Ok(frame::framed(&listed()));
    }
    auth::check_root(&shared.read(), caller)?;
    let replica = &service.replica;
    match method {
        "MemberAdd" => {
            let request: MemberAddRequest = decode(body)?;
            replica.wake().await?;
            let view = View::of(service).await?;
            let max = service.max_learners;
            let added = service.etcd.transact(|transaction| add(transaction, &view, request, max)).await?;
            let MembersResponse { header, members } = listed();
            Ok(frame::framed(&MemberAddResponse { header, member: Some(added), members }))
        }
        "MemberRemove" => {
            let id = decode::<MemberIdRequest>(body)?.id;
            check_found(service, id)?;
            if !replica.is_one_of_several() {
                return Err(status::NOT_ENOUGH_STARTED);
            }
            let view = View::of(service).await?;
            view.check_remove(&members(&shared.read().settings), id)?;
            if id == service.identity.member_id {
                // Another one has to lead first; that one is asked then.
                let heir = view.furthest().ok_or(status::NOT_ENOUGH_STARTED)?;
                replica.bequeath(heir).await?;
                return Err(status::NOT_LEADER);
            }
            service.etcd.transact(|transaction| remove(transaction, &view, id)).await?;
            Ok(frame::framed(&listed()))
        }
        "MemberUpdate" => {
            let request: MemberUpdateRequest = decode(body)?;
            service.etcd.transact(|transaction| update(transaction, request)).await?;
            Ok(frame::framed(&listed()))
        }
        "MemberPromote" => {
            let id = decode::<MemberIdRequest>(body)?.id;
            let found = check_found(service, id)?;
            if !found.is_learner {
                return Err(status::MEMBER_NOT_LEARNER);
            }
            let view = View::of(service).await?;
            service.etcd.transact(|transaction| promote(transaction, &view, id)).await?;
            Ok(frame::framed(&listed()))
        }
        _ => Err(status::UNKNOWN_METHOD),
    }
}

fn check_found(service: &Service, id: u64) -> Result<Member, Status> {
    let state = service.etcd.shared.read();
    if was_removed(&state.settings, id) {
        return Err(status::MEMBER_NOT_FOUND);
    }
    member(&state.settings, id).ok_or(status::MEMBER_NOT_FOUND)
}

/// What a change of the members is judged by.
struct View {
    own: u64,
    report: Report,
    strict: bool,
    /// Everything up to here is committed.
    committed: u64,
}

impl View {
    async fn of(service: &Service) -> Result<Self, Status> {
        let timing = service.replica.timing;
        let (own, strict) = (service.identity.member_id, service.replica.strict);
        let deadline = std::time::Instant::now() + timing.election;
        loop {
            // Also proves that this member leads, and has committed something in its term.
            let committed = service.replica.read_index().await?;
            let report = service.replica.report().await?;
            // Who has just begun to lead has not heard of all yet: one that is silent gets some time to answer before it is taken for dead.
            if report.members.values().all(|(_, active)| *active) || std::time::Instant::now() >= deadline {
                return Ok(Self { own, report, strict, committed });
            }
            tokio::time::sleep(timing.heartbeat).await;
        }
    }

    fn is_active(&self, id: u64) -> bool {
        self.report.members.get(&id).is_some_and(|(_, active)| *active)
    }

    /// The other voter that has most of the log.
    fn furthest(&self) -> Option<u64> {
        let others = self.report.members.iter().filter(|(id, (_, active))| **id != self.own && *active);
        others.max_by_key(|(_, (matched, _))| *matched).map(|(id, _)| *id)
    }

    /// Whether there are enough members at work for one more that votes.
    fn check_add(&self, members: &[Member]) -> Result<(), Status> {
        if !self.strict {
            return Ok(());
        }
        let voters: Vec<&Member> = members.iter().filter(|member| !member.is_learner).collect();
        let started = voters.iter().filter(|member| !member.name.is_empty()).count();
        let after = voters.len() + 1;
        // The second member may be added to the first.
        if started < after / 2 + 1 && !(started == 1 && after == 2) {
            return Err(status::NOT_ENOUGH_STARTED);
        }
        if voters.iter().all(|member| self.is_active(member.id)) { Ok(()) } else { Err(status::UNHEALTHY) }
    }

    /// Whether there are enough members at work without one.
    fn check_remove(&self, members: &[Member], id: u64) -> Result<(), Status> {
        let voters: Vec<&Member> = members.iter().filter(|member| !member.is_learner).collect();
        if !voters.iter().any(|member| member.id == id) {
            return Ok(());
        }
        let left: Vec<&&Member> = voters.iter().filter(|member| member.id != id).collect();
        let started = left.iter().filter(|member| !member.name.is_empty()).count();
        if left.is_empty() || self.strict && started < left.len() / 2 + 1 {
            return Err(status::NOT_ENOUGH_STARTED);
        }
        // One that is down can only do good by going.
        let active = voters.iter().filter(|member| self.is_active(member.id)).count();
        if self.strict && self.is_active(id) && active - 1 < left.len() / 2 + 1 {
            return Err(status::UNHEALTHY);
        }
        Ok(())
    }

    /// Whether a learner has nearly everything.
    fn check_promote(&self, members: &[Member], id: u64) -> Result<(), Status> {
        let (matched, active) = self.report.members.get(&id).copied().unwrap_or_default();
        if !active || (matched as f64) < 0.9 * self.report.last as f64 {
            return Err(status::LEARNER_NOT_READY);
        }
        if self.strict { self.check_add(members) } else { Ok(()) }
    }
}

/// Changes who votes. The change before must be committed.
fn reform(
    transaction: &mut Transaction<'_>,
    view: &View,
    change: impl FnOnce(&mut Electorate),
) -> Result<(), Status> {
    let before = membership(transaction.settings()).ok_or(status::NOT_LEADER)?;
    if before.index > view.committed {
        return Err(status::UNHEALTHY);
    }
    let mut electorate = before.current.clone().unwrap_or_default();
    if !electorate.has_voter(view.own) {
        // It leads only until the others know that it was taken out.
        return Err(status::NOT_LEADER);
    }
    change(&mut electorate);
    electorate.voters.sort_unstable();
    electorate.learners.sort_unstable();
    let index = transaction.next_index();
    let after = Membership { index, current: Some(electorate), previous: before.current };
    set(transaction, Bytes::from_static(MEMBERSHIP), Some(after.encode_to_vec().into()));
    Ok(())
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

fn add(
    transaction: &mut Transaction<'_>,
    view: &View,
    request: MemberAddRequest,
    max: usize,
) -> Result<Member, Status> {
    check_urls(transaction, 0, &request.peer_urls)?;
    let known = members(transaction.settings());
    let is_learner = request.is_learner;
    if !is_learner {
        view.check_add(&known)?;
    } else if known.iter().filter(|member| member.is_learner).count() >= max {
        return Err(status::TOO_MANY_LEARNERS);
    }
    let id = fresh_id(transaction);
    let added = Member { id, peer_urls: request.peer_urls, is_learner, ..Member::default() };
    reform(
        transaction,
        view,
        |members| {
            if is_learner { members.learners.push(id) } else { members.voters.push(id) }
        },
    )?;
    record(transaction, &added);
    Ok(added)
}

fn remove(transaction: &mut Transaction<'_>, view: &View, id: u64) -> Result<(), Status> {
    let known = members(transaction.settings());
    if !known.iter().any(|member| member.id == id) {
        return Err(status::MEMBER_NOT_FOUND);
    }
    view.check_remove(&known, id)?;
    reform(transaction, view, |members| {
        members.voters.retain(|other| *other != id);
        members.learners.retain(|other| *other != id);
    })?;
    set(transaction, entry_name(id), None);
    set(transaction, removed_name(id), Some(Bytes::from_static(b"1")));
    Ok(())
}

fn promote(transaction: &mut Transaction<'_>, view: &View, id: u64) -> Result<(), Status> {
    let known = members(transaction.settings());
    let found = known.iter().find(|member| member.id == id).ok_or(status::MEMBER_NOT_FOUND)?;
    if !found.is_learner {
        return Err(status::MEMBER_NOT_LEARNER);
    }
    view.check_promote(&known, id)?;
    reform(transaction, view, |members| {
        members.learners.retain(|other| *other != id);
        members.voters.push(id);
    })?;
    record(transaction, &Member { is_learner: false, ..found.clone() });
    Ok(())
}

fn update(transaction: &mut Transaction<'_>, request: MemberUpdateRequest) -> Result<(), Status> {
    let mut found = member(transaction.settings(), request.id).ok_or(status::MEMBER_NOT_FOUND)?;
    check_urls(transaction, request.id, &request.peer_urls)?;
    found.peer_urls = request.peer_urls;
    record(transaction, &found);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(id: u64, started: bool) -> Member {
        Member { id, name: if started { format!("m{id}") } else { String::new() }, ..Member::default() }
    }

    fn view(active: &[u64]) -> View {
        let members = (1..=5).map(|id| (id, (100, active.contains(&id)))).collect();
        View { own: 1, report: Report { last: 100, members }, strict: true, committed: 100 }
    }

    #[test]
    fn changes_that_endanger_the_majority_are_refused_as_etcd_refuses_them() {
        let three = [voter(1, true), voter(2, true), voter(3, true)];
        let half = [voter(1, true), voter(2, false)];
        let (all, two) = (view(&[1, 2, 3]), view(&[1, 2]));
        assert_eq!(view(&[1]).check_add(&[voter(1, true)]), Ok(()), "the second one");
        assert_eq!(view(&[1]).check_add(&half), Err(status::NOT_ENOUGH_STARTED));
        assert_eq!((all.check_add(&three), two.check_add(&three)), (Ok(()), Err(status::UNHEALTHY)));
        // Who is down may go; who is needed may not.
        assert_eq!((all.check_remove(&three, 3), two.check_remove(&three, 3)), (Ok(()), Ok(())));
        assert_eq!(two.check_remove(&three, 2), Err(status::UNHEALTHY));
        assert_eq!(view(&[1]).check_remove(&[voter(1, true)], 1), Err(status::NOT_ENOUGH_STARTED));
        assert_eq!(view(&[1]).check_remove(&half, 2), Ok(()));
        let mut behind = view(&[1, 2, 3]);
        assert_eq!(behind.check_promote(&three[..2], 3), Ok(()));
        behind.report.members.insert(3, (89, true));
        assert_eq!(behind.check_promote(&three[..2], 3), Err(status::LEARNER_NOT_READY));
        assert_eq!(two.check_promote(&three[..2], 3), Err(status::LEARNER_NOT_READY));
    }
}
