//! Runtimes that end, shims that die, and what the next runtime finds.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use container_runtime::Runtime;
use cri::{ContainerFilter, ContainerState, PodSandboxFilter, PodSandboxState, RuntimeService};

use crate::fixture::{Fixture, config, ended, eventually};

/// The word that makes the test binary a host process, see [`host`].
pub const HOST: &str = "host-process";

/// The word that makes it one that makes and removes pods, see [`churn`].
pub const CHURN: &str = "churn-process";

crate::tests![
    a_new_runtime_finds_the_same_containers,
    kill_nine_of_the_host_process_disturbs_nothing,
    a_dead_shim_is_reported_and_cleaned_up,
    half_made_things_are_removed,
    death_at_any_instant_leaves_nothing_behind,
];

async fn a_new_runtime_finds_the_same_containers(fixture: &Fixture) {
    let mut config = fixture.container_config(&["cat"]);
    config.stdin = true;
    let (sandbox, id) = fixture.run(&config).await;
    let never =
        fixture.runtime.create_container(&sandbox, &config, &fixture.sandbox_config("pod")).await.unwrap();
    let before = fixture.runtime.container_status(&id).await.unwrap();

    let runtime = fixture.reopened().await;
    assert_eq!(runtime.container_status(&id).await.unwrap(), before);
    assert_eq!(runtime.container_status(&never).await.unwrap().state, ContainerState::Created);
    assert_eq!(runtime.pod_sandbox_status(&sandbox).await.unwrap().state, PodSandboxState::Ready);
    runtime.start_container(&never).await.unwrap();
    let output = runtime.exec_sync(&id, &["hostname".to_owned()], crate::fixture::DEADLINE).await.unwrap();
    assert_eq!(&output.stdout[..], b"pod\n");
    runtime.stop_container(&id, std::time::Duration::ZERO).await.unwrap();
    assert_eq!(ended(&runtime, &id).await.exit_code, 137);
    runtime.purge().await.unwrap();
    runtime.close().await;
}

/// Makes and removes pods without an end, to be killed somewhere in between.
pub async fn churn(directory: &Path) {
    let runtime = Runtime::open(config(directory)).await.unwrap();
    let fixture = Fixture { directory: tempfile::TempDir::new_in(directory).unwrap(), runtime };
    println!("ready");
    loop {
        let (sandbox, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
        fixture.runtime.stop_container(&id, std::time::Duration::ZERO).await.unwrap();
        fixture.runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    }
}

async fn death_at_any_instant_leaves_nothing_behind(fixture: &Fixture) {
    let directory = fixture.directory.path().join("churn");
    std::fs::create_dir(&directory).unwrap();
    let exe = std::env::current_exe().unwrap();
    for round in 0..12_u64 {
        let mut host = Command::new(&exe).arg(CHURN).arg(&directory).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(host.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        // Not a wait for something: the instant of death is what is tried out.
        tokio::time::sleep(std::time::Duration::from_micros(7_300 * round + 1_000)).await;
        host.kill().unwrap();
        host.wait().unwrap();
    }
    let runtime = Runtime::open(config(&directory)).await.unwrap();
    runtime.purge().await.unwrap();
    runtime.close().await;
    crate::stepping::assert_clean(&directory, "after random deaths").await;
}

/// Starts a pod that runs on and one that ends later, says so, and waits to be killed.
pub async fn host(directory: &Path) {
    let runtime = Runtime::open(config(directory)).await.unwrap();
    let fixture = Fixture { directory: tempfile::TempDir::new_in(directory).unwrap(), runtime };
    let (sandbox, stays) = fixture.run(&fixture.container_config(&["serve"])).await;
    let ends = fixture.run_in(&sandbox, &fixture.container_config(&["cat", "/tmp/none"])).await;
    let (_, quick) = fixture.run(&fixture.container_config(&["sleep", "0.3"])).await;
    println!("{sandbox} {stays} {ends} {quick}");
    std::future::pending::<()>().await;
}

async fn kill_nine_of_the_host_process_disturbs_nothing(fixture: &Fixture) {
    let directory = fixture.directory.path().join("second");
    std::fs::create_dir(&directory).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut host = Command::new(exe).arg(HOST).arg(&directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(host.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ids: Vec<&str> = line.split_whitespace().collect();
    let [sandbox, stays, ends, quick] = ids[..] else { panic!("the host process says {line:?}") };
    host.kill().unwrap();
    host.wait().unwrap();

    // One ends while nobody looks: its shim records it.
    let exit = |id: &str| {
        let state = directory.join("state");
        let pods = std::fs::read_dir(state).unwrap().flatten();
        pods.map(|pod| pod.path().join(id).join("exit.json")).any(|path| path.exists())
    };
    eventually("the short one ends", || exit(quick)).await;

    let runtime = Runtime::open(config(&directory)).await.unwrap();
    assert_eq!(runtime.pod_sandbox_status(sandbox).await.unwrap().state, PodSandboxState::Ready);
    let status = runtime.container_status(stays).await.unwrap();
    assert_eq!((status.state, status.metadata.attempt), (ContainerState::Running, 0));
    assert!(Path::new(&format!("/proc/{}", status.pid.unwrap())).exists());
    assert_eq!(runtime.container_status(ends).await.unwrap().exit_code, 1);
    let quick = runtime.container_status(quick).await.unwrap();
    assert_eq!((quick.state, quick.exit_code), (ContainerState::Exited, 0));
    assert!(quick.finished_at - quick.started_at > 200_000_000);
    runtime.stop_container(stays, crate::fixture::DEADLINE).await.unwrap();
    assert_eq!(ended(&runtime, stays).await.exit_code, 0);
    runtime.purge().await.unwrap();
    runtime.close().await;
}

async fn a_dead_shim_is_reported_and_cleaned_up(fixture: &Fixture) {
    let (sandbox, id) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let shim = fixture.runtime.pod_sandbox_status(&sandbox).await.unwrap().pid.unwrap();
    let container = fixture.runtime.container_status(&id).await.unwrap().pid.unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(shim as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let status = fixture.ended(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (255, "Unknown"));
    assert_eq!(fixture.runtime.pod_sandbox_status(&sandbox).await.unwrap().state, PodSandboxState::NotReady);
    eventually("the container is gone", || !Path::new(&format!("/proc/{container}/exe")).exists()).await;
    let config = fixture.container_config(&["true"]);
    let error = fixture
        .runtime
        .create_container(&sandbox, &config, &fixture.sandbox_config("pod"))
        .await
        .unwrap_err();
    assert!(matches!(error, cri::Error::FailedPrecondition { .. }), "{error}");
    fixture.runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    assert_eq!(std::fs::read_dir(fixture.directory.path().join("state")).unwrap().count(), 0);
}

async fn half_made_things_are_removed(fixture: &Fixture) {
    let (sandbox, _) = fixture.run(&fixture.container_config(&["sleep", "infinity"])).await;
    let state = fixture.directory.path().join("state");
    // As if we had died before the records were finished.
    std::fs::create_dir(state.join("f".repeat(64))).unwrap();
    std::fs::create_dir(state.join(&sandbox).join("e".repeat(64))).unwrap();
    std::fs::create_dir(fixture.directory.path().join("root/snapshots").join("e".repeat(64))).unwrap();
    let record = state.join(&sandbox).join("sandbox.json");
    let text = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, text.replace("\"Ready\"", "\"Creating\"")).unwrap();

    let runtime = fixture.reopened().await;
    assert!(runtime.list_pod_sandboxes(&PodSandboxFilter::default()).await.unwrap().is_empty());
    assert!(runtime.list_containers(&ContainerFilter::default()).await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(fixture.directory.path().join("root/snapshots")).unwrap().count(), 0);
    runtime.close().await;
}
