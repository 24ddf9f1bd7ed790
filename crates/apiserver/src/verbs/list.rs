//! LIST: from the cache when the revision allows, page by page from the store's history otherwise.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use apimachinery::status::Status;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use etcd::{ListOptions, StoreError};
use http::Response;
use serde::{Deserialize, Serialize};

use super::read::{FRESHNESS, Selection, parse_revision, store_failure, too_large};
use crate::body::Body;
use crate::cache::entry::Entry;
use crate::context::Context;
use crate::conversion::Age;
use crate::respond::{self, Page};
use crate::server::ApiServer;

/// Where a list goes on. A negative revision means: at whatever revision is current.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Continue {
    v: String,
    rv: i64,
    start: String,
}

impl Continue {
    fn encode(revision: i64, after: &str) -> String {
        let token = Self { v: "meta.k8s.io/v1".to_owned(), rv: revision, start: format!("{after}\0") };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self, Status> {
        let broken = || {
            Status::bad_request(
                "invalid continue token: continue key is not valid: it was not made by this server",
            )
        };
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| broken())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| broken())?;
        if token.v != "meta.k8s.io/v1" || token.start.is_empty() || token.start.starts_with('/') {
            return Err(broken());
        }
        Ok(token)
    }
}

/// How the revision of a list is meant.
#[derive(Debug, PartialEq, Eq)]
enum Match {
    /// The newest.
    Consistent,
    /// Anything cached.
    Any,
    /// At least this.
    NotOlderThan(i64),
    /// Exactly this.
    Exact(i64),
}

fn wanted(version: &str, rule: &str, limit: usize) -> Result<Match, Status> {
    // Which rules go together, the options' check has seen.
    let parse_revision = |text: &str| {
        parse_revision(text)
            .map_err(|status| Status::bad_request(format!("invalid resource version: {status}")))
    };
    match (version, rule) {
        ("", "") => Ok(Match::Consistent),
        ("", _) => Ok(Match::Consistent),
        ("0", _) => Ok(Match::Any),
        (text, "Exact") => Ok(Match::Exact(parse_revision(text)?)),
        // With a limit and no rule, the named revision is meant exactly.
        (text, "") if limit > 0 => Ok(Match::Exact(parse_revision(text)?)),
        (text, _) => Ok(Match::NotOlderThan(parse_revision(text)?)),
    }
}

impl ApiServer {
    /// LIST of a collection.
    pub async fn list(&self, context: &Context) -> Result<Response<Body>, Status> {
        let page = self.page(context).await?;
        respond::list(context, page)
    }

    /// One page of a collection as the query asks for it.
    pub async fn page(&self, context: &Context) -> Result<Page, Status> {
        let query = &context.query;
        let limit = query.get("limit").and_then(|text| text.parse::<i64>().ok()).unwrap_or(0).max(0) as usize;
        let selection = Selection::of(context)?;
        let version = query.get("resourceVersion").unwrap_or_default();
        let rule = query.get("resourceVersionMatch").unwrap_or_default();
        if let Some(token) = query.get("continue").filter(|token| !token.is_empty()) {
            if !matches!(version, "" | "0") {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let token = Continue::decode(token)?;
            return self.history_page(context, &selection, limit, token.rv, Some(&token.start)).await;
        }
        match wanted(version, rule, limit)? {
            Match::Consistent => {
                let began = Instant::now();
                let caught_up = self.hub.catch_up().await;
                if let Some(cache) = self.hub.cache(&context.resource.prefix) {
                    cache.lists.consistent[usize::from(caught_up.is_ok())].fetch_add(1, Ordering::Relaxed);
                    cache.lists.waited(began);
                }
                caught_up.map_err(|error| store_failure(&error))?;
                self.cache_page(context, &selection, limit).await
            }
            // A list of "anything" ignores the limit, as upstream's cache does.
            Match::Any => self.cache_page(context, &selection, 0).await,
            Match::NotOlderThan(revision) => {
                self.hub
                    .wait_for(revision, FRESHNESS)
                    .await
                    .map_err(|late| too_large(late.wanted, late.reached))?;
                self.cache_page(context, &selection, limit).await
            }
            Match::Exact(revision) => {
                self.hub
                    .wait_for(revision, FRESHNESS)
                    .await
                    .map_err(|late| too_large(late.wanted, late.reached))?;
                self.history_page(context, &selection, limit, revision, None).await
            }
        }
    }

    async fn cache_page(
        &self,
        context: &Context,
        selection: &Selection,
        limit: usize,
    ) -> Result<Page, Status> {
        let resource = &context.resource;
        let prefix = self.list_prefix(context, selection);
        let Some(cache) = self.hub.cache(&resource.prefix) else {
            return Ok(Page {
                entries: Vec::new(),
                revision: self.hub.reached(),
                continue_token: String::new(),
                remaining: None,
            });
        };
        let snapshot = cache.snapshot(&prefix, self.hub.reached());
        let mut entries = snapshot.entries;
        let fetched = entries.len();
        let everything = selection.is_everything();
        // What a converted object says decides, where more than its name is asked for.
        let first = resource.converter.is_some() && !selection.is_by_name();
        if first {
            entries = Box::pin(self.in_version(resource, entries, Age::Kept)).await?;
        }
        if !everything {
            entries.retain(|entry| selection.matches(resource, entry));
        }
        let (mut continue_token, mut remaining) = (String::new(), None);
        if limit > 0 && entries.len() > limit {
            remaining = everything.then(|| (entries.len() - limit) as i64);
            entries.truncate(limit);
            continue_token = self.token_after(context, &entries, snapshot.revision);
        }
        if resource.converter.is_some() && !first {
            entries = Box::pin(self.in_version(resource, entries, Age::Kept)).await?;
        }
        cache.lists.cache.add(fetched, fetched, entries.len());
        Ok(Page { entries, revision: snapshot.revision, continue_token, remaining })
    }

    /// The keys that can match: one namespace if there is one, by path or by field selector.
    fn list_prefix(&self, context: &Context, selection: &Selection) -> Bytes {
        let namespace = match context.info.namespace.as_str() {
            "" => selection.fields.exact("metadata.namespace").unwrap_or_default(),
            namespace => namespace,
        };
        context.resource.collection(namespace)
    }

    fn token_after(&self, context: &Context, entries: &[Arc<Entry>], revision: i64) -> String {
        let prefix = context.resource.collection(&context.info.namespace);
        let Some(last) = entries.last() else { return String::new() };
        let after = String::from_utf8_lossy(&last.key[prefix.len().min(last.key.len())..]);
        Continue::encode(revision, &after)
    }

    /// A page at a revision of the store's history.
    async fn history_page(
        &self,
        context: &Context,
        selection: &Selection,
        limit: usize,
        revision: i64,
        start: Option<&str>,
    ) -> Result<Page, Status> {
        let resource = &context.resource;
        let prefix = resource.collection(&context.info.namespace);
        let everything = selection.is_everything();
        let mut options = ListOptions {
            start: start.map(|start| [&prefix[..], start.as_bytes()].concat().into()),
            limit: if everything { limit } else { limit.max(500) },
            revision: revision.max(0),
            keys_only: false,
        };
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        let (mut fetched, mut evaluated) = (0, 0);
        let count = |fetched: usize, evaluated: usize, entries: &[Arc<Entry>]| {
            if let Some(cache) = self.hub.cache(&resource.prefix) {
                cache.lists.store.add(fetched, evaluated, entries.len());
            }
        };
        loop {
            let listing = match self.hub.store().list(&prefix, options.clone()).await {
                Ok(listing) => listing,
                Err(StoreError::Compacted { .. }) => return Err(self.expired(start)),
                Err(error) => return Err(store_failure(&error)),
            };
            options.revision = listing.revision_for(revision);
            fetched += listing.items.len();
            let mut left = listing.count;
            let mut last_key = None;
            let mut opened: Vec<(Bytes, Option<Arc<Entry>>)> = Vec::with_capacity(listing.items.len());
            for item in listing.items {
                let key = item.key.clone();
                let entry = self.hub.open(&resource.prefix, item.key, item.value, item.mod_revision);
                opened.push((key, entry.map(Arc::new)));
            }
            if resource.converter.is_some() {
                let read = opened.iter().filter_map(|(_, entry)| entry.clone()).collect();
                let mut shown = Box::pin(self.in_version(resource, read, Age::Kept)).await?.into_iter();
                opened
                    .iter_mut()
                    .filter(|(_, entry)| entry.is_some())
                    .for_each(|(_, entry)| *entry = shown.next());
            }
            for (key, entry) in opened {
                left -= 1;
                evaluated += 1;
                last_key = Some(key);
                if let Some(entry) = entry
                    && (everything || selection.matches(resource, &entry))
                {
                    entries.push(entry);
                    if limit > 0 && entries.len() == limit {
                        break;
                    }
                }
            }
            let full = limit > 0 && entries.len() == limit;
            if left == 0 || full {
                let more = left > 0;
                let continue_token =
                    if more { self.token_after(context, &entries, options.revision) } else { String::new() };
                let remaining = (more && everything).then_some(left);
                count(fetched, evaluated, &entries);
                return Ok(Page { entries, revision: options.revision, continue_token, remaining });
            }
            match last_key {
                Some(key) => options.start = Some([&key[..], &[0]].concat().into()),
                None => {
                    count(fetched, evaluated, &entries);
                    return Ok(Page {
                        entries,
                        revision: options.revision,
                        continue_token: String::new(),
                        remaining: None,
                    });
                }
            }
        }
    }

    fn expired(&self, start: Option<&str>) -> Status {
        let mut status = Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new \
             list without the continue parameter, or use the continue token in this response to go on with a list \
             that mixes revisions: what changed in between may be missing or appear twice.",
        );
        if let Some(start) = start {
            status.continue_token = Continue::encode(-1, start.trim_end_matches('\0'));
        }
        status
    }
}

trait RevisionFor {
    fn revision_for(&self, asked: i64) -> i64;
}

impl RevisionFor for etcd::Listing {
    /// The revision to go on with: the one asked for, or the one that "now" turned out to be.
    fn revision_for(&self, asked: i64) -> i64 {
        if asked > 0 { asked } else { self.revision }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_survives_and_nonsense_does_not() {
        let token = Continue::decode(&Continue::encode(7, "ns/a")).unwrap();
        assert_eq!((token.rv, token.start.as_str()), (7, "ns/a\0"));
        assert!(Continue::decode("garbage!").is_err());
        assert!(Continue::decode("e30").is_err());
    }

    #[test]
    fn revisions_match_as_upstream_matches_them() {
        assert_eq!(wanted("", "", 0).unwrap(), Match::Consistent);
        assert_eq!(wanted("0", "", 10).unwrap(), Match::Any);
        assert_eq!(wanted("5", "", 0).unwrap(), Match::NotOlderThan(5));
        assert_eq!(wanted("5", "", 1).unwrap(), Match::Exact(5));
        assert_eq!(wanted("5", "Exact", 0).unwrap(), Match::Exact(5));
        assert!(wanted("x", "", 0).is_err());
    }
}
