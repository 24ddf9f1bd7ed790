//! Controllers with the identities and the roles that they have in a cluster, where a test beside the code has an
//! administrator's.

use crate::harness::{Cluster, eventually, in_own_network, text};

#[test]
fn controllers_may_do_what_they_decide() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        if cluster.kubectl_command(&[]).is_none() {
            eprintln!("SKIPPED: this machine has no kubectl");
            return;
        }
        cluster.up_with(&["--control-plane-only"]);
        let kubectl = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let output = cluster.kubectl(&words).expect("kubectl runs");
            if output.status.success() { Ok(text(&output)) } else { Err(text(&output)) }
        };
        let says = async |line: &str, expected: &str| {
            eventually(line, || async {
                let answer = kubectl(line)?;
                if answer.contains(expected) { Ok(()) } else { Err(format!("{expected} is not in {answer}")) }
            })
            .await;
        };
        // Both may update what they may not get.
        kubectl("create quota few --hard=configmaps=3,secrets=2").unwrap();
        says("get quota few -o jsonpath={.status.used}", r#""configmaps":"1""#).await;
        says("get configmap kube-root-ca.crt", "kube-root-ca.crt").await;
        kubectl(r#"patch configmap kube-root-ca.crt -p {"data":{"ca.crt":""}}"#).unwrap();
        says("get configmap kube-root-ca.crt -o jsonpath={.data}", "BEGIN CERTIFICATE").await;
        let log = std::fs::read_to_string(cluster.data_dir().join("kelson.log")).unwrap();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("is forbidden")).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    });
}
