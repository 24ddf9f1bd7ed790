//! The founding of a cluster of several members: `--initial-cluster-state new` with an empty data directory.
//!
//! A member that has lost its data must not found the cluster a second time: with another one that lags behind it would make a majority without what was
//! acknowledged. So a founder asks each of the other members first. It draws a number, its *incarnation*, and keeps it; who founds too answers with its own.
//! When all have answered, their incarnations are kept beside the founder's data. Whoever has founded lets a founder in only with the incarnation that it
//! has kept: one that comes again with an empty directory has drawn another number, and is refused as etcd refuses it. A write is acknowledged only by members that
//! have founded, so at least one of those that have it, other than the one that lost it, is asked and refuses.
//!
//! That is why all the others have to answer: one that is left out might be the only one that knows better.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, server};
use http::Request;
use lifecycle::{Stop, Tasks};
use prost::Message;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::replication::BOOTSTRAP;
use crate::replication::member::{self, Joining, Kept, MemberError, Peering};
use crate::tls::ServerTls;
use crate::v3::frame::{self, Messages};
use crate::v3::messages::Member;
use crate::v3::service::{Service, decode};
use crate::v3::status::{self, Status, code};

/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// For how many rounds one that is of another cluster is waited for.
const PATIENT: u32 = 20;
/// How often it is said who is waited for.
const SAID: u32 = 30;
/// How long another one may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// No question is longer.
const MAX_QUESTION: usize = 4096;

/// A founder, and the number that tells it from one with the same name that has lost its data.
#[derive(Clone, PartialEq, Message)]
pub struct Founder {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
}

/// Why one that comes with an empty directory is not let in.
pub fn already_bootstrapped(id: u64) -> Status {
    Status {
        code: code::ALREADY_EXISTS,
        message: format!("member {id:x} has already been bootstrapped").into(),
    }
}

/// What a member that has founded, or has joined since, answers a founder.
pub fn answer(service: &Service, asker: &Founder) -> Result<Founder, Status> {
    let identity = service.identity;
    let own = &service.replica.kept;
    if asker.cluster_id != identity.cluster_id {
        return Err(status::CLUSTER_MISMATCH);
    }
    if crate::v3::cluster::was_removed(&service.etcd.shared.read().settings, asker.member_id) {
        return Err(status::MEMBER_REMOVED);
    }
    let known = |founder: &&Founder| founder.member_id == asker.member_id;
    match own.founders.iter().find(known) {
        Some(founder) if founder.incarnation == asker.incarnation => Ok(Founder {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
            incarnation: own.incarnation,
        }),
        _ => Err(already_bootstrapped(asker.member_id)),
    }
}

/// Founds the cluster once all of its other members have been asked. `None` is the stop.
pub async fn bootstrap(
    directory: &Path,
    joining: &Joining,
    name: &str,
    peering: &Peering,
    listeners: Vec<(TcpListener, Option<ServerTls>)>,
    stop: &Stop,
) -> Result<Option<Kept>, MemberError> {
    let (cluster_id, members) = member::founders(joining);
    let own = members.iter().find(|member| member.name == name);
    let own_id = own.ok_or(MemberError::Refused(status::MEMBER_NOT_FOUND))?.id;
    let kept = prepared(directory, cluster_id, own_id)?;
    let founder = Founder { cluster_id, member_id: own_id, incarnation: kept.incarnation };
    let tasks = Tasks::under(stop);
    for (listener, tls) in listeners {
        let (answer, connections) = (founder.clone(), tasks.clone());
        tasks.spawn("etcd/bootstrap", move |stop| serve(listener, tls, answer, connections, stop));
    }
    let others: Vec<&Member> = members.iter().filter(|member| member.id != own_id).collect();
    let asked = stop.or(ask_all(&others, &founder, peering, &tasks)).await;
    tasks.stop().request();
    tasks.drain(Duration::from_secs(2)).await;
    let Some(founders) = asked.transpose()? else { return Ok(None) };
    member::found(directory, joining, Kept { founders, ..kept }).map(Some)
}

/// What says durably that this is a founder, before anybody is asked.
fn prepared(directory: &Path, cluster_id: u64, member_id: u64) -> Result<Kept, MemberError> {
    drop(member::open(directory)?);
    let known = Kept::read(directory)?.filter(|kept| kept.incarnation != 0);
    if let Some(known) = known.filter(|kept| (kept.cluster_id, kept.member_id) == (cluster_id, member_id)) {
        return Ok(known);
    }
    let mut bytes = [0; 8];
    let drawn = SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| {
        MemberError::Lost(Status { code: code::UNKNOWN, message: "no random numbers".into() })
    })?;
    let incarnation = u64::from_le_bytes(bytes).max(1);
    let kept = Kept { incarnation, ..member::first(cluster_id, member_id, 0) };
    kept.write(directory, true)?;
    Ok(kept)
}

/// Asks until all have answered.
async fn ask_all(
    others: &[&Member],
    founder: &Founder,
    peering: &Peering,
    tasks: &Tasks,
) -> Result<Vec<Founder>, MemberError> {
    let mut answered: BTreeMap<u64, Founder> = BTreeMap::new();
    let mut rounds = 0;
    // Who is of another cluster, and for how many rounds. Nobody can know which of the two is wrong: each stays for a while, so that the other one is told by
    // the answer to its own question. One that said it and then went away has given up first, so its silence counts too.
    let mut strange: BTreeMap<u64, u32> = BTreeMap::new();
    loop {
        let mut silent = Vec::new();
        for other in others.iter().filter(|other| !answered.contains_key(&other.id)).collect::<Vec<_>>() {
            let channel = peering.channel(&other.peer_urls, tasks)?;
            match channel.call::<Founder>(BOOTSTRAP, founder).await {
                Ok(answer) if (answer.cluster_id, answer.member_id) == (founder.cluster_id, other.id) => {
                    answered.insert(other.id, answer);
                    strange.remove(&other.id);
                }
                Ok(answer) => {
                    return Err(MemberError::Stranger {
                        url: other.peer_urls.join(","),
                        id: answer.member_id,
                    });
                }
                Err(error) => match error.status.code {
                    code::ALREADY_EXISTS => return Err(MemberError::Bootstrapped(founder.member_id)),
                    code::FAILED_PRECONDITION if error.status == status::CLUSTER_MISMATCH => {
                        strange.entry(other.id).or_default();
                        silent.push(waited_for(other, &error.status));
                    }
                    code::FAILED_PRECONDITION | code::UNIMPLEMENTED => {
                        return Err(MemberError::refused(error.status));
                    }
                    _ => silent.push(waited_for(other, &error.status)),
                },
            }
        }
        if silent.is_empty() {
            return Ok(answered.into_values().collect());
        }
        strange.values_mut().for_each(|rounds| *rounds += 1);
        if strange.values().any(|rounds| *rounds > PATIENT) {
            return Err(MemberError::OtherCluster);
        }
        if rounds % SAID == 0 {
            tracing::info!(members = %silent.join("; "), "a new cluster: waiting for the other members to answer");
        }
        rounds += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Which member has not answered, and why.
fn waited_for(other: &Member, status: &Status) -> String {
    format!("{} at {} ({status})", other.name, other.peer_urls.join(","))
}

/// Answers other founders until the stop.
async fn serve(listener: TcpListener, tls: Option<ServerTls>, answer: Founder, tasks: Tasks, stop: Stop) {
    loop {
        // Dropping accept loses nothing: the connection stays in the backlog.
        let Some(accepted) = stop.or(listener.accept()).await else { return };
        let Ok((stream, _)) = accepted else {
            stop.or(tokio::time::sleep(PAUSE)).await;
            continue;
        };
        let (tls, answer, calls) = (tls.clone(), answer.clone(), tasks.clone());
        tasks.spawn("etcd/bootstrap-connection", move |stop| async move {
            // Who asks comes again.
            let _ = stop.or(connection(stream, tls, answer, &calls)).await;
        });
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<ServerTls>,
    answer: Founder,
    tasks: &Tasks,
) -> std::io::Result<()> {
    let Some(tls) = tls else { return calls(stream, answer, tasks).await };
    let accepted =
        tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(tls.config.clone()).accept(stream)).await;
    let stream = accepted.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    if !tls.admits(certificate) {
        return Err(std::io::Error::other("the client's certificate has none of the allowed host names"));
    }
    calls(stream, answer, tasks).await
}

async fn calls(
    io: impl AsyncRead + AsyncWrite + Unpin,
    answer: Founder,
    tasks: &Tasks,
) -> std::io::Result<()> {
    let handshake = tokio::time::timeout(HANDSHAKE, server::handshake(io)).await;
    let mut connection = handshake
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
        .map_err(std::io::Error::other)?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call.map_err(std::io::Error::other)?;
        let answer = answer.clone();
        tasks.spawn("etcd/bootstrap-call", move |stop| async move {
            stop.or(call_of(request, respond, answer)).await;
        });
    }
    Ok(())
}

/// One question of another member; one that has founded already may want more than a founder can tell.
async fn call_of(request: Request<RecvStream>, respond: SendResponse<Bytes>, own: Founder) {
    let (head, body) = request.into_parts();
    if head.uri.path() != BOOTSTRAP {
        return frame::answer(respond, Err(status::NO_LEADER));
    }
    let question = Messages::new(body, MAX_QUESTION).next_bytes().await;
    let asker = question.and_then(|bytes| decode::<Founder>(bytes.ok_or(status::MALFORMED)?));
    let outcome = asker.and_then(|asker| {
        let fits = asker.cluster_id == own.cluster_id;
        fits.then(|| frame::framed(&own)).ok_or(status::CLUSTER_MISMATCH)
    });
    frame::answer(respond, outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of two that do not belong together waits for the other to be told. The one that gives up first must not leave the other one waiting for ever.
    #[tokio::test]
    async fn one_of_another_cluster_that_went_away_is_not_waited_for_without_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let other = Member { id: 2, name: "two".to_owned(), peer_urls: vec![url], ..Member::default() };
        let stranger = Founder { cluster_id: 8, member_id: 2, incarnation: 5 };
        let theirs = Tasks::new();
        let connections = theirs.clone();
        // It answers one connection, which ends with the first answer, and nobody listens there any more.
        theirs.spawn("test/stranger", move |_| async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            drop(listener);
            let call = calls(stream, stranger, &connections);
            let _ = tokio::time::timeout(PAUSE / 2, call).await;
        });
        let tasks = Tasks::new();
        let peering = Peering { peer_urls: Vec::new(), tls: None };
        let founder = Founder { cluster_id: 7, member_id: 1, incarnation: 3 };
        let others = [&other];
        let asked =
            tokio::time::timeout(Duration::from_secs(60), ask_all(&others, &founder, &peering, &tasks));
        let asked = asked.await.expect("it waits without end");
        assert!(matches!(asked, Err(MemberError::OtherCluster)), "{asked:?}");
        for tasks in [theirs, tasks] {
            tasks.stop().request();
            tasks.drain(Duration::from_secs(2)).await;
        }
    }
}
