//! Create, run, stop, remove; logs, exit codes, events.

use std::time::{Duration, Instant};

use cri::{
    ContainerEventType, ContainerFilter, ContainerState, PodSandboxFilter, PodSandboxState, RuntimeService,
};
use futures::StreamExt;

use crate::fixture::{DEADLINE, Fixture, eventually};

crate::tests![
    other_users_of_the_host_see_nothing,
    output_is_logged_and_the_exit_code_is_kept,
    a_program_that_is_missing_is_a_start_error,
    stop_asks_first_and_kills_later,
    removing_a_pod_leaves_nothing,
    events_tell_the_whole_story,
    an_absent_image_is_a_clear_error,
    memory_beyond_the_limit_is_an_oom_kill,
    the_log_can_be_rotated,
    limits_can_be_changed_while_running,
    a_failed_sandbox_leaves_nothing,
    start_is_quick,
    many_pods_start_at_once,
];

async fn output_is_logged_and_the_exit_code_is_kept(fixture: &Fixture) {
    let (status, log) = fixture.outcome(&fixture.container_config(&["echo", "hello", "world"])).await;
    assert_eq!((status.exit_code, status.reason.as_str(), log.as_str()), (0, "Completed", "hello world\n"));
    assert!(status.started_at >= status.created_at && status.finished_at >= status.started_at);
    let line = fixture.log("main.log");
    let [time, stream, tag, _] = line.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        panic!("not a log line: {line}")
    };
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    assert_eq!((stream, tag), ("stdout", "F"));

    let (status, _) = fixture.outcome(&fixture.container_config(&["fail", "7"])).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"));
}

async fn a_program_that_is_missing_is_a_start_error(fixture: &Fixture) {
    let sandbox = fixture.sandbox().await;
    let mut config = fixture.container_config(&[]);
    config.command = vec!["/no/such/program".into()];
    let id =
        fixture.runtime.create_container(&sandbox, &config, &fixture.sandbox_config("pod")).await.unwrap();
    let error = fixture.runtime.start_container(&id).await.unwrap_err().to_string();
    assert!(error.contains("/no/such/program") && error.contains("No such file"), "{error}");
    let status = fixture.runtime.container_status(&id).await.unwrap();
    assert_eq!(
        (status.state, status.exit_code, status.reason.as_str()),
        (ContainerState::Exited, 128, "StartError")
    );
    assert!(fixture.runtime.start_container(&id).await.is_err(), "a container runs once");
}

async fn stop_asks_first_and_kills_later(fixture: &Fixture) {
    let (_, id) = fixture.run(&fixture.container_config(&["serve"])).await;
    // Number 1 of a namespace does not get a signal for which it has no handler yet.
    eventually("the server is up", || fixture.log_text("main.log").contains("serves")).await;
    fixture.runtime.stop_container(&id, DEADLINE).await.unwrap();
    assert_eq!(fixture.ended(&id).await.exit_code, 0);

    // A signal that number 1 does not handle is no reason to end.
    let mut deaf = fixture.container_config(&["sleep", "infinity"]);
    deaf.stop_signal = Some("SIGUSR1".parse().unwrap());
    let (_, id) = fixture.run(&deaf).await;
    fixture.runtime.stop_container(&id, Duration::from_millis(100)).await.unwrap();
    assert_eq!(fixture.ended(&id).await.exit_code, 137);
    fixture.runtime.stop_container(&id, DEADLINE).await.unwrap();
}

async fn removing_a_pod_leaves_nothing(fixture: &Fixture) {
    let (sandbox, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let status = fixture.runtime.container_status(&id).await.unwrap();
    let pid = status.pid.unwrap();
    let shim = fixture.runtime.pod_sandbox_status(&sandbox).await.unwrap().pid.unwrap();
    fixture.runtime.stop_pod_sandbox(&sandbox).await.unwrap();
    assert_eq!(fixture.runtime.pod_sandbox_status(&sandbox).await.unwrap().state, PodSandboxState::NotReady);
    assert_eq!(fixture.runtime.container_status(&id).await.unwrap().exit_code, 137);
    fixture.runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    fixture.runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(fixture.runtime.list_pod_sandboxes(&PodSandboxFilter::default()).await.unwrap().is_empty());
    assert!(fixture.runtime.list_containers(&ContainerFilter::default()).await.unwrap().is_empty());
    for pid in [pid, shim] {
        eventually("the process is gone", || !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
    }
    for directory in ["state", "root/snapshots"] {
        let left = std::fs::read_dir(fixture.directory.path().join(directory)).unwrap().count();
        assert_eq!(left, 0, "{directory}");
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*fixture.directory.path().to_string_lossy()), "{mounts}");
    let error = fixture.runtime.container_status(&id).await.unwrap_err();
    assert!(error.is_not_found());
}

async fn events_tell_the_whole_story(fixture: &Fixture) {
    let mut events = fixture.runtime.events().await.unwrap();
    let (sandbox, id) = fixture.run(&fixture.container_config(&["true"])).await;
    fixture.ended(&id).await;
    fixture.runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&(sandbox.clone(), ContainerEventType::Deleted)) {
        let event = tokio::time::timeout(DEADLINE, events.next()).await.unwrap().unwrap();
        seen.push((event.container_id, event.event_type));
    }
    use ContainerEventType::{Created, Deleted, Started, Stopped};
    let of = |id: &str| seen.iter().filter(|(of, _)| of == id).map(|(_, kind)| *kind).collect::<Vec<_>>();
    assert_eq!(of(&id), [Created, Started, Stopped, Deleted]);
    assert_eq!(of(&sandbox).first(), Some(&Created));
    assert_eq!(of(&sandbox).last(), Some(&Deleted));
}

async fn an_absent_image_is_a_clear_error(fixture: &Fixture) {
    use cri::ImageService;
    let sandbox = fixture.sandbox().await;
    let mut config = fixture.container_config(&[]);
    config.image = "example.com/none:1".into();
    let error = fixture
        .runtime
        .create_container(&sandbox, &config, &fixture.sandbox_config("pod"))
        .await
        .unwrap_err();
    assert!(error.is_not_found(), "{error}");
    let sandbox_config = fixture.sandbox_config("pod");
    let none = "kelson.local/none".into();
    let error = fixture.runtime.pull_image(&none, None, &sandbox_config).await.unwrap_err();
    assert!(matches!(&error, cri::Error::ImagePull { .. }), "{error}");
    assert!(fixture.runtime.image_status(&config.image).await.unwrap().is_none());
    let demo = fixture.runtime.image_status(&"kelson.local/demo".into()).await.unwrap().unwrap();
    assert!(demo.pinned && demo.repo_tags.iter().any(|tag| tag == "kelson.local/demo:latest"));
}

async fn memory_beyond_the_limit_is_an_oom_kill(fixture: &Fixture) {
    let mut config = fixture.container_config(&["oom"]);
    config.linux.resources.memory_limit_in_bytes = 32 << 20;
    config.linux.resources.memory_swap_limit_in_bytes = 32 << 20;
    let (status, _) = fixture.outcome(&config).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"));
}

async fn the_log_can_be_rotated(fixture: &Fixture) {
    let mut config = fixture.container_config(&["cat"]);
    config.stdin = true;
    let (_, id) = fixture.run(&config).await;
    let options = cri::AttachOptions { stdin: true, ..Default::default() };
    let mut stdin = fixture.runtime.attach(&id, options).await.unwrap().stdin.unwrap();
    let path = fixture.directory.path().join("logs/main.log");
    for (line, expected) in [("one\n", "one\n"), ("two\n", "two\n")] {
        tokio::io::AsyncWriteExt::write_all(&mut stdin, line.as_bytes()).await.unwrap();
        eventually("the line is logged", || fixture.log_text("main.log") == expected).await;
        std::fs::rename(&path, path.with_extension("old")).unwrap();
        fixture.runtime.reopen_container_log(&id).await.unwrap();
    }
}

async fn limits_can_be_changed_while_running(fixture: &Fixture) {
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.linux.resources.memory_limit_in_bytes = 64 << 20;
    config.linux.resources.memory_swap_limit_in_bytes = 64 << 20;
    config.linux.resources.cpu_shares = 512;
    let (sandbox, id) = fixture.run(&config).await;
    for limit in [32 << 20, 128 << 20] {
        let change = cri::LinuxContainerResources {
            memory_limit_in_bytes: limit,
            memory_swap_limit_in_bytes: limit,
            ..Default::default()
        };
        fixture.runtime.update_container_resources(&id, &change).await.unwrap();
    }
    let status = fixture.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.resources.memory_limit_in_bytes, status.resources.cpu_shares), (128 << 20, 512));
    let stats = fixture.runtime.container_stats(&id).await.unwrap();
    assert!(stats.memory.usage_bytes.is_some_and(|bytes| bytes > 0), "{stats:?}");
    assert!(stats.memory.available_bytes.is_some_and(|bytes| bytes > 64 << 20), "{stats:?}");
    assert!(stats.cpu.usage_core_nano_seconds.is_some_and(|spent| spent > 0), "{stats:?}");
    let pod = fixture.runtime.pod_sandbox_stats(&sandbox).await.unwrap();
    assert_eq!(pod.containers.len(), 1);
}

async fn a_failed_sandbox_leaves_nothing(fixture: &Fixture) {
    let mut config = fixture.sandbox_config("pod");
    config.linux.sysctls.insert("net.no_such_thing".into(), "1".into());
    let error = fixture.runtime.run_pod_sandbox(&config).await.unwrap_err();
    assert!(format!("{error:?}").contains("net.no_such_thing"), "{error:?}");
    assert!(fixture.runtime.list_pod_sandboxes(&PodSandboxFilter::default()).await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(fixture.directory.path().join("state")).unwrap().count(), 0);
}

async fn start_is_quick(fixture: &Fixture) {
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let (_, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
        times.push(start.elapsed());
        assert_eq!(fixture.runtime.container_status(&id).await.unwrap().state, ContainerState::Running);
    }
    times.sort();
    println!("pod to running: median {:?}, all {times:?}", times[2]);
    // Generous: a debug build on a busy machine. The figure that counts is in docs/benchmarks.md.
    assert!(times[2] < Duration::from_secs(2), "{times:?}");
}

async fn many_pods_start_at_once(fixture: &Fixture) {
    const PODS: usize = 25;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let start = Instant::now();
    let pods = (0..PODS).map(|number| async move {
        let mut config = fixture.container_config(&["sleep", "infinity"]);
        config.log_path = format!("{number}.log").into();
        fixture.run(&config).await
    });
    let pods = futures::future::join_all(pods).await;
    println!("{PODS} pods at once: {:?}", start.elapsed());
    for (_, id) in &pods {
        assert_eq!(fixture.runtime.container_status(id).await.unwrap().state, ContainerState::Running);
    }
    let removals = pods.iter().map(|(sandbox, _)| fixture.runtime.remove_pod_sandbox(sandbox));
    for outcome in futures::future::join_all(removals).await {
        outcome.unwrap();
    }
    eventually("no descriptor is left open", || descriptors() <= before + 2).await;
}

/// No file that describes a pod can be read, and no socket connected to, by anyone but root.
async fn other_users_of_the_host_see_nothing(fixture: &Fixture) {
    use std::os::unix::fs::PermissionsExt;
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.envs = vec![cri::KeyValue { key: "SECRET".into(), value: "x".into() }];
    let (sandbox, id) = fixture.run(&config).await;
    let mode = |path: &str| {
        std::fs::metadata(fixture.directory.path().join(path)).unwrap().permissions().mode() & 0o7777
    };
    for directory in [
        "state",
        "root",
        &format!("state/{sandbox}"),
        &format!("state/{sandbox}/{id}"),
        &format!("root/snapshots/{id}"),
    ] {
        assert_eq!(mode(directory), 0o700, "{directory}");
    }
    for file in [
        "shim.sock",
        "shim.json",
        "sandbox.json",
        "shim.log",
        &format!("{id}/spec.json"),
        &format!("{id}/run.json"),
    ] {
        assert_eq!(mode(&format!("state/{sandbox}/{file}")), 0o600, "{file}");
    }
    assert_eq!(mode("logs/main.log"), 0o640);
}
