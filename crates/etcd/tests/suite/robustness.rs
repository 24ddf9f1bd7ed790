//! Three real members under faults, with every answer and every watch checked. `kelson bench etcd --robustness --minutes 60` does it for longer.

use std::time::Duration;

use etcd::robustness::faults::Fault;
use etcd::robustness::{Plan, run};
use lifecycle::Stop;

use crate::crash::server_program;

async fn holds(seed: u64, faults: &[&[Fault]]) {
    let directory = tempfile::tempdir().expect("directory");
    let plan = Plan {
        program: server_program(),
        command: Some("etcd"),
        directory: directory.path().join("members"),
        seed,
        time: Duration::ZERO,
        faults: faults.iter().map(|faults| faults.to_vec()).collect(),
    };
    let report = run(plan, &Stop::new(), |line| println!("{line}")).await;
    let report = report.unwrap_or_else(|error| {
        // Somebody will want to look at it.
        let kept = directory.keep();
        panic!("{} (in {})", telemetry::chain(&error), kept.display());
    });
    println!("{report}");
    assert_eq!(report.histories, faults.len());
    assert!(report.answered > 100 && report.events > 100, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_are_told_is_true_while_members_die_pause_and_lose_each_other() {
    holds(
        1,
        &[
            &[Fault::KillLeader],
            &[Fault::Pause, Fault::OneWay],
            &[Fault::Partition],
            &[Fault::Flapping, Fault::MoveLeader],
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_are_told_is_true_while_members_come_and_go() {
    holds(2, &[&[Fault::Members], &[Fault::Wiped, Fault::KillAll], &[Fault::FullDisk]]).await;
}
