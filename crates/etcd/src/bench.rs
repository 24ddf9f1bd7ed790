//! Load against any etcd v3 endpoint, and side by side with a real etcd in one run.
//!
//! Every server is started fresh in a directory of its own on the same disk (or used where it is, with `--endpoints`), gets
//! the same load from the same generator, and is measured from outside: answers per second, latency, and for started
//! servers the CPU time per answer and the resident memory, from /proc.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use h2::client::SendRequest;
use http::{Method, Request};
use lifecycle::{Stop, Tasks};
use prost::Message;
use thiserror::Error;
use tokio::net::TcpStream;

use crate::engine;
use crate::robustness;
use crate::store::{Precondition, Store, prefix_end};
use crate::v3::frame::{self, Messages};
use crate::v3::messages::*;
use crate::v3::status::Status;

/// How many keys puts go to.
const KEYS: u64 = 10_000;
/// How many keys one big range returns.
const RANGE: i64 = 500;
/// How many watches watch.
const WATCHERS: usize = 200;

/// Measures etcd servers: put, txn, get, range, mixed, watch; `memory` with 100,000 keys of 1 KiB; `open` with a million.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Measure a server that runs already, instead of starting some (plain http, host:port).
    #[arg(long)]
    endpoints: Option<String>,
    /// What to run.
    #[arg(long, value_delimiter = ',', default_value = "put,put1,txn,get,range,mixed,watch,memory,open")]
    scenarios: Vec<String>,
    /// Concurrent clients.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Connections that they share.
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Bytes per value.
    #[arg(long, default_value_t = 256)]
    value_size: usize,
    /// Seconds per scenario.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Where the servers' data goes: a directory on the disk to measure.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Also start this etcd for comparison.
    #[arg(long, default_value = "etcd")]
    peer: String,
    /// Measure the store in process as well.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    in_process: bool,
    /// Instead: three members of this program under faults, and whether everything that clients were told can be true.
    #[arg(long)]
    robustness: bool,
    /// For how long.
    #[arg(long, default_value_t = 10, requires = "robustness")]
    minutes: u64,
    /// What the faults and the calls are drawn from; any if it is not given.
    #[arg(long, requires = "robustness")]
    seed: Option<u64>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// Files or processes.
    #[error("cannot {action}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// A server.
    #[error("{server} does not answer")]
    Silent {
        /// Which.
        server: String,
    },
    /// A call failed.
    #[error("a call failed")]
    Call(#[from] Status),
    /// The scenario is not known.
    #[error("there is no scenario {0}; there are put, put1, txn, get, range, mixed, watch, memory, open")]
    Scenario(String),
    /// The store in process.
    #[error(transparent)]
    Open(#[from] engine::OpenError),
    /// A promise was broken.
    #[error("the store is not robust")]
    Robustness(#[from] crate::robustness::RobustnessError),
    /// The store in process failed.
    #[error("the store in process failed")]
    Store(#[from] crate::store::StoreError),
}

/// What one scenario gave on one server.
#[derive(Clone, Debug)]
pub struct Figure {
    server: String,
    scenario: String,
    per_second: f64,
    micros: [u64; 3],
    cpu_micros: Option<f64>,
    memory: Option<u64>,
}

/// Runs everything and prints a table as Markdown.
pub async fn run(args: BenchArgs, stop: Stop) -> Result<(), BenchError> {
    if args.robustness {
        return robust(&args, &stop).await;
    }
    println!(
        "| scenario | server | per second | p50 µs | p99 µs | p99.9 µs | server CPU µs each | memory MiB |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    if args.in_process && args.endpoints.is_none() {
        for figure in in_process(&args, &stop).await? {
            print(&figure);
        }
        if args.scenarios.iter().any(|name| name == OPEN) {
            print(&open_a_million(&args, &stop).await?);
        }
    }
    let tasks = Tasks::under(&stop);
    if let Some(address) = &args.endpoints {
        return measure(&args, &tasks, "endpoint", address.trim_start_matches("http://"), None).await;
    }
    // What a server keeps in memory is measured on fresh ones, without the history of the other scenarios.
    let (memory, load): (Vec<String>, Vec<String>) =
        args.scenarios.iter().filter(|name| *name != OPEN).cloned().partition(|name| name == MEMORY);
    for scenarios in [load, memory] {
        if scenarios.is_empty() || stop.is_requested() {
            continue;
        }
        let args = BenchArgs { scenarios, ..args.clone() };
        for server in [Server::ours(&args)?, Server::peer(&args)].into_iter().flatten() {
            let process = Some(server.child.id());
            let outcome = measure(&args, &tasks, &server.name, &server.address, process).await;
            drop(server);
            outcome?;
            if stop.is_requested() {
                break;
            }
        }
    }
    tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

async fn robust(args: &BenchArgs, stop: &Stop) -> Result<(), BenchError> {
    let now = || jiff::Timestamp::now().as_microsecond() as u64;
    let seed = args.seed.unwrap_or_else(now);
    println!("seed {seed}");
    let plan = robustness::Plan {
        program: robustness::own_program()?,
        command: Some("etcd"),
        directory: robustness::directory_in(&args.directory, seed),
        seed,
        time: Duration::from_secs(args.minutes * 60),
        faults: Vec::new(),
    };
    let report = robustness::run(plan, stop, |line| println!("{line}")).await?;
    println!("{report}");
    Ok(())
}

fn print(figure: &Figure) {
    let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    println!(
        "| {} | {} | {:.0} | {} | {} | {} | {} | {} |",
        figure.scenario,
        figure.server,
        figure.per_second,
        figure.micros[0],
        figure.micros[1],
        figure.micros[2],
        optional(figure.cpu_micros.map(|micros| format!("{micros:.1}"))),
        optional(figure.memory.map(|bytes| (bytes >> 20).to_string())),
    );
}

async fn measure(
    args: &BenchArgs,
    tasks: &Tasks,
    server: &str,
    address: &str,
    process: Option<u32>,
) -> Result<(), BenchError> {
    let load = Load::connect(args, tasks, server, address).await?;
    if args.scenarios.iter().any(|name| name != MEMORY) {
        load.fill(0..KEYS, args.value_size).await?;
    }
    for scenario in &args.scenarios {
        let before = process.and_then(cpu_time);
        let started = Instant::now();
        let (count, mut latencies) = load.scenario(scenario, tasks).await?;
        let elapsed = started.elapsed();
        let after = process.and_then(cpu_time);
        latencies.sort_unstable();
        let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or(0);
        print(&Figure {
            server: server.to_owned(),
            scenario: scenario.clone(),
            per_second: count as f64 / elapsed.as_secs_f64(),
            micros: [at(0.5), at(0.99), at(0.999)],
            cpu_micros: before.zip(after).map(|(before, after)| (after - before) * 1e6 / count.max(1) as f64),
            memory: process.and_then(resident),
        });
    }
    Ok(())
}

/// A started server; it ends with this value, and its data goes.
struct Server {
    name: String,
    address: String,
    child: Child,
    directory: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; its directory is temporary.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Server {
    fn start(args: &BenchArgs, name: &str, program: &Path, first: &[&str]) -> std::io::Result<Self> {
        let directory = args.directory.join(format!("bench-{name}-{}", std::process::id()));
        let address = format!("127.0.0.1:{}", free_port()?);
        let (client, peer) = (format!("http://{address}"), format!("http://127.0.0.1:{}", free_port()?));
        let child = Command::new(program)
            .args(first)
            .arg("--data-dir")
            .arg(&directory)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { name: name.to_owned(), address, child, directory })
    }

    /// This program as a server: `kelson etcd`.
    fn ours(args: &BenchArgs) -> Result<Option<Self>, BenchError> {
        let failed = |source| BenchError::Io { action: "start our server", source };
        let program = std::env::current_exe().map_err(failed)?;
        Self::start(args, "kelson", &program, &["etcd"]).map(Some).map_err(failed)
    }

    /// The etcd to compare with, if there is one.
    fn peer(args: &BenchArgs) -> Option<Self> {
        Self::start(args, "etcd", Path::new(&args.peer), &[])
            .inspect_err(|error| eprintln!("no etcd to compare with ({}): {error}", args.peer))
            .ok()
    }
}

/// Seconds of CPU that a process has used.
fn cpu_time(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes of memory that a process has in RAM.
fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// The generator: connections, and what all clients know.
#[derive(Clone)]
struct Load {
    connections: Vec<SendRequest<Bytes>>,
    clients: usize,
    value: Bytes,
    duration: Duration,
}

fn unavailable(error: impl std::fmt::Display) -> Status {
    Status { code: 14, message: error.to_string().into() }
}

fn key(number: u64) -> Bytes {
    format!("/registry/bench/object-{number:08}").into()
}

/// A cheap sequence of numbers that look random.
fn scramble(number: u64) -> u64 {
    let mut value = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

async fn call(connection: &SendRequest<Bytes>, path: &'static str, message: Bytes) -> Result<Bytes, Status> {
    let mut connection = connection.clone().ready().await.map_err(unavailable)?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(unavailable)?;
    let (response, mut stream) = connection.send_request(request, false).map_err(frame::broken)?;
    stream.send_data(message, true).map_err(frame::broken)?;
    let body = response.await.map_err(frame::broken)?.into_body();
    let mut messages = Messages::new(body, 0);
    let answer = messages.next_bytes().await?.ok_or_else(|| unavailable("no answer"))?;
    // To the end: a stream that is dropped before it costs both sides a reset.
    messages.trailers().await.map_err(frame::broken)?;
    Ok(answer)
}

const RANGE_PATH: &str = "http://etcd/etcdserverpb.KV/Range";
const PUT_PATH: &str = "http://etcd/etcdserverpb.KV/Put";
const TXN_PATH: &str = "http://etcd/etcdserverpb.KV/Txn";
const WATCH_PATH: &str = "http://etcd/etcdserverpb.Watch/Watch";

const MEMORY: &str = "memory";
const MEMORY_KEYS: u64 = 100_000;
const OPEN: &str = "open";
const OPEN_KEYS: u64 = 1_000_000;

/// What one client does over and over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Put,
    Txn,
    Get,
    Range,
    Mixed,
}

impl Load {
    async fn connect(
        args: &BenchArgs,
        tasks: &Tasks,
        server: &str,
        address: &str,
    ) -> Result<Self, BenchError> {
        let mut connections = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(15);
        while connections.len() < args.connections.max(1) {
            match dial(address, tasks).await {
                Ok(connection) => connections.push(connection),
                Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(_) => return Err(BenchError::Silent { server: server.to_owned() }),
            }
        }
        // A server may listen before it serves: until the first answer.
        let probe = frame::framed(&RangeRequest { key: key(0), ..RangeRequest::default() });
        while call(&connections[0], RANGE_PATH, probe.clone()).await.is_err() {
            if Instant::now() > deadline {
                return Err(BenchError::Silent { server: server.to_owned() });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Self {
            connections,
            clients: args.clients.max(1),
            value: vec![b'v'; args.value_size].into(),
            duration: Duration::from_secs(args.seconds.max(1)),
        })
    }

    /// Puts 100,000 keys of 1 KiB.
    async fn memory(&self) -> Result<(u64, Vec<u64>), BenchError> {
        self.fill(KEYS..KEYS + MEMORY_KEYS, 1024).await?;
        Ok((MEMORY_KEYS, Vec::new()))
    }

    fn put_request(&self, number: u64) -> Bytes {
        frame::framed(&PutRequest { key: key(number), value: self.value.clone(), ..PutRequest::default() })
    }

    /// Puts every key once.
    async fn fill(&self, keys: std::ops::Range<u64>, size: usize) -> Result<(), BenchError> {
        let value: Bytes = vec![b'v'; size].into();
        let value = &value;
        let next = AtomicU64::new(keys.start);
        let fillers = (0..self.clients).map(|client| {
            let next = &next;
            async move {
                let connection = &self.connections[client % self.connections.len()];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= keys.end {
                        return Ok::<(), Status>(());
                    }
                    let put = PutRequest { key: key(number), value: value.clone(), ..PutRequest::default() };
                    call(connection, PUT_PATH, frame::framed(&put)).await?;
                }
            }
        });
        futures::future::try_join_all(fillers).await?;
        Ok(())
    }

    async fn scenario(&self, name: &str, tasks: &Tasks) -> Result<(u64, Vec<u64>), BenchError> {
        let (work, clients) = match name {
            "put" => (Work::Put, self.clients),
            "put1" => (Work::Put, 1),
            "txn" => (Work::Txn, self.clients),
            "get" => (Work::Get, self.clients),
            "range" => (Work::Range, self.clients),
            "mixed" => (Work::Mixed, self.clients),
            "watch" => return self.watch(tasks).await,
            MEMORY => return self.memory().await,
            other => return Err(BenchError::Scenario(other.to_owned())),
        };
        let (sender, mut receiver) = tokio::sync::mpsc::channel(clients);
        for client in 0..clients {
            let (load, sender) = (self.clone(), sender.clone());
            tasks.spawn("bench/client", move |_| async move {
                let outcome = load.client(client as u64, work).await;
                // The receiver waits for all clients.
                let _ = sender.send(outcome).await;
            });
        }
        drop(sender);
        let mut all = Vec::new();
        while let Some(outcome) = receiver.recv().await {
            all.extend(outcome?);
        }
        Ok((all.len() as u64, all))
    }

    async fn client(&self, client: u64, work: Work) -> Result<Vec<u64>, Status> {
        let connection = &self.connections[client as usize % self.connections.len()];
        let end = Instant::now() + self.duration;
        let mut latencies = Vec::new();
        let mut number = client << 32;
        let mut known = 0;
        loop {
            let started = Instant::now();
            if started >= end {
                return Ok(latencies);
            }
            number += 1;
            let dice = scramble(number);
            let target = dice % KEYS;
            let chosen = match work {
                Work::Mixed if dice >> 32 & 0xff < 200 => Work::Get,
                Work::Mixed if dice >> 32 & 0xff < 240 => Work::Put,
                Work::Mixed => Work::Range,
                other => other,
            };
            match chosen {
                Work::Put => {
                    call(connection, PUT_PATH, self.put_request(target)).await?;
                }
                Work::Txn => known = self.compare_and_swap(connection, client, known).await?,
                Work::Get => {
                    let request = RangeRequest { key: key(target), ..RangeRequest::default() };
                    call(connection, RANGE_PATH, frame::framed(&request)).await?;
                }
                Work::Range | Work::Mixed => {
                    let start = key(target.min(KEYS - RANGE as u64));
                    let range_end = prefix_end(b"/registry/bench/").unwrap_or_default();
                    let limit = if work == Work::Mixed { 50 } else { RANGE };
                    let request = RangeRequest { key: start, range_end, limit, ..RangeRequest::default() };
                    call(connection, RANGE_PATH, frame::framed(&request)).await?;
                }
            }
            latencies.push(started.elapsed().as_micros() as u64);
        }
    }

    /// An update as the API server makes it: put if the revision is the one we know.
    async fn compare_and_swap(
        &self,
        connection: &SendRequest<Bytes>,
        client: u64,
        known: i64,
    ) -> Result<i64, Status> {
        let own = key(KEYS + client);
        let put = PutRequest { key: own.clone(), value: self.value.clone(), ..PutRequest::default() };
        let look = RangeRequest { key: own.clone(), ..RangeRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare {
                result: 0,
                target: 2,
                key: own,
                target_union: Some(TargetUnion::ModRevision(known)),
                range_end: Bytes::new(),
            }],
            success: vec![RequestOp { request: Some(RequestOpRequest::Put(put)) }],
            failure: vec![RequestOp { request: Some(RequestOpRequest::Range(look)) }],
        };
        let answer = call(connection, TXN_PATH, frame::framed(&request)).await?;
        let answer = TxnResponse::decode(answer).map_err(unavailable)?;
        if answer.succeeded {
            return Ok(answer.header.map_or(0, |header| header.revision));
        }
        let found = answer.responses.into_iter().next().and_then(|response| response.response);
        Ok(match found {
            Some(ResponseOpResponse::Range(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
            _ => 0,
        })
    }

    /// Events per second to many watches of one prefix, while clients put as fast as they can.
    async fn watch(&self, tasks: &Tasks) -> Result<(u64, Vec<u64>), BenchError> {
        let received = Arc::new(AtomicU64::new(0));
        let done = Arc::new(AtomicBool::new(false));
        let watching = Stop::new();
        for number in 0..WATCHERS {
            let connection = self.connections[number % self.connections.len()].clone();
            let mut messages = open_watch(connection).await?;
            let (received, watching) = (received.clone(), watching.clone());
            tasks.spawn("bench/watch", move |_| async move {
                let count = async {
                    while let Ok(Some(bytes)) = messages.next_bytes().await {
                        received.fetch_add(count_events(&bytes), Ordering::Relaxed);
                    }
                };
                watching.or(count).await;
            });
        }
        let writers = (0..8).map(|client| {
            let done = done.clone();
            async move {
                let connection = &self.connections[client % self.connections.len()];
                let mut number = (client as u64) << 40;
                while !done.load(Ordering::Relaxed) {
                    number += 1;
                    call(connection, PUT_PATH, self.put_request(scramble(number) % KEYS)).await?;
                }
                Ok::<(), Status>(())
            }
        });
        let timer = async {
            tokio::time::sleep(self.duration).await;
            done.store(true, Ordering::Relaxed);
            Ok(())
        };
        futures::future::try_join(futures::future::try_join_all(writers), timer).await?;
        let count = received.load(Ordering::Relaxed);
        watching.request();
        Ok((count, Vec::new()))
    }
}

/// Counts the events in a response without decoding them: fields with number 11.
fn count_events(mut bytes: &[u8]) -> u64 {
    let mut events = 0;
    while !bytes.is_empty() {
        let Ok(tag) = prost::encoding::decode_varint(&mut bytes) else { break };
        let Ok(number) = prost::encoding::decode_varint(&mut bytes) else { break };
        if tag & 7 == 2 {
            events += u64::from(tag >> 3 == 11);
            bytes = bytes.get(number as usize..).unwrap_or(&[]);
        }
    }
    events
}

async fn open_watch(connection: SendRequest<Bytes>) -> Result<Messages, Status> {
    let mut connection = connection.ready().await.map_err(unavailable)?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(WATCH_PATH)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(unavailable)?;
    let (response, mut stream) = connection.send_request(request, false).map_err(frame::broken)?;
    let create = WatchCreateRequest {
        key: Bytes::from_static(b"/registry/bench/"),
        range_end: prefix_end(b"/registry/bench/").unwrap_or_default(),
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::Create(create)) };
    stream.send_data(frame::framed(&create), false).map_err(frame::broken)?;
    let mut messages = Messages::new(response.await.map_err(frame::broken)?.into_body(), 0);
    messages.next_bytes().await?;
    // The request side stays open as long as the stream is not dropped; dropping would reset it.
    messages.keep(stream);
    Ok(messages)
}

async fn dial(address: &str, tasks: &Tasks) -> Result<SendRequest<Bytes>, Status> {
    let stream = TcpStream::connect(address).await.map_err(unavailable)?;
    stream.set_nodelay(true).map_err(unavailable)?;
    let (connection, driver) = h2::client::Builder::new()
        .initial_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(frame::broken)?;
    tasks.spawn("bench/connection", |stop| async move {
        // Ends with the server.
        let _ = stop.or(driver).await;
    });
    Ok(connection)
}

/// Puts with 64 writers and gets, in this process.
async fn in_process(args: &BenchArgs, stop: &Stop) -> Result<Vec<Figure>, BenchError> {
    let tasks = Tasks::under(stop);
    let directory = args.directory.join(format!("bench-in-process-{}", std::process::id()));
    let config = engine::Config { data_dir: Some(directory.clone()), ..engine::Config::default() };
    let store = engine::open(config, &tasks)?;
    let value: Bytes = vec![b'v'; args.value_size].into();
    let duration = Duration::from_secs(args.seconds.max(1));
    let (sender, mut receiver) = tokio::sync::mpsc::channel(args.clients.max(1));
    let started = Instant::now();
    for client in 0..args.clients.max(1) as u64 {
        let (store, value, sender) = (store.clone(), value.clone(), sender.clone());
        tasks.spawn("bench/writer", move |_| async move {
            let mut latencies = Vec::new();
            let mut number = client << 32;
            let outcome = loop {
                let begun = Instant::now();
                if begun.duration_since(started) >= duration {
                    break Ok(latencies);
                }
                number += 1;
                let put = store.put(key(scramble(number) % KEYS), value.clone(), 0, Precondition::None);
                if let Err(error) = put.await {
                    break Err(error);
                }
                latencies.push(begun.elapsed().as_micros() as u64);
            };
            // The receiver waits for all writers.
            let _ = sender.send(outcome).await;
        });
    }
    drop(sender);
    let mut puts = Vec::new();
    while let Some(latencies) = receiver.recv().await {
        puts.extend(latencies?);
    }
    let elapsed = started.elapsed().as_secs_f64();
    puts.sort_unstable();
    let at = |part: f64| puts.get((puts.len() as f64 * part) as usize).copied().unwrap_or(0);
    let figure = |scenario: &str, per_second, micros| Figure {
        server: "in process".to_owned(),
        scenario: scenario.to_owned(),
        per_second,
        micros,
        cpu_micros: None,
        memory: None,
    };
    let put = figure("put", puts.len() as f64 / elapsed, [at(0.5), at(0.99), at(0.999)]);
    let wanted: Vec<Bytes> = (0..KEYS).map(|number| key(scramble(number) % KEYS)).collect();
    let (begun, mut count) = (Instant::now(), 0_u64);
    while begun.elapsed() < Duration::from_secs(1) {
        for key in &wanted {
            count += u64::from(store.get_now(key).is_some());
        }
    }
    let get = figure("get", count as f64 / begun.elapsed().as_secs_f64(), [0; 3]);
    tasks.drain(Duration::from_secs(10)).await;
    drop(store);
    // Temporary, as the servers' directories are.
    let _ = std::fs::remove_dir_all(&directory);
    Ok(vec![put, get])
}

/// How long a store with a million keys takes to open; the latency of the figure is that.
async fn open_a_million(args: &BenchArgs, stop: &Stop) -> Result<Figure, BenchError> {
    let directory = args.directory.join(format!("bench-open-{}", std::process::id()));
    let config = engine::Config { data_dir: Some(directory.clone()), ..engine::Config::default() };
    let tasks = Tasks::under(stop);
    let store = engine::open(config.clone(), &tasks)?;
    let value: Bytes = vec![b'v'; args.value_size].into();
    for first in (0..OPEN_KEYS).step_by(1000) {
        let put = |number: u64| store.put(key(number), value.clone(), 0, Precondition::None);
        futures::future::try_join_all((first..first + 1000).map(put)).await?;
    }
    tasks.drain(Duration::from_secs(60)).await;
    drop(store);
    let tasks = Tasks::under(stop);
    let (begun, before) = (Instant::now(), cpu_time(std::process::id()));
    let store = engine::open(config, &tasks)?;
    let (took, after) = (begun.elapsed(), cpu_time(std::process::id()));
    let memory = resident(std::process::id());
    tasks.drain(Duration::from_secs(60)).await;
    drop(store);
    let _ = std::fs::remove_dir_all(&directory);
    Ok(Figure {
        server: "in process".to_owned(),
        scenario: "open a million keys".to_owned(),
        per_second: 1.0 / took.as_secs_f64(),
        micros: [took.as_micros() as u64; 3],
        cpu_micros: before.zip(after).map(|(before, after)| (after - before) * 1e6),
        memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_without_decoding_them() {
        let event =
            Event { kind: 1, kv: Some(KeyValue { key: "k".into(), ..KeyValue::default() }), prev_kv: None };
        let header = Some(ResponseHeader { revision: 7, ..ResponseHeader::default() });
        let response = WatchResponse {
            header,
            watch_id: 3,
            events: vec![event.clone(), event],
            ..WatchResponse::default()
        };
        assert_eq!(count_events(&response.encode_to_vec()), 2);
    }
}
