//! Policies on a real kernel with real packets, each test in network namespaces of its own. Needs root; says so and passes
//! otherwise. How objects are followed is tested with a whole cluster, in `crates/kelson/tests/e2e`.

#![allow(clippy::disallowed_methods, reason = "tests wait on the outside world")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netlink::nft::{
    Address, Base, Chain, ChainKind, Data, Expr, Family, Hook, MetaKey, Nftables, PRIORITY_DSTNAT, Table,
};
use netlink::route::{Ipv4Setting, Kind, NewLink, Route, Routing, Target};
use network_policy::compile::{View, compile};
use network_policy::model::Model;
use network_policy::table::table;
use network_policy::types::{Namespace, NetworkPolicy, Pod as PodObject};
use network_policy::{Attached, Frame, end_forbidden};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(5);
/// What is dropped gives no sign; this long is enough for what is not, between two namespaces of one host.
const SILENCE: Duration = Duration::from_millis(300);
const GATEWAY: [u8; 4] = [10, 128, 0, 1];
const GATEWAY6: &str = "fd00::1";

fn in_host(test: impl FnOnce() + Send) {
    if !testing::root() {
        return;
    }
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
        test();
    })
    .unwrap();
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a namespace of its own, wired to the host's, with an address of each family.
struct Pod {
    name: &'static str,
    v4: IpAddr,
    v6: IpAddr,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Pod {
    fn new(name: &'static str, number: u8) -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, tid) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            netlink::netns::unshare_network().unwrap();
            ready.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            inbox.into_iter().for_each(|job| job());
        });
        let netns = PathBuf::from(format!("/proc/self/task/{}/ns/net", tid.recv().unwrap()));
        let v4 = IpAddr::from([10, 128, 0, number]);
        let v6: IpAddr = format!("fd00::{number}").parse().unwrap();
        let (host, pod) = (Routing::open().unwrap(), Routing::open_in(&netns).unwrap());
        let (link, mac) = (format!("kpod{number}"), [0x0a, 0, 0, 0, 0, number]);
        let kind = Kind::Veth { peer: "eth0", peer_mac: mac, netns: &netns };
        host.create(&NewLink { name: &link, kind, mac: Some([0xee; 6]), mtu: 1500 }).unwrap();
        let outer = host.link(&link).unwrap().unwrap().index;
        let inner = pod.link("eth0").unwrap().unwrap().index;
        pod.set_up(1, &[]).unwrap();
        pod.set_up(inner, &[]).unwrap();
        host.set_up(outer, &[(Ipv4Setting::SendRedirects, 0)]).unwrap();
        let families = [(v4, IpAddr::from(GATEWAY), "0.0.0.0/0"), (v6, GATEWAY6.parse().unwrap(), "::/0")];
        for (address, gateway, everywhere) in families {
            pod.add_address(inner, address.into()).unwrap();
            pod.set_neighbour(inner, gateway, [0xee; 6]).unwrap();
            let way = |to, index| Route { to, target: Target::Link { index }, source: None };
            pod.set_route(&way(gateway.into(), inner)).unwrap();
            let target = Target::Via { gateway, index: inner };
            pod.set_route(&Route { to: everywhere.parse().unwrap(), target, source: None }).unwrap();
            host.set_neighbour(outer, address, mac).unwrap();
            host.set_route(&Route { source: Some(gateway), ..way(address.into(), outer) }).unwrap();
        }
        Self { name, v4, v6, jobs: Some(jobs), thread: Some(thread) }
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.jobs.as_ref().unwrap().send(Box::new(move || done.send(work()).unwrap())).unwrap();
        result.recv().unwrap()
    }

    /// Takes TCP connections and answers UDP packets, of both families.
    fn serve(self, ports: &'static [u16]) -> Self {
        for port in ports {
            let (tcp, udp) = self.run(move || {
                (TcpListener::bind(("::", *port)).unwrap(), UdpSocket::bind(("::", *port)).unwrap())
            });
            std::thread::spawn(move || {
                let mut open = Vec::new();
                for mut stream in tcp.incoming().flatten() {
                    let _ = stream.write_all(b"hi");
                    open.push(stream);
                }
            });
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((length, peer)) = udp.recv_from(&mut buffer) {
                    let _ = udp.send_to(&buffer[..length], peer);
                }
            });
        }
        self
    }

    fn tcp(&self, to: IpAddr, port: u16) -> bool {
        self.run(move || TcpStream::connect_timeout(&SocketAddr::new(to, port), SILENCE).is_ok())
    }

    fn udp(&self, to: IpAddr, port: u16) -> bool {
        self.run(move || {
            let socket = UdpSocket::bind("[::]:0").unwrap();
            socket.set_read_timeout(Some(SILENCE)).unwrap();
            let mapped = match to {
                IpAddr::V4(v4) => IpAddr::from(v4.to_ipv6_mapped()),
                v6 => v6,
            };
            socket.send_to(b"x", (mapped, port)).is_ok() && socket.recv_from(&mut [0; 8]).is_ok()
        })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.jobs.take();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Pods of one namespace on this node, and what the kernel was told of them last.
struct Node {
    written: Vec<Table>,
    model: Model,
}

impl Node {
    fn new() -> Self {
        Self { written: Vec::new(), model: Model::default() }
    }

    fn enforce(&mut self, pods: &[&Pod], specs: &[Value]) {
        let policies: Vec<Arc<NetworkPolicy>> = specs
            .iter()
            .enumerate()
            .map(|(number, spec)| {
                read(json!({"metadata": {"namespace": "x", "name": number.to_string()}, "spec": spec}))
            })
            .collect();
        let objects: Vec<Arc<PodObject>> = pods
            .iter()
            .map(|pod| {
                let metadata = json!({"name": pod.name, "namespace": "x", "uid": pod.name, "labels": {"pod": pod.name}});
                let ports = json!([{"name": "serve", "containerPort": 81}]);
                read(json!({"metadata": metadata, "spec": {"nodeName": "here", "containers": [{"ports": ports}]}}))
            })
            .collect();
        let attached: Vec<Attached> = pods
            .iter()
            .map(|pod| Attached {
                namespace: "x".to_owned(),
                name: pod.name.to_owned(),
                uid: pod.name.to_owned(),
                addresses: vec![pod.v4, pod.v6],
            })
            .collect();
        let namespaces: Vec<Arc<Namespace>> = vec![read(json!({"metadata": {"name": "x"}}))];
        let view = View {
            node: "here",
            policies: &policies,
            pods: &objects,
            namespaces: &namespaces,
            attached: &attached,
        };
        self.model = compile(&view);
        let ranges = vec!["10.128.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let frame = Frame { table: "kelson0-policy".to_owned(), ranges };
        let tables = [Family::Ip, Family::Ip6].map(|family| table(&frame, &self.model, family));
        let nftables = Nftables::open().unwrap();
        for (number, table) in tables.iter().enumerate() {
            let batch = match self.written.get(number) {
                Some(old) => table.update(old),
                None => table.replace(),
            };
            nftables.commit(&batch).unwrap();
        }
        self.written = tables.into();
        self.show();
    }

    /// The `nft` program must be able to show our tables, and to name what is in them: administrators will.
    fn show(&self) {
        let Some(nft) = testing::program("nft") else { return };
        for table in &self.written {
            let family = if table.family == Family::Ip { "ip" } else { "ip6" };
            let run = |arguments: &[&str]| {
                let output = std::process::Command::new(&nft).args(arguments).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{arguments:?}: {said}");
            };
            run(&["list", "table", family, "kelson0-policy"]);
            for name in table.chains.keys() {
                run(&["list", "chain", family, "kelson0-policy", name]);
            }
            for (name, set) in &table.sets {
                let kind = if set.data == Data::None { "set" } else { "map" };
                run(&["list", kind, family, "kelson0-policy", name]);
            }
            assert!(Nftables::open().unwrap().holds(table).unwrap(), "the kernel has what was written");
        }
    }
}

fn reaches(from: &Pod, to: &Pod, port: u16) -> [bool; 4] {
    [from.tcp(to.v4, port), from.tcp(to.v6, port), from.udp(to.v4, port), from.udp(to.v6, port)]
}

const ALL: [bool; 4] = [true; 4];
const NONE: [bool; 4] = [false; 4];
const TCP: [bool; 4] = [true, true, false, false];

#[test]
fn packets_pass_where_a_policy_lets_them_and_nowhere_else() {
    in_host(|| {
        let (a, b, c) = (Pod::new("a", 2), Pod::new("b", 3).serve(&[80, 81, 90]), Pod::new("c", 4));
        let mut node = Node::new();
        let b_only = json!({"matchLabels": {"pod": "b"}});
        node.enforce(&[&a, &b], &[]);
        assert_eq!(reaches(&a, &b, 80), ALL);
        assert_eq!(reaches(&c, &b, 80), NONE, "c was not let in yet");
        let pods = [&a, &b, &c];
        node.enforce(&pods, &[json!({"podSelector": b_only})]);
        assert_eq!((reaches(&a, &b, 80), reaches(&c, &b, 80)), (NONE, NONE));
        assert!(b.tcp(b.v4, 80), "a pod reaches itself");
        assert!(
            TcpStream::connect_timeout(&SocketAddr::new(b.v4, 80), PATIENCE).is_ok(),
            "the node reaches its pods"
        );
        let from_a = json!([{"podSelector": {"matchLabels": {"pod": "a"}}}]);
        node.enforce(&pods, &[json!({"podSelector": b_only, "ingress": [{"from": from_a}]})]);
        assert_eq!((reaches(&a, &b, 80), reaches(&c, &b, 80)), (ALL, NONE));
        let ports = json!([{"port": 80}, {"port": "serve"}, {"port": 200, "endPort": 300}]);
        node.enforce(&pods, &[json!({"podSelector": b_only, "ingress": [{"from": from_a, "ports": ports}]})]);
        assert_eq!((reaches(&a, &b, 80), reaches(&a, &b, 81), reaches(&a, &b, 90)), (TCP, TCP, NONE));
        let ports = json!([{"port": 85, "endPort": 95}, {"port": 81, "protocol": "UDP"}]);
        node.enforce(&pods, &[json!({"podSelector": b_only, "ingress": [{"ports": ports}]})]);
        assert_eq!((reaches(&c, &b, 80), reaches(&c, &b, 90)), (NONE, TCP));
        assert_eq!(reaches(&c, &b, 81), [false, false, true, true]);

        let blocks = json!([
            {"ipBlock": {"cidr": "10.128.0.0/24", "except": ["10.128.0.4/32"]}},
            {"ipBlock": {"cidr": "fd00::/64", "except": ["fd00::2/128"]}},
        ]);
        node.enforce(&pods, &[json!({"podSelector": b_only, "ingress": [{"from": blocks}]})]);
        assert_eq!(reaches(&a, &b, 80), [true, false, true, false]);
        assert_eq!(reaches(&c, &b, 80), [false, true, false, true]);

        let a_only = json!({"matchLabels": {"pod": "a"}});
        let out = json!({"podSelector": a_only, "policyTypes": ["Egress"], "egress": [
            {"to": [{"podSelector": b_only}], "ports": [{"port": "serve"}]}]});
        node.enforce(&pods, &[out]);
        assert_eq!((reaches(&a, &b, 80), reaches(&a, &b, 81), reaches(&c, &b, 80)), (NONE, TCP, ALL));
        let own = TcpListener::bind((IpAddr::from(GATEWAY), 0)).unwrap();
        assert!(a.tcp(GATEWAY.into(), own.local_addr().unwrap().port()), "the pod reaches its node");
        node.enforce(&pods, &[]);
        assert_eq!(reaches(&a, &b, 90), ALL);
    });
}

#[test]
fn a_connection_ends_when_its_policy_does() {
    in_host(|| {
        let (a, b, c) = (Pod::new("a", 2), Pod::new("b", 3), Pod::new("c", 4));
        // Without a rule that asks for it the kernel does not track connections.
        let mut node = Node::new();
        node.enforce(&[&a, &b, &c], &[]);
        let listener = b.run(|| TcpListener::bind("0.0.0.0:80").unwrap());
        let connect = |from: &Pod, to: IpAddr| {
            let near =
                from.run(move || TcpStream::connect_timeout(&SocketAddr::new(to, 80), PATIENCE).unwrap());
            let (far, _) = listener.accept().unwrap();
            for stream in [&near, &far] {
                stream.set_read_timeout(Some(SILENCE)).unwrap();
            }
            (near, far)
        };
        let (from_a, from_c) = (connect(&a, b.v4), connect(&c, b.v4));
        let passes = |one: &(TcpStream, TcpStream)| {
            let there = (&one.0).write_all(b"x").is_ok() && (&one.1).read_exact(&mut [0]).is_ok();
            let back = (&one.1).write_all(b"y").is_ok() && (&one.0).read_exact(&mut [0]).is_ok();
            (there, back)
        };
        assert_eq!((passes(&from_a), passes(&from_c)), ((true, true), (true, true)));
        let from = json!([{"from": [{"podSelector": {"matchLabels": {"pod": "c"}}}]}]);
        node.enforce(
            &[&a, &b, &c],
            &[json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": from})],
        );
        assert_eq!(end_forbidden(&node.model).unwrap(), 1);
        assert_eq!(passes(&from_a), (false, false), "neither way, though the server may call out");
        assert_eq!(passes(&from_c), (true, true), "what is allowed goes on");
        assert_eq!(end_forbidden(&node.model).unwrap(), 0);
    });
}

#[test]
fn a_policy_sees_the_pod_behind_a_service() {
    in_host(|| {
        let (a, b, c) = (Pod::new("a", 2), Pod::new("b", 3).serve(&[80]), Pod::new("c", 4));
        let service = IpAddr::from([172, 30, 0, 7]);
        let mut nat = Table::new(Family::Ip, "service");
        let translate = vec![
            Expr::Address { family: Family::Ip, which: Address::Destination, to: 0 },
            Expr::Equal { reg: 0, value: vec![172, 30, 0, 7] },
            Expr::Meta { key: MetaKey::Protocol, to: 0 },
            Expr::Equal { reg: 0, value: vec![6] },
            Expr::Load { to: 8, value: vec![10, 128, 0, 3] },
            Expr::Load { to: 9, value: 80u16.to_be_bytes().to_vec() },
            Expr::DestinationNat { family: Family::Ip, address: 8, port: Some(9) },
        ];
        let base = Base { kind: ChainKind::Nat, hook: Hook::Prerouting, priority: PRIORITY_DSTNAT };
        nat.chains.insert("pre".to_owned(), Chain { base: Some(base), rules: vec![translate] });
        // A pod that calls itself must see another address than its own.
        let hairpin = vec![
            Expr::Address { family: Family::Ip, which: Address::Source, to: 0 },
            Expr::Equal { reg: 0, value: vec![10, 128, 0, 3] },
            Expr::Masquerade,
        ];
        let base = Base { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: 100 };
        nat.chains.insert("post".to_owned(), Chain { base: Some(base), rules: vec![hairpin] });
        Nftables::open().unwrap().commit(&nat.replace()).unwrap();
        let mut node = Node::new();
        let pods = [&a, &b, &c];
        node.enforce(&pods, &[]);
        assert!(a.tcp(service, 8080) && c.tcp(service, 8080) && b.tcp(service, 8080));
        let from =
            json!([{"from": [{"podSelector": {"matchLabels": {"pod": "a"}}}], "ports": [{"port": 80}]}]);
        node.enforce(&pods, &[json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": from})]);
        assert!(a.tcp(service, 8080), "allowed by the pod's port, not the Service's");
        assert!(!c.tcp(service, 8080));
        assert!(b.tcp(service, 8080), "itself, by its Service");
        let out = json!([{"to": [{"podSelector": {"matchLabels": {"pod": "b"}}}], "ports": [{"port": 80}]}]);
        node.enforce(&pods, &[json!({"podSelector": {"matchLabels": {"pod": "c"}}, "egress": out, "policyTypes": ["Egress"]})]);
        assert!(c.tcp(service, 8080));
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

/// An SCTP packet with an INIT chunk.
fn sctp_init(port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(40000u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20]);
    packet.extend([0, 0, 0, 9, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1]);
    let sum = checksum(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    packet
}

#[test]
fn sctp_is_told_apart_by_its_ports() {
    in_host(|| {
        let (a, b) = (Pod::new("a", 2), Pod::new("b", 3));
        let raw = || -> OwnedFd {
            rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::SCTP)).unwrap()
        };
        let listener = b.run(raw);
        rustix::net::sockopt::set_socket_timeout(
            &listener,
            rustix::net::sockopt::Timeout::Recv,
            Some(SILENCE),
        )
        .unwrap();
        let sender = a.run(raw);
        let arrives = |port: u16| {
            let to = SocketAddr::new(b.v4, 0);
            rustix::net::sendto(&sender, &sctp_init(port), SendFlags::empty(), &to).unwrap();
            let mut buffer = [0; 256];
            let until = Instant::now() + PATIENCE;
            while let Ok((length, _)) = rustix::net::recv(&listener, &mut buffer[..], RecvFlags::empty()) {
                // Behind the IP header: the ports.
                if buffer[..length].get(22..24) == Some(&port.to_be_bytes()[..]) {
                    return true;
                }
                assert!(Instant::now() < until, "other packets for ever");
            }
            false
        };
        let mut node = Node::new();
        node.enforce(&[&a, &b], &[]);
        assert!(arrives(80));
        let ports = json!([{"port": 81, "protocol": "SCTP"}, {"port": 82, "protocol": "TCP"}]);
        node.enforce(&[&a, &b], &[json!({"podSelector": {}, "ingress": [{"ports": ports}]})]);
        assert!(arrives(81) && !arrives(82) && !arrives(83));
    });
}
