//! The same path with the real kubectl, where the machine has one.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use crate::harness::{Cluster, in_own_network, text};

fn ok(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn kubectl_drives_the_cluster() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        if cluster.kubectl_command(&[]).is_none() {
            return;
        }
        cluster.up();
        let kubectl = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            ok(cluster.kubectl(&words).expect("kubectl runs"))
        };
        let nodes = kubectl("get nodes");
        assert!(nodes.contains(" Ready "), "{nodes}");
        kubectl("wait --for=create serviceaccount/default --timeout=30s");
        kubectl("run hello --image=kelson.local/demo");
        kubectl("wait --for=condition=Ready pod/hello --timeout=60s");
        let wide = kubectl("get pod hello -o wide");
        assert!(wide.contains("Running") && wide.contains("10.128."), "{wide}");
        assert_eq!(kubectl("exec hello -- cat /etc/hostname").trim(), "hello");
        let described = kubectl("describe pod hello");
        for part in ["Scheduled", "Started", "kelson.local/demo", "Ready"] {
            assert!(described.contains(part), "{part}: {described}");
        }

        let mut follow = cluster.kubectl_command(&["logs", "-f", "hello"]).unwrap();
        let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(follow.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(!first.is_empty());

        let mut forward = cluster.kubectl_command(&["port-forward", "pod/hello", "18080:8080"]).unwrap();
        let mut forward = forward.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(forward.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains("Forwarding from 127.0.0.1:18080"), "{line}");
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect("127.0.0.1:18080").unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("hello"), "{answer}");
        forward.kill().unwrap();
        forward.wait().unwrap();

        kubectl("create deployment web --image=kelson.local/demo --replicas=3");
        kubectl("rollout status deployment/web --timeout=60s");
        kubectl("expose deployment web --port=80 --target-port=8080");
        kubectl("scale deployment web --replicas=1");
        kubectl("delete pod hello --timeout=60s");
        follow.wait().unwrap();
        kubectl("delete deployment web --timeout=60s");
    });
}
