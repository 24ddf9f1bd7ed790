//! Each health check is owned by the part that it names, and fails with it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::harness::Server;

/// The names of the checks that fail, of a page of `/readyz`.
async fn failing(server: &Server, question: &str) -> BTreeSet<String> {
    let page = server.get(&format!("/{question}?verbose")).await;
    let text = page.body.as_str().unwrap_or_default().to_owned();
    let failed: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("[-]")?.split(' ').next().map(str::to_owned))
        .collect();
    assert_eq!(page.code == 200, failed.is_empty(), "{text}");
    failed
}

/// The checks that stand on each task.
const OWNED: &[(&str, &[&str])] = &[
    ("crds", &["poststarthook/start-apiextensions-controllers"]),
    ("system-namespaces", &["poststarthook/start-system-namespaces-controller"]),
    (
        "identity",
        &[
            "poststarthook/start-kube-apiserver-identity-lease-controller",
            "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
        ],
    ),
    ("legacy-tokens", &["poststarthook/start-legacy-token-tracking-controller"]),
    (
        "service-repair",
        &["poststarthook/bootstrap-controller", "poststarthook/start-service-ip-repair-controllers"],
    ),
    (
        "own-conditions",
        &[
            "poststarthook/apiservice-status-local-available-controller",
            "poststarthook/apiservice-status-remote-available-controller",
        ],
    ),
    (
        "watch-cache",
        &[
            "informer-sync",
            "poststarthook/apiservice-discovery-controller",
            "poststarthook/apiservice-openapi-controller",
            "poststarthook/apiservice-openapiv3-controller",
            "poststarthook/generic-apiserver-start-informers",
            "poststarthook/priority-and-fairness-config-consumer",
            "poststarthook/start-apiextensions-informers",
            "poststarthook/start-apiserver-admission-initializer",
            "poststarthook/start-kube-aggregator-informers",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_check_fails_with_the_part_that_it_names() {
    let server = Server::start().await;
    assert_eq!(failing(&server, "readyz").await, BTreeSet::new());
    let mut expected = BTreeSet::new();
    for (task, checks) in OWNED {
        server.tasks.abort(task);
        expected.extend(checks.iter().map(|check| (*check).to_owned()));
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let failed = failing(&server, "readyz").await;
            if failed == expected {
                break;
            }
            assert!(tokio::time::Instant::now() < until, "without {task}: {failed:?}, not {expected:?}");
            tokio::task::yield_now().await;
        }
        // Who asks for one check is told of that one.
        let one = server.get(&format!("/readyz/{}", checks[0])).await;
        assert_eq!(one.code, 500, "{}", checks[0]);
    }
    // A server half dead does not live either.
    expected.remove("informer-sync");
    assert_eq!(failing(&server, "livez").await, expected);
    server.tasks.drain(Duration::from_secs(20)).await;
}
