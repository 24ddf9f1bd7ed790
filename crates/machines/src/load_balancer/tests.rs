//! A balancer with real sockets on loopback.

use super::health::Count;
use super::*;

#[test]
fn health_changes_after_as_many_answers_as_are_asked_for() {
    let mut count = Count::default();
    assert!(!count.after(true, true, false, 2, 3), "the first failure decides");
    assert!(!count.after(false, false, true, 2, 3));
    assert!(count.after(false, false, true, 2, 3));
    assert!(count.after(true, false, false, 2, 3) && count.after(true, false, false, 2, 3));
    assert!(!count.after(true, false, false, 2, 3));
}

async fn server(word: &'static str, tasks: &Tasks) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn("server", move |stop| async move {
        while let Some(Ok((mut stream, _))) = stop.or(listener.accept()).await {
            let _ = stream.write_all(word.as_bytes()).await;
        }
    });
    address
}

async fn ask(address: SocketAddr) -> String {
    let mut out = String::new();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.read_to_string(&mut out).await;
    out
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok(), "{what}");
}

#[tokio::test]
async fn connections_follow_health_and_a_reload() {
    let tasks = Tasks::new();
    let (one_tasks, directory) = (Tasks::new(), tempfile::tempdir().unwrap());
    let (one, two) = (server("one", &one_tasks).await, server("two", &tasks).await);
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let path = directory.path().join("lb.cfg");
    let write = |servers: &str| {
        std::fs::write(&path, format!("frontend f\n bind {free}\n default_backend b\nbackend b\n{servers}"))
            .unwrap();
    };
    let line = |name: &str, address: SocketAddr| {
        format!(" server {name} {address} check inter 20ms fall 1 rise 1\n")
    };
    write(&(line("one", one) + &line("two", two)));
    let balancer = Balancer::start(&path, &tasks).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(ask(free).await);
    }
    seen.sort();
    assert_eq!(seen, ["one", "one", "two", "two"]);
    one_tasks.drain(Duration::from_secs(5)).await;
    until("one is seen to be down", async || balancer.stats().contains("DOWN")).await;
    assert_eq!([ask(free).await, ask(free).await], ["two", "two"]);
    let three = server("three", &tasks).await;
    write(&line("three", three));
    balancer.reload().await.unwrap();
    assert_eq!([ask(free).await, ask(free).await], ["three", "three"]);
    std::fs::write(&path, "backend b\n nonsense\n").unwrap();
    assert!(balancer.reload().await.is_err());
    assert_eq!(ask(free).await, "three");
    tasks.drain(Duration::from_secs(5)).await;
}
