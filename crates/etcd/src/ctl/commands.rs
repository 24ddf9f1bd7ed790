//! The commands that are a few calls each.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lifecycle::{Stop, Tasks};
use prost::Message;
use serde_json::{Value, json};

use crate::ctl::args::{
    Alarm, Auth, Check, Ctl, CtlCommand, Del, Endpoint, EndpointArgs, Form, Get, Lease,
    Member as MemberCommand, PermissionRange, Put, Role, Snapshot, User,
};
use crate::ctl::print::*;
use crate::ctl::session::{self, Session};
use crate::ctl::{Failure, util, watching};
use crate::remote::Channel;
use crate::store::prefix_end;
use crate::v3::messages::*;

/// An answer in every form that it has.
#[derive(Default)]
pub struct Shown {
    /// For people.
    pub simple: Vec<u8>,
    /// One field per line.
    pub fields: Option<String>,
    /// For programs.
    pub json: Option<Value>,
    /// Names and rows.
    pub table: Option<(Vec<&'static str>, Vec<Vec<String>>)>,
    /// The message.
    pub protobuf: Option<Vec<u8>>,
}

impl Shown {
    /// A line for people, and the header for others.
    fn line(text: String, header: Option<&ResponseHeader>) -> Self {
        let mut fields = String::new();
        header_fields(header, &mut fields);
        Self {
            simple: format!("{text}\n").into_bytes(),
            fields: Some(fields),
            json: Some(object(vec![("header", header_json(header))])),
            ..Self::default()
        }
    }

    /// Rows, which for people are joined by commas.
    pub fn rows(names: Vec<&'static str>, rows: Vec<Vec<String>>) -> Self {
        let simple: String = rows.iter().map(|row| format!("{}\n", row.join(", "))).collect();
        Self { simple: simple.into_bytes(), table: Some((names, rows)), ..Self::default() }
    }

    /// Writes the form that was asked for.
    pub fn print(self, form: Form) -> Result<(), Failure> {
        let bytes = match form {
            Form::Simple => self.simple,
            Form::Fields => self.fields.ok_or_else(|| Failure::feature("fields"))?.into_bytes(),
            Form::Json => format!("{}\n", self.json.ok_or_else(|| Failure::feature("json"))?).into_bytes(),
            Form::Table => {
                let (names, rows) = self.table.ok_or_else(|| Failure::feature("table"))?;
                table(&names, &rows).into_bytes()
            }
            Form::Protobuf => self.protobuf.ok_or_else(|| Failure::feature("protobuf"))?,
        };
        say(&bytes)
    }
}

/// Writes to standard output; a reader that has gone ends the command.
pub fn say(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure { code: 6, text: format!("standard output: {error}") })
}

/// Exactly one word, or why not.
fn one<'a>(words: &'a [String], why: &str) -> Result<&'a str, Failure> {
    match words {
        [word] => Ok(word),
        _ => Err(Failure::arguments(why)),
    }
}

/// What is wrong with a number, in Go's words.
fn not_a_number(function: &str, text: &str) -> String {
    format!("strconv.{function}: parsing {}: invalid syntax", quoted(text.as_bytes()))
}

fn member_id(text: &str) -> Result<u64, Failure> {
    u64::from_str_radix(text, 16).map_err(|_| {
        let why = not_a_number("ParseUint", text);
        Failure::arguments(format!("bad member ID arg ({why}), expecting ID in Hex"))
    })
}

fn lease_id(text: &str) -> Result<i64, Failure> {
    i64::from_str_radix(text, 16).map_err(|_| {
        let why = not_a_number("ParseInt", text);
        Failure::arguments(format!("bad lease ID arg ({why}), expecting ID in Hex"))
    })
}

/// Asks for a secret, without showing it on a terminal.
pub fn read_password(prompt: &str) -> Result<String, Failure> {
    let input = std::io::stdin();
    let shown = if input.is_terminal() {
        print!("{prompt}");
        say(b"")?;
        rustix::termios::tcgetattr(&input).ok()
    } else {
        None
    };
    if let Some(attributes) = &shown {
        let mut hidden = attributes.clone();
        hidden.local_modes.remove(rustix::termios::LocalModes::ECHO);
        // A terminal that cannot hide shows it; refusing would help nobody.
        let _ = rustix::termios::tcsetattr(&input, rustix::termios::OptionalActions::Now, &hidden);
    }
    let mut line = String::new();
    let read = input.lock().read_line(&mut line);
    if let Some(attributes) = &shown {
        let _ = rustix::termios::tcsetattr(&input, rustix::termios::OptionalActions::Now, attributes);
        say(b"\n")?;
    }
    read.map_err(|error| Failure { code: 6, text: format!("standard input: {error}") })?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// The key and the end of a range that was asked for.
fn range(key: &str, end: Option<&String>, prefix: bool, from_key: bool) -> Result<(Bytes, Bytes), Failure> {
    if prefix && from_key {
        return Err(Failure::arguments(
            "`--prefix` and `--from-key` cannot be set at the same time, choose one",
        ));
    }
    let zero = Bytes::from_static(b"\0");
    let first = Bytes::from(key.to_owned());
    Ok(match (prefix, from_key, end) {
        (true, _, Some(_)) | (_, true, Some(_)) => {
            return Err(Failure::arguments(
                "too many arguments, only accept one argument when `--prefix` or `--from-key` is set",
            ));
        }
        (true, _, None) if first.is_empty() => (zero.clone(), zero),
        (true, _, None) => {
            let end = prefix_end(&first).unwrap_or(zero);
            (first, end)
        }
        (_, true, None) => (if first.is_empty() { zero.clone() } else { first }, zero),
        (_, _, Some(end)) => (first, Bytes::from(end.clone())),
        (_, _, None) => (first, Bytes::new()),
    })
}

/// Runs a command.
pub async fn run(ctl: Ctl, stop: &Stop) -> Result<(), Failure> {
    let form = ctl.global.write_out;
    match ctl.command {
        CtlCommand::Version => {
            let version = crate::v3::service::VERSION;
            let api = version.rsplit_once('.').map_or(version, |(api, _)| api);
            return say(format!("etcdctl version: {version}\nAPI version: {api}\n").as_bytes());
        }
        CtlCommand::Snapshot(Snapshot::Status { file }) => {
            return util::status(one_path(&file, "snapshot status requires exactly one argument")?, form);
        }
        CtlCommand::Snapshot(Snapshot::Restore(restore)) => return util::restore(&restore),
        _ => {}
    }
    let tasks = Tasks::under(stop);
    let session = Session::open(ctl.global, &tasks).await?;
    let outcome = perform(&session, ctl.command, form, stop).await;
    tasks.drain(Duration::from_secs(1)).await;
    outcome
}

fn one_path<'a>(files: &'a [std::path::PathBuf], why: &str) -> Result<&'a Path, Failure> {
    match files {
        [file] => Ok(file),
        _ => Err(Failure::arguments(why)),
    }
}

async fn perform(session: &Session, command: CtlCommand, form: Form, stop: &Stop) -> Result<(), Failure> {
    match command {
        CtlCommand::Get(args) => get(session, &args).await,
        CtlCommand::Put(args) => put(session, args).await,
        CtlCommand::Del(args) => del(session, &args).await,
        CtlCommand::Txn => txn(session).await,
        CtlCommand::Compaction { revision, physical } => {
            let text = one(&revision, "compaction command needs 1 argument")?;
            let revision = text.parse().map_err(|_| Failure::error(not_a_number("ParseInt", text)))?;
            let request = CompactionRequest { revision, physical };
            session.call::<HeaderOnly>("/etcdserverpb.KV/Compact", &request).await?;
            say(format!("compacted revision {revision}\n").as_bytes())
        }
        CtlCommand::Watch(args) => watching::watch(session, &args, stop).await,
        CtlCommand::Lease(command) => lease(session, command, stop).await,
        CtlCommand::Member(command) => member(session, command).await,
        CtlCommand::Endpoint(args) => endpoint(session, args).await,
        CtlCommand::Alarm(command) => {
            let action = if matches!(command, Alarm::Disarm) { 2 } else { 0 };
            let request = AlarmRequest { action, ..AlarmRequest::default() };
            let answer: AlarmResponse = session.call("/etcdserverpb.Maintenance/Alarm", &request).await?;
            alarms(&answer).print(form)
        }
        CtlCommand::Defrag { cluster } => defrag(session, cluster).await,
        CtlCommand::MoveLeader { target } => move_leader(session, &target).await,
        CtlCommand::Auth(command) => {
            let (path, text) = match command {
                Auth::Enable => ("/etcdserverpb.Auth/AuthEnable", "Authentication Enabled"),
                Auth::Disable => ("/etcdserverpb.Auth/AuthDisable", "Authentication Disabled"),
            };
            session.call::<HeaderOnly>(path, &Empty {}).await?;
            say(format!("{text}\n").as_bytes())
        }
        CtlCommand::User(command) => user(session, command).await,
        CtlCommand::Role(command) => role(session, command).await,
        CtlCommand::Snapshot(Snapshot::Save { file }) => {
            let path = one_path(&file, "snapshot save expects one argument")?;
            util::save(session, path).await
        }
        CtlCommand::Lock { name, ttl, command } => watching::lock(session, &name, ttl, &command, stop).await,
        CtlCommand::Elect { name, proposal, listen } => {
            watching::elect(session, &name, proposal.as_deref(), listen, stop).await
        }
        CtlCommand::Check(Check::Perf { load, prefix, auto_compact }) => {
            watching::perf(session, &load, &prefix, auto_compact, stop).await
        }
        // Done before there was a session.
        CtlCommand::Version | CtlCommand::Snapshot(_) => Ok(()),
    }
}

async fn get(session: &Session, args: &Get) -> Result<(), Failure> {
    let form = session.global.write_out;
    let (key, end) = match args.keys.as_slice() {
        [key] => (key, None),
        // Whatever follows is ignored, as etcdctl does.
        [key, end, ..] => (key, Some(end)),
        [] => {
            return Err(Failure::arguments(
                "get command needs one argument as key and an optional argument as range_end",
            ));
        }
    };
    if args.keys_only && args.count_only {
        return Err(Failure::arguments(
            "`--keys-only` and `--count-only` cannot be set at the same time, choose one",
        ));
    }
    let (key, range_end) = range(key, end, args.prefix, args.from_key)?;
    let unsupported = |text| Failure { code: 4, text };
    let serializable = match args.consistency.as_str() {
        "l" => false,
        "s" => true,
        other => return Err(unsupported(format!("unknown consistency flag {}", quoted(other.as_bytes())))),
    };
    let sort_order = match args.order.to_uppercase().as_str() {
        "ASCEND" => 1,
        "DESCEND" => 2,
        "" if args.sort_by.is_empty() => 0,
        "" => 1,
        _ => return Err(unsupported(format!("bad sort order {}", args.order))),
    };
    let sort_target = match args.sort_by.to_uppercase().as_str() {
        "CREATE" => 2,
        "KEY" | "" => 0,
        "MODIFY" => 3,
        "VALUE" => 4,
        "VERSION" => 1,
        _ => return Err(unsupported(format!("bad sort target {}", args.sort_by))),
    };
    if args.print_value_only && form != Form::Simple {
        return Err(Failure::arguments("print-value-only is only for `--write-out=simple`"));
    }
    if args.count_only && form != Form::Fields {
        return Err(Failure::arguments("--count-only is only for `--write-out=fields`"));
    }
    let request = RangeRequest {
        key,
        range_end,
        limit: args.limit,
        revision: args.rev,
        sort_order,
        sort_target,
        serializable,
        keys_only: args.keys_only,
        count_only: args.count_only,
        ..RangeRequest::default()
    };
    let answer: RangeResponse = session.call("/etcdserverpb.KV/Range", &request).await?;
    found(&answer, session.global.hex, args.print_value_only).print(form)
}

fn found(answer: &RangeResponse, hex: bool, value_only: bool) -> Shown {
    let mut simple = Vec::new();
    let mut fields = String::new();
    header_fields(answer.header.as_ref(), &mut fields);
    for kv in &answer.kvs {
        kv_simple(kv, hex, value_only, &mut simple);
        kv_fields("", kv, &mut fields);
    }
    fields.push_str(&format!("\"More\" : {}\n\"Count\" : {}\n", answer.more, answer.count));
    let json = object(vec![
        ("header", header_json(answer.header.as_ref())),
        ("kvs", kvs_json(&answer.kvs)),
        ("more", answer.more.into()),
        ("count", answer.count.into()),
    ]);
    let protobuf = Some(answer.encode_to_vec());
    Shown { simple, fields: Some(fields), json: Some(json), protobuf, table: None }
}

fn was_put(answer: &PutResponse, hex: bool) -> Shown {
    let mut simple = b"OK\n".to_vec();
    let mut fields = String::new();
    header_fields(answer.header.as_ref(), &mut fields);
    if let Some(kv) = &answer.prev_kv {
        kv_simple(kv, hex, false, &mut simple);
        kv_fields("Prev", kv, &mut fields);
    }
    let json = object(vec![
        ("header", header_json(answer.header.as_ref())),
        ("prev_kv", answer.prev_kv.as_ref().map_or(Value::Null, kv_json)),
    ]);
    let protobuf = Some(answer.encode_to_vec());
    Shown { simple, fields: Some(fields), json: Some(json), protobuf, table: None }
}

fn was_deleted(answer: &DeleteRangeResponse, hex: bool) -> Shown {
    let mut simple = format!("{}\n", answer.deleted).into_bytes();
    let mut fields = String::new();
    header_fields(answer.header.as_ref(), &mut fields);
    fields.push_str(&format!("\"Deleted\" : {}\n", answer.deleted));
    for kv in &answer.prev_kvs {
        kv_simple(kv, hex, false, &mut simple);
        kv_fields("Prev", kv, &mut fields);
    }
    let json = object(vec![
        ("header", header_json(answer.header.as_ref())),
        ("deleted", answer.deleted.into()),
        ("prev_kvs", kvs_json(&answer.prev_kvs)),
    ]);
    let protobuf = Some(answer.encode_to_vec());
    Shown { simple, fields: Some(fields), json: Some(json), protobuf, table: None }
}

fn put_request(args: Put) -> Result<PutRequest, Failure> {
    let lease = lease_id(&args.lease)?;
    let mut words = args.words.into_iter();
    let needs = "put command needs 1 argument and input from stdin or 2 arguments";
    let key = words.next().ok_or_else(|| Failure::arguments(needs))?;
    let value = match (words.next(), args.ignore_value) {
        (Some(_), true) => {
            return Err(Failure::arguments("put command needs only 1 argument when 'ignore-value' is set"));
        }
        (Some(value), false) => value.into_bytes(),
        (None, true) => Vec::new(),
        (None, false) => {
            let mut read = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut read)
                .map_err(|error| Failure { code: 6, text: format!("standard input: {error}") })?;
            read
        }
    };
    if words.next().is_some() {
        return Err(Failure::arguments(needs));
    }
    Ok(PutRequest {
        key: key.into(),
        value: value.into(),
        lease,
        prev_kv: args.prev_kv,
        ignore_value: args.ignore_value,
        ignore_lease: args.ignore_lease,
    })
}

async fn put(session: &Session, args: Put) -> Result<(), Failure> {
    let request = put_request(args)?;
    let answer: PutResponse = session.call("/etcdserverpb.KV/Put", &request).await?;
    was_put(&answer, session.global.hex).print(session.global.write_out)
}

fn del_request(args: &Del) -> Result<DeleteRangeRequest, Failure> {
    let (key, end) = match args.keys.as_slice() {
        [key] => (key, None),
        [key, end] => (key, Some(end)),
        _ => {
            return Err(Failure::arguments(
                "del command needs one argument as key and an optional argument as range_end",
            ));
        }
    };
    let (key, range_end) = range(key, end, args.prefix, args.from_key)?;
    Ok(DeleteRangeRequest { key, range_end, prev_kv: args.prev_kv })
}

async fn del(session: &Session, args: &Del) -> Result<(), Failure> {
    let answer: DeleteRangeResponse =
        session.call("/etcdserverpb.KV/DeleteRange", &del_request(args)?).await?;
    was_deleted(&answer, session.global.hex).print(session.global.write_out)
}

/// Words as a shell would take them: quotes keep them together.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (Some(open), char) if char == open => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some(_), char) => word.get_or_insert_default().push(char),
            (None, '"' | '\'') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, char) if char.is_whitespace() => found.extend(word.take()),
            (None, char) => word.get_or_insert_default().push(char),
        }
    }
    found.extend(word);
    found
}

/// `mod("key") > "0"` as a comparison.
fn compare(line: &str) -> Result<Compare, Failure> {
    let bad = || Failure::input(format!("malformed comparison: {line}"));
    let (target, rest) = line.split_once('(').ok_or_else(bad)?;
    let (key, rest) = rest.split_once(')').ok_or_else(bad)?;
    let key = words(key).into_iter().next().ok_or_else(bad)?;
    let mut rest = words(rest).into_iter();
    let (operator, value) = rest.next().zip(rest.next()).ok_or_else(bad)?;
    let result = match operator.as_str() {
        "=" => 0,
        ">" => 1,
        "<" => 2,
        "!=" => 3,
        _ => return Err(Failure::input(format!("unknown result op {}", quoted(operator.as_bytes())))),
    };
    let number = || value.parse::<i64>().map_err(|_| bad());
    let (target, union) = match target.trim() {
        "ver" | "version" => (0, TargetUnion::Version(number()?)),
        "c" | "create" => (1, TargetUnion::CreateRevision(number()?)),
        "m" | "mod" => (2, TargetUnion::ModRevision(number()?)),
        "val" | "value" => (3, TargetUnion::Value(value.clone().into())),
        "lease" => (4, TargetUnion::Lease(lease_id(&value)?)),
        other => {
            return Err(Failure::input(format!("malformed comparison: {line} (unknown target {other})")));
        }
    };
    Ok(Compare { result, target, key: key.into(), target_union: Some(union), range_end: Bytes::new() })
}

/// `put key value`, `get key`, `del key` as a step of a transaction.
fn operation(line: &str) -> Result<RequestOp, Failure> {
    use clap::Parser;
    let mut all = vec!["etcdctl".to_owned()];
    all.extend(words(line));
    let invalid = || Failure::input(format!("invalid transaction: {line}"));
    let request = match Ctl::try_parse_from(all).map_err(|_| invalid())?.command {
        CtlCommand::Put(args) => RequestOpRequest::Put(put_request(args)?),
        CtlCommand::Del(args) => RequestOpRequest::DeleteRange(del_request(&args)?),
        CtlCommand::Get(args) => {
            let key = args.keys.first().ok_or_else(invalid)?;
            let (key, range_end) = range(key, args.keys.get(1), args.prefix, args.from_key)?;
            let (limit, revision) = (args.limit, args.rev);
            RequestOpRequest::Range(RangeRequest {
                key,
                range_end,
                limit,
                revision,
                ..RangeRequest::default()
            })
        }
        _ => return Err(invalid()),
    };
    Ok(RequestOp { request: Some(request) })
}

async fn txn(session: &Session) -> Result<(), Failure> {
    // Three parts, each ended by an empty line.
    let mut parts: [Vec<String>; 3] = Default::default();
    let mut part = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure { code: 6, text: format!("standard input: {error}") })?;
        let line = line.trim();
        if line.is_empty() {
            part += 1;
            if part == parts.len() {
                break;
            }
        } else {
            parts[part].push(line.to_owned());
        }
    }
    let steps = |lines: &[String]| lines.iter().map(|line| operation(line)).collect::<Result<Vec<_>, _>>();
    let request = TxnRequest {
        compare: parts[0].iter().map(|line| compare(line)).collect::<Result<_, _>>()?,
        success: steps(&parts[1])?,
        failure: steps(&parts[2])?,
    };
    let answer: TxnResponse = session.call("/etcdserverpb.KV/Txn", &request).await?;
    let mut simple = if answer.succeeded { b"SUCCESS\n".to_vec() } else { b"FAILURE\n".to_vec() };
    let mut fields = String::new();
    header_fields(answer.header.as_ref(), &mut fields);
    fields.push_str(&format!("\"Succeeded\" : {}\n", answer.succeeded));
    let mut responses = Vec::new();
    for response in answer.responses.iter().filter_map(|response| response.response.as_ref()) {
        let (name, shown) = match response {
            ResponseOpResponse::Range(answer) => ("ResponseRange", found(answer, session.global.hex, false)),
            ResponseOpResponse::Put(answer) => ("ResponsePut", was_put(answer, session.global.hex)),
            ResponseOpResponse::DeleteRange(answer) => {
                ("ResponseDeleteRange", was_deleted(answer, session.global.hex))
            }
            ResponseOpResponse::Txn(_) => continue,
        };
        simple.push(b'\n');
        simple.extend(shown.simple);
        fields.push_str(&shown.fields.unwrap_or_default());
        responses.push(json!({ "Response": { name: shown.json } }));
    }
    let json = object(vec![
        ("header", header_json(answer.header.as_ref())),
        ("succeeded", answer.succeeded.into()),
        ("responses", responses.into()),
    ]);
    let protobuf = Some(answer.encode_to_vec());
    let shown = Shown { simple, fields: Some(fields), json: Some(json), protobuf, table: None };
    shown.print(session.global.write_out)
}

async fn lease(session: &Session, command: Lease, stop: &Stop) -> Result<(), Failure> {
    let form = session.global.write_out;
    match command {
        Lease::Grant { ttl } => {
            let text = one(&ttl, "lease grant command needs TTL argument")?;
            let bad = |_| Failure::arguments(format!("bad TTL ({})", not_a_number("ParseInt", text)));
            let request = LeaseGrantRequest { ttl: text.parse().map_err(bad)?, id: 0 };
            let answer: LeaseGrantResponse = session.call("/etcdserverpb.Lease/LeaseGrant", &request).await?;
            let line = format!("lease {:016x} granted with TTL({}s)", answer.id, answer.ttl);
            let mut shown = Shown::line(line, answer.header.as_ref());
            add(&mut shown, &format!("\"ID\" : {}\n\"TTL\" : {}\n", answer.id, answer.ttl));
            let fields = vec![
                ("ID", answer.id.into()),
                ("TTL", answer.ttl.into()),
                ("Error", answer.error.clone().into()),
            ];
            shown.json = Some(with_header(answer.header.as_ref(), fields));
            shown.print(form)
        }
        Lease::Revoke { id } => {
            let id = lease_id(one(&id, "lease revoke command needs 1 argument")?)?;
            let revoked = session.call("/etcdserverpb.Lease/LeaseRevoke", &LeaseId { id }).await;
            let answer: HeaderOnly = revoked.map_err(|failure| Failure {
                text: format!("failed to revoke lease ({failure})"),
                ..failure
            })?;
            Shown::line(format!("lease {id:016x} revoked"), answer.header.as_ref()).print(form)
        }
        Lease::Timetolive { id, keys } => {
            let id = lease_id(one(&id, "lease timetolive command needs lease ID as argument")?)?;
            let request = LeaseTimeToLiveRequest { id, keys };
            let answer: LeaseTimeToLiveResponse =
                session.call("/etcdserverpb.Lease/LeaseTimeToLive", &request).await?;
            time_left(&answer, keys).print(form)
        }
        Lease::List => {
            let answer: LeaseLeasesResponse =
                session.call("/etcdserverpb.Lease/LeaseLeases", &Empty {}).await?;
            let mut text = format!("found {} leases\n", answer.leases.len());
            answer.leases.iter().for_each(|lease| text.push_str(&format!("{:016x}\n", lease.id)));
            let mut shown = Shown::line(text.trim_end().to_owned(), answer.header.as_ref());
            let ids: String = answer.leases.iter().map(|lease| format!("\"ID\" : {}\n", lease.id)).collect();
            add(&mut shown, &ids);
            let leases: Vec<Value> = answer.leases.iter().map(|lease| json!({ "id": lease.id })).collect();
            shown.json = Some(with_header(answer.header.as_ref(), vec![("leases", leases.into())]));
            shown.print(form)
        }
        Lease::KeepAlive { id, once } => {
            let id = lease_id(one(&id, "lease keep-alive command needs lease ID as argument")?)?;
            watching::keep_alive(session, id, once, stop).await
        }
    }
}

/// Adds lines to the fields.
fn add(shown: &mut Shown, lines: &str) {
    shown.fields.get_or_insert_default().push_str(lines);
}

fn time_left(answer: &LeaseTimeToLiveResponse, keys: bool) -> Shown {
    let names: Vec<String> =
        answer.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    let text = if answer.granted_ttl == 0 && answer.ttl == -1 {
        format!("lease {:016x} already expired", answer.id)
    } else {
        let attached = if keys { format!(", attached keys([{}])", names.join(" ")) } else { String::new() };
        format!(
            "lease {:016x} granted with TTL({}s), remaining({}s){attached}",
            answer.id, answer.granted_ttl, answer.ttl
        )
    };
    let mut shown = Shown::line(text, answer.header.as_ref());
    add(
        &mut shown,
        &format!(
            "\"ID\" : {}\n\"TTL\" : {}\n\"GrantedTTL\" : {}\n",
            answer.id, answer.ttl, answer.granted_ttl
        ),
    );
    let lines: String = answer.keys.iter().map(|key| format!("\"Key\" : {}\n", quoted(key))).collect();
    add(&mut shown, &lines);
    let listed = match answer.keys.is_empty() {
        true => Value::Null,
        false => answer.keys.iter().map(|key| base64(key)).collect(),
    };
    let fields = vec![
        ("id", answer.id.into()),
        ("ttl", answer.ttl.into()),
        ("granted-ttl", answer.granted_ttl.into()),
        ("keys", listed),
    ];
    shown.json = Some(with_header(answer.header.as_ref(), fields));
    shown
}

fn member_json(member: &Member) -> Value {
    object(vec![
        ("ID", member.id.into()),
        ("name", member.name.clone().into()),
        ("peerURLs", member.peer_urls.clone().into()),
        ("clientURLs", member.client_urls.clone().into()),
        ("isLearner", member.is_learner.into()),
    ])
}

fn members_shown(answer: &MembersResponse) -> Shown {
    let row = |member: &Member| {
        let status = if member.name.is_empty() { "unstarted" } else { "started" };
        vec![
            format!("{:x}", member.id),
            status.to_owned(),
            member.name.clone(),
            member.peer_urls.join(","),
            member.client_urls.join(","),
            member.is_learner.to_string(),
        ]
    };
    let names = vec!["ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner"];
    let mut shown = Shown::rows(names, answer.members.iter().map(row).collect());
    let mut fields = String::new();
    header_fields(answer.header.as_ref(), &mut fields);
    for member in &answer.members {
        fields.push_str(&format!("\"ID\" : {}\n\"Name\" : {}\n", member.id, quoted(member.name.as_bytes())));
        for url in &member.peer_urls {
            fields.push_str(&format!("\"PeerURL\" : {}\n", quoted(url.as_bytes())));
        }
        for url in &member.client_urls {
            fields.push_str(&format!("\"ClientURL\" : {}\n", quoted(url.as_bytes())));
        }
        fields.push_str(&format!("\"IsLearner\" : {}\n\n", member.is_learner));
    }
    shown.fields = Some(fields);
    shown.protobuf = Some(answer.encode_to_vec());
    shown.json = Some(object(vec![
        ("header", header_json(answer.header.as_ref())),
        ("members", answer.members.iter().map(member_json).collect()),
    ]));
    shown
}

async fn members(session: &Session) -> Result<MembersResponse, Failure> {
    session.call("/etcdserverpb.Cluster/MemberList", &MemberListRequest { linearizable: true }).await
}

fn cluster_of(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.cluster_id)
}

async fn member(session: &Session, command: MemberCommand) -> Result<(), Failure> {
    let form = session.global.write_out;
    let only_simple = |text: String, json: Value| {
        let shown = Shown { simple: text.into_bytes(), json: Some(json), ..Shown::default() };
        shown.print(form)
    };
    let changed = |answer: MembersResponse, id: u64, what: &str| {
        let cluster = cluster_of(answer.header.as_ref());
        let json = members_shown(&answer).json.unwrap_or(Value::Null);
        only_simple(format!("Member {id:16x} {what} cluster {cluster:16x}\n"), json)
    };
    match command {
        MemberCommand::List => members_shown(&members(session).await?).print(form),
        MemberCommand::Add { name, peer_urls, learner } => {
            let name = one(&name, "member name not provided")?;
            if peer_urls.iter().all(String::is_empty) {
                return Err(Failure::arguments("member peer urls not provided"));
            }
            let request = MemberAddRequest { peer_urls: peer_urls.clone(), is_learner: learner };
            let answer: MemberAddResponse = session.call("/etcdserverpb.Cluster/MemberAdd", &request).await?;
            let id = answer.member.as_ref().map_or(0, |member| member.id);
            let json = object(vec![
                ("header", header_json(answer.header.as_ref())),
                ("member", answer.member.as_ref().map_or(Value::Null, member_json)),
                ("members", answer.members.iter().map(member_json).collect()),
            ]);
            let mut text =
                format!("Member {id:16x} added to cluster {:16x}\n", cluster_of(answer.header.as_ref()));
            let all: Vec<String> = answer
                .members
                .iter()
                .flat_map(|member| {
                    let name = if member.id == id { name } else { &member.name };
                    member.peer_urls.iter().map(move |url| format!("{name}={url}"))
                })
                .collect();
            text.push_str(&format!(
                "\nETCD_NAME=\"{name}\"\nETCD_INITIAL_CLUSTER=\"{}\"\n\
                 ETCD_INITIAL_ADVERTISE_PEER_URLS=\"{}\"\nETCD_INITIAL_CLUSTER_STATE=\"existing\"\n",
                all.join(","),
                peer_urls.join(",")
            ));
            only_simple(text, json)
        }
        MemberCommand::Remove { id } => {
            let id = member_id(one(&id, "member ID is not provided")?)?;
            let answer = session.call("/etcdserverpb.Cluster/MemberRemove", &MemberIdRequest { id }).await?;
            changed(answer, id, "removed from")
        }
        MemberCommand::Update { id, peer_urls } => {
            let id = member_id(one(&id, "member ID is not provided")?)?;
            if peer_urls.is_empty() {
                return Err(Failure::arguments("member peer urls not provided"));
            }
            let request = MemberUpdateRequest { id, peer_urls };
            let answer = session.call("/etcdserverpb.Cluster/MemberUpdate", &request).await?;
            changed(answer, id, "updated in")
        }
        MemberCommand::Promote { id } => {
            let id = member_id(one(&id, "member ID is not provided")?)?;
            let answer = session.call("/etcdserverpb.Cluster/MemberPromote", &MemberIdRequest { id }).await?;
            changed(answer, id, "promoted in")
        }
    }
}

/// The endpoints that were named, or those of all members.
async fn endpoints(session: &Session, cluster: bool) -> Result<Vec<String>, Failure> {
    if !cluster {
        return Ok(session.global.endpoints.clone());
    }
    let members = members(session).await?.members;
    Ok(members.into_iter().flat_map(|member| member.client_urls).collect())
}

async fn endpoint(session: &Session, args: EndpointArgs) -> Result<(), Failure> {
    let endpoints = endpoints(session, args.cluster).await?;
    match args.command {
        Endpoint::Health => health(session, &endpoints).await,
        Endpoint::Status => {
            each(session, &endpoints, "/etcdserverpb.Maintenance/Status", &Empty {}, "status", statuses).await
        }
        Endpoint::Hashkv { rev } => {
            let request = HashKvRequest { revision: rev };
            each(session, &endpoints, "/etcdserverpb.Maintenance/HashKV", &request, "hash", hashes).await
        }
    }
}

/// Asks every endpoint, shows what came, and fails if one did not answer.
async fn each<M: Message + Default>(
    session: &Session,
    endpoints: &[String],
    path: &'static str,
    request: &impl Message,
    what: &str,
    show: fn(&[(String, M)]) -> Shown,
) -> Result<(), Failure> {
    let mut answers = Vec::new();
    let mut failed = None;
    for endpoint in endpoints {
        let asked = async {
            let channel = session.at(endpoint).await?;
            session::call::<M>(&channel, path, request, session.global.command_timeout).await
        };
        match asked.await {
            Ok(answer) => answers.push((endpoint.clone(), answer)),
            Err(failure) => {
                eprintln!("Failed to get the {what} of endpoint {endpoint} ({failure})");
                failed = Some(failure.code);
            }
        }
    }
    show(&answers).print(session.global.write_out)?;
    match failed {
        // What was wrong has been said.
        Some(_) => Err(Failure::error(format!("not every endpoint gave its {what}"))),
        None => Ok(()),
    }
}

fn statuses(answers: &[(String, StatusResponse)]) -> Shown {
    let names = vec![
        "endpoint",
        "ID",
        "version",
        "db size",
        "is leader",
        "is learner",
        "raft term",
        "raft index",
        "raft applied index",
        "errors",
    ];
    let mut fields = String::new();
    let mut rows = Vec::new();
    let mut json = Vec::new();
    for (endpoint, status) in answers {
        let member = status.header.as_ref().map_or(0, |header| header.member_id);
        rows.push(vec![
            endpoint.clone(),
            format!("{member:x}"),
            status.version.clone(),
            size(status.db_size as u64),
            (status.leader == member).to_string(),
            status.is_learner.to_string(),
            status.raft_term.to_string(),
            status.raft_index.to_string(),
            status.raft_applied_index.to_string(),
            status.errors.join(", "),
        ]);
        header_fields(status.header.as_ref(), &mut fields);
        fields.push_str(&format!(
            "\"Version\" : {}\n\"DBSize\" : {}\n\"Leader\" : {}\n\"IsLearner\" : {}\n\"RaftIndex\" : {}\n\
             \"RaftTerm\" : {}\n\"RaftAppliedIndex\" : {}\n\"Errors\" : [{}]\n\"Endpoint\" : {}\n\n",
            quoted(status.version.as_bytes()),
            status.db_size,
            status.leader,
            status.is_learner,
            status.raft_index,
            status.raft_term,
            status.raft_applied_index,
            status.errors.join(" "),
            quoted(endpoint.as_bytes()),
        ));
        let told = object(vec![
            ("header", header_json(status.header.as_ref())),
            ("version", status.version.clone().into()),
            ("dbSize", status.db_size.into()),
            ("leader", status.leader.into()),
            ("raftIndex", status.raft_index.into()),
            ("raftTerm", status.raft_term.into()),
            ("raftAppliedIndex", status.raft_applied_index.into()),
            ("errors", status.errors.clone().into()),
            ("dbSizeInUse", status.db_size_in_use.into()),
            ("isLearner", status.is_learner.into()),
        ]);
        json.push(json!({ "Endpoint": endpoint, "Status": told }));
    }
    let shown = Shown::rows(names, rows);
    Shown { fields: Some(fields), json: Some(json.into()), ..shown }
}

fn hashes(answers: &[(String, HashKvResponse)]) -> Shown {
    let rows = answers.iter().map(|(endpoint, answer)| vec![endpoint.clone(), answer.hash.to_string()]);
    let mut fields = String::new();
    let mut json = Vec::new();
    for (endpoint, answer) in answers {
        header_fields(answer.header.as_ref(), &mut fields);
        fields.push_str(&format!(
            "\"Endpoint\" : {}\n\"Hash\" : {}\n\n",
            quoted(endpoint.as_bytes()),
            answer.hash
        ));
        let told = object(vec![
            ("header", header_json(answer.header.as_ref())),
            ("hash", answer.hash.into()),
            ("compact_revision", answer.compact_revision.into()),
        ]);
        json.push(json!({ "Endpoint": endpoint, "HashKV": told }));
    }
    let shown = Shown::rows(vec!["endpoint", "hash"], rows.collect());
    Shown { fields: Some(fields), json: Some(json.into()), ..shown }
}

async fn health(session: &Session, endpoints: &[String]) -> Result<(), Failure> {
    let asked = endpoints.iter().map(|endpoint| async move {
        let begun = Instant::now();
        let request = RangeRequest { key: Bytes::from_static(b"health"), ..RangeRequest::default() };
        let outcome = async {
            let channel = session.at(endpoint).await?;
            let time = session.global.command_timeout;
            session::call::<RangeResponse>(&channel, "/etcdserverpb.KV/Range", &request, time).await
        };
        let error = match outcome.await {
            Ok(_) => None,
            // Who may not read it has been answered all the same.
            Err(failure) if failure.text.contains("permission denied") => None,
            Err(failure) => Some(failure.text),
        };
        (endpoint, error, took(begun.elapsed()))
    });
    let answers = futures::future::join_all(asked).await;
    let mut rows = Vec::new();
    let (mut simple, mut fields, mut json) = (String::new(), String::new(), Vec::new());
    for (endpoint, error, took) in &answers {
        let well = error.is_none();
        let text = error.clone().unwrap_or_default();
        rows.push(vec![endpoint.to_string(), well.to_string(), took.clone(), text.clone()]);
        fields.push_str(&format!(
            "\"Endpoint\" : {}\n\"Health\" : {well}\n\"Took\" : {took}\n\"Error\" : {text}\n\n",
            quoted(endpoint.as_bytes())
        ));
        let mut told = json!({ "endpoint": endpoint, "health": well, "took": took });
        if let Some(error) = error {
            told["error"] = error.clone().into();
        }
        json.push(told);
        match error {
            None => simple.push_str(&format!(
                "{endpoint} is healthy: successfully committed proposal: took = {took}\n"
            )),
            Some(error) if session.global.write_out == Form::Simple => {
                eprintln!("{endpoint} is unhealthy: failed to commit proposal: {error}");
            }
            Some(_) => {}
        }
    }
    let shown = Shown {
        simple: simple.into_bytes(),
        fields: Some(fields),
        json: Some(json.into()),
        table: Some((vec!["endpoint", "health", "took", "error"], rows)),
        protobuf: None,
    };
    shown.print(session.global.write_out)?;
    if answers.iter().any(|(_, error, _)| error.is_some()) {
        return Err(Failure::error("unhealthy cluster"));
    }
    Ok(())
}

fn alarms(answer: &AlarmResponse) -> Shown {
    let name = |alarm: i32| match alarm {
        1 => "NOSPACE",
        2 => "CORRUPT",
        _ => "NONE",
    };
    let mut fields = String::new();
    header_fields(answer.header.as_ref(), &mut fields);
    let mut simple = String::new();
    let mut json = Vec::new();
    for alarm in &answer.alarms {
        let (member, alarm) = (alarm.member_id, alarm.alarm);
        simple.push_str(&format!("memberID:{member} alarm:{} \n", name(alarm)));
        fields.push_str(&format!("\"MemberID\" : {member}\n\"AlarmType\" : {}\n\n", name(alarm)));
        json.push(object(vec![("memberID", member.into()), ("alarm", alarm.into())]));
    }
    let json = object(vec![("header", header_json(answer.header.as_ref())), ("alarms", json.into())]);
    let protobuf = Some(answer.encode_to_vec());
    Shown { simple: simple.into_bytes(), fields: Some(fields), json: Some(json), protobuf, table: None }
}

async fn defrag(session: &Session, cluster: bool) -> Result<(), Failure> {
    let mut failures = 0;
    for endpoint in endpoints(session, cluster).await? {
        let asked = async {
            let channel = session.at(&endpoint).await?;
            let time = session.global.command_timeout;
            session::call::<HeaderOnly>(&channel, "/etcdserverpb.Maintenance/Defragment", &Empty {}, time)
                .await
        };
        match asked.await {
            Ok(_) => say(format!("Finished defragmenting etcd member[{endpoint}]\n").as_bytes())?,
            Err(failure) => {
                eprintln!("Failed to defragment etcd member[{endpoint}] ({failure})");
                failures += 1;
            }
        }
    }
    if failures > 0 {
        return Err(Failure::error(format!("{failures} members could not be defragmented")));
    }
    Ok(())
}

async fn move_leader(session: &Session, target: &[String]) -> Result<(), Failure> {
    let text = one(target, "move-leader command needs 1 argument")?;
    let target =
        u64::from_str_radix(text, 16).map_err(|_| Failure::arguments(not_a_number("ParseUint", text)))?;
    let mut leader: Option<(Channel, u64)> = None;
    for endpoint in &session.global.endpoints {
        let channel = session.at(endpoint).await?;
        let time = session.global.command_timeout;
        let status: StatusResponse =
            session::call(&channel, "/etcdserverpb.Maintenance/Status", &Empty {}, time).await?;
        if status.header.as_ref().is_some_and(|header| header.member_id == status.leader) {
            leader = Some((channel, status.leader));
            break;
        }
    }
    let Some((channel, from)) = leader else {
        let endpoints = session.global.endpoints.join(" ");
        return Err(Failure::arguments(format!("no leader endpoint given at [{endpoints}]")));
    };
    let request = MemberIdRequest { id: target };
    let time = session.global.command_timeout;
    session::call::<HeaderOnly>(&channel, "/etcdserverpb.Maintenance/MoveLeader", &request, time).await?;
    say(format!("Leadership transferred from {from:x} to {target:x}\n").as_bytes())
}

async fn user(session: &Session, command: User) -> Result<(), Failure> {
    let form = session.global.write_out;
    let done = |answer: HeaderOnly, text: String| Shown::line(text, answer.header.as_ref()).print(form);
    match command {
        User::Add { name, interactive, new_user_password, no_password } => {
            let given = one(&name, "user add command requires user name as its argument")?;
            let (name, password) = match (given.split_once(':'), new_user_password) {
                _ if no_password => (given, String::new()),
                (Some(("", _)), None) => {
                    return Err(Failure::arguments("empty user name is not allowed"));
                }
                (Some((name, password)), None) => (name, password.to_owned()),
                (_, Some(password)) => (given, password),
                (None, None) => (given, new_password(given, interactive)?),
            };
            let options = Some(UserAddOptions { no_password });
            let request = UserAddRequest { name: name.to_owned(), password, options, ..Default::default() };
            let answer = session.call("/etcdserverpb.Auth/UserAdd", &request).await?;
            done(answer, format!("User {name} created"))
        }
        User::Delete { name } => {
            let name = one(&name, "user delete command requires user name as its argument")?;
            let request = NameRequest { name: name.to_owned() };
            let answer = session.call("/etcdserverpb.Auth/UserDelete", &request).await?;
            done(answer, format!("User {name} deleted"))
        }
        User::Get { name, detail } => {
            let name = one(&name, "user get command requires user name as its argument")?;
            let request = NameRequest { name: name.to_owned() };
            let answer: NamesResponse = session.call("/etcdserverpb.Auth/UserGet", &request).await?;
            if detail {
                say(format!("User: {name}\n").as_bytes())?;
                for role in &answer.names {
                    say(b"\n")?;
                    role_of(session, role).await?.print(form)?;
                }
                return Ok(());
            }
            let roles: String = answer.names.iter().map(|role| format!(" {role}")).collect();
            let json = object(vec![
                ("header", header_json(answer.header.as_ref())),
                ("roles", answer.names.clone().into()),
            ]);
            let simple = format!("User: {name}\nRoles:{roles}\n").into_bytes();
            Shown { simple, json: Some(json), ..Shown::default() }.print(form)
        }
        User::List => {
            let answer: NamesResponse = session.call("/etcdserverpb.Auth/UserList", &Empty {}).await?;
            let simple: String = answer.names.iter().map(|name| format!("{name}\n")).collect();
            let json = object(vec![
                ("header", header_json(answer.header.as_ref())),
                ("users", answer.names.clone().into()),
            ]);
            Shown { simple: simple.into_bytes(), json: Some(json), ..Shown::default() }.print(form)
        }
        User::Passwd { name, interactive } => {
            let name = one(&name, "user passwd command requires user name as its argument")?;
            let password = new_password(name, interactive)?;
            let request = UserPasswordRequest { name: name.to_owned(), password, ..Default::default() };
            let answer = session.call("/etcdserverpb.Auth/UserChangePassword", &request).await?;
            done(answer, "Password updated".to_owned())
        }
        User::GrantRole { words } => {
            let [user, role] = words.as_slice() else {
                return Err(Failure::arguments(
                    "user grant command requires user name and role name as its argument",
                ));
            };
            let request = UserRoleRequest { user: user.clone(), role: role.clone() };
            let answer = session.call("/etcdserverpb.Auth/UserGrantRole", &request).await?;
            done(answer, format!("Role {role} is granted to user {user}"))
        }
        User::RevokeRole { words } => {
            let [user, role] = words.as_slice() else {
                return Err(Failure::arguments(
                    "user revoke-role requires user name and role name as its argument",
                ));
            };
            // Its first field is called name, as that of all others is not.
            let request = UserRoleRequest { user: user.clone(), role: role.clone() };
            let answer = session.call("/etcdserverpb.Auth/UserRevokeRole", &request).await?;
            done(answer, format!("Role {role} is revoked from user {user}"))
        }
    }
}

fn new_password(name: &str, interactive: bool) -> Result<String, Failure> {
    if !interactive {
        return read_password("");
    }
    let first = read_password(&format!("Password of {name}: "))?;
    let second = read_password(&format!("Type password of {name} again for confirmation: "))?;
    if first != second {
        return Err(Failure::arguments("given passwords are different"));
    }
    Ok(first)
}

async fn role_of(session: &Session, name: &str) -> Result<Shown, Failure> {
    let request = NameRequest { name: name.to_owned() };
    let answer: RoleGetResponse = session.call("/etcdserverpb.Auth/RoleGet", &request).await?;
    let text = |permission: &Permission| {
        let key = String::from_utf8_lossy(&permission.key);
        let end = String::from_utf8_lossy(&permission.range_end);
        if permission.range_end.is_empty() {
            return format!("\t{key}\n");
        }
        if permission.range_end[..] == *b"\0" {
            return format!("\t[{key}, <open ended>\n");
        }
        let prefix = match prefix_end(&permission.key) {
            Some(end) if end == permission.range_end => format!(" (prefix {key})"),
            _ => String::new(),
        };
        format!("\t[{key}, {end}){prefix}\n")
    };
    // 0 is reading, 1 writing, 2 both.
    let (mut reads, mut writes, mut fields) = (String::new(), String::new(), String::new());
    header_fields(answer.header.as_ref(), &mut fields);
    let mut json = Vec::new();
    for permission in &answer.perm {
        if permission.kind != 1 {
            reads.push_str(&text(permission));
        }
        if permission.kind != 0 {
            writes.push_str(&text(permission));
        }
        let kind = ["READ", "WRITE", "READWRITE"].get(permission.kind as usize).copied().unwrap_or("UNKNOWN");
        fields.push_str(&format!(
            "\"PermType\" :  {kind}\n\"Key\" : {}\n\"RangeEnd\" : {}\n",
            quoted(&permission.key),
            quoted(&permission.range_end)
        ));
        json.push(object(vec![
            ("permType", permission.kind.into()),
            ("key", base64(&permission.key)),
            ("range_end", base64(&permission.range_end)),
        ]));
    }
    let simple = format!("Role {name}\nKV Read:\n{reads}KV Write:\n{writes}").into_bytes();
    let json = object(vec![("header", header_json(answer.header.as_ref())), ("perm", json.into())]);
    Ok(Shown { simple, fields: Some(fields), json: Some(json), ..Shown::default() })
}

fn permission_range(words: &[String], flags: &PermissionRange) -> Result<(Bytes, Bytes), Failure> {
    let (Some(key), true) = (words.first(), words.len() <= 2) else {
        return Err(Failure::arguments("role permission commands need a key and an optional range end"));
    };
    range(key, words.get(1), flags.prefix, flags.from_key)
}

async fn role(session: &Session, command: Role) -> Result<(), Failure> {
    let form = session.global.write_out;
    let done = |answer: HeaderOnly, text: String| Shown::line(text, answer.header.as_ref()).print(form);
    match command {
        Role::Add { name } => {
            let name = one(&name, "role add command requires role name as its argument")?;
            let request = NameRequest { name: name.to_owned() };
            let answer = session.call("/etcdserverpb.Auth/RoleAdd", &request).await?;
            done(answer, format!("Role {name} created"))
        }
        Role::Delete { name } => {
            let name = one(&name, "role delete command requires role name as its argument")?;
            let request = NameRequest { name: name.to_owned() };
            let answer = session.call("/etcdserverpb.Auth/RoleDelete", &request).await?;
            done(answer, format!("Role {name} deleted"))
        }
        Role::Get { name } => {
            let name = one(&name, "role get command requires role name as its argument")?;
            role_of(session, name).await?.print(form)
        }
        Role::List => {
            let answer: NamesResponse = session.call("/etcdserverpb.Auth/RoleList", &Empty {}).await?;
            let simple: String = answer.names.iter().map(|name| format!("{name}\n")).collect();
            let mut shown = Shown::line(String::new(), answer.header.as_ref());
            shown.simple = simple.into_bytes();
            let listed: String =
                answer.names.iter().map(|name| format!(" {}", quoted(name.as_bytes()))).collect();
            add(&mut shown, &format!("\"Roles\" :{listed}\n"));
            shown.json = Some(object(vec![
                ("header", header_json(answer.header.as_ref())),
                ("roles", answer.names.clone().into()),
            ]));
            shown.print(form)
        }
        Role::GrantPermission { words, range } => {
            let (Some(name), Some(kind)) = (words.first(), words.get(1)) else {
                return Err(Failure::arguments(
                    "role grant command requires role name, permission type, and key [endkey] as its argument",
                ));
            };
            let kind = match kind.to_lowercase().as_str() {
                "read" => 0,
                "write" => 1,
                "readwrite" => 2,
                _ => return Err(Failure::arguments(format!("invalid permission type: {kind}"))),
            };
            let (key, range_end) = permission_range(&words[2..], &range)?;
            let perm = Some(Permission { kind, key, range_end });
            let request = RoleGrantRequest { name: name.clone(), perm };
            let answer = session.call("/etcdserverpb.Auth/RoleGrantPermission", &request).await?;
            done(answer, format!("Role {name} updated"))
        }
        Role::RevokePermission { words, range } => {
            let Some(name) = words.first() else {
                return Err(Failure::arguments(
                    "role revoke-permission command requires role name and key [endkey] as its argument",
                ));
            };
            let (key, range_end) = permission_range(&words[1..], &range)?;
            let request =
                RoleRevokeRequest { role: name.clone(), key: key.clone(), range_end: range_end.clone() };
            let answer = session.call("/etcdserverpb.Auth/RoleRevokePermission", &request).await?;
            let (key, end) = (String::from_utf8_lossy(&key), String::from_utf8_lossy(&range_end));
            let what = match &range_end[..] {
                b"" => format!("key {key}"),
                b"\0" => format!("range [{key}, <open ended>"),
                _ => format!("range [{key}, {end})"),
            };
            done(answer, format!("Permission of {what} is revoked from role {name}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_and_words_are_read_as_etcdctl_reads_them() {
        assert_eq!(words(r#"put "a b" 'c "d"' e\ f"#), ["put", "a b", "c \"d\"", "e f"]);
        let read = compare(r#"mod("k") > "0""#).expect("a comparison");
        assert_eq!((read.result, read.target, &read.key[..]), (1, 2, &b"k"[..]));
        assert_eq!(read.target_union, Some(TargetUnion::ModRevision(0)));
        let value = compare(r#"value("k") = "x y""#).expect("a comparison");
        assert_eq!(value.target_union, Some(TargetUnion::Value("x y".into())));
        for bad in ["", "mod", "mod(k", "mod(k) >", "mod(k) ~ 1", "what(k) = 1", "ver(k) = x"] {
            assert_eq!(compare(bad).expect_err(bad).code, 3, "{bad}");
        }
        assert!(operation("put a b").is_ok() && operation("del a --prefix").is_ok());
        assert_eq!(operation("lease list").expect_err("refused").code, 3);
    }

    #[test]
    fn ranges_say_what_cannot_be_together() {
        assert_eq!(range("a", None, true, false), Ok(("a".into(), "b".into())));
        assert_eq!(range("", None, true, false), Ok(("\0".into(), "\0".into())));
        assert_eq!(range("a", None, false, true), Ok(("a".into(), "\0".into())));
        assert_eq!(range("a", None, true, true).expect_err("both").code, 128);
        assert_eq!(range("a", Some(&"b".to_owned()), true, false).expect_err("both").code, 128);
    }
}
