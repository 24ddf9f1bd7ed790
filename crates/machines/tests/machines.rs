//! What must be true of machines.

use std::path::Path;
use std::time::Duration;

use ::machines::cluster::ClusterError;
use serde_json::json;

use crate::fixture::{Fixture, Test, config, until};

pub const TESTS: &[(&str, Test)] = &[
    ("a_machine_boots_applies_its_file_and_starts_units_in_order", boots),
    ("a_reboot_keeps_etc_and_var_and_applies_nothing_twice", reboots),
    ("two_machines_reach_each_other_and_two_clusters_do_not", reach),
    ("a_killed_machine_leaves_nothing_and_starts_again", killed),
    ("services_restart_are_limited_and_take_their_processes_along", services),
    ("a_file_that_cannot_be_used_is_named", emergency),
    ("a_machine_goes_on_without_its_monitor_and_gets_a_new_one", adopted),
    ("of_many_who_start_a_machine_one_does_and_the_others_find_it_running", started_by_many),
];

const ONESHOT: &str = "[Service]\nType=oneshot\nRemainAfterExit=yes\n";
const INSTALL: &str = "[Install]\nWantedBy=multi-user.target\n";

fn boots(fixture: &Fixture) {
    let step = |name: &str, after: &str| {
        format!("[Unit]\n{after}\n{ONESHOT}ExecStart=/usr/bin/kelson t-append /var/order {name}\n{INSTALL}")
    };
    let units = [
        ("a.service", step("a", "After=b.service c.service\nRequires=c.service")),
        ("b.service", step("b", "After=c.service")),
        ("c.service", step("c", "")),
        ("skipped.service", step("skipped", "ConditionPathExists=/nowhere")),
        (
            "broken.service",
            format!("[Service]\nExecStart=/usr/bin/kelson t-fail\nMysteryDirective=1\n{INSTALL}"),
        ),
    ];
    let units: Vec<(&str, &str)> = units.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let machine = fixture.boot(
        "a",
        "m-0",
        &config(&units, &[("/etc/hostname", "m-0.example.com\n"), ("/etc/x", "hello\n")]),
    );
    machine.until_state("running");
    assert_eq!(machine.read("var/order"), "c\nb\na\n");
    assert_eq!(machine.read("etc/x"), "hello\n");
    assert!(machine.path("etc/.ignition-result.json").exists());
    assert_eq!(machine.say("/usr/bin/kelson", &["t-cat", "/proc/sys/kernel/hostname"]), "m-0.example.com");
    assert_eq!(machine.say("/usr/bin/systemctl", &["is-active", "a"]), "active");
    assert_eq!(machine.say("/usr/bin/systemctl", &["is-enabled", "a"]), "enabled");
    assert_eq!(
        machine.say("/usr/bin/systemctl", &["show", "skipped", "-p", "ActiveState", "--value"]),
        "inactive"
    );
    let broken = machine.say("/usr/bin/systemctl", &["status", "broken"]);
    assert!(broken.contains("directive MysteryDirective= in section [Service] is not supported"), "{broken}");
    // The root is read-only, also for root.
    let refused = machine.say("/usr/bin/kelson", &["t-write", "/usr/bin/evil"]);
    assert!(refused.contains("Read-only file system"), "{refused}");
    // Its own processes are all it sees.
    let inside = machine.say("/usr/bin/kelson", &["t-cat", "/proc/1/cmdline"]);
    assert!(inside.starts_with("/usr/bin/init"), "{inside:?}");
}

fn reboots(fixture: &Fixture) {
    let text = format!("{ONESHOT}ExecStart=/usr/bin/kelson t-append /var/boots one\n{INSTALL}");
    let machine = fixture.boot("a", "m-0", &config(&[("count.service", &text)], &[("/etc/kept", "first\n")]));
    machine.until_state("running");
    std::fs::write(machine.path("etc/kept"), "changed\n").unwrap();
    machine.cluster().reboot("m-0", Duration::from_secs(60)).unwrap();
    until("the second boot has run its unit", || machine.read("var/boots") == "one\none\n");
    machine.until_state("running");
    assert_eq!((machine.seen().boots, machine.read("etc/kept").as_str()), (2, "changed\n"));
    // Also when the machine itself asks for it.
    machine.exec("/usr/bin/systemctl", &["reboot"]);
    until("the third boot has run its unit", || machine.read("var/boots") == "one\none\none\n");
    machine.until_state("running");
    machine.cluster().stop("m-0", Duration::from_secs(60)).unwrap();
    assert_eq!(machine.seen().state, "stopped");
    machine.cluster().start("m-0").unwrap();
    until("the fourth boot has run its unit", || machine.read("var/boots").lines().count() == 4);
}

fn reach(fixture: &Fixture) {
    let serve = |word: &str| {
        let text =
            format!("[Service]\nType=notify\nExecStart=/usr/bin/kelson t-serve 8080 {word}\n{INSTALL}");
        config(&[("serve.service", &text)], &[])
    };
    // The same addresses in both clusters, side by side.
    let one = fixture.boot("a", "m-0", &serve("a0"));
    let two = fixture.boot("a", "m-1", &serve("a1"));
    let other = fixture.boot("b", "m-0", &serve("b0"));
    for machine in [&one, &two, &other] {
        machine.until_state("running");
    }
    assert_eq!(one.say("/usr/bin/kelson", &["t-fetch", "192.168.126.101:8080"]), "a1");
    assert_eq!(two.say("/usr/bin/kelson", &["t-fetch", "192.168.126.100:8080"]), "a0");
    assert_eq!(other.say("/usr/bin/kelson", &["t-fetch", "192.168.126.100:8080"]), "b0");
    // By name, which the switch's name server knows.
    until("the second machine's name leads to it", || {
        one.say("/usr/bin/kelson", &["t-fetch", "m-1.machines.local:8080"]) == "a1"
    });
    let gone = other.say("/usr/bin/kelson", &["t-fetch", "192.168.126.101:8080"]);
    assert!(gone.contains("No route to host") || gone.contains("timed out"), "{gone}");
    assert_eq!(one.say("/usr/bin/systemctl", &["show", "serve", "-p", "StatusText", "--value"]), "serving");
    // Nothing of it is in the host's network.
    let links = std::fs::read_to_string("/proc/net/dev").unwrap();
    assert!(!links.contains("switch") && !links.contains("port"), "{links}");
}

fn killed(fixture: &Fixture) {
    let text = format!("[Service]\nExecStart=/usr/bin/kelson t-forever\n{INSTALL}");
    let machine = fixture.boot("a", "m-0", &config(&[("forever.service", &text)], &[]));
    machine.until_state("running");
    let id = machine.cluster().shared().id.clone();
    machine.cluster().kill("m-0").unwrap();
    assert_eq!(machine.seen().state, "crashed");
    machine.cluster().start("m-0").unwrap();
    machine.until_state("running");
    assert_eq!(machine.say("/usr/bin/systemctl", &["is-active", "forever"]), "active");
    machine.cluster().destroy().unwrap();
    assert!(!Path::new("/run/kelson/clusters").join(&id).exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&id) && !mounts.contains(fixture.dir("a").to_str().unwrap()), "{mounts}");
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(fixture.dir("a").to_str().unwrap())
    });
    assert_eq!(processes.count(), 0);
    let groups = std::fs::read_to_string("/proc/mounts").unwrap();
    for mount in groups.lines().filter(|line| line.contains(" cgroup")) {
        let root = mount.split(' ').nth(1).unwrap();
        assert!(!Path::new(root).join("kelson").join(&id).exists(), "{root}");
    }
    assert!(!fixture.dir("a").join("local").exists());
}

fn services(fixture: &Fixture) {
    let units = [
        (
            "failing.service",
            format!(
                "[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=60\nOnFailure=rescue.service\n[Service]\nRestart=on-failure\nRestartSec=10ms\nExecStart=/usr/bin/kelson t-fail\n{INSTALL}"
            ),
        ),
        ("rescue.service", format!("{ONESHOT}ExecStart=/usr/bin/kelson t-append /var/rescued yes\n")),
        ("orphan.service", format!("[Service]\nType=forking\nExecStart=/usr/bin/kelson t-orphan\n{INSTALL}")),
        (
            "env.service",
            format!(
                "[Service]\nType=oneshot\nEnvironment=A=x\nEnvironmentFile=/etc/env\nEnvironmentFile=-/etc/none\nExecStartPre=-/usr/bin/kelson t-fail\nExecStart=/usr/bin/kelson t-append /var/env \"${{A}} ${{B}} %n\"\n{INSTALL}"
            ),
        ),
        (
            "bound.service",
            format!(
                "[Unit]\nBindsTo=orphan.service\nAfter=orphan.service\n[Service]\nExecStart=/usr/bin/kelson t-forever\n{INSTALL}"
            ),
        ),
        ("tick.timer", "[Timer]\nOnBootSec=10ms\n[Install]\nWantedBy=timers.target\n".to_owned()),
        ("tick.service", format!("{ONESHOT}ExecStart=/usr/bin/kelson t-append /var/ticked yes\n")),
    ];
    let units: Vec<(&str, &str)> = units.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let mut file = config(&units, &[("/etc/env", "B='y z'\n")]);
    file["systemd"]["units"].as_array_mut().unwrap().push(json!({"name": "masked.service", "mask": true}));
    let machine = fixture.boot("a", "m-0", &file);
    machine.until_state("degraded");
    until("the rescue has run", || machine.read("var/rescued") == "yes\n");
    assert_eq!(
        machine.say("/usr/bin/systemctl", &["show", "failing", "-p", "Result,NRestarts", "--value"]),
        "start-limit-hit\n3"
    );
    assert_eq!(machine.read("var/env"), "x y z env.service\n");
    until("the timer has elapsed", || machine.read("var/ticked") == "yes\n");
    assert_eq!(machine.say("/usr/bin/systemctl", &["is-enabled", "masked"]), "masked");
    // The process that was left behind belongs to its unit, and goes with it; so does what is bound to it.
    let active = |name: &str| machine.say("/usr/bin/systemctl", &["is-active", name]);
    assert_eq!((active("orphan"), active("bound")), ("active".to_owned(), "active".to_owned()));
    machine.exec("/usr/bin/systemctl", &["stop", "orphan"]);
    assert_eq!((active("orphan"), active("bound")), ("inactive".to_owned(), "inactive".to_owned()));
    until("what was left is gone", || {
        !machine.say("/usr/bin/systemctl", &["list-units"]).contains("deactivating")
    });
    let logs = machine.journal();
    assert!(logs.contains("left a child") && logs.contains("orphan.service"), "{logs}");
}

fn emergency(fixture: &Fixture) {
    let mut file = config(&[], &[]);
    file["storage"]["files"] = json!([{
        "path": "/etc/x",
        "contents": {"source": "data:,x", "verification": {"hash": format!("sha512-{}", "0".repeat(128))}},
    }]);
    let machine = fixture.boot("a", "m-0", &file);
    machine.until_state("emergency");
    let detail = machine.seen().detail;
    assert!(detail.contains("no content for /etc/x") && detail.contains("the content has hash"), "{detail}");
    machine.cluster().stop("m-0", Duration::from_secs(30)).unwrap();
    // Waiting for what it refers to is said as such.
    let pointer = json!({"ignition": {"version": "3.4.0", "config": {"merge": [{"source": "https://192.168.126.1:22623/config/master"}]}}});
    let waiting = fixture.boot("a", "m-1", &pointer);
    until("the machine says what it waits for", || {
        let seen = waiting.seen();
        seen.state == "ignition"
            && seen.detail.contains("waiting for https://192.168.126.1:22623/config/master")
    });
}

fn adopted(fixture: &Fixture) {
    let machine = fixture.boot("a", "m-0", &config(&[], &[]));
    machine.until_state("running");
    let pid = machine.seen().pid.unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    let parent = rustix::process::Pid::from_raw(parent).unwrap();
    rustix::process::kill_process(parent, rustix::process::Signal::KILL).unwrap();
    until("the monitor is gone", || machine.cluster().place("m-0").unwrap().lock().unwrap().is_some());
    assert_eq!((machine.seen().state.as_str(), machine.seen().pid), ("running", Some(pid)));
    machine.cluster().start("m-0").unwrap();
    assert_eq!(machine.seen().pid, Some(pid));
    machine.cluster().stop("m-0", Duration::from_secs(60)).unwrap();
    assert!(machine.seen().pid.is_none());
}

/// As after a kill of an installer that had just started a machine, and whose successor starts it again.
fn started_by_many(fixture: &Fixture) {
    let machine = fixture.create("a", "m-0", &config(&[], &[]));
    machine.cluster().ensure_network().unwrap();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| machine.cluster().start("m-0"))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    let started = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let running = outcomes.iter().filter(|outcome| matches!(outcome, Err(ClusterError::Running(_)))).count();
    assert_eq!((started, running), (1, 7), "{outcomes:?}");
    machine.until_state("running");
    assert_eq!(machine.seen().boots, 1);
}
