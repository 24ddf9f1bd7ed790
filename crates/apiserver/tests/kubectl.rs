//! The daily path, by an unmodified kubectl over TLS. Skipped where there is none.

use std::process::Command;

use crate::harness::Server;

struct Kubectl<'a>(&'a Server);

impl Kubectl<'_> {
    /// Runs kubectl; standard output if it succeeds.
    async fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&self.0.kubeconfig).args(arguments).env("HOME", self.0.dir.path());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    async fn good(&self, line: &str) -> String {
        let arguments: Vec<&str> = line.split(' ').collect();
        self.run(&arguments).await.unwrap_or_else(|error| panic!("kubectl {line}: {error}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daily_path_works() {
    if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        eprintln!("SKIPPED: no kubectl on this machine");
        return;
    }
    let server = Server::start().await;
    let kubectl = Kubectl(&server);
    assert!(kubectl.good("auth whoami").await.contains("system:admin"));
    kubectl.good("create configmap a --from-literal=k=v").await;
    assert!(kubectl.good("get configmap a -o jsonpath={.data.k}").await.contains('v'));
    assert!(kubectl.good("get namespace kube-system").await.contains("Active"));
    let file = server.dir.path().join("web.yaml");
    let manifest = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 2\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: c, image: i}]}\n";
    std::fs::write(&file, manifest).unwrap();
    let path = file.display().to_string();
    assert!(kubectl.good(&format!("apply -f {path}")).await.contains("created"));
    assert!(kubectl.good(&format!("apply -f {path}")).await.contains("unchanged"));
    std::fs::write(&file, manifest.replace("replicas: 2", "replicas: 3")).unwrap();
    assert!(kubectl.run(&["diff", "-f", &path]).await.is_err(), "diff exits with 1 when there is one");
    assert!(kubectl.good(&format!("apply -f {path}")).await.contains("configured"));
    kubectl.good(&format!("apply --server-side -f {path}")).await;
    kubectl.good("scale deployment web --replicas=5").await;
    assert!(kubectl.good("get deployment web").await.contains("0/5"));
    assert!(kubectl.good("describe deployment web").await.contains("5 desired"));
    kubectl.good("label deployment web tier=front").await;
    assert!(kubectl.good("get deployments -l tier=front -o name").await.contains("deployment.apps/web"));
    kubectl.good("expose deployment web --port=80").await;
    assert!(kubectl.good("get service web").await.contains("ClusterIP"));
    kubectl.good("run p --image=i").await;
    kubectl.good("wait pod/p --for=jsonpath={.status.phase}=Pending --timeout=5s").await;
    kubectl.good("delete pod p").await;
    assert!(kubectl.good("explain pod.spec.containers.image").await.contains("FIELD: image"));
    assert!(kubectl.good("api-resources").await.contains("horizontalpodautoscalers"));
    assert!(kubectl.good("auth can-i --list").await.contains("*.*"));
    assert!(kubectl.good("create token default").await.split('.').count() == 3);
    kubectl.good("delete deployment,service web").await;
    let bad = server.dir.path().join("bad.yaml");
    std::fs::write(&bad, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndta: {}\n").unwrap();
    let refused = kubectl.run(&["apply", "-f", &bad.display().to_string()]).await.unwrap_err();
    assert!(refused.contains("unknown field \"dta\""), "{refused}");
    server.stop().await;
}
