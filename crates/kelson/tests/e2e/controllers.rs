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
        // What is charged stays charged, and is given back with its object, whatever its kind.
        kubectl("create quota sets --hard=count/deployments.apps=1,services.nodeports=1").unwrap();
        says("get quota sets -o jsonpath={.status.used}", r#""count/deployments.apps":"0""#).await;
        kubectl("create deployment one --image=none --replicas=0").unwrap();
        kubectl("create service nodeport one --tcp=80").unwrap();
        assert!(kubectl("create service nodeport two --tcp=80").is_err());
        assert!(
            kubectl("create deployment two --image=none --replicas=0")
                .unwrap_err()
                .contains("exceeded quota")
        );
        kubectl("delete deployment one").unwrap();
        says("get quota sets -o jsonpath={.status.used}", r#""count/deployments.apps":"0""#).await;
        says("get configmap kube-root-ca.crt", "kube-root-ca.crt").await;
        kubectl(r#"patch configmap kube-root-ca.crt -p {"data":{"ca.crt":""}}"#).unwrap();
        says("get configmap kube-root-ca.crt -o jsonpath={.data}", "BEGIN CERTIFICATE").await;
        let log = std::fs::read_to_string(cluster.data_dir().join("kelson.log")).unwrap();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("is forbidden")).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    });
}

#[test]
fn load_balancers_and_metrics_work_out_of_the_box() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        if cluster.kubectl_command(&[]).is_none() {
            eprintln!("SKIPPED: this machine has no kubectl");
            return;
        }
        cluster.up_with(&["--load-balancer-pool", "192.0.2.16/28"]);
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
        kubectl("create deployment web --image=kelson.local/demo").unwrap();
        kubectl("set resources deployment web --requests=cpu=1m").unwrap();
        kubectl("expose deployment web --port=80 --target-port=8080 --type=LoadBalancer").unwrap();
        says("get service web -o jsonpath={.status.loadBalancer.ingress[0].ip}", "192.0.2.17").await;
        kubectl("rollout status deployment web --timeout=60s").unwrap();
        eventually("the address answers", || async {
            use std::io::{Read, Write};
            let address = "192.0.2.17:80".parse().expect("an address");
            let limit = std::time::Duration::from_secs(2);
            let mut stream =
                std::net::TcpStream::connect_timeout(&address, limit).map_err(|e| e.to_string())?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").map_err(|e| e.to_string())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map_err(|e| e.to_string())?;
            if answer.contains("web-") { Ok(()) } else { Err(answer) }
        })
        .await;
        says("top nodes", "CPU(cores)").await;
        says("top pods", "web-").await;
        kubectl("autoscale deployment web --min=1 --max=3 --cpu-percent=50").unwrap();
        says("get hpa web -o jsonpath={.status.conditions}", "ValidMetricFound").await;
        kubectl("delete service web --timeout=30s").unwrap();
    });
}
