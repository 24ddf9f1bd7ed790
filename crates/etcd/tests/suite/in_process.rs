//! The conformance suite on the store in process.

use std::sync::Arc;

use etcd::{Config, Store};
use lifecycle::Tasks;

use crate::conformance;

fn memory() -> (Arc<dyn Store>, Tasks) {
    let tasks = Tasks::new();
    let store = etcd::open(Config::default(), &tasks).expect("open in memory");
    (store, tasks)
}

#[tokio::test]
async fn the_store_in_memory_keeps_the_contract() {
    let (store, _tasks) = memory();
    conformance::all(store).await;
}

#[tokio::test]
async fn a_store_whose_tasks_stopped_says_that_it_is_closed() {
    let (store, tasks) = memory();
    let mut watch = store.watch("/".into(), 0).await.expect("watch");
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await.is_empty());
    assert_eq!(watch.next().await, Some(Err(etcd::StoreError::Closed)));
    assert_eq!(store.get(b"a", 0).await, Err(etcd::StoreError::Closed));
}
