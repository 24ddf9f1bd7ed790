//! Resource use, in the forms that metrics-server, Prometheus and `kubectl top` read.

use std::fmt::Write;
use std::sync::Arc;

use cri::{ContainerStats, CpuUsage, MemoryUsage, PodSandboxStats, PodSandboxStatsFilter};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Answer, json as answer_json, text, typed};
use crate::host::SharedHost;
use crate::pods::Pods;
use crate::state::timestamp;
use crate::status::seconds;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

async fn all(host: &SharedHost) -> Result<Vec<PodSandboxStats>, Answer> {
    host.config
        .runtime
        .list_pod_sandbox_stats(&PodSandboxStatsFilter::default())
        .await
        .map_err(|error| text(StatusCode::INTERNAL_SERVER_ERROR, telemetry::chain(&error).to_string()))
}

fn cpu(usage: &CpuUsage) -> Value {
    let mut value = Map::new();
    value.insert("time".into(), json!(timestamp(usage.timestamp).map(seconds)));
    if let Some(rate) = usage.usage_nano_cores {
        value.insert("usageNanoCores".into(), json!(rate));
    }
    if let Some(total) = usage.usage_core_nano_seconds {
        value.insert("usageCoreNanoSeconds".into(), json!(total));
    }
    Value::Object(value)
}

fn memory(usage: &MemoryUsage) -> Value {
    let mut value = Map::new();
    value.insert("time".into(), json!(timestamp(usage.timestamp).map(seconds)));
    for (name, number) in [
        ("availableBytes", usage.available_bytes),
        ("usageBytes", usage.usage_bytes),
        ("workingSetBytes", usage.working_set_bytes),
        ("rssBytes", usage.rss_bytes),
        ("pageFaults", usage.page_faults),
        ("majorPageFaults", usage.major_page_faults),
    ] {
        if let Some(number) = number {
            value.insert(name.into(), json!(number));
        }
    }
    Value::Object(value)
}

fn file_system(host: &SharedHost) -> Value {
    let now = seconds(Timestamp::now());
    match rustix::fs::statvfs(&host.config.root_dir) {
        Ok(disk) => {
            let (total, free) = (disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize);
            json!({
                "time": now, "capacityBytes": total, "availableBytes": free,
                "usedBytes": total.saturating_sub(disk.f_bfree * disk.f_frsize),
                "inodes": disk.f_files, "inodesFree": disk.f_favail,
                "inodesUsed": disk.f_files.saturating_sub(disk.f_ffree),
            })
        }
        Err(_) => json!({"time": now}),
    }
}

/// `/stats/summary`.
pub async fn summary(host: &SharedHost, pods: &Arc<Pods>) -> Answer {
    let stats = match all(host).await {
        Ok(stats) => stats,
        Err(answer) => return answer,
    };
    let mut items = Vec::new();
    for pod in &stats {
        let of = &pod.attributes.metadata;
        let mut item = json!({
            "podRef": {"name": of.name, "namespace": of.namespace, "uid": of.uid},
            "startTime": start_time(pods, &of.namespace, &of.name),
            "cpu": cpu(&pod.cpu),
            "memory": memory(&pod.memory),
            "containers": pod.containers.iter().map(container).collect::<Vec<_>>(),
        });
        if let Some(network) = &pod.network {
            let one = |usage: &cri::NetworkInterfaceUsage| {
                json!({"name": usage.name, "rxBytes": usage.rx_bytes, "rxErrors": usage.rx_errors,
                       "txBytes": usage.tx_bytes, "txErrors": usage.tx_errors})
            };
            let mut shown = one(&network.default_interface);
            shown["time"] = json!(timestamp(network.timestamp).map(seconds));
            let interfaces = std::iter::once(&network.default_interface).chain(&network.interfaces);
            shown["interfaces"] = interfaces.map(one).collect();
            item["network"] = shown;
        }
        if let Some(count) = pod.process.process_count {
            item["process_stats"] = json!({"process_count": count});
        }
        items.push(item);
    }
    let file_system = file_system(host);
    let machine = machine_usage(host);
    answer_json(&json!({
        "node": {
            "nodeName": host.config.node_name,
            "startTime": machine.boot_time,
            "cpu": {"time": machine.time, "usageCoreNanoSeconds": machine.cpu_nanoseconds, "usageNanoCores": machine.cpu_rate},
            "memory": {
                "time": machine.time, "availableBytes": machine.memory_available,
                "usageBytes": machine.memory_used, "workingSetBytes": machine.memory_used, "rssBytes": machine.memory_used,
            },
            "fs": file_system, "runtime": {"imageFs": file_system, "containerFs": file_system},
        },
        "pods": items,
    }))
}

fn container(stats: &ContainerStats) -> Value {
    let mut value = json!({
        "name": stats.attributes.metadata.name,
        "cpu": cpu(&stats.cpu),
        "memory": memory(&stats.memory),
    });
    if let Some(layer) = &stats.writable_layer {
        value["rootfs"] = json!({
            "time": timestamp(layer.timestamp).map(seconds), "usedBytes": layer.used_bytes, "inodesUsed": layer.inodes_used,
        });
    }
    value
}

fn start_time(pods: &Pods, namespace: &str, name: &str) -> Value {
    let report = pods.find(namespace, name, None);
    let status = report.and_then(|report| report.borrow().status.clone());
    status.map(|status| status.status["startTime"].clone()).unwrap_or(Value::Null)
}

struct MachineUsage {
    time: String,
    boot_time: Option<String>,
    cpu_nanoseconds: u64,
    cpu_rate: Option<u64>,
    memory_available: u64,
    memory_used: u64,
}

/// The rate needs two samples; the last one is kept between calls.
fn machine_usage(host: &SharedHost) -> MachineUsage {
    use std::sync::{Mutex, PoisonError};
    static LAST: Mutex<Option<(Timestamp, u64)>> = Mutex::new(None);
    let now = Timestamp::now();
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpu_nanoseconds = busy_nanoseconds(&stat);
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<i64>().ok());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let cpu_rate = last.and_then(|(at, total)| {
        let passed = now.duration_since(at).as_secs_f64();
        (passed > 0.0).then(|| (cpu_nanoseconds.saturating_sub(total) as f64 / passed) as u64)
    });
    *last = Some((now, cpu_nanoseconds));
    let available =
        crate::machine::memory_available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
            .unwrap_or(0);
    MachineUsage {
        time: seconds(now),
        boot_time: boot.and_then(|second| Timestamp::from_second(second).ok()).map(seconds),
        cpu_nanoseconds,
        cpu_rate,
        memory_available: available,
        memory_used: host.machine.memory.saturating_sub(available),
    }
}

/// Time that any processor was busy. The kernel counts in hundredths of a second.
fn busy_nanoseconds(stat: &str) -> u64 {
    let Some(line) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else { return 0 };
    let ticks: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let idle = ticks.get(3).unwrap_or(&0) + ticks.get(4).unwrap_or(&0);
    ticks.iter().take(8).sum::<u64>().saturating_sub(idle) * 10_000_000
}

/// `/metrics`: the kubelet's own.
pub fn metrics(pods: &Pods) -> Answer {
    let reports = pods.reports();
    let running = |state| {
        reports.iter().flat_map(|report| &report.containers).filter(|(_, _, of)| *of == state).count()
    };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "# HELP kubelet_running_pods Number of pods that have a running pod sandbox\n# TYPE kubelet_running_pods gauge"
    );
    let _ = writeln!(
        out,
        "kubelet_running_pods {}",
        reports.iter().filter(|report| report.sandbox.is_some()).count()
    );
    let _ = writeln!(
        out,
        "# HELP kubelet_running_containers Number of containers currently running\n# TYPE kubelet_running_containers gauge"
    );
    for (name, state) in [
        ("created", cri::ContainerState::Created),
        ("running", cri::ContainerState::Running),
        ("exited", cri::ContainerState::Exited),
    ] {
        let _ = writeln!(out, "kubelet_running_containers{{container_state=\"{name}\"}} {}", running(state));
    }
    typed(StatusCode::OK, PROMETHEUS, out)
}

/// `/metrics/resource`: what metrics-server scrapes.
pub async fn resource_metrics(host: &SharedHost, _pods: &Arc<Pods>) -> Answer {
    let stats = match all(host).await {
        Ok(stats) => stats,
        Err(answer) => return answer,
    };
    let machine = machine_usage(host);
    let now = Timestamp::now().as_millisecond();
    let mut out = String::new();
    let core_seconds = |usage: &CpuUsage| usage.usage_core_nano_seconds.map(|nano| nano as f64 / 1e9);
    let time = |at: i64| if at > 0 { at / 1_000_000 } else { now };
    let mut family = |name: &str, kind: &str, help: &str, lines: Vec<String>| {
        let _ = writeln!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
        for line in lines {
            let _ = writeln!(out, "{name}{line}");
        }
    };
    let containers = || stats.iter().flat_map(|pod| pod.containers.iter().map(move |one| (pod, one)));
    let labels = |pod: &PodSandboxStats, container: Option<&str>| {
        let of = &pod.attributes.metadata;
        match container {
            Some(name) => format!("{{container={name:?},namespace={:?},pod={:?}}}", of.namespace, of.name),
            None => format!("{{namespace={:?},pod={:?}}}", of.namespace, of.name),
        }
    };
    family(
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
        containers()
            .filter_map(|(pod, one)| {
                let value = core_seconds(&one.cpu)?;
                Some(format!(
                    "{} {value} {}",
                    labels(pod, Some(&one.attributes.metadata.name)),
                    time(one.cpu.timestamp)
                ))
            })
            .collect(),
    );
    family(
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set of the container in bytes",
        containers()
            .filter_map(|(pod, one)| {
                let value = one.memory.working_set_bytes?;
                Some(format!(
                    "{} {value} {}",
                    labels(pod, Some(&one.attributes.metadata.name)),
                    time(one.memory.timestamp)
                ))
            })
            .collect(),
    );
    family(
        "node_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the node in core-seconds",
        vec![format!(" {} {now}", machine.cpu_nanoseconds as f64 / 1e9)],
    );
    family(
        "node_memory_working_set_bytes",
        "gauge",
        "Current working set of the node in bytes",
        vec![format!(" {} {now}", machine.memory_used)],
    );
    family(
        "pod_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the pod in core-seconds",
        stats
            .iter()
            .filter_map(|pod| {
                Some(format!("{} {} {}", labels(pod, None), core_seconds(&pod.cpu)?, time(pod.cpu.timestamp)))
            })
            .collect(),
    );
    family(
        "pod_memory_working_set_bytes",
        "gauge",
        "Current working set of the pod in bytes",
        stats
            .iter()
            .filter_map(|pod| {
                Some(format!(
                    "{} {} {}",
                    labels(pod, None),
                    pod.memory.working_set_bytes?,
                    time(pod.memory.timestamp)
                ))
            })
            .collect(),
    );
    family(
        "resource_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
        vec![" 0".into()],
    );
    typed(StatusCode::OK, PROMETHEUS, out)
}

/// `/metrics/cadvisor`: the container metrics that dashboards look for.
pub async fn cadvisor_metrics(host: &SharedHost, _pods: &Arc<Pods>) -> Answer {
    let stats = match all(host).await {
        Ok(stats) => stats,
        Err(answer) => return answer,
    };
    let mut out = String::new();
    for (name, kind) in [
        ("container_cpu_usage_seconds_total", "counter"),
        ("container_memory_usage_bytes", "gauge"),
        ("container_memory_working_set_bytes", "gauge"),
        ("container_memory_rss", "gauge"),
    ] {
        let _ = writeln!(out, "# TYPE {name} {kind}");
        for pod in &stats {
            for one in &pod.containers {
                let value = match name {
                    "container_cpu_usage_seconds_total" => {
                        one.cpu.usage_core_nano_seconds.map(|nano| nano as f64 / 1e9)
                    }
                    "container_memory_usage_bytes" => one.memory.usage_bytes.map(|bytes| bytes as f64),
                    "container_memory_working_set_bytes" => {
                        one.memory.working_set_bytes.map(|bytes| bytes as f64)
                    }
                    _ => one.memory.rss_bytes.map(|bytes| bytes as f64),
                };
                let of = &pod.attributes.metadata;
                if let Some(value) = value {
                    let _ = writeln!(
                        out,
                        "{name}{{container={:?},id={:?},namespace={:?},pod={:?}}} {value}",
                        one.attributes.metadata.name, one.attributes.id, of.namespace, of.name
                    );
                }
            }
        }
    }
    typed(StatusCode::OK, PROMETHEUS, out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn busy_time_leaves_idle_out() {
        let stat = "cpu  10 0 5 100 20 1 2 3 0 0\ncpu0 1 2 3\nbtime 1700000000\n";
        assert_eq!(super::busy_nanoseconds(stat), 21 * 10_000_000);
    }
}
