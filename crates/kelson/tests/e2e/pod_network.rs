//! The pod network's agent as a program on two nodes: ranges by the controller manager, the CNI configuration that it leaves,
//! packets between pods of both nodes, and its sudden end.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use cni::{Network, Plugins, PluginsConfig, PodRef};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use netlink::route::{Kind, NewLink, Routing};
use serde_json::json;

use crate::harness::{Cluster, eventually, in_own_network};

const PATIENCE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own: a machine, or a pod.
struct Place {
    netns: PathBuf,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Place {
    fn new() -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, tid) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            netlink::netns::unshare_network().unwrap();
            ready.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            inbox.into_iter().for_each(|job| job());
        });
        let netns = PathBuf::from(format!("/proc/self/task/{}/ns/net", tid.recv().unwrap()));
        Self { netns, jobs: Some(jobs), thread: Some(thread) }
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.jobs.as_ref().unwrap().send(Box::new(move || done.send(work()).unwrap())).unwrap();
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

    fn call(&self, to: impl Into<SocketAddr>) -> std::io::Result<String> {
        let to = to.into();
        self.run(move || {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.jobs.take();
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A node of which nothing runs but the pod network.
struct Machine {
    name: &'static str,
    place: Place,
    dir: PathBuf,
    agent: Option<Child>,
    direct: bool,
}

impl Machine {
    fn start_agent(&mut self, kubeconfig: &Path) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
        command.args([
            "pod-network",
            "agent",
            "--cluster-cidr=10.128.0.0/14",
            "--service-cidr=172.30.0.0/16",
        ]);
        command.arg(format!("--node-name={}", self.name)).arg("--kubeconfig").arg(kubeconfig);
        for (flag, name) in [("state-dir", "state"), ("cni-conf-dir", "net.d"), ("cni-bin-dir", "bin")] {
            command.arg(format!("--{flag}={}", self.dir.join(name).display()));
        }
        command.arg(format!("--socket={}", self.dir.join("run/cni.sock").display()));
        if self.direct {
            command.arg("--direct-routing");
        }
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(self.place.run(move || command.spawn().unwrap()));
    }

    fn plugins(&self) -> Plugins {
        Plugins::new(PluginsConfig {
            conf_dir: self.dir.join("net.d"),
            bin_dirs: vec![self.dir.join("bin")],
            cache_dir: self.dir.join("cache"),
        })
    }

    /// Calls the plug-ins as this machine's runtime would.
    fn with_plugins<T: Send + 'static>(&self, work: impl AsyncFnOnce(&Plugins) -> T + Send + 'static) -> T {
        let plugins = self.plugins();
        self.place.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work(&plugins))
        })
    }

    async fn ready(&self) {
        eventually("the agent's network", || async {
            self.with_plugins(async |plugins: &Plugins| plugins.status().await).map_err(|error| {
                format!("{error}\n{}", std::fs::read_to_string(self.dir.join("log")).unwrap_or_default())
            })
        })
        .await;
    }

    /// Connects a pod that the API server knows: its policies are looked for.
    async fn connect(&self, pods: &Api<Pod>, id: &str, pod: &Place) -> IpAddr {
        let object = json!({
            "metadata": {"name": id},
            "spec": {"nodeName": self.name, "containers": [{"name": "c", "image": "none"}]},
        });
        let object: Pod = serde_json::from_value(object).unwrap();
        let made = eventually("the namespace's account", || async {
            pods.create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
        })
        .await;
        let reference = PodRef {
            sandbox_id: id.to_owned(),
            netns: pod.netns.clone(),
            namespace: "default".into(),
            name: id.to_owned(),
            uid: made.metadata.uid.unwrap_or_default(),
            ..PodRef::default()
        };
        self.with_plugins(async move |plugins: &Plugins| plugins.add(&reference).await.unwrap().addresses[0])
    }

    fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

/// A cable from this namespace into a machine's.
fn plug(bridge: u32, name: &str, number: u8, machine: &Place) {
    let here = Routing::open().unwrap();
    let kind = Kind::Veth { peer: "cable", peer_mac: [2, 0, 0, 0, 1, number], netns: &machine.netns };
    here.create(&NewLink { name, kind, mac: Some([2, 0, 0, 0, 2, number]), mtu: 1500 }).unwrap();
    let index = here.link(name).unwrap().unwrap().index;
    here.set_master(index, bridge).unwrap();
    here.set_up(index, &[]).unwrap();
    machine.run(move || {
        let inner = Routing::open().unwrap();
        let index = inner.link("cable").unwrap().unwrap().index;
        inner.set_up(1, &[]).unwrap();
        inner.set_up(index, &[]).unwrap();
        inner.add_address(index, format!("192.168.77.{number}/24").parse().unwrap()).unwrap();
    });
}

async fn add_node(nodes: &Api<Node>, name: &str, address: &str) -> String {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    eventually("the node's range", || async {
        let node = nodes.get(name).await.map_err(|error| error.to_string())?;
        node.spec.and_then(|spec| spec.pod_cidr).ok_or_else(|| "none yet".to_owned())
    })
    .await
}

fn routes(machine: &Machine) -> Vec<String> {
    machine.place.run(|| {
        Routing::open().unwrap().routes().unwrap().into_iter().map(|route| route.to.to_string()).collect()
    })
}

#[test]
fn pods_of_two_machines_talk_by_what_the_agents_leave_there() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        // The switch, with the API server on it.
        let here = Routing::open().unwrap();
        let kind = Kind::Bridge;
        here.create(&NewLink { name: "switch", kind, mac: None, mtu: 1500 }).unwrap();
        let switch = here.link("switch").unwrap().unwrap().index;
        here.set_up(switch, &[]).unwrap();
        here.add_address(switch, "192.168.77.254/24".parse().unwrap()).unwrap();
        cluster.up_with(&["--control-plane-only", "--bind", "192.168.77.254:6443"]);
        let directory = tempfile::tempdir().unwrap();
        let mut machines: Vec<Machine> = [("node-a", 1, false), ("node-b", 2, false), ("node-c", 3, true)]
            .into_iter()
            .map(|(name, number, direct)| {
                let place = Place::new();
                plug(switch, &format!("port{number}"), number, &place);
                let dir = directory.path().join(name);
                std::fs::create_dir(&dir).unwrap();
                Machine { name, place, dir, agent: None, direct }
            })
            .collect();
        let client = cluster.client().await;
        let (nodes, pods): (Api<Node>, Api<Pod>) =
            (Api::all(client.clone()), Api::namespaced(client, "default"));

        // Before there is a Node, the agent waits and leaves nothing.
        for machine in &mut machines[..2] {
            machine.start_agent(&cluster.kubeconfig());
        }
        add_node(&nodes, "node-a", "192.168.77.1").await;
        machines[0].ready().await;
        assert!(!machines[1].dir.join("net.d/10-kelson.conflist").exists());
        let range = add_node(&nodes, "node-b", "192.168.77.2").await;
        machines[1].ready().await;
        eventually("the new node's range on the first", || async {
            let all = routes(&machines[0]);
            all.contains(&range).then_some(()).ok_or(format!("{all:?}"))
        })
        .await;

        let (a, b) = (Place::new(), Place::new());
        let at_a = machines[0].connect(&pods, "a", &a).await;
        let at_b = machines[1].connect(&pods, "b", &b).await;
        b.serve(80);
        assert_eq!(a.call((at_b, 80)).unwrap(), at_a.to_string(), "pod to pod, address kept");
        let from_host = machines[0].place.call((at_b, 80)).unwrap();
        assert!(from_host.starts_with("10."), "the host by its gateway's address: {from_host}");

        // Packets as large as the wire takes arrive: the tunnel's headers were counted.
        let link = machines[0].place.run(|| Routing::open().unwrap().link("kelson0").unwrap().unwrap());
        assert_eq!(link.mtu, 1450);

        // Its sudden end disturbs nobody; the next one knows the pods, and that their number goes on.
        machines[0].kill_agent();
        assert_eq!(a.call((at_b, 80)).unwrap(), at_a.to_string());
        let status = machines[0].with_plugins(async |plugins: &Plugins| plugins.status().await);
        assert!(status.unwrap_err().to_string().contains("does not answer"), "ready means that it was tried");
        machines[0].start_agent(&cluster.kubeconfig());
        machines[0].ready().await;
        let (again, second) = (Place::new(), a.netns.clone());
        assert_ne!(machines[0].connect(&pods, "a2", &again).await, at_a);
        let reference = PodRef { sandbox_id: "a".into(), netns: second, ..PodRef::default() };
        let check = reference.clone();
        assert!(machines[0].with_plugins(async move |plugins: &Plugins| plugins.check(&check).await).is_ok());
        machines[0].with_plugins(async move |plugins: &Plugins| plugins.del(&reference).await).unwrap();
        assert!(a.call((at_b, 80)).is_err(), "a pod that was disconnected reaches nobody");

        // A node that leaves is not routed to; one that comes is, by plain routes if it is asked for.
        nodes.delete("node-b", &Default::default()).await.unwrap();
        eventually("the route to go", || async {
            let all = routes(&machines[0]);
            (!all.contains(&range)).then_some(()).ok_or(format!("{all:?}"))
        })
        .await;
        for machine in &mut machines[..2] {
            machine.kill_agent();
            machine.direct = true;
        }
        add_node(&nodes, "node-c", "192.168.77.3").await;
        for index in [0, 2] {
            machines[index].start_agent(&cluster.kubeconfig());
            machines[index].ready().await;
        }
        let c = Place::new();
        let at_c = machines[2].connect(&pods, "c", &c).await;
        c.serve(80);
        let from = again.call((at_c, 80)).unwrap();
        assert!(from.starts_with("10.128."), "pod to pod without the tunnel: {from}");
        let seen = machines[0].place.call((at_c, 80)).unwrap();
        assert_eq!(seen, "192.168.77.1", "the host by its own address");
    });
}
