//! Controllers with the identities and the roles that they have in a cluster, where a test beside the code has an
//! administrator's.

use std::io::Write;
use std::process::Stdio;

use crate::harness::{Cluster, eventually, in_own_network, text};

/// kubectl on a cluster, line by line.
struct Walk<'a>(&'a Cluster);

impl<'a> Walk<'a> {
    fn over(cluster: &'a Cluster) -> Option<Self> {
        cluster.kubectl_command(&[])?;
        Some(Self(cluster))
    }

    fn kubectl(&self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.0.kubectl(&words).expect("kubectl runs");
        if output.status.success() { Ok(text(&output)) } else { Err(text(&output)) }
    }

    /// Waits until a line's answer has this in it.
    async fn says(&self, line: &str, expected: &str) {
        eventually(line, || async {
            let answer = self.kubectl(line)?;
            if answer.contains(expected) { Ok(()) } else { Err(format!("{expected} is not in {answer}")) }
        })
        .await;
    }

    fn apply(&self, yaml: &str) {
        let mut command = self.0.kubectl_command(&["apply", "-f", "-"]).expect("kubectl runs");
        let mut child = command.stdin(Stdio::piped()).spawn().expect("kubectl starts");
        child.stdin.take().expect("an input").write_all(yaml.as_bytes()).expect("kubectl reads");
        assert!(child.wait().expect("kubectl ends").success(), "{yaml}");
    }
}

#[test]
fn controllers_may_do_what_they_decide() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        let Some(walk) = Walk::over(&cluster) else { return };
        cluster.up_with(&["--control-plane-only"]);
        // Both may update what they may not get.
        walk.kubectl("create quota few --hard=configmaps=3,secrets=2").unwrap();
        walk.says("get quota few -o jsonpath={.status.used}", r#""configmaps":"1""#).await;
        // What is charged stays charged, and is given back with its object, whatever its kind.
        walk.kubectl("create quota sets --hard=count/deployments.apps=1,services.nodeports=1").unwrap();
        walk.says("get quota sets -o jsonpath={.status.used}", r#""count/deployments.apps":"0""#).await;
        walk.kubectl("create deployment one --image=none --replicas=0").unwrap();
        walk.kubectl("create service nodeport one --tcp=80").unwrap();
        assert!(walk.kubectl("create service nodeport two --tcp=80").is_err());
        assert!(
            walk.kubectl("create deployment two --image=none --replicas=0")
                .unwrap_err()
                .contains("exceeded quota")
        );
        walk.kubectl("delete deployment one").unwrap();
        walk.says("get quota sets -o jsonpath={.status.used}", r#""count/deployments.apps":"0""#).await;
        walk.says("get configmap kube-root-ca.crt", "kube-root-ca.crt").await;
        walk.kubectl(r#"patch configmap kube-root-ca.crt -p {"data":{"ca.crt":""}}"#).unwrap();
        walk.says("get configmap kube-root-ca.crt -o jsonpath={.data}", "BEGIN CERTIFICATE").await;
        let log = std::fs::read_to_string(cluster.data_dir().join("kelson.log")).unwrap();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("is forbidden")).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    });
}

#[test]
fn load_balancers_and_metrics_work_out_of_the_box() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        let Some(walk) = Walk::over(&cluster) else { return };
        cluster.up_with(&["--load-balancer-pool", "192.0.2.16/28"]);
        walk.kubectl("create deployment web --image=kelson.local/demo").unwrap();
        walk.kubectl("set resources deployment web --requests=cpu=1m").unwrap();
        walk.kubectl("expose deployment web --port=80 --target-port=8080 --type=LoadBalancer").unwrap();
        walk.says("get service web -o jsonpath={.status.loadBalancer.ingress[0].ip}", "192.0.2.17").await;
        walk.kubectl("rollout status deployment web --timeout=60s").unwrap();
        eventually("the address answers", || async {
            use std::io::Read;
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
        walk.says("top nodes", "CPU(cores)").await;
        walk.says("top pods", "web-").await;
        walk.kubectl("autoscale deployment web --min=1 --max=3 --cpu-percent=50").unwrap();
        walk.says("get hpa web -o jsonpath={.status.conditions}", "ValidMetricFound").await;
        walk.kubectl("delete service web --timeout=30s").unwrap();
    });
}

/// The verbs of kubectl that lean on controllers, on nodes that only say that they run pods.
#[test]
fn kubectl_walks_through_rollouts_drains_claims_and_schedules() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        let Some(walk) = Walk::over(&cluster) else { return };
        cluster.up_with(&["--control-plane-only"]);
        let kubeconfig = cluster.kubeconfig();
        let kubeconfig = kubeconfig.to_str().expect("a path of text");
        let mut nodes = std::process::Command::new(env!("CARGO_BIN_EXE_kelson"))
            .args(["bench", "fake-nodes", "--nodes", "2", "--kubeconfig", kubeconfig])
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("fake nodes start");
        walk.says("get nodes", "fake-node-1").await;
        // The schedule's minute passes while the rest is walked through.
        walk.apply(include_str!("controllers/claims.yaml"));

        walk.kubectl("create deployment web --image=none:1 --replicas=3").unwrap();
        walk.kubectl("rollout status deployment web --timeout=60s").unwrap();
        walk.kubectl("set image deployment web none=none:2").unwrap();
        walk.kubectl("rollout status deployment web --timeout=60s").unwrap();
        walk.says("rollout history deployment web", "2 ").await;
        walk.kubectl("rollout undo deployment web").unwrap();
        walk.kubectl("rollout status deployment web --timeout=60s").unwrap();
        walk.says("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}", "none:1").await;
        walk.says("rollout history deployment web", "3 ").await;

        walk.kubectl("create poddisruptionbudget web --selector=app=web --min-available=2").unwrap();
        walk.says("get pdb web -o jsonpath={.status.disruptionsAllowed}", "1").await;
        walk.kubectl("drain fake-node-0 --timeout=60s --force").unwrap();
        walk.says("get pods -o jsonpath={.items[*].spec.nodeName}", "fake-node-1 fake-node-1 fake-node-1")
            .await;
        walk.kubectl("uncordon fake-node-0").unwrap();

        walk.says(
            "get resourceclaims -o jsonpath={.items[0].metadata.annotations}",
            "resource.kubernetes.io/pod-claim-name",
        )
        .await;
        walk.says("get cronjob often -o jsonpath={.status.lastScheduleTime}", "Z").await;
        walk.says("get jobs -o jsonpath={.items[0].metadata.ownerReferences[0].name}", "often").await;

        let stopped = rustix::process::kill_process(
            rustix::process::Pid::from_child(&nodes),
            rustix::process::Signal::TERM,
        );
        assert!(stopped.is_ok() && nodes.wait().is_ok());
    });
}
