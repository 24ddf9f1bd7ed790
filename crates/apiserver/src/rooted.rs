//! A store whose keys stand below another root than `/registry`, as `--etcd-prefix` says.
//!
//! Everybody inside speaks of `/registry/…`; only this file knows what that is called outside.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use etcd::{
    Committed, KeyValue, ListOptions, Listing, Precondition, ProgressRequester, Revision, Store, StoreError,
    Watch, WatchMessage, WatchSource,
};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};

/// What every key inside begins with.
const INSIDE: &[u8] = b"/registry";

/// The store below, and the root there.
pub struct Rooted {
    below: Arc<dyn Store>,
    root: Arc<[u8]>,
}

impl Rooted {
    /// `root` without a slash at its end.
    pub fn new(below: Arc<dyn Store>, root: &str) -> Self {
        Self { below, root: root.as_bytes().into() }
    }

    fn out(&self, key: &[u8]) -> Bytes {
        match key.strip_prefix(INSIDE) {
            Some(rest) => [&self.root, rest].concat().into(),
            None => Bytes::copy_from_slice(key),
        }
    }
}

fn inside(root: &[u8], kv: &mut KeyValue) {
    if let Some(rest) = kv.key.strip_prefix(root) {
        kv.key = [INSIDE, rest].concat().into();
    }
}

fn committed(root: &[u8], mut outcome: Committed) -> Committed {
    let (Committed::Done { previous: kv, .. } | Committed::Conflict { current: kv, .. }) = &mut outcome;
    if let Some(kv) = kv {
        inside(root, kv);
    }
    outcome
}

impl Store for Rooted {
    fn get(
        &self,
        key: &[u8],
        revision: Revision,
    ) -> BoxFuture<'_, Result<(Option<KeyValue>, Revision), StoreError>> {
        let key = self.out(key);
        async move {
            let (mut kv, revision) = self.below.get(&key, revision).await?;
            kv.iter_mut().for_each(|kv| inside(&self.root, kv));
            Ok((kv, revision))
        }
        .boxed()
    }

    fn list(&self, prefix: &[u8], mut options: ListOptions) -> BoxFuture<'_, Result<Listing, StoreError>> {
        let prefix = self.out(prefix);
        options.start = options.start.map(|start| self.out(&start));
        async move {
            let mut listing = self.below.list(&prefix, options).await?;
            listing.items.iter_mut().for_each(|kv| inside(&self.root, kv));
            Ok(listing)
        }
        .boxed()
    }

    fn put(
        &self,
        key: Bytes,
        value: Bytes,
        lease: i64,
        when: Precondition,
    ) -> BoxFuture<'_, Result<Committed, StoreError>> {
        let key = self.out(&key);
        async move { Ok(committed(&self.root, self.below.put(key, value, lease, when).await?)) }.boxed()
    }

    fn delete(&self, key: Bytes, when: Precondition) -> BoxFuture<'_, Result<Committed, StoreError>> {
        let key = self.out(&key);
        async move { Ok(committed(&self.root, self.below.delete(key, when).await?)) }.boxed()
    }

    fn watch(&self, prefix: Bytes, from: Revision) -> BoxFuture<'_, Result<Watch, StoreError>> {
        let prefix = self.out(&prefix);
        async move {
            let below = self.below.watch(prefix, from).await?;
            Ok(Watch::new(Source { below, root: self.root.clone() }))
        }
        .boxed()
    }

    fn progress(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.below.progress()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        self.below.compact(revision)
    }

    fn grant_lease(&self, ttl_seconds: i64) -> BoxFuture<'_, Result<i64, StoreError>> {
        self.below.grant_lease(ttl_seconds)
    }

    fn revoke_lease(&self, lease: i64) -> BoxFuture<'_, Result<(), StoreError>> {
        self.below.revoke_lease(lease)
    }

    fn size_in_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.below.size_in_bytes()
    }

    fn watch_progress_is_reliable(&self) -> bool {
        self.below.watch_progress_is_reliable()
    }
}

struct Source {
    below: Watch,
    root: Arc<[u8]>,
}

impl Stream for Source {
    type Item = Result<WatchMessage, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut next = Pin::new(&mut self.below).poll_next(context);
        if let Poll::Ready(Some(Ok(WatchMessage::Events { events, .. }))) = &mut next {
            for event in events {
                inside(&self.root, &mut event.kv);
                event.previous.iter_mut().for_each(|kv| inside(&self.root, kv));
            }
        }
        next
    }
}

impl WatchSource for Source {
    fn progress_requester(&self) -> ProgressRequester {
        self.below.progress_requester()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_stand_elsewhere_and_look_as_always() {
        let tasks = lifecycle::Tasks::new();
        let below = etcd::open(etcd::Config::default(), &tasks).unwrap();
        let store = Rooted::new(below.clone(), "/other");
        let mut watch = store.watch(Bytes::from_static(b"/registry/"), 0).await.unwrap();
        let key = Bytes::from_static(b"/registry/pods/a");
        store.put(key.clone(), Bytes::from_static(b"v"), 0, Precondition::Absent).await.unwrap();
        assert!(below.get(b"/other/pods/a", 0).await.unwrap().0.is_some());
        assert_eq!(store.get(&key, 0).await.unwrap().0.unwrap().key, key);
        let listing = store.list(b"/registry/pods/", ListOptions::default()).await.unwrap();
        assert_eq!(listing.items[0].key, key);
        match watch.next().await.unwrap().unwrap() {
            WatchMessage::Events { events, .. } => assert_eq!(events[0].kv.key, key),
            other => panic!("{other:?}"),
        }
        tasks.drain(std::time::Duration::from_secs(5)).await;
    }
}
