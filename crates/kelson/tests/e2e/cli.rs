//! `up`, `status` and `down` as a user meets them.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::harness::{Cluster, in_own_network, leftovers, text};

#[test]
fn a_second_up_says_that_the_cluster_runs_already() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up_with(&["--control-plane-only"]);
        let again = cluster.kelson("up", &["--detach"]);
        assert!(!again.status.success());
        assert!(text(&again).contains("already runs"), "{}", text(&again));
    });
}

#[test]
fn a_port_in_use_is_one_clear_sentence() {
    in_own_network(|| async {
        let taken = TcpListener::bind("127.0.0.1:6443").unwrap();
        let cluster = Cluster::new();
        for more in [&["--control-plane-only"][..], &["--control-plane-only", "--detach"]] {
            let refused = cluster.kelson("up", more);
            assert!(!refused.status.success());
            let said = text(&refused);
            assert!(said.contains("127.0.0.1:6443") && said.contains("--bind"), "{said}");
        }
        drop(taken);
    });
}

#[test]
fn without_root_the_control_plane_runs_and_a_node_is_refused() {
    in_own_network(|| async {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
        let as_nobody = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
            command.args(words).arg("--data-dir").arg(&data).uid(65534).gid(65534);
            command.output().unwrap()
        };
        let refused = as_nobody(&["up"]);
        assert!(!refused.status.success());
        assert!(text(&refused).contains("--control-plane-only"), "{}", text(&refused));
        let started = as_nobody(&["up", "--control-plane-only", "--detach"]);
        assert!(started.status.success(), "{}", text(&started));
        let stopped = as_nobody(&["down", "--purge"]);
        assert!(stopped.status.success(), "{}", text(&stopped));
        assert!(!data.exists());
    });
}

#[test]
fn an_unwritable_directory_is_one_clear_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kelson"))
        .args(["up", "--control-plane-only", "--data-dir"])
        .arg(file.join("data"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output).contains("--data-dir"), "{}", text(&output));
}

#[test]
fn purge_leaves_nothing_behind() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let status = cluster.status();
        assert_eq!(status["nodes"][0]["ready"], true, "{status}");
        let down = cluster.kelson("down", &["--purge"]);
        assert!(down.status.success(), "{}", text(&down));
        assert!(!cluster.data_dir().exists());
        assert_eq!(leftovers(&cluster.data_dir()), Vec::<String>::new());
        let links = netlink::route::Routing::open().unwrap().links().unwrap();
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["lo"]);
    });
}
