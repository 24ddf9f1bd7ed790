//! The benchmarks as a user runs them, small: that they measure something and leave nothing.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Cluster, in_own_network, text};

#[test]
fn schedule_binds_every_pod_and_leaves_nothing() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up_with(&["--control-plane-only"]);
        let (kubeconfig, pid) = (cluster.kubeconfig(), cluster.pid().to_string());
        let output = Command::new(env!("CARGO_BIN_EXE_kelson"))
            .args(["bench", "schedule", "--nodes", "5", "--pods", "20", "--deadline", "120", "-o", "json"])
            .args(["--pid", &pid, "--kubeconfig"])
            .arg(&kubeconfig)
            .output()
            .expect("kelson runs");
        assert!(output.status.success(), "{}\n{}", text(&output), cluster.log());
        let results: Vec<Value> = serde_json::from_slice(&output.stdout).expect("the results are JSON");
        let names: Vec<&str> = results.iter().filter_map(|result| result["scenario"].as_str()).collect();
        assert_eq!(names, ["basic", "anti-affinity", "spread", "preferred-affinity"]);
        for result in &results {
            assert_eq!((&result["count"], &result["errors"]), (&20.into(), &0.into()), "{result}");
            assert!(result["perSecond"].as_f64().is_some_and(|rate| rate > 0.0), "{result}");
            assert!(result["micros"][1].as_u64().is_some_and(|p99| p99 > 0), "{result}");
            assert!(result["memoryBytes"].as_u64().is_some_and(|memory| memory > 0), "{result}");
        }
        let client = cluster.client().await;
        for path in ["/api/v1/nodes", "/api/v1/pods"] {
            let request = http::Request::get(path).body(Vec::new()).expect("a request");
            let list: Value = client.request(request).await.expect("a list");
            assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{path}: {list}");
        }
    });
}

#[test]
fn the_algorithm_is_measured_without_a_cluster() {
    let output = Command::new(env!("CARGO_BIN_EXE_kelson"))
        .args(["bench", "schedule", "--algorithm", "--nodes", "20", "--pods", "5"])
        .output()
        .expect("kelson runs");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("preemption") && said.contains("upstream's threshold"), "{said}");
}
