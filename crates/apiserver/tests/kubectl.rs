//! The daily path, by an unmodified kubectl over TLS. Skipped where there is none.

use std::process::Command;

use pki::Algorithm;

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

/// Whether there is a kubectl that knows the commands of today; says so if not.
fn has_kubectl() -> bool {
    let known = Command::new("kubectl").args(["auth", "whoami", "--help"]).output();
    let is_found = known.is_ok_and(|output| output.status.success());
    testing::found("kubectl", is_found, "there is none, or one before 1.28")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daily_path_works() {
    if !has_kubectl() {
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

/// The rest of what people type in a day, where no controller answers: the test plays the controllers' part.
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_kubectl_works() {
    if !has_kubectl() {
        return;
    }
    let server = Server::start().await;
    let kubectl = Kubectl(&server);
    let write = |name: &str, text: &str| {
        let path = server.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };

    // annotate, patch in each form, edit, apply from the server's side with a conflict
    kubectl.good("create configmap a --from-literal=k=v").await;
    kubectl.good("annotate configmap a note=first").await;
    assert!(
        kubectl
            .run(&["annotate", "configmap", "a", "note=second"])
            .await
            .unwrap_err()
            .contains("--overwrite")
    );
    kubectl.good("annotate configmap a note=second --overwrite").await;
    kubectl.good("label configmap a x=y z-").await;
    kubectl
        .run(&["patch", "configmap", "a", "--type=merge", "-p", "{\"data\":{\"m\":\"1\"}}"])
        .await
        .unwrap();
    kubectl
        .run(&["patch", "configmap", "a", "--type=json", "-p", "[{\"op\":\"remove\",\"path\":\"/data/m\"}]"])
        .await
        .unwrap();
    assert_eq!(kubectl.good("get configmap a -o jsonpath={.data}").await, "{\"k\":\"v\"}");
    let editor = write("editor", "#!/bin/sh\nsed -i 's/k: v/k: edited/' \"$1\"\n");
    let mut edit = Command::new("kubectl");
    edit.arg("--kubeconfig").arg(&server.kubeconfig).args(["edit", "configmap", "a"]);
    edit.env("HOME", server.dir.path()).env("KUBE_EDITOR", format!("sh {editor}"));
    let edited = tokio::task::spawn_blocking(move || edit.output()).await.unwrap().unwrap();
    assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
    assert_eq!(kubectl.good("get configmap a -o jsonpath={.data.k}").await, "edited");
    let owned =
        write("owned.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned}\ndata: {k: one}\n");
    kubectl.good(&format!("apply --server-side --field-manager=one -f {owned}")).await;
    write("owned.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned}\ndata: {k: two}\n");
    let conflict =
        kubectl.run(&["apply", "--server-side", "--field-manager=two", "-f", &owned]).await.unwrap_err();
    assert!(conflict.contains("conflict with \"one\""), "{conflict}");
    kubectl.good(&format!("apply --server-side --field-manager=two --force-conflicts -f {owned}")).await;
    assert!(kubectl.run(&["diff", "-f", &owned]).await.is_ok());
    kubectl.good(&format!("replace -f {owned}")).await;
    kubectl.good(&format!("delete -f {owned} --wait=true --timeout=10s")).await;

    // rollout, with a status as the controller would write it
    kubectl.good("create deployment web --image=i --replicas=2").await;
    kubectl.good("set image deployment/web i=j").await;
    kubectl.good("rollout restart deployment/web").await;
    kubectl.good("rollout pause deployment/web").await;
    kubectl.good("rollout resume deployment/web").await;
    let generation = kubectl.good("get deployment web -o jsonpath={.metadata.generation}").await;
    let status = format!(
        "{{\"status\":{{\"observedGeneration\":{generation},\"replicas\":2,\"updatedReplicas\":2,\"availableReplicas\":2,\"readyReplicas\":2,\"conditions\":[{{\"type\":\"Available\",\"status\":\"True\"}}]}}}}"
    );
    kubectl
        .run(&["patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", &status])
        .await
        .unwrap();
    assert!(
        kubectl.good("rollout status deployment/web --timeout=10s").await.contains("successfully rolled out")
    );
    kubectl.good("wait deployment/web --for=condition=Available --timeout=10s").await;
    kubectl.good("autoscale deployment web --min=1 --max=3 --cpu-percent=50").await;

    // nodes: cordon, taint, drain
    let node = write("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n");
    kubectl.good(&format!("create -f {node}")).await;
    kubectl.good("cordon n1").await;
    assert!(kubectl.good("get node n1").await.contains("SchedulingDisabled"));
    kubectl.good("uncordon n1").await;
    kubectl.good("taint node n1 only=me:NoSchedule").await;
    assert!(kubectl.good("describe node n1").await.contains("only=me:NoSchedule"));
    kubectl.good("taint node n1 only-").await;
    let pod = write(
        "pod.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeName: n1, terminationGracePeriodSeconds: 0, containers: [{name: c, image: i}]}\n",
    );
    kubectl.good(&format!("create -f {pod}")).await;
    let drained = kubectl.good("drain n1 --force --timeout=30s --grace-period=0").await;
    assert!(drained.contains("drained"), "{drained}");
    assert!(kubectl.run(&["get", "pod", "p"]).await.is_err(), "the pod is gone");

    // certificates
    let key = pki::PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
    let request = pki::Csr::create(&key, &pki::Subject::new("ann", &["dev"]), &[]).unwrap();
    let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, request);
    for name in ["good", "bad"] {
        let csr = write(
            "csr.yaml",
            &format!(
                "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\nspec: {{request: {request}, signerName: kubernetes.io/kube-apiserver-client, usages: [client auth]}}\n"
            ),
        );
        kubectl.good(&format!("create -f {csr}")).await;
    }
    kubectl.good("certificate approve good").await;
    kubectl.good("certificate deny bad").await;
    let listed = kubectl.good("get csr").await;
    assert!(listed.contains("Approved") && listed.contains("Denied"), "{listed}");

    // who may what; tokens; events; documents
    assert_eq!(kubectl.good("auth can-i create pods").await.trim(), "yes");
    let refused = kubectl.run(&["auth", "can-i", "create", "pods", "--as=nobody"]).await;
    assert!(refused.is_err(), "can-i says no with an exit code: {refused:?}");
    kubectl.good("create role reader --verb=get,list --resource=pods").await;
    kubectl.good("create rolebinding reader --role=reader --user=nobody").await;
    assert_eq!(kubectl.good("auth can-i list pods --as=nobody").await.trim(), "yes");
    assert!(kubectl.good("auth whoami --as=ann --as-group=dev").await.contains("dev"));
    let token = kubectl.good("create token default --duration=20m --audience=other").await;
    assert_eq!(token.trim().split('.').count(), 3);
    let event = write(
        "event.yaml",
        "apiVersion: v1\nkind: Event\nmetadata: {name: e, namespace: default}\ninvolvedObject: {apiVersion: apps/v1, kind: Deployment, name: web, namespace: default}\nreason: Tested\nmessage: it was\ntype: Normal\n",
    );
    kubectl.good(&format!("create -f {event}")).await;
    assert!(kubectl.good("events").await.contains("Tested"));
    assert!(kubectl.good("events --for=deployment/web").await.contains("it was"));
    assert!(kubectl.good("describe deployment web").await.contains("RollingUpdate"));
    assert!(kubectl.good("explain deployment.spec.strategy --recursive").await.contains("rollingUpdate"));
    assert!(kubectl.good("explain hpa --api-version=autoscaling/v2").await.contains("VERSION:    v2"));
    assert!(kubectl.good("api-resources --api-group=apps -o name").await.contains("deployments.apps"));
    assert!(kubectl.good("api-versions").await.contains("resource.k8s.io/v1"));
    assert!(kubectl.good("get --raw /readyz?verbose").await.contains("readyz check passed"));
    assert!(kubectl.good("version").await.contains("Server Version: v1.36"));
    kubectl.good("create secret generic s --from-literal=p=q --dry-run=server").await;
    assert!(kubectl.run(&["get", "secret", "s"]).await.is_err());
    for kind in [
        "quota q --hard=pods=1",
        "priorityclass pc --value=1",
        "poddisruptionbudget b --selector=a=b --min-available=1",
        "serviceaccount sa",
        "job j --image=i",
        "cronjob cj --image=i --schedule=@daily",
        "ingress in --rule=h/=s:80",
        "service nodeport np --tcp=80:80",
        "clusterrole cr --verb=get --resource=pods",
        "namespace extra",
    ] {
        kubectl.good(&format!("create {kind}")).await;
        let mut words = kind.split(' ');
        let (mut kind, mut name) = (words.next().unwrap(), words.next().unwrap());
        if kind == "service" {
            (kind, name) = ("service", words.next().unwrap());
        }
        assert!(kubectl.good(&format!("describe {kind} {name}")).await.contains(name));
        assert!(kubectl.good(&format!("get {kind} {name}")).await.contains(name));
        if kind != "namespace" {
            kubectl.good(&format!("delete {kind} {name} --wait=false")).await;
        }
    }
    server.stop().await;
}
