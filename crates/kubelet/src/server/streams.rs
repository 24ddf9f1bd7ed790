//! `/exec`, `/attach` and `/portForward`: upgrades the connection and ties the client's streams to the runtime's.

use std::sync::Arc;

use cri_streaming::What;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use lifecycle::Tasks;
use streaming::remote_command::Options;

use super::query::{self, Query};
use super::{Answer, endpoints, full, text};
use crate::host::SharedHost;
use crate::pods::Pods;

pub async fn serve(
    host: SharedHost,
    pods: &Arc<Pods>,
    tasks: &Tasks,
    path: Vec<String>,
    request: Request<Incoming>,
) -> Answer {
    let query = query::parse(request.uri().query().unwrap_or(""));
    let what = match find(pods, &path, &query) {
        Ok(what) => what,
        Err((code, problem)) => return text(code, problem),
    };
    let options = Options {
        stdin: query.flag("input") || query.flag("stdin"),
        stdout: query.flag("output") || query.flag("stdout"),
        stderr: query.flag("error") || query.flag("stderr"),
        tty: query.flag("tty"),
    };
    match cri_streaming::upgrade(request, what, options, host.config.runtime.clone(), tasks) {
        Ok(response) => response.map(|()| full("")),
        Err((code, problem)) => text(code, problem),
    }
}

/// `exec/ns/pod[/uid]/container`, `attach/…`, `portForward/ns/pod[/uid]`.
fn find(pods: &Arc<Pods>, path: &[String], query: &Query) -> Result<What, (StatusCode, String)> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let (kind, namespace, name, uid, container) = match path.as_slice() {
        [kind @ ("exec" | "attach"), namespace, name, container] => {
            (*kind, *namespace, *name, None, *container)
        }
        [kind @ ("exec" | "attach"), namespace, name, uid, container] => {
            (*kind, *namespace, *name, Some(*uid), *container)
        }
        [kind @ "portForward", namespace, name] => (*kind, *namespace, *name, None, ""),
        [kind @ "portForward", namespace, name, uid] => (*kind, *namespace, *name, Some(*uid), ""),
        _ => return Err((StatusCode::NOT_FOUND, "404 page not found\n".into())),
    };
    let missing =
        || (StatusCode::NOT_FOUND, format!("pod {name:?} in namespace {namespace:?} does not exist"));
    let reports = pods.find(namespace, name, uid).ok_or_else(missing)?;
    let report = reports.borrow();
    if kind == "portForward" {
        let no_sandbox = || (StatusCode::BAD_REQUEST, format!("pod {name:?} is not running"));
        let sandbox = report.sandbox.clone().ok_or_else(no_sandbox)?;
        let all = query.all("ports").chain(query.all("port")).flat_map(|list| list.split(','));
        let ports = all.map(|port| {
            port.parse().map_err(|_| (StatusCode::BAD_REQUEST, format!("{port:?} is not a port")))
        });
        return Ok(What::PortForward { sandbox, ports: ports.collect::<Result<_, _>>()? });
    }
    let id = endpoints::running(&report, container)
        .ok_or_else(|| (StatusCode::NOT_FOUND, format!("container not found ({container:?})")))?;
    Ok(match kind {
        "exec" => {
            let command: Vec<String> = query.all("command").map(str::to_owned).collect();
            if command.is_empty() {
                return Err((
                    StatusCode::BAD_REQUEST,
                    "you must specify at least 1 of stdin, stdout, stderr and a command".into(),
                ));
            }
            What::Exec { container: id, command }
        }
        _ => What::Attach { container: id },
    })
}
