//! Plug-ins of others on a real kernel (Debian's containernetworking-plugins), and plug-ins that misbehave. Needs root and
//! those plug-ins; says so and passes otherwise.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use cni::{Error, Network, Plugins, PluginsConfig, PodRef, PortMapping, Protocol};
use netlink::route::Routing;

const PEERS: &str = "/usr/lib/cni";
const PATIENCE: Duration = Duration::from_secs(5);

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("bin")).unwrap();
        fs::create_dir(directory.path().join("net.d")).unwrap();
        Self { directory }
    }

    fn plugins(&self, more: &[&str]) -> Plugins {
        let mut bin_dirs = vec![self.path("bin")];
        bin_dirs.extend(more.iter().map(PathBuf::from));
        Plugins::new(PluginsConfig { conf_dir: self.path("net.d"), bin_dirs, cache_dir: self.path("cache") })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A plug-in that is a script. It says that it speaks every version.
    fn script(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        let versions = r#"{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}"#;
        let text = format!(
            "#!/bin/sh\necho \"$CNI_COMMAND {name}\" >> {log}\nif [ $CNI_COMMAND = VERSION ]; then echo '{versions}'; exit; fi\n{body}\n",
            log = self.path("log").display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn configure(&self, name: &str, text: &str) {
        fs::write(self.path("net.d").join(name), text).unwrap();
    }

    /// What was called since the last time, without VERSION.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("log")).unwrap_or_default();
        let _ = fs::remove_file(self.path("log"));
        text.lines().filter(|line| !line.starts_with("VERSION")).map(str::to_owned).collect()
    }
}

/// Children of this thread's runtime are in this thread's namespace.
fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn pod(id: &str) -> PodRef {
    PodRef {
        sandbox_id: id.to_owned(),
        namespace: "default".to_owned(),
        name: format!("pod-{id}"),
        uid: format!("uid-{id}"),
        netns: "/proc/self/ns/net".into(),
        ..PodRef::default()
    }
}

const ANSWER: &str = r#"echo '{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.2/24"}]}'"#;

#[test]
fn a_chain_is_called_forwards_to_connect_and_backwards_to_disconnect() {
    let place = Place::new();
    let plugins = place.plugins(&[]);
    let reason = now(plugins.status()).unwrap_err().to_string();
    assert!(reason.contains("No CNI configuration file in"), "{reason}");
    place.script("first", ANSWER);
    // The second must see the first one's answer.
    place.script("second", &format!("[ $CNI_COMMAND != ADD ] || grep -q 10.9.0.2/24 || exit 1\n{ANSWER}"));
    place.configure(
        "10-a.conflist",
        r#"{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"first"},{"type":"second"}]}"#,
    );
    now(plugins.gc(&HashSet::new())).unwrap();
    now(plugins.status()).unwrap();
    assert_eq!(place.calls(), ["STATUS first", "STATUS second", "GC first", "GC second"]);
    let attachment = now(plugins.add(&pod("s1"))).unwrap();
    assert_eq!(attachment.addresses, ["10.9.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(place.calls(), ["ADD first", "ADD second"]);
    assert_eq!(
        now(plugins.add(&pod("s1"))).unwrap(),
        attachment,
        "the same attachment, without a second ADD"
    );
    assert_eq!(now(plugins.check(&pod("s1"))).unwrap(), Some(attachment));
    assert_eq!(place.calls(), ["CHECK first", "CHECK second", "CHECK first", "CHECK second"]);
    // What was connected by one configuration is disconnected by it, whatever there is now.
    fs::remove_file(place.path("net.d/10-a.conflist")).unwrap();
    now(plugins.del(&pod("s1"))).unwrap();
    now(plugins.del(&pod("s1"))).unwrap();
    assert_eq!(place.calls(), ["DEL second", "DEL first"]);
}

#[test]
fn a_pod_that_is_gone_is_disconnected_and_one_that_failed_too() {
    let place = Place::new();
    place.script(
        "one",
        &format!("[ $CNI_COMMAND = ADD ] && [ -e {} ] && exit 3\n{ANSWER}", place.path("broken").display()),
    );
    place.configure("10-a.conf", r#"{"cniVersion":"0.4.0","name":"a","type":"one"}"#);
    let plugins = place.plugins(&[]);
    now(plugins.add(&pod("s1"))).unwrap();
    now(plugins.add(&pod("s2"))).unwrap();
    place.calls();
    // A process of its own later: it knows from the disk.
    let plugins = place.plugins(&[]);
    now(plugins.gc(&HashSet::from(["s2".to_owned()]))).unwrap();
    assert_eq!(place.calls(), ["DEL one"]);
    fs::write(place.path("broken"), "").unwrap();
    let error = now(plugins.add(&pod("s3"))).unwrap_err();
    assert!(matches!(error, Error::Plugin { .. }), "{error}");
    now(plugins.del(&pod("s3"))).unwrap();
    assert_eq!(place.calls(), ["ADD one", "DEL one"]);
}

#[test]
fn a_plugin_that_misbehaves_is_told_apart_and_costs_little() {
    let place = Place::new();
    let cases = [
        (r#"echo '{"code":7,"msg":"no room","details":"at all"}'; exit 1"#, "failed (add): no room; at all"),
        ("echo out of luck >&2; exit 2", "no error message (exit status: 2): out of luck"),
        ("echo not json", "its answer cannot be read"),
        ("echo '{\"ips\":[]}'", "it holds no address of the pod"),
        ("head -c 3000000 /dev/zero", "more than 1 MiB"),
        ("kill -9 $$", "signal: 9"),
    ];
    for (index, (body, wanted)) in cases.iter().enumerate() {
        let name = format!("bad{index}");
        place.script(&name, body);
        place.configure("10-a.conf", &format!(r#"{{"cniVersion":"1.0.0","name":"a","type":"{name}"}}"#));
        let error = now(place.plugins(&[]).add(&pod(&name))).unwrap_err().to_string();
        assert!(error.contains(wanted), "{body}: {error}");
    }
}

#[test]
fn the_network_is_ready_only_with_plugins_that_are_there_and_say_so() {
    let place = Place::new();
    let plugins = place.plugins(&[]);
    place.configure("10-a.conflist", r#"{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"late"}]}"#);
    let reason = now(plugins.status()).unwrap_err().to_string();
    assert!(reason.contains("there is no plug-in \"late\""), "{reason}");
    place.script("late", r#"[ $CNI_COMMAND = STATUS ] && { echo '{"code":50,"msg":"not yet"}'; exit 1; }"#);
    let reason = now(plugins.status()).unwrap_err().to_string();
    assert!(reason.contains("failed (status): not yet"), "{reason}");
    place.script("late", ANSWER);
    now(plugins.status()).unwrap();
    // A second file that is broken does not matter; as the first it is passed over.
    place.configure("05-broken.conflist", "{");
    now(plugins.status()).unwrap();
    place.configure("00-old.conflist", r#"{"cniVersion":"0.1.0","name":"o","plugins":[{"type":"late"}]}"#);
    now(plugins.status()).unwrap();
    assert!(
        now(plugins.add(&pod("x"))).is_ok(),
        "the version that the plug-in does not speak is passed over"
    );
}

/// A thread in a network namespace of its own.
struct Guest {
    netns: PathBuf,
    jobs: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Guest {
    fn new() -> Self {
        let (jobs, inbox) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
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
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.jobs.take();
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn call(to: impl Into<SocketAddr>) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn debians_plugins_connect_pods_that_talk_and_leave_nothing() {
    let peers = ["bridge", "host-local", "portmap"].iter().all(|name| Path::new(PEERS).join(name).exists());
    if !testing::root()
        || !testing::found("containernetworking-plugins", peers, "there are none in /usr/lib/cni")
    {
        return;
    }
    netlink::netns::fresh(|| connect_by_peers(false)).unwrap();
    if testing::has("iptables") {
        netlink::netns::fresh(|| connect_by_peers(true)).unwrap();
    }
}

fn connect_by_peers(with_ports: bool) {
    let host = Routing::open().unwrap();
    host.set_up(1, &[]).unwrap();
    let place = Place::new();
    // Debian's portmap looks for rules of both families when it checks a pod that has one.
    let (portmap, disable_check) = match with_ports {
        true => (r#",{"type":"portmap","capabilities":{"portMappings":true},"snat":false}"#, true),
        false => ("", false),
    };
    let store = place.path("ipam");
    place.configure(
            "10-peer.conflist",
            &format!(
                r#"{{"cniVersion":"1.0.0","name":"peer","disableCheck":{disable_check},"plugins":[{{"type":"bridge","bridge":"cni-test0","isGateway":true,
                "ipam":{{"type":"host-local","dataDir":"{}","ranges":[[{{"subnet":"10.77.0.0/24"}}]],
                "routes":[{{"dst":"0.0.0.0/0"}}]}}}}{portmap}]}}"#,
                store.display()
            ),
        );
    let plugins = place.plugins(&[PEERS]);
    now(plugins.status()).unwrap();
    let guests = [Guest::new(), Guest::new()];
    let references: Vec<PodRef> = guests
        .iter()
        .enumerate()
        .map(|(index, guest)| PodRef {
            netns: guest.netns.clone(),
            host_ports: vec![PortMapping {
                protocol: Protocol::Tcp,
                container_port: 80,
                host_port: 8080 + index as u16,
                host_ip: None,
            }],
            ..pod(&format!("peer{index}"))
        })
        .collect();
    let addresses: Vec<IpAddr> =
        references.iter().map(|one| now(plugins.add(one)).unwrap().addresses[0]).collect();
    assert_eq!(addresses, ["10.77.0.2", "10.77.0.3"].map(|text| text.parse::<IpAddr>().unwrap()));
    guests[1].serve(80);
    let target = addresses[1];
    assert_eq!(guests[0].run(move || call((target, 80)).unwrap()), addresses[0].to_string());
    assert_eq!(call((target, 80)).unwrap(), "10.77.0.1");
    if with_ports {
        assert_eq!(guests[0].run(|| call(([10, 77, 0, 1], 8081)).unwrap()), addresses[0].to_string());
    }
    for one in &references {
        assert!(now(plugins.check(one)).unwrap().is_some());
    }
    // One is disconnected while it is there, the other after its namespace is gone.
    now(plugins.del(&references[0])).unwrap();
    let gone = references[1].clone();
    drop(guests);
    let lost = place.plugins(&[PEERS]);
    now(lost.gc(&HashSet::new())).unwrap();
    assert!(now(lost.check(&gone)).unwrap().is_none());
    let leases: Vec<String> = fs::read_dir(store.join("peer"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("10."))
        .collect();
    assert!(leases.is_empty(), "{leases:?}");
    // The listener's socket keeps the second namespace, and its wire with it.
    let left = host.links().unwrap().into_iter().filter(|link| link.name.starts_with("veth")).count();
    assert_eq!(left, 1);
}
