//! Extenders of the scheduler, which it asks over HTTP; one path each. Which pods they are asked about is said by the resources
//! that they manage (`scheduler.yaml`), so that they have no part in other scenes.

use serde_json::{Map, Value, json};

use crate::apiserver::Bench;
use crate::https::{Curl, serve_plain};

/// Serves the extenders and tells where.
pub fn serve(bench: &Bench) -> String {
    let (curl, admin) = (bench.curl(), bench.admin());
    let port = serve_plain(move |path, question| {
        let answer = match path {
            "/judge/filter" => judge(question),
            "/judge/prioritize" => prefer(question),
            "/guard/preempt" => guard(question),
            "/binder/bind" => bind(question, &curl, &admin),
            "/teller/filter" => tell(question),
            _ => return (404, json!({"error": "nobody is here"})),
        };
        (200, answer)
    });
    format!("http://127.0.0.1:{port}")
}

fn nodes(question: &Value) -> &[Value] {
    question["nodes"]["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["labels"][name].as_str().unwrap_or_default()
}

/// Nodes that say so are not for anyone.
fn judge(question: &Value) -> Value {
    let (kept, refused): (Vec<&Value>, Vec<&Value>) =
        nodes(question).iter().partition(|node| label(node, "judge") != "no");
    let refused: Map<String, Value> = refused
        .iter()
        .filter_map(|node| Some((node["metadata"]["name"].as_str()?.to_owned(), json!("the judge said no"))))
        .collect();
    json!({"nodes": {"items": kept}, "failedNodes": refused})
}

fn prefer(question: &Value) -> Value {
    let score = |node: &Value| json!({"host": node["metadata"]["name"], "score": if label(node, "judge") == "best" { 10 } else { 0 }});
    nodes(question).iter().map(score).collect()
}

/// No pod with the label `guard` leaves for another.
fn guard(question: &Value) -> Value {
    let mut kept = Map::new();
    for (node, victims) in question["nodeNameToVictims"].as_object().into_iter().flatten() {
        let pods = victims["pods"].as_array().map(Vec::as_slice).unwrap_or_default();
        if pods.iter().all(|pod| label(pod, "guard").is_empty()) {
            let uids: Vec<Value> = pods.iter().map(|pod| json!({"uid": pod["metadata"]["uid"]})).collect();
            kept.insert(node.clone(), json!({"pods": uids, "numPDBViolations": victims["numPDBViolations"]}));
        }
    }
    json!({"nodeNameToMetaVictims": kept})
}

/// Binds, and leaves a mark by which it is known who did.
fn bind(question: &Value, curl: &Curl, admin: &[String]) -> Value {
    let text = |field: &str| question[field].as_str().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{}/pods/{}/binding", text("PodNamespace"), text("PodName"));
    let binding = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": text("PodName"), "uid": text("PodUID"), "annotations": {"example.com/bound-by": "extender"}},
        "target": {"kind": "Node", "name": text("Node")}});
    let admin: Vec<&str> = admin.iter().map(String::as_str).collect();
    match curl.post(&path, &binding, &admin) {
        (201, _) => json!({"error": ""}),
        (_, answer) => json!({"error": answer.to_string()}),
    }
}

/// Takes no node, and tells how many it was asked about.
fn tell(question: &Value) -> Value {
    let names = question["nodenames"].as_array().map(Vec::as_slice).unwrap_or_default();
    let said = json!(format!("one of {} that were asked about", names.len()));
    let refused: Map<String, Value> =
        names.iter().filter_map(|name| Some((name.as_str()?.to_owned(), said.clone()))).collect();
    json!({"nodenames": [], "failedNodes": refused})
}
