//! Service rules on a real kernel, each test in network namespaces of its own. Needs root; says so and passes otherwise.

mod fake_api;

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fake_api::FakeApi;
use kube_proxy::{Config, NodePortAddresses};
use lifecycle::Stop;
use netlink::nft::{Family, Nftables};
use netlink::route::{Ipv4Setting, Kind, NewLink, Route, Routing, Target};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(10);
const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const NODES: &str = "/api/v1/nodes";
const GATEWAY: [u8; 4] = [10, 128, 0, 1];
const FRONT: [u8; 4] = [172, 30, 0, 7];
const GATEWAY6: &str = "fd00::1";

/// Runs the test in a new namespace that has a gateway address, forwarding, and a route for Services.
fn in_host(test: impl FnOnce() + Send) {
    if !testing::root() {
        return;
    }
    telemetry::log_to_stderr("warn");
    netlink::netns::fresh(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let routing = Routing::open().unwrap();
        routing.set_up(1, &[]).unwrap();
        routing.create(&NewLink { name: "gw", kind: Kind::Bridge, mac: None, mtu: 1500 }).unwrap();
        let index = routing.link("gw").unwrap().unwrap().index;
        routing.set_up(index, &[]).unwrap();
        routing.add_address(index, "10.128.0.1/32".parse().unwrap()).unwrap();
        routing.add_address(index, "fd00::1/128".parse().unwrap()).unwrap();
        let to = "172.30.0.0/16".parse().unwrap();
        let source = Some(GATEWAY.into());
        routing.set_route(&Route { to, target: Target::Link { index }, source }).unwrap();
        test();
    })
    .unwrap();
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a namespace of its own, wired to the host's.
struct Pod {
    address: IpAddr,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Pod {
    fn new(number: u8) -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, tid) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            netlink::netns::unshare_network().unwrap();
            ready.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            inbox.into_iter().for_each(|job| job());
        });
        let netns = PathBuf::from(format!("/proc/self/task/{}/ns/net", tid.recv().unwrap()));
        let address = IpAddr::from([10, 128, 0, number]);
        let (host, pod) = (Routing::open().unwrap(), Routing::open_in(&netns).unwrap());
        let (name, mac) = (format!("kpod{number}"), [0x0a, 0, 0, 0, 0, number]);
        let kind = Kind::Veth { peer: "eth0", peer_mac: mac, netns: &netns };
        host.create(&NewLink { name: &name, kind, mac: Some([0xee; 6]), mtu: 1500 }).unwrap();
        let outer = host.link(&name).unwrap().unwrap().index;
        let inner = pod.link("eth0").unwrap().unwrap().index;
        pod.set_up(1, &[]).unwrap();
        pod.set_up(inner, &[]).unwrap();
        host.set_up(outer, &[(Ipv4Setting::RouteLocalnet, 1), (Ipv4Setting::SendRedirects, 0)]).unwrap();
        let address6: IpAddr = format!("fd00::{number}").parse().unwrap();
        let families =
            [(address, IpAddr::from(GATEWAY), "0.0.0.0/0"), (address6, GATEWAY6.parse().unwrap(), "::/0")];
        for (address, gateway, everywhere) in families {
            pod.add_address(inner, address.into()).unwrap();
            pod.set_neighbour(inner, gateway, [0xee; 6]).unwrap();
            let link = |to, index| Route { to, target: Target::Link { index }, source: None };
            pod.set_route(&link(gateway.into(), inner)).unwrap();
            let target = Target::Via { gateway, index: inner };
            pod.set_route(&Route { to: everywhere.parse().unwrap(), target, source: None }).unwrap();
            host.set_neighbour(outer, address, mac).unwrap();
            host.set_route(&Route { source: Some(gateway), ..link(address.into(), outer) }).unwrap();
        }
        Self { address, jobs: Some(jobs), thread: Some(thread) }
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.jobs.as_ref().unwrap().send(Box::new(move || done.send(work()).unwrap())).unwrap();
        result.recv().unwrap()
    }

    /// Answers each TCP connection and UDP packet with its own address and the peer's.
    fn serve(self, port: u16) -> Self {
        let me = self.address;
        let (tcp, udp) = self.run(move || {
            (TcpListener::bind(("::", port)).unwrap(), UdpSocket::bind(("0.0.0.0", port)).unwrap())
        });
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let _ = write!(stream, "{me} {}", stream.peer_addr().unwrap().ip().to_canonical());
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(format!("{me} {}", peer.ip()).as_bytes(), peer);
            }
        });
        self
    }

    fn call(&self, to: impl Into<SocketAddr>) -> io::Result<String> {
        let to = to.into();
        self.run(move || call(to))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.jobs.take();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn call(to: impl Into<SocketAddr>) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// A proxy on a thread of its own, until it is dropped.
struct Running {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

fn start(api: &FakeApi) -> Running {
    let (stop, api) = (Stop::new(), api.clone());
    let config = Config {
        cluster_cidr: Some("10.128.0.0/14".parse().unwrap()),
        node_ports: NodePortAddresses::Ranges(vec!["0.0.0.0/0".parse().unwrap()]),
        sync_period: Duration::from_millis(300),
        min_sync_period: Duration::ZERO,
        ..Config::new("here")
    };
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(kube_proxy::run(config, api.client(), stopped)).unwrap();
    });
    Running { stop, thread: Some(thread) }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.request();
        let outcome = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            outcome.unwrap().unwrap();
        }
    }
}

fn api() -> FakeApi {
    let api = FakeApi::default();
    let addresses = json!([{"type": "InternalIP", "address": "10.128.0.1"}]);
    api.put(NODES, json!({"metadata": {"name": "here"}, "status": {"addresses": addresses}}));
    api
}

fn service(extra: Value) -> Value {
    let mut spec = json!({"type": "NodePort", "clusterIP": "172.30.0.7", "clusterIPs": ["172.30.0.7"], "ports": [
        {"name": "web", "port": 80, "protocol": "TCP", "nodePort": 30080},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]});
    for (name, value) in extra.as_object().unwrap() {
        spec[name] = value.clone();
    }
    json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
}

fn slice(endpoints: &[&Pod]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|pod| json!({"addresses": [pod.address], "nodeName": "here", "conditions": {"ready": true}}))
        .collect();
    let ports = json!([
        {"name": "web", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 8080, "protocol": "UDP"}
    ]);
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({"metadata": {"name": "web-1", "namespace": "shop", "labels": labels}, "addressType": "IPv4",
        "ports": ports, "endpoints": endpoints})
}

/// Who answers, over many connections.
fn answers(client: &Pod, to: ([u8; 4], u16)) -> BTreeSet<String> {
    (0..40).map(|_| client.call(to).unwrap().split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn a_service_is_reached_by_every_way_and_follows_its_endpoints() {
    in_host(|| {
        let api = api();
        let (a, b, client) = (Pod::new(2).serve(8080), Pod::new(3).serve(8080), Pod::new(4));
        api.put(SERVICES, service(json!({"externalIPs": ["192.0.2.1"]})));
        api.put(SLICES, slice(&[&a, &b]));
        let _proxy = start(&api);
        eventually("the first rules", || client.call((FRONT, 80)).is_ok());
        let both = BTreeSet::from([a.address.to_string(), b.address.to_string()]);
        assert_eq!(answers(&client, (FRONT, 80)), both);
        let seen = client.call((FRONT, 80)).unwrap();
        assert!(seen.ends_with("10.128.0.4"), "pods keep their address: {seen}");
        assert!(call((FRONT, 80)).is_ok(), "from the host");
        assert_eq!(
            answers(&a, (FRONT, 80)),
            both,
            "a pod behind the Service calls it, and reaches itself, too"
        );
        assert!(client.call((GATEWAY, 30080)).unwrap().ends_with("10.128.0.1"), "node port, masqueraded");
        assert!(call(([127, 0, 0, 1], 30080)).is_ok(), "node port on loopback");
        assert!(client.call(([192, 0, 2, 1], 80)).is_ok(), "external address");

        api.put(SLICES, slice(&[&b]));
        let only_b = BTreeSet::from([b.address.to_string()]);
        eventually("one endpoint less", || answers(&client, (FRONT, 80)) == only_b);
        api.put(SLICES, slice(&[]));
        let refused =
            |to| client.call(to).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        eventually("no endpoints: refused", || refused((FRONT, 80)));
        assert!(refused((GATEWAY, 30080)));
        assert!(call((FRONT, 80)).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused));
        assert!(refused((FRONT, 81)), "a port that the Service does not have");
        api.put(SLICES, slice(&[&a]));
        eventually("endpoints are back", || client.call((FRONT, 80)).is_ok());
        api.delete(SERVICES, "shop/web");
        eventually("the Service is gone", || client.call((GATEWAY, 30080)).is_err());
    });
}

#[test]
fn affinity_keeps_a_client_with_its_endpoint_while_that_lives() {
    in_host(|| {
        let api = api();
        let (a, b, client) = (Pod::new(2).serve(8080), Pod::new(3).serve(8080), Pod::new(4));
        api.put(SERVICES, service(json!({"sessionAffinity": "ClientIP"})));
        api.put(SLICES, slice(&[&a, &b]));
        let _proxy = start(&api);
        eventually("the first rules", || client.call((FRONT, 80)).is_ok());
        let chosen = answers(&client, (FRONT, 80));
        assert_eq!(chosen.len(), 1, "{chosen:?}");
        show_rules();
        assert_eq!(answers(&client, (GATEWAY, 30080)), chosen, "the node port shares the memory");
        let (gone, left) = if chosen.contains(&a.address.to_string()) { (&a, &b) } else { (&b, &a) };
        api.put(SLICES, slice(&[left]));
        let moved = BTreeSet::from([left.address.to_string()]);
        eventually("the client moves", || answers(&client, (FRONT, 80)) == moved);
        api.put(SLICES, slice(&[left, gone]));
        eventually("both are back", || answers(&Pod::new(9), (FRONT, 80)).len() == 1);
        assert_eq!(answers(&client, (FRONT, 80)), moved, "and stays where it moved");
        api.put(SERVICES, service(json!({"sessionAffinity": "None"})));
        eventually("affinity is off", || answers(&client, (FRONT, 80)).len() == 2);
    });
}

#[test]
fn a_udp_client_that_keeps_its_port_follows_the_endpoints() {
    in_host(|| {
        let api = api();
        let (a, b, client) = (Pod::new(2).serve(8080), Pod::new(3).serve(8080), Pod::new(4));
        api.put(SERVICES, service(json!({})));
        api.put(SLICES, slice(&[&a]));
        let _proxy = start(&api);
        let socket = client.run(|| UdpSocket::bind("0.0.0.0:4444").unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let ask = || {
            let mut buffer = [0; 64];
            socket.send_to(b"?", SocketAddr::from((FRONT, 53))).ok()?;
            let (length, from) = socket.recv_from(&mut buffer).ok()?;
            // An answer that was under way while its connection was forgotten comes under the endpoint's own address.
            if from != SocketAddr::from((FRONT, 53)) {
                return None;
            }
            Some(String::from_utf8_lossy(&buffer[..length]).split(' ').next()?.to_owned())
        };
        eventually("the first answer", || ask().as_deref() == Some("10.128.0.2"));
        api.put(SLICES, slice(&[&b]));
        eventually("the other endpoint", || ask().as_deref() == Some("10.128.0.3"));
    });
}

#[test]
fn local_policy_from_outside_uses_local_endpoints_or_stays_silent() {
    in_host(|| {
        let api = api();
        let (here, there) = (Pod::new(2).serve(8080), Pod::new(3).serve(8080));
        // A host outside the cluster: its address is not a pod's.
        let outside = Pod::new(200);
        let routing = Routing::open().unwrap();
        let link = routing.link("kpod200").unwrap().unwrap().index;
        let foreign: IpAddr = [198, 51, 100, 9].into();
        outside.run(move || {
            let routing = Routing::open().unwrap();
            let index = routing.link("eth0").unwrap().unwrap().index;
            routing.add_address(index, foreign.into()).unwrap();
            let source = Some(foreign);
            let to_gateway =
                Route { to: IpAddr::from(GATEWAY).into(), target: Target::Link { index }, source };
            routing.set_route(&to_gateway).unwrap();
            let target = Target::Via { gateway: GATEWAY.into(), index };
            routing.set_route(&Route { to: "0.0.0.0/0".parse().unwrap(), target, source }).unwrap();
        });
        routing.set_neighbour(link, foreign, [0x0a, 0, 0, 0, 0, 200]).unwrap();
        routing
            .set_route(&Route { to: foreign.into(), target: Target::Link { index: link }, source: None })
            .unwrap();

        let mut endpoints = slice(&[&here, &there]);
        endpoints["endpoints"][1]["nodeName"] = json!("there");
        api.put(SERVICES, service(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 31999})));
        api.put(SLICES, endpoints.clone());
        let _proxy = start(&api);
        eventually("the first rules", || outside.call((GATEWAY, 30080)).is_ok());
        assert_eq!(answers(&outside, (GATEWAY, 30080)), BTreeSet::from(["10.128.0.2".to_owned()]));
        assert!(
            outside.call((GATEWAY, 30080)).unwrap().ends_with("198.51.100.9"),
            "the client's address is kept"
        );
        assert_eq!(answers(&Pod::new(5), (GATEWAY, 30080)).len(), 2, "pods use all endpoints");
        assert!(
            outside.call((FRONT, 80)).unwrap().ends_with("10.128.0.1"),
            "cluster address from outside: masqueraded"
        );
        let check = || {
            let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], 31999).into(), PATIENCE).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer.split_whitespace().nth(1).unwrap_or("").to_owned()
        };
        eventually("the node check listens", || {
            TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], 31999))).is_ok()
        });
        assert_eq!(check(), "200");
        endpoints["endpoints"][0]["nodeName"] = json!("there");
        api.put(SLICES, endpoints);
        eventually("the node check fails", || check() == "503");
        let silent = || {
            let to = SocketAddr::from((GATEWAY, 30080));
            outside.run(move || TcpStream::connect_timeout(&to, Duration::from_millis(300)))
        };
        eventually("nobody local", || silent().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut));
    });
}

#[test]
fn ipv6_services_have_a_table_of_their_own() {
    in_host(|| {
        let api = api();
        let (a, client) = (Pod::new(2).serve(8080), Pod::new(4));
        let extra = json!({"clusterIPs": ["172.30.0.7", "fd02::7"], "sessionAffinity": "ClientIP"});
        api.put(SERVICES, service(extra));
        let mut endpoints = slice(&[&a]);
        endpoints["metadata"]["name"] = json!("web-6");
        endpoints["endpoints"][0]["addresses"] = json!(["fd00::2"]);
        api.put(SLICES, slice(&[&a]));
        api.put(SLICES, endpoints);
        let _proxy = start(&api);
        let front: SocketAddr = "[fd02::7]:80".parse().unwrap();
        eventually("the first rules", || client.call(front).is_ok());
        assert!(client.call(front).unwrap().ends_with("fd00::4"), "pods keep their address");
        assert!(a.call(front).is_ok(), "a pod behind the Service calls it");
        assert!(client.call((FRONT, 80)).is_ok());
        api.delete(SLICES, "shop/web-6");
        let refused =
            || client.call(front).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        eventually("no endpoints: refused", refused);
        show_rules();
        api.delete(SERVICES, "shop/web");
        eventually("the Service is gone", || client.call((FRONT, 80)).is_err());
    });
}

/// The `nft` program must be able to show our tables: administrators will.
fn show_rules() {
    let Some(nft) = testing::program("nft") else { return };
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(&nft).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["list", "ruleset"]);
    // Upstream's proxy takes over by this program: it must be able to name what it finds.
    let listed: Value = serde_json::from_str(&run(&["-j", "list", "ruleset"])).unwrap();
    let mut named = 0;
    for object in listed["nftables"].as_array().unwrap() {
        for kind in ["chain", "set", "map"] {
            let Some(found) = object.get(kind) else { continue };
            let [family, table, name] =
                ["family", "table", "name"].map(|field| found[field].as_str().unwrap());
            run(&["list", kind, family, table, name]);
            named += 1;
        }
    }
    assert!(named > 20, "{named} names");
}

#[test]
fn rules_outlive_the_process_and_the_next_one_takes_them_over() {
    in_host(|| {
        let api = api();
        let (a, b, client) = (Pod::new(2).serve(8080), Pod::new(3).serve(8080), Pod::new(4));
        api.put(SERVICES, service(json!({})));
        api.put(SLICES, slice(&[&a]));
        let first = start(&api);
        eventually("the first rules", || client.call((FRONT, 80)).is_ok());
        drop(first);
        assert!(client.call((FRONT, 80)).is_ok());
        api.put(SLICES, slice(&[&b]));
        let second = start(&api);
        let only_b = BTreeSet::from([b.address.to_string()]);
        eventually("the new endpoint", || answers(&client, (FRONT, 80)) == only_b);
        let table = netlink::nft::Table::new(Family::Ip, "kube-proxy");
        Nftables::open().unwrap().commit(&table.remove()).unwrap();
        api.put(SLICES, slice(&[&a, &b]));
        eventually("a removed table comes back", || client.call((FRONT, 80)).is_ok());
        drop(second);
        kube_proxy::remove_rules("kube-proxy").unwrap();
        assert!(Nftables::open().unwrap().tables(Family::Ip).unwrap().is_empty());
        kube_proxy::remove_rules("kube-proxy").unwrap();
    });
}

#[test]
fn a_lost_chain_rule_or_element_comes_back() {
    use netlink::nft::{Batch, Value as Data};
    in_host(|| {
        let api = api();
        let (a, client) = (Pod::new(2).serve(8080), Pod::new(4));
        api.put(SERVICES, service(json!({})));
        api.put(SLICES, slice(&[&a]));
        let _proxy = start(&api);
        eventually("the first rules", || client.call((FRONT, 80)).is_ok());
        let nftables = Nftables::open().unwrap();
        let key = [&FRONT[..], &[6, 0, 0, 0], &80u16.to_be_bytes(), &[0, 0]].concat();
        let mut element = Batch::new(Family::Ip, "kube-proxy");
        element.delete_elements("service-ips", [(&key, &Data::None)].into_iter());
        let mut rules = Batch::new(Family::Ip, "kube-proxy");
        rules.flush_chain("services");
        let mut chain = Batch::new(Family::Ip, "kube-proxy");
        chain.flush_chain("nat-prerouting");
        chain.delete_chain("nat-prerouting");
        for damage in [element, rules, chain] {
            nftables.commit(&damage).unwrap();
            assert!(client.call((FRONT, 80)).is_err(), "{:?}", damage.describe());
            eventually("it is repaired", || client.call((FRONT, 80)).is_ok());
        }
    });
}

#[test]
fn a_balancers_address_is_for_its_source_ranges() {
    in_host(|| {
        let api = api();
        let (a, friend, stranger) = (Pod::new(2).serve(8080), Pod::new(4), Pod::new(5));
        let mut balanced =
            service(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.128.0.4/32"]}));
        balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}});
        api.put(SERVICES, balanced);
        api.put(SLICES, slice(&[&a]));
        let _proxy = start(&api);
        eventually("the first rules", || friend.call(([192, 0, 2, 9], 80)).is_ok());
        let silent = |to: [u8; 4]| {
            stranger.run(move || TcpStream::connect_timeout(&(to, 80).into(), Duration::from_millis(300)))
        };
        let refusal = silent([192, 0, 2, 9]).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::TimedOut, "dropped, as upstream does");
        assert!(silent(FRONT).is_ok(), "the cluster's address is for everyone");
    });
}

/// CRC-32C, bit by bit: the kernel does not look into SCTP packets that are damaged.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    !sum
}

/// This kernel may have no SCTP sockets; packets of it can be sent and seen all the same.
#[test]
fn sctp_packets_reach_the_endpoint_with_its_port() {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};
    in_host(|| {
        let api = api();
        let (a, client) = (Pod::new(2), Pod::new(4));
        api.put(SERVICES, service(json!({"ports": [{"name": "s", "port": 99, "protocol": "SCTP"}]})));
        let mut endpoints = slice(&[&a]);
        endpoints["ports"] = json!([{"name": "s", "port": 8099, "protocol": "SCTP"}]);
        api.put(SLICES, endpoints);
        let _proxy = start(&api);
        let raw = || rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::SCTP)).unwrap();
        let (listener, sender) = (a.run(raw), client.run(raw));
        sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(Duration::from_millis(100)))
            .unwrap();
        // An INIT chunk.
        let mut packet =
            [&40000u16.to_be_bytes()[..], &99u16.to_be_bytes(), &[0; 8], &[1, 0, 0, 20]].concat();
        packet.extend([0, 0, 0, 9, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1]);
        let sum = checksum(&packet).to_le_bytes();
        packet[8..12].copy_from_slice(&sum);
        let mut seen = Vec::new();
        eventually("the packet arrives", || {
            rustix::net::sendto(&sender, &packet, SendFlags::empty(), &SocketAddr::from((FRONT, 0))).unwrap();
            let mut buffer = [0; 256];
            let Ok((length, _)) = rustix::net::recv(&listener, &mut buffer[..], RecvFlags::empty()) else {
                return false;
            };
            seen = buffer[..length].to_vec();
            true
        });
        assert_eq!(&seen[12..20], &[10, 128, 0, 4, 10, 128, 0, 2], "addresses");
        assert_eq!(seen[22..24], 8099u16.to_be_bytes(), "the endpoint's port");
        let mut body = seen[20..].to_vec();
        let sum = u32::from_le_bytes(body[8..12].try_into().unwrap());
        body[8..12].fill(0);
        assert_eq!(sum, checksum(&body), "a checksum that the endpoint will accept");
    });
}

/// Prints how long the first table and one change take; run with `--ignored --nocapture`, best in release.
#[test]
#[ignore = "a measurement"]
fn measure_many_services() {
    in_host(|| {
        let api = api();
        let (a, b, client) = (Pod::new(2).serve(8080), Pod::new(3).serve(8080), Pod::new(4));
        for number in 0..10_000u32 {
            let [_, _, high, low] = (number + 256).to_be_bytes();
            let mut object =
                service(json!({"type": "ClusterIP", "clusterIPs": [format!("172.30.{high}.{low}")]}));
            object["metadata"]["name"] = json!(format!("s{number}"));
            object["spec"]["clusterIP"] = object["spec"]["clusterIPs"][0].clone();
            object["spec"]["ports"] = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
            api.put(SERVICES, object);
            let mut endpoints = slice(&[&a, &b]);
            endpoints["metadata"]["name"] = json!(format!("s{number}-1"));
            endpoints["metadata"]["labels"]["kubernetes.io/service-name"] = json!(format!("s{number}"));
            api.put(SLICES, endpoints);
        }
        api.put(SERVICES, service(json!({})));
        api.put(SLICES, slice(&[&a]));
        let started = Instant::now();
        let _proxy = start(&api);
        let deadline = started + Duration::from_secs(120);
        while client.call((FRONT, 80)).is_err() && Instant::now() < deadline {}
        println!("10,001 Services written after {:?}", started.elapsed());
        for endpoints in [slice(&[&b]), slice(&[&a]), slice(&[&b])] {
            let wanted = endpoints["endpoints"][0]["addresses"][0].as_str().unwrap().to_owned();
            let started = Instant::now();
            api.put(SLICES, endpoints);
            eventually("the change", || client.call((FRONT, 80)).unwrap().starts_with(&wanted));
            println!("one endpoint changed, seen by a client after {:?}", started.elapsed());
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("{}", status.lines().find(|line| line.starts_with("VmRSS")).unwrap());
    });
}
