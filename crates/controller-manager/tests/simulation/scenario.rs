//! What the users of the simulated cluster do, and what must come of it.

use std::time::Duration;

use client::{Client, DeleteOptions, Propagation, Resource, resources};
use serde_json::{Value, json};

use super::actors::FAILS_ONCE;
use super::cluster::{Cluster, NAMESPACE, list};

const LONG: Duration = Duration::from_secs(1800);
/// Kinds of which nothing may stay when a namespace is gone.
const KINDS: [Resource; 14] = [
    resources::PODS,
    resources::REPLICA_SETS,
    resources::DEPLOYMENTS,
    resources::STATEFUL_SETS,
    resources::DAEMON_SETS,
    resources::CONTROLLER_REVISIONS,
    resources::JOBS,
    resources::CRON_JOBS,
    resources::ENDPOINT_SLICES,
    resources::ENDPOINTS,
    resources::PERSISTENT_VOLUME_CLAIMS,
    resources::POD_DISRUPTION_BUDGETS,
    resources::RESOURCE_QUOTAS,
    resources::SERVICE_ACCOUNTS,
];

pub async fn run(seed: u64) -> Result<(), String> {
    let mut cluster = Cluster::start(seed).await;
    let began = tokio::time::Instant::now();
    // Shown by the test runner only if the run fails, or with --nocapture.
    let tell = |cluster: &Cluster, what: &str| {
        let (seconds, writes) = (began.elapsed().as_secs(), cluster.faults.writes());
        println!(
            "seed {seed}: {what} after {seconds} simulated seconds, {writes} writes, {} deaths",
            cluster.deaths
        );
    };
    begin(&cluster).await;
    cluster.trouble(true);
    cluster.until(LONG, |client| async move { rolled_out(&client, 5).await }).await?;
    tell(&cluster, "rolled out");
    roll(&mut cluster).await?;
    tell(&cluster, "rolled");
    churn(&mut cluster).await?;
    tell(&cluster, "churned");
    finish(&cluster).await;
    cluster.trouble(false);
    cluster.until(LONG, |client| async move { settled(&client).await }).await?;
    tell(&cluster, "settled");
    cluster.assert_quiet(LONG).await?;
    cluster.trouble(true);
    unmake(&mut cluster).await?;
    cluster.trouble(false);
    cluster.until(LONG, |client| async move { unmade(&client).await }).await?;
    tell(&cluster, "unmade");
    cluster.assert_quiet(LONG).await?;
    cluster.trouble(true);
    let namespaces = cluster.admin.api(&resources::NAMESPACES);
    namespaces.delete(NAMESPACE, &DeleteOptions::default()).await.map_err(|error| error.to_string())?;
    cluster.pass(Duration::from_secs(20)).await?;
    cluster.trouble(false);
    cluster.until(LONG, |client| async move { nothing_left(&client).await }).await?;
    tell(&cluster, "emptied");
    cluster.assert_quiet(LONG).await?;
    tell(&cluster, "done");
    cluster.stop().await
}

/// Everything that anybody writes is undone, from the beginning, and again after all has settled and something changed.
pub async fn adversary(seed: u64) -> Result<(), String> {
    let mut cluster = Cluster::start(seed).await;
    cluster.faults.undo(true);
    begin(&cluster).await;
    undone(&mut cluster, seed, "from the beginning").await?;
    cluster.faults.undo(false);
    cluster.watchdog.set(|bounds| bounds.at_least.clear());
    cluster.until(LONG, |client| async move { rolled_out(&client, 5).await }).await?;
    cluster.faults.undo(true);
    for name in ["web", "orphan"] {
        cluster.patch(&resources::DEPLOYMENTS, name, &image("v2")).await;
    }
    cluster.patch(&resources::STATEFUL_SETS, "ordered", &image("v2")).await;
    cluster.patch(&resources::DAEMON_SETS, "daemon", &image("v2")).await;
    undone(&mut cluster, seed, "during a rollout").await?;
    cluster.faults.undo(false);
    cluster.stop().await
}

/// Nobody writes more than a few times a minute for each object that it looks after.
async fn undone(cluster: &mut Cluster, seed: u64, when: &str) -> Result<(), String> {
    const MINUTES: u64 = 5;
    /// Each controller looks after up to eight objects here.
    const IN_THE_FIRST: u64 = 400;
    /// Once a second for each of four: that is the pace of whoever is always undone. How many are undone at once is a matter of luck.
    const LATER: u64 = 240;
    cluster.pass(Duration::from_secs(60)).await?;
    let first = cluster.faults.undo(true);
    cluster.pass(Duration::from_secs(60 * MINUTES)).await?;
    let later = cluster.faults.undo(true);
    println!("seed {seed}, {when}: in the first minute {first:?}, in {MINUTES} later ones {later:?}");
    let worst = |counts: &std::collections::BTreeMap<String, u64>, limit: u64| {
        counts
            .iter()
            .find(|(_, count)| **count > limit)
            .map(|(who, count)| format!("{when}: {who} wrote {count} times"))
    };
    match worst(&first, IN_THE_FIRST).or(worst(&later, LATER * MINUTES)) {
        None => Ok(()),
        Some(why) => Err(format!("{why}\nlast writes:\n{}", cluster.faults.log())),
    }
}

fn template(app: &str, image: &str, policy: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"restartPolicy": policy, "containers": [{"name": "main", "image": image,
            "resources": {"requests": {"cpu": "10m", "memory": "1Mi"}}}]},
    })
}

fn deployment(name: &str, replicas: usize) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
        "template": template(name, "v1", "Always"),
    }})
}

fn image(name: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": name}]}}}})
}

async fn begin(cluster: &Cluster) {
    cluster.watchdog.set(|bounds| {
        bounds.at_most.insert("web".into(), 6);
        bounds.at_least.insert("web".into(), 4);
    });
    cluster.create(&resources::DEPLOYMENTS, &deployment("web", 5)).await;
    cluster.create(&resources::DEPLOYMENTS, &deployment("orphan", 2)).await;
    cluster
        .create(
            &resources::SERVICES,
            &json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}),
        )
        .await;
    cluster
        .create(
            &resources::POD_DISRUPTION_BUDGETS,
            &json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}}),
        )
        .await;
    cluster
        .create(
            &resources::RESOURCE_QUOTAS,
            &json!({"metadata": {"name": "all"}, "spec": {"hard": {"pods": "100"}}}),
        )
        .await;
    cluster
        .create(
            &resources::STATEFUL_SETS,
            &json!({"metadata": {"name": "ordered"}, "spec": {
                "replicas": 3, "serviceName": "ordered", "selector": {"matchLabels": {"app": "ordered"}},
                "template": {
                    "metadata": {"labels": {"app": "ordered"}},
                    "spec": {"containers": [{"name": "main", "image": "v1",
                        "resources": {"requests": {"cpu": "10m", "memory": "1Mi"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]},
                },
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "local",
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
            }}),
        )
        .await;
    cluster
        .create(
            &resources::DAEMON_SETS,
            &json!({"metadata": {"name": "daemon"}, "spec": {
                "selector": {"matchLabels": {"app": "daemon"}}, "template": template("daemon", "v1", "Always"),
            }}),
        )
        .await;
    cluster
        .create(
            &resources::JOBS,
            &json!({"metadata": {"name": "indexed"}, "spec": {
                "completions": 5, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 100,
                "template": template("indexed", FAILS_ONCE, "Never"),
            }}),
        )
        .await;
    cluster
        .create(
            &resources::CRON_JOBS,
            &json!({"metadata": {"name": "minutely"}, "spec": {
                "schedule": "* * * * *", "concurrencyPolicy": "Forbid", "successfulJobsHistoryLimit": 1,
                "jobTemplate": {"spec": {"backoffLimit": 100, "template": template("minutely", "v1", "Never")}},
            }}),
        )
        .await;
}

/// Rollouts, rollbacks and pauses, but nobody takes pods away: availability must hold all the time.
async fn roll(cluster: &mut Cluster) -> Result<(), String> {
    for round in 0..6 {
        let next = format!("v{}", cluster.random.below(4) + 1);
        cluster.patch(&resources::DEPLOYMENTS, "web", &image(&next)).await;
        match round {
            1 => cluster.patch(&resources::STATEFUL_SETS, "ordered", &stateful_image("v2")).await,
            2 => cluster.patch(&resources::DAEMON_SETS, "daemon", &image("v2")).await,
            3 => cluster.patch(&resources::DEPLOYMENTS, "web", &json!({"spec": {"paused": true}})).await,
            4 => cluster.patch(&resources::DEPLOYMENTS, "web", &json!({"spec": {"paused": false}})).await,
            _ => {}
        }
        let time = cluster.random.millis(15_000);
        cluster.pass(time).await?;
    }
    Ok(())
}

fn stateful_image(name: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": name,
        "resources": {"requests": {"cpu": "10m", "memory": "1Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}}}})
}

/// Scaling, evictions, and pods that vanish.
async fn churn(cluster: &mut Cluster) -> Result<(), String> {
    cluster.watchdog.set(|bounds| {
        bounds.at_most.insert("web".into(), 9);
        bounds.at_least.clear();
    });
    for _ in 0..12 {
        let pods = cluster.pods.in_namespace(NAMESPACE);
        let chosen =
            pods.get(cluster.random.below(pods.len() as u64) as usize).map(|pod| pod.metadata.name.clone());
        let api = cluster.admin.api(&resources::PODS).within(NAMESPACE);
        match (cluster.random.below(6), chosen) {
            (0, Some(name)) => drop(api.delete(&name, &DeleteOptions::default()).await),
            (1, Some(name)) => {
                let eviction =
                    json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
                drop(api.create_sub::<Value>(&name, "eviction", &eviction).await);
            }
            (2, _) => {
                let replicas = 2 + cluster.random.below(7);
                cluster.patch(&resources::DEPLOYMENTS, "web", &json!({"spec": {"replicas": replicas}})).await;
            }
            (3, _) => {
                let replicas = 1 + cluster.random.below(4);
                cluster
                    .patch(&resources::STATEFUL_SETS, "ordered", &json!({"spec": {"replicas": replicas}}))
                    .await;
            }
            (4, _) => {
                let next = format!("v{}", cluster.random.below(4) + 1);
                cluster.patch(&resources::DEPLOYMENTS, "web", &image(&next)).await;
            }
            _ => {
                let next = format!("v{}", cluster.random.below(4) + 1);
                cluster.patch(&resources::DAEMON_SETS, "daemon", &image(&next)).await;
            }
        }
        let time = cluster.random.millis(10_000);
        cluster.pass(time).await?;
    }
    Ok(())
}

/// What is wanted in the end.
async fn finish(cluster: &Cluster) {
    let mut last = image("v9");
    last["spec"]["replicas"] = json!(4);
    cluster.patch(&resources::DEPLOYMENTS, "web", &last).await;
    let mut last = stateful_image("v9");
    last["spec"]["replicas"] = json!(3);
    cluster.patch(&resources::STATEFUL_SETS, "ordered", &last).await;
    cluster.patch(&resources::DAEMON_SETS, "daemon", &image("v9")).await;
    cluster.patch(&resources::CRON_JOBS, "minutely", &json!({"spec": {"suspend": true}})).await;
}

fn expect(what: &str, found: &Value, wanted: impl Into<Value>) -> Result<(), String> {
    let wanted = wanted.into();
    if *found == wanted { Ok(()) } else { Err(format!("{what} is {found}, not {wanted}")) }
}

async fn rolled_out(client: &Client, replicas: u64) -> Result<(), String> {
    let all = list(client, &resources::DEPLOYMENTS).await;
    let web = &all["web"];
    expect("web's generation", &web["status"]["observedGeneration"], web["metadata"]["generation"].clone())?;
    for field in ["replicas", "updatedReplicas", "availableReplicas", "readyReplicas"] {
        expect(field, &web["status"][field], replicas)?;
    }
    Ok(())
}

fn of<'a>(pods: &'a std::collections::BTreeMap<String, Value>, app: &str) -> Vec<&'a Value> {
    pods.values().filter(|pod| pod["metadata"]["labels"]["app"] == app).collect()
}

/// Everything is as `finish` asked.
async fn settled(client: &Client) -> Result<(), String> {
    rolled_out(client, 4).await?;
    let pods = list(client, &resources::PODS).await;
    for (app, count) in [("web", 4), ("ordered", 3), ("daemon", 3), ("orphan", 2)] {
        let own = of(&pods, app);
        expect(&format!("pods of {app}"), &json!(own.len()), count)?;
        let wanted = if app == "orphan" { "v1" } else { "v9" };
        for pod in own {
            expect(&format!("image in {app}"), &pod["spec"]["containers"][0]["image"], wanted)?;
        }
    }
    let sets = list(client, &resources::REPLICA_SETS).await;
    let sizes = sets.values().filter(|set| set["spec"]["replicas"] != 0).count();
    expect("replica sets with pods", &json!(sizes), 2)?;
    let hashes = sets.values().filter(|set| set["metadata"]["labels"]["app"] == "web").count();
    if hashes > 3 {
        return Err(format!("{hashes} replica sets of web, the history limit is 2"));
    }
    let set = &list(client, &resources::STATEFUL_SETS).await["ordered"]["status"];
    expect("ready in order", &set["readyReplicas"], 3)?;
    expect("the set's revision", &set["currentRevision"], set["updateRevision"].clone())?;
    let daemon = &list(client, &resources::DAEMON_SETS).await["daemon"]["status"];
    for field in ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable", "numberReady"] {
        expect(field, &daemon[field], 3)?;
    }
    job_is_done(client, &pods).await?;
    endpoints_match(client, &pods).await?;
    let budget = &list(client, &resources::POD_DISRUPTION_BUDGETS).await["web"]["status"];
    for (field, wanted) in [("expectedPods", 4), ("currentHealthy", 4), ("disruptionsAllowed", 2)] {
        expect(field, &budget[field], wanted)?;
    }
    let alive =
        pods.values().filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")));
    let quota = &list(client, &resources::RESOURCE_QUOTAS).await["all"]["status"];
    expect("pods in the quota", &quota["used"]["pods"], alive.count().to_string())?;
    for (name, claim) in list(client, &resources::PERSISTENT_VOLUME_CLAIMS).await {
        expect(&format!("claim {name}"), &claim["status"]["phase"], "Bound")?;
    }
    Ok(())
}

async fn job_is_done(
    client: &Client,
    pods: &std::collections::BTreeMap<String, Value>,
) -> Result<(), String> {
    let jobs = list(client, &resources::JOBS).await;
    for (name, job) in &jobs {
        let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if !conditions.iter().any(|one| one["type"] == "Complete" && one["status"] == "True") {
            return Err(format!("job {name} is not complete: {}", job["status"]));
        }
        expect("uncounted pods", &json!(uncounted(&job["status"])), 0)?;
    }
    let indexed = &jobs["indexed"]["status"];
    expect("counted once each", &indexed["succeeded"], 5)?;
    expect("indexes", &indexed["completedIndexes"], "0-4")?;
    let succeeded = of(pods, "indexed").iter().filter(|pod| pod["status"]["phase"] == "Succeeded").count();
    if succeeded > 5 {
        return Err(format!("{succeeded} pods succeeded for 5 indexes"));
    }
    // One that still runs or one that is kept for the history.
    let runs = jobs.keys().filter(|name| name.starts_with("minutely-")).count();
    expect("jobs of the schedule", &json!(runs), 1)?;
    let held = pods
        .values()
        .filter(|pod| pod["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()));
    expect("pods with finalizers", &json!(held.count()), 0)
}

fn uncounted(status: &Value) -> usize {
    let lists = ["succeeded", "failed"]
        .map(|list| status["uncountedTerminatedPods"][list].as_array().map_or(0, Vec::len));
    lists.iter().sum()
}

async fn endpoints_match(
    client: &Client,
    pods: &std::collections::BTreeMap<String, Value>,
) -> Result<(), String> {
    let mut wanted: Vec<&str> =
        of(pods, "web").iter().filter_map(|pod| pod["status"]["podIP"].as_str()).collect();
    wanted.sort_unstable();
    let slices = list(client, &resources::ENDPOINT_SLICES).await;
    let slices: Vec<&Value> = slices
        .values()
        .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web")
        .collect();
    expect("slices", &json!(slices.len()), 1)?;
    let ends = slices[0]["endpoints"].as_array().cloned().unwrap_or_default();
    let ready = ends.iter().filter(|end| end["conditions"]["ready"] == true);
    let mut found: Vec<&str> = ready.filter_map(|end| end["addresses"][0].as_str()).collect();
    found.sort_unstable();
    expect("addresses in the slice", &json!(found), json!(wanted))?;
    let endpoints = &list(client, &resources::ENDPOINTS).await["web"];
    let addresses = endpoints["subsets"][0]["addresses"].as_array().cloned().unwrap_or_default();
    let mut found: Vec<&str> = addresses.iter().filter_map(|address| address["ip"].as_str()).collect();
    found.sort_unstable();
    expect("addresses in the endpoints", &json!(found), json!(wanted))
}

/// The three ways to delete an owner.
async fn unmake(cluster: &mut Cluster) -> Result<(), String> {
    cluster.watchdog.set(|bounds| bounds.at_least.clear());
    for (resource, name, policy) in [
        (resources::DEPLOYMENTS, "web", Propagation::Foreground),
        (resources::DEPLOYMENTS, "orphan", Propagation::Orphan),
        (resources::STATEFUL_SETS, "ordered", Propagation::Background),
        (resources::DAEMON_SETS, "daemon", Propagation::Foreground),
        (resources::JOBS, "indexed", Propagation::Background),
        (resources::CRON_JOBS, "minutely", Propagation::Background),
    ] {
        let options = DeleteOptions::default().propagation(policy);
        let deleted = cluster.admin.api(&resource).within(NAMESPACE).delete(name, &options).await;
        deleted.map_err(|error| format!("delete {resource} {name}: {error}"))?;
        let time = cluster.random.millis(5000);
        cluster.pass(time).await?;
    }
    Ok(())
}

async fn unmade(client: &Client) -> Result<(), String> {
    for resource in [
        resources::DEPLOYMENTS,
        resources::STATEFUL_SETS,
        resources::DAEMON_SETS,
        resources::JOBS,
        resources::CRON_JOBS,
    ] {
        let left = list(client, &resource).await;
        expect(&format!("{resource}"), &json!(left.keys().collect::<Vec<_>>()), json!([]))?;
    }
    let pods = list(client, &resources::PODS).await;
    expect("pods", &json!(pods.len()), of(&pods, "orphan").len())?;
    expect("orphaned pods", &json!(pods.len()), 2)?;
    let sets = list(client, &resources::REPLICA_SETS).await;
    expect("orphaned sets", &json!(sets.len()), 1)?;
    for set in sets.values() {
        expect(
            "owners of the orphan",
            &json!(set["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len)),
            0,
        )?;
    }
    let revisions = list(client, &resources::CONTROLLER_REVISIONS).await;
    expect("revisions", &json!(revisions.len()), 0)
}

async fn nothing_left(client: &Client) -> Result<(), String> {
    let namespace = client.api(&resources::NAMESPACES).find::<Value>(NAMESPACE).await;
    let namespace = namespace.map_err(|error| error.to_string())?;
    expect("the namespace", &namespace.unwrap_or_default(), Value::Null)?;
    for resource in KINDS {
        let left = list(client, &resource).await;
        expect(&format!("{resource}"), &json!(left.keys().collect::<Vec<_>>()), json!([]))?;
    }
    let volumes = list(client, &resources::PERSISTENT_VOLUMES).await;
    expect("volumes", &json!(volumes.len()), 0)
}
