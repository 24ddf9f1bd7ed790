//! The pod network on a real kernel, each test in network namespaces of its own. Needs root; says so and passes
//! otherwise.

use std::collections::HashSet;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cni::{Network, PodRef, PortMapping, Protocol};
use netlink::nft::{Family, Nftables};
use netlink::route::Routing;
use pod_network::{Config, PodNetwork};

const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the test inside a new network namespace, with a directory for state.
fn in_host(test: impl FnOnce(&Path) + Send) {
    if !testing::root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    netlink::netns::fresh(|| {
        Routing::open().unwrap().set_up(1, &[]).unwrap();
        test(directory.path());
    })
    .unwrap();
}

fn config(state: &Path) -> Config {
    Config {
        bridge: "kelson0".to_owned(),
        pod_cidr: "10.128.0.0/23".parse().unwrap(),
        cluster_cidr: "10.128.0.0/14".parse().unwrap(),
        service_cidr: Some("172.30.0.0/16".parse().unwrap()),
        state_dir: state.to_owned(),
        mtu: None,
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that lives in a network namespace of its own, as a pod's processes would.
struct Pod {
    reference: PodRef,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Pod {
    fn new(id: &str, host_ports: Vec<PortMapping>) -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, tid) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            netlink::netns::unshare_network().unwrap();
            ready.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            inbox.into_iter().for_each(|job| job());
        });
        let netns = PathBuf::from(format!("/proc/self/task/{}/ns/net", tid.recv().unwrap()));
        let name = id.to_owned();
        let sandbox_id = format!("sandbox-{id}");
        let reference = PodRef {
            sandbox_id,
            netns,
            name,
            namespace: "default".to_owned(),
            host_ports,
            ..PodRef::default()
        };
        Self { reference, jobs: Some(jobs), thread: Some(thread) }
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = Box::new(move || done.send(work()).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        result.recv().unwrap()
    }

    /// Answers each connection with the address it seems to come from.
    fn serve(&self, port: u16) {
        let listener = self.run(move || TcpListener::bind(("0.0.0.0", port)).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let peer = stream.peer_addr().unwrap();
                let _ = write!(stream, "{}", peer.ip());
            }
        });
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

/// Runs a call to its end; its blocking threads are children of this one and so in its namespace.
fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn add(network: &PodNetwork, pod: &Pod) -> IpAddr {
    now(network.add(&pod.reference)).unwrap().addresses[0]
}

fn port(host_port: u16, container_port: u16) -> PortMapping {
    PortMapping { protocol: Protocol::Tcp, container_port, host_port, host_ip: None }
}

#[test]
fn pods_reach_each_other_and_the_host_with_their_own_addresses() {
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        now(network.status()).unwrap();
        let (a, b) = (Pod::new("a", vec![]), Pod::new("b", vec![]));
        let (at_a, at_b) = (add(&network, &a), add(&network, &b));
        assert_eq!((at_a.to_string(), at_b.to_string()), ("10.128.0.2".into(), "10.128.0.3".into()));
        assert_eq!(add(&network, &a), at_a, "a second add answers with the same attachment");
        b.serve(80);
        assert_eq!(a.call((at_b, 80)).unwrap(), at_a.to_string());
        assert_eq!(call((at_b, 80)).unwrap(), network.gateway().to_string());
        let listener = TcpListener::bind((network.gateway(), 0)).unwrap();
        let at_host = listener.local_addr().unwrap();
        let seen = std::thread::spawn(move || listener.accept().unwrap().1.ip());
        let _ = a.call(at_host);
        assert_eq!(seen.join().unwrap(), at_a);
        b.run(|| TcpStream::connect_timeout(&"127.0.0.1:80".parse().unwrap(), PATIENCE).unwrap());
    });
}

#[test]
fn bandwidth_is_limited_in_both_directions() {
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let mut slow = Pod::new("slow", vec![]);
        slow.reference.bandwidth = cni::Bandwidth { ingress: Some(16_000_000), egress: Some(8_000_000) };
        let fast = Pod::new("fast", vec![]);
        let (at_slow, _) = (add(&network, &slow), add(&network, &fast));
        let listener = slow.run(|| TcpListener::bind(("0.0.0.0", 80)).unwrap());
        // Sends a megabyte one way, then the other; each way must take most of the time that its rate gives it.
        let size = 1 << 20;
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut data = vec![0; size];
            stream.read_exact(&mut data).unwrap();
            let received = Instant::now();
            stream.write_all(&data).unwrap();
            received
        });
        let (started, ended) = fast.run(move || {
            let mut stream = TcpStream::connect_timeout(&(at_slow, 80).into(), PATIENCE).unwrap();
            let started = Instant::now();
            let mut data = vec![0; size];
            stream.write_all(&data).unwrap();
            stream.read_exact(&mut data).unwrap();
            (started, Instant::now())
        });
        let received = echo.join().unwrap();
        let (to_pod, from_pod) = (received - started, ended - received);
        assert!(to_pod > Duration::from_millis(250), "8.4 Mbit at 16 Mbit/s took {to_pod:?}");
        assert!(from_pod > Duration::from_millis(500), "8.4 Mbit at 8 Mbit/s took {from_pod:?}");
    });
}

#[test]
fn a_range_in_which_the_host_lives_is_refused() {
    in_host(|state| {
        let routing = Routing::open().unwrap();
        routing.add_address(1, "10.128.1.5/24".parse().unwrap()).unwrap();
        let error = PodNetwork::open(config(state)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "range 10.128.0.0/23 overlaps the address 10.128.1.5/24 of device lo: choose another range"
        );
        assert!(routing.link("kelson0").unwrap().is_none(), "nothing was made");
    });
}

#[test]
fn an_address_without_a_pod_is_unreachable_at_once() {
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let a = Pod::new("a", vec![]);
        add(&network, &a);
        let error = a.call(([10, 128, 1, 77], 80)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::HostUnreachable, "{error}");
    });
}

#[test]
fn a_restart_keeps_leases_and_connections_and_reclaims_what_leaked() {
    in_host(|state| {
        let (a, b) = (Pod::new("a", vec![]), Pod::new("b", vec![]));
        let first = PodNetwork::open(config(state)).unwrap();
        let (at_a, at_b) = (add(&first, &a), add(&first, &b));
        b.serve(80);
        drop(first);
        assert_eq!(a.call((at_b, 80)).unwrap(), at_a.to_string(), "pods do not need the process");
        let second = PodNetwork::open(config(state)).unwrap();
        assert_eq!(now(second.check(&a.reference)).unwrap().unwrap().addresses, [at_a]);
        assert_eq!(add(&second, &a), at_a);
        let c = Pod::new("c", vec![]);
        assert_eq!(add(&second, &c).to_string(), "10.128.0.4");
        let live = HashSet::from([a.reference.sandbox_id.clone(), c.reference.sandbox_id.clone()]);
        assert_eq!(second.reclaim(&live).unwrap(), 1);
        assert_eq!(now(second.check(&b.reference)).unwrap(), None);
        assert!(a.call((at_b, 80)).is_err());
        now(second.del(&b.reference)).unwrap();
    });
}

#[test]
fn host_ports_lead_into_the_pod_from_everywhere() {
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let (server, client) = (Pod::new("s", vec![port(8080, 80)]), Pod::new("c", vec![]));
        let at_server = add(&network, &server);
        let at_client = add(&network, &client);
        server.serve(80);
        let gateway = network.gateway();
        assert_eq!(client.call((gateway, 8080)).unwrap(), at_client.to_string());
        if let Some(nft) = testing::program("nft") {
            let output = std::process::Command::new(nft).args(["list", "ruleset"]).output().unwrap();
            assert!(output.status.success(), "nft must be able to show our table");
        }
        assert_eq!(call((gateway, 8080)).unwrap(), gateway.to_string());
        assert_eq!(call(([127, 0, 0, 1], 8080)).unwrap(), gateway.to_string(), "from the host's loopback");
        assert_eq!(server.call((gateway, 8080)).unwrap(), gateway.to_string(), "the pod calls itself");
        let rival = Pod::new("r", vec![port(8080, 81)]);
        assert!(matches!(now(network.add(&rival.reference)), Err(cni::Error::PortTaken { port: 8080, .. })));
        now(network.del(&server.reference)).unwrap();
        assert!(call((gateway, 8080)).is_err());
        let heir = add(&network, &rival);
        assert_ne!(heir, at_server, "a freed address rests");
        rival.serve(81);
        assert_eq!(call((gateway, 8080)).unwrap(), gateway.to_string());
    });
}

/// A machine on the network of the host sends packets for addresses that are the host's own.
#[test]
fn what_is_for_this_machine_is_not_for_neighbours() {
    use netlink::route::{Ipv4Setting, Kind, NewLink, Route, Target};
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let gateway = network.gateway();
        let (pod, neighbour) = (Pod::new("p", vec![]), Pod::new("neighbour", vec![]));
        add(&network, &pod);
        let host = Routing::open().unwrap();
        let kind = Kind::Veth { peer: "in", peer_mac: [2, 0, 0, 0, 0, 1], netns: &neighbour.reference.netns };
        host.create(&NewLink { name: "out", kind, mac: None, mtu: 1500 }).unwrap();
        let out = host.link("out").unwrap().unwrap().index;
        let other = Routing::open_in(&neighbour.reference.netns).unwrap();
        let inner = other.link("in").unwrap().unwrap().index;
        // As other programs on the host may have left it.
        host.set_up(out, &[(Ipv4Setting::RouteLocalnet, 1), (Ipv4Setting::RpFilter, 0)]).unwrap();
        other.set_up(inner, &[(Ipv4Setting::RouteLocalnet, 1)]).unwrap();
        host.add_address(out, "192.0.2.1/24".parse().unwrap()).unwrap();
        other.add_address(inner, "192.0.2.2/24".parse().unwrap()).unwrap();
        let at_host: IpAddr = "192.0.2.1".parse().unwrap();
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let back: IpAddr = "192.0.2.2".parse().unwrap();
        for (routing, to, index) in [(&host, back, out), (&other, at_host, inner)] {
            routing
                .set_route(&Route { to: to.into(), target: Target::Link { index }, source: None })
                .unwrap();
        }
        for to in [gateway, loopback] {
            let target = Target::Via { gateway: at_host, index: inner };
            other.set_route(&Route { to: to.into(), target, source: None }).unwrap();
        }
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let reaches = |from: &Pod, to: IpAddr| {
            from.run(move || TcpStream::connect_timeout(&(to, port).into(), Duration::from_secs(1)).is_ok())
        };
        assert!(reaches(&neighbour, at_host), "the way there works");
        assert!(!reaches(&neighbour, gateway), "the gateway's address");
        assert!(!reaches(&neighbour, loopback), "a loopback address");
        assert!(reaches(&pod, gateway), "pods reach the gateway");
        for to in [gateway, loopback] {
            assert!(
                TcpStream::connect_timeout(&(to, port).into(), PATIENCE).is_ok(),
                "so does the host: {to}"
            );
        }
    });
}

#[test]
fn what_was_removed_from_outside_comes_back() {
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let a = Pod::new("a", vec![port(8080, 80)]);
        add(&network, &a);
        a.serve(80);
        let table = netlink::nft::Table::new(Family::Ip, "kelson0");
        Nftables::open().unwrap().commit(&table.remove()).unwrap();
        assert!(call((network.gateway(), 8080)).is_err());
        now(network.status()).unwrap();
        assert_eq!(call((network.gateway(), 8080)).unwrap(), network.gateway().to_string());
        Routing::open().unwrap().delete_link("kelson0").unwrap();
        now(network.status()).unwrap();
        assert_eq!(call((network.gateway(), 8080)).unwrap(), network.gateway().to_string());
    });
}

#[test]
fn pods_of_two_nodes_reach_each_other_through_the_overlay() {
    use netlink::route::{Kind, NewLink};
    use pod_network::overlay::{Config as Overlay, Peer};
    in_host(|state| {
        // The other node is a namespace too; a cable joins the two.
        let far = Pod::new("far-node", vec![]);
        let here = Routing::open().unwrap();
        let kind = Kind::Veth { peer: "cable", peer_mac: [2, 0, 0, 0, 0, 2], netns: &far.reference.netns };
        here.create(&NewLink { name: "cable", kind, mac: Some([2, 0, 0, 0, 0, 1]), mtu: 1500 }).unwrap();
        let plug = |address: &str| {
            let routing = Routing::open().unwrap();
            let index = routing.link("cable").unwrap().unwrap().index;
            routing.set_up(1, &[]).unwrap();
            routing.set_up(index, &[]).unwrap();
            routing.add_address(index, address.parse().unwrap()).unwrap();
        };
        plug("192.168.7.1/24");
        let overlay = |ip: &str| Some(Overlay::new(ip.parse().unwrap()));
        let near_network = PodNetwork::open_joined(config(state), overlay("192.168.7.1")).unwrap();
        let far_config = Config { pod_cidr: "10.128.2.0/23".parse().unwrap(), ..config(&state.join("far")) };
        let far_overlay = overlay("192.168.7.2");
        let far_network = far.run(move || {
            plug("192.168.7.2/24");
            PodNetwork::open_joined(far_config, far_overlay).unwrap()
        });
        let peer =
            |range: &str, ip: &str| Peer { pod_cidr: range.parse().unwrap(), address: ip.parse().unwrap() };
        near_network.set_peers(&[peer("10.128.2.0/23", "192.168.7.2")]).unwrap();
        let (a, b) = (Pod::new("a", vec![]), Pod::new("b", vec![]));
        let at_a = add(&near_network, &a);
        let (reference, network) = (b.reference.clone(), far_network.clone());
        let at_b = far.run(move || {
            network.set_peers(&[peer("10.128.0.0/23", "192.168.7.1")]).unwrap();
            now(network.add(&reference)).unwrap().addresses[0]
        });
        b.serve(80);
        assert_eq!(at_b.to_string(), "10.128.2.2");
        assert_eq!(a.call((at_b, 80)).unwrap(), at_a.to_string(), "pod to pod, address kept");
        assert_eq!(call((at_b, 80)).unwrap(), near_network.gateway().to_string(), "host to far pod");
        near_network.set_peers(&[]).unwrap();
        assert!(call((at_b, 80)).is_err(), "a node that left is not reached");
        near_network.purge().unwrap();
        assert!(here.link("kelson-vx").unwrap().is_none());
    });
}

#[test]
fn purge_leaves_nothing() {
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let a = Pod::new("a", vec![port(8080, 80)]);
        add(&network, &a);
        drop(network);
        PodNetwork::remove(config(state), None).unwrap();
        PodNetwork::remove(config(state), None).unwrap();
        let routing = Routing::open().unwrap();
        let names: Vec<String> = routing.links().unwrap().into_iter().map(|link| link.name).collect();
        assert_eq!(names, ["lo"]);
        assert_eq!(routing.routes().unwrap(), []);
        assert!(Nftables::open().unwrap().tables(Family::Ip).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(state).unwrap().count(), 0);
    });
}

#[test]
fn pods_pass_an_iptables_firewall_that_drops() {
    in_host(|state| {
        let iptables = |line: &str| {
            let output = std::process::Command::new("iptables-nft").args(line.split(' ')).output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        if !testing::has("iptables-nft") {
            return;
        }
        iptables("-P FORWARD DROP");
        iptables("-P INPUT DROP");
        iptables("-A INPUT -i lo -j ACCEPT");
        let network = PodNetwork::open(config(state)).unwrap();
        let (a, b) = (Pod::new("a", vec![]), Pod::new("b", vec![]));
        let (at_a, at_b) = (add(&network, &a), add(&network, &b));
        b.serve(80);
        assert_eq!(a.call((at_b, 80)).unwrap(), at_a.to_string());
        let listed = iptables("-S FORWARD");
        assert!(listed.contains("-A FORWARD -i kpod+ -j ACCEPT"), "iptables reads it as its own: {listed}");
        iptables("-F FORWARD");
        now(network.status()).unwrap();
        assert_eq!(iptables("-S FORWARD"), listed);
        network.purge().unwrap();
        assert_eq!(iptables("-S FORWARD"), "-P FORWARD DROP\n");
        assert_eq!(iptables("-S INPUT"), "-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n");
    });
}

/// Prints how long a pod's connection takes; run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn measure_pods() {
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let pods: Vec<Pod> = (0..100).map(|number| Pod::new(&number.to_string(), vec![])).collect();
        let started = Instant::now();
        for pod in &pods {
            add(&network, pod);
        }
        println!("add: {:?} per pod", started.elapsed() / 100);
        let started = Instant::now();
        for pod in &pods {
            now(network.del(&pod.reference)).unwrap();
        }
        println!("del: {:?} per pod", started.elapsed() / 100);
        let started = Instant::now();
        now(network.status()).unwrap();
        println!("status: {:?}", started.elapsed());
    });
}

#[test]
fn a_pod_sends_with_its_own_address_or_not_at_all() {
    use netlink::route::{Ipv4Setting, Route, Target};
    in_host(|state| {
        let network = PodNetwork::open(config(state)).unwrap();
        let (liar, other, server) = (Pod::new("l", vec![]), Pod::new("o", vec![]), Pod::new("s", vec![]));
        let (at_liar, at_other, at_server) =
            (add(&network, &liar), add(&network, &other), add(&network, &server));
        server.serve(80);
        // The kernel's own check is off, as an administrator may have it for the whole host.
        let routing = Routing::open().unwrap();
        for link in routing.links().unwrap().iter().filter(|link| link.name.starts_with("kpod")) {
            routing.set_up(link.index, &[(Ipv4Setting::RpFilter, 0)]).unwrap();
        }
        assert_eq!(liar.call((at_server, 80)).unwrap(), at_liar.to_string());
        let heard = server.run(|| std::net::UdpSocket::bind("0.0.0.0:81").unwrap());
        heard.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let send = move |source: IpAddr| {
            let socket = std::net::UdpSocket::bind((source, 0)).unwrap();
            socket.send_to(b"x", (at_server, 81)).unwrap();
        };
        liar.run(move || send(at_liar));
        assert_eq!(heard.recv_from(&mut [0; 8]).unwrap().1.ip(), at_liar);
        liar.run(move || {
            let routing = Routing::open().unwrap();
            let index = routing.link("eth0").unwrap().unwrap().index;
            routing.add_address(index, at_other.into()).unwrap();
            let gateway = IpAddr::from([10, 128, 0, 1]);
            let target = Target::Via { gateway, index };
            routing.set_route(&Route { to: at_server.into(), target, source: Some(at_other) }).unwrap();
            send(at_other);
        });
        assert!(heard.recv_from(&mut [0; 8]).is_err(), "under another pod's address");
        other.run(move || send(at_other));
        assert_eq!(heard.recv_from(&mut [0; 8]).unwrap().1.ip(), at_other);
    });
}
