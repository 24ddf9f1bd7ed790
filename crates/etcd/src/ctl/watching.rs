//! The commands that go on: watch, keep-alive, lock, elect, check perf.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lifecycle::Stop;
use prost::Message;
use serde_json::{Value, json};

use crate::ctl::Failure;
use crate::ctl::args::{Form, Watch};
use crate::ctl::commands::{Shown, say};
use crate::ctl::print::*;
use crate::ctl::session::Session;
use crate::store::prefix_end;
use crate::v3::messages::*;
use crate::v3::status::Status;

/// How long it is waited before a broken stream is opened again.
const PAUSE: Duration = Duration::from_millis(200);

fn broken(status: &Status) -> Failure {
    Failure::error(status.message.to_string())
}

pub async fn watch(session: &Session, args: &Watch, stop: &Stop) -> Result<(), Failure> {
    let (key, end) = match args.keys.as_slice() {
        [key] => (Bytes::from(key.clone()), None),
        [key, end] if !args.prefix => (Bytes::from(key.clone()), Some(Bytes::from(end.clone()))),
        [_, _] => {
            return Err(Failure::arguments("`range_end` and `--prefix` are mutually exclusive"));
        }
        _ => {
            return Err(Failure::arguments("watch command requires a key and an optional range end"));
        }
    };
    let zero = Bytes::from_static(b"\0");
    let (key, range_end) = match (args.prefix, end) {
        (true, _) if key.is_empty() => (zero.clone(), zero),
        (true, _) => (key.clone(), prefix_end(&key).unwrap_or(zero)),
        (false, end) => (key, end.unwrap_or_default()),
    };
    let mut next = args.rev;
    while !stop.is_requested() {
        let create = WatchCreateRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            start_revision: next,
            progress_notify: args.progress_notify,
            prev_kv: args.prev_kv,
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::Create(create)) };
        let follow = follow(session, &request, &mut next);
        match stop.or(follow).await {
            None => return Ok(()),
            Some(Err(failure)) => return Err(failure),
            // Opened again where it was, at the next endpoint.
            Some(Ok(())) => {
                session.channel.move_on().await;
                stop.or(tokio::time::sleep(PAUSE)).await;
            }
        }
    }
    Ok(())
}

/// Shows what one stream brings, until it breaks.
async fn follow(session: &Session, request: &WatchRequest, next: &mut i64) -> Result<(), Failure> {
    let Ok(mut call) = session.channel.stream("/etcdserverpb.Watch/Watch", request).await else {
        return Ok(());
    };
    while let Ok(Some(answer)) = call.answers.next::<WatchResponse>().await {
        if answer.created {
            if *next == 0 {
                *next = answer.header.as_ref().map_or(0, |header| header.revision) + 1;
            }
            continue;
        }
        if answer.compact_revision != 0 {
            eprintln!("watch was canceled (etcdserver: mvcc: required revision has been compacted)");
            return Err(Failure::error("watch is canceled by the server"));
        }
        if answer.canceled {
            eprintln!("watch was canceled ({})", answer.cancel_reason);
            return Err(Failure::error("watch is canceled by the server"));
        }
        if let Some(kv) = answer.events.last().and_then(|event| event.kv.as_ref()) {
            *next = kv.mod_revision + 1;
        }
        shown(&answer, session.global.hex).print(session.global.write_out)?;
    }
    Ok(())
}

fn shown(answer: &WatchResponse, hex: bool) -> Shown {
    let mut simple = Vec::new();
    let mut fields = String::new();
    let mut protobuf = Vec::new();
    header_fields(answer.header.as_ref(), &mut fields);
    let mut events = Vec::new();
    if answer.events.is_empty() {
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        simple.extend(format!("progress notify: {revision}\n").into_bytes());
    }
    for event in &answer.events {
        let kind = if event.kind == 0 { "PUT" } else { "DELETE" };
        simple.extend(format!("{kind}\n").into_bytes());
        fields.push_str(&format!("\"Type\" : {kind}\n"));
        if let Some(kv) = &event.prev_kv {
            kv_simple(kv, hex, false, &mut simple);
            kv_fields("Prev", kv, &mut fields);
        }
        let none = KeyValue::default();
        let kv = event.kv.as_ref().unwrap_or(&none);
        kv_simple(kv, hex, false, &mut simple);
        kv_fields("", kv, &mut fields);
        events.push(object(vec![
            ("type", event.kind.into()),
            ("kv", kv_json(kv)),
            ("prev_kv", event.prev_kv.as_ref().map_or(Value::Null, kv_json)),
        ]));
        protobuf.extend(event.encode_to_vec());
    }
    let json = json!({
        "Header": header_json(answer.header.as_ref()),
        "Events": events,
        "CompactRevision": answer.compact_revision,
        "Canceled": answer.canceled,
        "Created": answer.created,
    });
    Shown { simple, fields: Some(fields), json: Some(json), protobuf: Some(protobuf), table: None }
}

async fn renew(session: &Session, id: i64) -> Result<LeaseKeepAliveResponse, Failure> {
    let renewed = async {
        let request = LeaseId { id };
        let mut call = session.channel.stream("/etcdserverpb.Lease/LeaseKeepAlive", &request).await?;
        call.answers.next::<LeaseKeepAliveResponse>().await
    };
    match tokio::time::timeout(session.global.command_timeout, renewed).await {
        Ok(Ok(Some(answer))) => Ok(answer),
        Ok(Ok(None)) => Err(Failure::error("the stream ended")),
        Ok(Err(status)) => Err(broken(&status)),
        Err(_) => Err(Failure::error("context deadline exceeded")),
    }
}

pub async fn keep_alive(session: &Session, id: i64, once: bool, stop: &Stop) -> Result<(), Failure> {
    loop {
        let answer = renew(session, id).await?;
        if answer.ttl <= 0 {
            let text = format!("lease {id:016x} expired or revoked.");
            if once {
                return Err(Failure { code: 2, text: "etcdserver: requested lease not found".to_owned() });
            }
            return say(format!("{text}\n").as_bytes());
        }
        let mut fields = String::new();
        header_fields(answer.header.as_ref(), &mut fields);
        fields.push_str(&format!("\"ID\" : {}\n\"TTL\" : {}\n", answer.id, answer.ttl));
        let told = vec![("ID", answer.id.into()), ("TTL", answer.ttl.into())];
        let shown = Shown {
            simple: format!("lease {id:016x} keepalived with TTL({})\n", answer.ttl).into_bytes(),
            fields: Some(fields),
            json: Some(with_header(answer.header.as_ref(), told)),
            ..Shown::default()
        };
        shown.print(session.global.write_out)?;
        if once {
            return Ok(());
        }
        let pause = Duration::from_millis(answer.ttl as u64 * 1000 / 3);
        if stop.or(tokio::time::sleep(pause)).await.is_none() {
            return Ok(());
        }
    }
}

async fn grant(session: &Session, ttl: i64) -> Result<i64, Failure> {
    let request = LeaseGrantRequest { ttl, id: 0 };
    let answer: LeaseGrantResponse = session.call("/etcdserverpb.Lease/LeaseGrant", &request).await?;
    Ok(answer.id)
}

/// Renews a lease for as long as it is needed; ends when that fails.
async fn hold(session: &Session, id: i64, ttl: i64) -> Failure {
    loop {
        tokio::time::sleep(Duration::from_millis(ttl.max(1) as u64 * 1000 / 3)).await;
        match renew(session, id).await {
            Ok(answer) if answer.ttl > 0 => {}
            Ok(_) => return Failure::error("session expired"),
            Err(failure) => return failure,
        }
    }
}

/// A call without a limit of time: it is answered when it is the caller's turn.
async fn patiently<M: Message + Default>(
    session: &Session,
    path: &'static str,
    request: &impl Message,
) -> Result<M, Failure> {
    let mut answers = session.channel.server_stream(path, request).await.map_err(|status| broken(&status))?;
    let answer = answers.next::<M>().await.map_err(|status| broken(&status))?;
    let end = answers.trailers().await.map_err(|error| broken(&crate::v3::frame::broken(error)))?;
    if let Some(status) = end.as_ref().and_then(crate::v3::frame::status_in) {
        return Err(broken(&status));
    }
    answer.ok_or_else(|| Failure::error("an answer without a message"))
}

pub async fn lock(
    session: &Session,
    name: &str,
    ttl: i64,
    command: &[String],
    stop: &Stop,
) -> Result<(), Failure> {
    let lease = grant(session, ttl).await?;
    let work = async {
        let request = LockRequest { name: name.to_owned().into(), lease };
        let answer: LockResponse = patiently(session, "/v3lockpb.Lock/Lock", &request).await?;
        let key = String::from_utf8_lossy(&answer.key).into_owned();
        let Some((program, arguments)) = command.split_first() else {
            let mut fields = String::new();
            header_fields(answer.header.as_ref(), &mut fields);
            say(format!("{key}\n").as_bytes())?;
            stop.requested().await;
            return Ok(());
        };
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        let status = tokio::process::Command::new(program)
            .args(arguments)
            .env("ETCD_LOCK_KEY", &key)
            .env("ETCD_LOCK_REV", revision.to_string())
            .status()
            .await
            .map_err(|error| Failure::error(format!("{program}: {error}")))?;
        match status.code() {
            Some(0) => Ok(()),
            code => {
                Err(Failure { code: code.map_or(1, |code| code as u8), text: format!("{program}: {status}") })
            }
        }
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        failure = hold(session, lease, ttl) => Err(failure),
        () = stop.requested() => Ok(()),
    };
    // With the lease the lock goes, also for whoever still waits in the queue.
    let revoked = session.call::<HeaderOnly>("/etcdserverpb.Lease/LeaseRevoke", &LeaseId { id: lease }).await;
    outcome.and(revoked.map(drop))
}

pub async fn elect(
    session: &Session,
    name: &str,
    proposal: Option<&str>,
    listen: bool,
    stop: &Stop,
) -> Result<(), Failure> {
    let name = Bytes::from(name.to_owned());
    let told = |kv: &KeyValue| {
        let mut out = Vec::new();
        kv_simple(kv, session.global.hex, false, &mut out);
        say(&out)
    };
    match (proposal, listen) {
        (None, true) => {
            let request = ElectionNameRequest { name };
            let path = "/v3electionpb.Election/Observe";
            let observe = async {
                let mut answers =
                    session.channel.server_stream(path, &request).await.map_err(|status| broken(&status))?;
                while let Some(answer) =
                    answers.next::<LeaderResponse>().await.map_err(|status| broken(&status))?
                {
                    answer.kv.as_ref().map(told).transpose()?;
                }
                Ok(())
            };
            stop.or(observe).await.unwrap_or(Ok(()))
        }
        (None, false) => Err(Failure::arguments("no proposal argument but -l not set")),
        (Some(_), true) => Err(Failure::arguments("elect takes one election name argument when -l is set")),
        (Some(proposal), false) => {
            const TTL: i64 = 60;
            let lease = grant(session, TTL).await?;
            let work = async {
                let request = CampaignRequest { name, lease, value: proposal.to_owned().into() };
                let answer: CampaignResponse =
                    patiently(session, "/v3electionpb.Election/Campaign", &request).await?;
                let leader = answer.leader.unwrap_or_default();
                let request = RangeRequest { key: leader.key, ..RangeRequest::default() };
                let found: RangeResponse = session.call("/etcdserverpb.KV/Range", &request).await?;
                found.kvs.first().map(told).transpose()?;
                stop.requested().await;
                Ok(())
            };
            let outcome = tokio::select! {
                outcome = work => outcome,
                failure = hold(session, lease, TTL) => Err(failure),
                () = stop.requested() => Ok(()),
            };
            let request = LeaseId { id: lease };
            let revoked = session.call::<HeaderOnly>("/etcdserverpb.Lease/LeaseRevoke", &request).await;
            outcome.and(revoked.map(drop))
        }
    }
}

/// Puts at a steady rate for a minute, and says whether the servers keep up.
pub async fn perf(
    session: &Session,
    load: &str,
    prefix: &str,
    auto_compact: bool,
    stop: &Stop,
) -> Result<(), Failure> {
    let (rate, clients) = match load {
        "s" | "small" => (150_u64, 50),
        "m" | "medium" => (1000, 200),
        "l" | "large" => (8000, 500),
        "xl" | "xLarge" => (15_000, 1000),
        _ => return Err(Failure::arguments(format!("unknown load option {load}"))),
    };
    const SECONDS: u64 = 60;
    let first = Bytes::from(prefix.to_owned());
    let range_end = prefix_end(&first).unwrap_or_else(|| Bytes::from_static(b"\0"));
    let any = RangeRequest {
        key: first.clone(),
        range_end: range_end.clone(),
        limit: 1,
        ..RangeRequest::default()
    };
    let found: RangeResponse = session.call("/etcdserverpb.KV/Range", &any).await?;
    if !found.kvs.is_empty() {
        return Err(Failure::input(format!(
            "prefix {} has keys. Delete with etcdctl del --prefix {prefix} first",
            quoted(prefix.as_bytes())
        )));
    }
    let begun = Instant::now();
    let worker = |number: u64| {
        let first = &first;
        async move {
            let mut times = Vec::new();
            let mut failures = 0_u64;
            let mut turn = number;
            while turn < rate * SECONDS && !stop.is_requested() {
                let due = begun + Duration::from_secs_f64(turn as f64 / rate as f64);
                tokio::time::sleep_until(due.into()).await;
                let key: Bytes = [first.as_ref(), format!("{turn:x}").as_bytes()].concat().into();
                let request = PutRequest { key, value: vec![b'v'; 1024].into(), ..PutRequest::default() };
                let sent = Instant::now();
                match session.channel.call::<PutResponse>("/etcdserverpb.KV/Put", &request).await {
                    Ok(_) => times.push(sent.elapsed().as_secs_f64()),
                    Err(_) => failures += 1,
                }
                turn += clients;
            }
            (times, failures)
        }
    };
    let all = futures::future::join_all((0..clients).map(worker)).await;
    let elapsed = begun.elapsed().as_secs_f64();
    let failures: u64 = all.iter().map(|(_, failures)| failures).sum();
    let times: Vec<f64> = all.into_iter().flat_map(|(times, _)| times).collect();
    let remove = DeleteRangeRequest { key: first, range_end, prev_kv: false };
    let removed: DeleteRangeResponse = session.call("/etcdserverpb.KV/DeleteRange", &remove).await?;
    if auto_compact {
        let revision = removed.header.as_ref().map_or(0, |header| header.revision);
        let request = CompactionRequest { revision, physical: true };
        session.call::<HeaderOnly>("/etcdserverpb.KV/Compact", &request).await?;
    }
    if stop.is_requested() {
        return Err(Failure { code: 5, text: "interrupted".to_owned() });
    }
    if session.global.write_out != Form::Simple {
        return Err(Failure::feature("another form"));
    }
    let per_second = times.len() as f64 / elapsed;
    let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
    let deviation =
        (times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / times.len().max(1) as f64).sqrt();
    let slowest = times.iter().copied().fold(0.0, f64::max);
    let mut fine = true;
    let mut line = |pass: bool, good: String, bad: String| {
        fine &= pass;
        say(if pass { format!("PASS: {good}\n") } else { format!("FAIL: {bad}\n") }.as_bytes())
    };
    if failures > 0 {
        line(false, String::new(), format!("{failures} writes failed"))?;
    }
    line(
        per_second > rate as f64 * 0.9,
        format!("Throughput is {per_second:.0} writes/s"),
        format!("Throughput too low: {per_second:.0} writes/s"),
    )?;
    line(
        slowest <= 0.5,
        format!("Slowest request took {slowest:.6}s"),
        format!("Slowest request took too long: {slowest:.6}s"),
    )?;
    line(
        deviation <= 0.1,
        format!("Stddev is {deviation:.6}s"),
        format!("Stddev too high: {deviation:.6}s"),
    )?;
    say(if fine { b"PASS\n" } else { b"FAIL\n" })?;
    if fine { Ok(()) } else { Err(Failure::error("the servers do not keep up")) }
}
