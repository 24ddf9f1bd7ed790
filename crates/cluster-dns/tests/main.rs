//! The server over real sockets, in a network namespace of the test's own (for port 53). Needs root; says so and passes
//! otherwise. Questions and answers are written by hand here, so that the server's codec is not its own judge.

#[path = "../../kube-proxy/tests/fake_api/mod.rs"]
mod fake_api;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster_dns::Config;
use fake_api::FakeApi;
use lifecycle::Stop;
use serde_json::{Value, json};

const SERVER: &str = "127.0.0.1:53";
/// Another address of the server, one that pods could reach.
const POD_SIDE: &str = "10.128.0.1:53";
const UPSTREAM: &str = "127.0.0.2:53";
const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const A: u16 = 1;

fn in_namespace(test: impl FnOnce() + Send) {
    if !testing::root() {
        return;
    }
    telemetry::log_to_stderr("warn");
    netlink::netns::fresh(|| {
        let routing = netlink::route::Routing::open().unwrap();
        routing.set_up(1, &[]).unwrap();
        routing.add_address(1, "10.128.0.1/32".parse().unwrap()).unwrap();
        test();
    })
    .unwrap();
}

struct Running {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

fn start(api: &FakeApi, upstreams: &[&str]) -> Running {
    start_published(api, upstreams, None)
}

fn start_published(api: &FakeApi, upstreams: &[&str], publish: Option<IpAddr>) -> Running {
    let stop = Stop::new();
    let config = Config {
        listen: vec![SERVER.parse().unwrap(), POD_SIDE.parse().unwrap()],
        domain: "cluster.local".to_owned(),
        upstreams: Some(upstreams.iter().map(|text| text.parse().unwrap()).collect()),
        publish,
        ..Config::new(Vec::new(), "", api.client())
    };
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(cluster_dns::run(config, stopped)).unwrap();
    });
    Running { stop, thread: Some(thread) }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.request();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn request(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

#[derive(Debug, PartialEq)]
struct Answer {
    code: u8,
    truncated: bool,
    count: u16,
    /// The last four bytes: an address, if the last record is one.
    tail: Ipv4Addr,
}

fn read(bytes: &[u8]) -> Answer {
    assert_eq!(&bytes[..2], [0x12, 0x34], "the question's id");
    let [.., a, b, c, d] = *bytes else { panic!("short answer") };
    Answer {
        code: bytes[3] & 0xf,
        truncated: bytes[2] & 2 != 0,
        count: u16::from_be_bytes([bytes[6], bytes[7]]),
        tail: Ipv4Addr::new(a, b, c, d),
    }
}

fn ask(name: &str) -> Answer {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    socket.send_to(&request(name, A), SERVER).unwrap();
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).unwrap();
    read(&buffer[..length])
}

fn ask_tcp(name: &str) -> Answer {
    let mut stream = TcpStream::connect(SERVER).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    let bytes = request(name, A);
    stream.write_all(&[&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer).unwrap();
    read(&answer)
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

fn wait_for_server() {
    eventually("the server listens", || TcpStream::connect(SERVER).is_ok());
    eventually("the zone is complete", || ask("none.shop.svc.cluster.local").code == 3);
}

fn cluster() -> FakeApi {
    let api = FakeApi::default();
    api.put("/api/v1/namespaces", json!({"metadata": {"name": "shop"}}));
    api.put(SERVICES, service("web", json!({"clusterIP": "172.30.0.7"})));
    api.put(SERVICES, service("db", json!({"clusterIP": "None"})));
    api
}

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

fn slice(service: &str, count: u8) -> Value {
    let endpoints: Vec<Value> = (0..count).map(|n| json!({"addresses": [format!("10.128.0.{n}")]})).collect();
    let labels = json!({"kubernetes.io/service-name": service});
    json!({"metadata": {"name": "s", "namespace": "shop", "labels": labels}, "endpoints": endpoints, "ports": []})
}

#[test]
fn services_are_answered_and_followed() {
    in_namespace(|| {
        let api = cluster();
        let _server = start(&api, &[]);
        wait_for_server();
        assert_eq!(ask("WEB.shop.svc.cluster.LOCAL").tail, Ipv4Addr::new(172, 30, 0, 7));
        assert_eq!(ask("db.shop.svc.cluster.local").count, 0);
        api.put(SLICES, slice("db", 100));
        eventually("endpoints appear", || ask("db.shop.svc.cluster.local").count > 0);
        let short = ask("db.shop.svc.cluster.local");
        assert!(short.truncated, "{short:?}");
        let whole = ask_tcp("db.shop.svc.cluster.local");
        assert_eq!((whole.count, whole.truncated), (100, false));
        let firsts: std::collections::HashSet<Ipv4Addr> =
            (0..8).map(|_| ask_tcp("db.shop.svc.cluster.local").tail).collect();
        assert!(firsts.len() > 1, "addresses take turns");
        api.delete(SERVICES, "shop/web");
        eventually("the Service is gone", || ask("web.shop.svc.cluster.local").code == 3);
        assert_eq!(ask("example.com").code, 3, "without resolvers there is no other name");
    });
}

#[test]
fn other_names_are_forwarded_once_and_remembered() {
    in_namespace(|| {
        let upstream = UdpSocket::bind(UPSTREAM).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = upstream.recv_from(&mut buffer) {
                let question_end = 12 + buffer[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
                let mut answer = buffer[..question_end].to_vec();
                answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 99]);
                tell.send(length).unwrap();
                let _ = upstream.send_to(&answer, client);
            }
        });
        let api = cluster();
        api.put(SERVICES, service("out", json!({"type": "ExternalName", "externalName": "example.org"})));
        // The first resolver is deaf: nobody listens there.
        let _server = start(&api, &["127.0.0.3:53", UPSTREAM]);
        wait_for_server();
        let expected = Ipv4Addr::new(192, 0, 2, 99);
        assert_eq!(ask("example.com").tail, expected);
        assert_eq!(ask("Example.com").tail, expected);
        assert_eq!(told.try_iter().count(), 1, "the second answer comes from memory");
        let alias = ask("out.shop.svc.cluster.local");
        assert_eq!((alias.count, alias.tail), (2, expected), "an alias with what it stands for");
    });
}

#[test]
fn without_an_answering_resolver_the_client_is_told() {
    in_namespace(|| {
        let _server = start(&cluster(), &["127.0.0.3:53"]);
        wait_for_server();
        assert_eq!(ask("example.com").code, 2);
        // A resolver that leads back to ourselves.
        drop(_server);
        let _server = start(&cluster(), &[SERVER]);
        wait_for_server();
        let asked = Instant::now();
        assert_eq!(ask("example.com").code, 2);
        assert!(asked.elapsed() < Duration::from_secs(5));
        assert_eq!(ask("web.shop.svc.cluster.local").code, 0, "and others are served meanwhile");
    });
}

#[test]
fn the_server_publishes_itself_and_moves_its_endpoints() {
    in_namespace(|| {
        let api = cluster();
        let stale =
            json!({"metadata": {"name": "kube-dns-kelson", "namespace": "kube-system"}, "endpoints": []});
        api.put(SLICES, stale);
        let _server = start_published(&api, &[], Some([172, 30, 0, 10].into()));
        let slice = || api.get(SLICES, "kube-system/kube-dns-kelson").unwrap();
        eventually("the slice is right", || slice()["endpoints"][0]["addresses"] == json!(["10.128.0.1"]));
        assert_eq!(slice()["endpoints"].as_array().unwrap().len(), 1, "loopback is not for pods");
        let service = api.get(SERVICES, "kube-system/kube-dns").unwrap();
        assert_eq!(service["spec"]["clusterIP"], "172.30.0.10");
        wait_for_server();
        eventually("its own name", || {
            ask("kube-dns.kube-system.svc.cluster.local").tail == Ipv4Addr::new(172, 30, 0, 10)
        });
    });
}
