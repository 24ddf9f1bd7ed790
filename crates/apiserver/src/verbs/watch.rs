//! WATCH: a stream of events from a revision on, bookmarks between them, an end at the deadline.
//!
//! The body is driven by the client's reading: each turn takes everything that waits in the subscription and
//! writes it as one piece. Nothing is buffered per watcher but pointers. What rarely happens (the end, a bookmark) is
//! looked at only when it rings ([`Bell`]).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker, ready};
use std::time::Duration;

use apimachinery::status::Status;
use bytes::{BufMut, Bytes, BytesMut};
use etcd::{EventKind, StoreError, WatchMessage};
use futures::task::AtomicWaker;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep, sleep_until};

use super::read::{FRESHNESS, Selection, parse_revision, store_failure, too_large};
use crate::body::Body;
use crate::cache::entry::{self, ChangeKind, Delivery, Entry};
use crate::cache::resource::{Filter, ResourceCache, Subscription};
use crate::codec;
use crate::context::Context;
use crate::conversion::{Age, Converter};
use crate::metrics::histogram::Histogram;
use crate::metrics::watches::Tally;
use crate::negotiate::{Format, Shape};
use crate::registry::Resource;
use crate::respond;
use crate::server::ApiServer;

/// How often an idle watch is told how far the server is.
const BOOKMARK_EVERY: Duration = Duration::from_secs(55);
/// A watch that nobody ends.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// One piece of the body is at most about this large.
const PIECE: usize = 256 << 10;
/// Over the network, events that follow each other more quickly than this are sent together: the first at once, the
/// others when this time has passed. A wake-up, a frame, a TLS record and a system call cost more than an event. No clock is
/// set before there is something to wait with.
const PACE: Duration = Duration::from_millis(2);
/// So many events are converted at once.
const CONVERTED: usize = 100;
/// The annotation of the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Where a watch begins.
#[derive(Debug, PartialEq, Eq)]
enum Begin {
    /// With all objects as they are; consistent if so asked.
    State { consistent: bool, at_least: i64, mark_end: bool },
    /// After a revision.
    After(i64),
    /// Now, without the state.
    Now,
}

fn begin(context: &Context) -> Result<Begin, Status> {
    let query = &context.query;
    let version = query.get("resourceVersion").unwrap_or_default();
    let rule = query.get("resourceVersionMatch").unwrap_or_default();
    let bookmarks = query.flag("allowWatchBookmarks");
    let invalid = |field: &str, text: &str| {
        let mut problems = apimachinery::field::Problems::new();
        problems.forbidden(&apimachinery::field::Path::new(field), text);
        Status::invalid("meta.k8s.io", "ListOptions", "", &problems)
    };
    let revision = if version.is_empty() { 0 } else { parse_revision(version)? };
    match query.get("sendInitialEvents") {
        None => {
            if !rule.is_empty() {
                return Err(invalid(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            Ok(match version {
                "" => Begin::State { consistent: true, at_least: 0, mark_end: false },
                "0" => Begin::State { consistent: false, at_least: 0, mark_end: false },
                _ => Begin::After(revision),
            })
        }
        Some(_) if rule != "NotOlderThan" => Err(invalid(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )),
        Some(_) if query.flag("sendInitialEvents") => {
            Ok(Begin::State { consistent: version.is_empty(), at_least: revision, mark_end: bookmarks })
        }
        Some(_) => Ok(if revision == 0 { Begin::Now } else { Begin::After(revision) }),
    }
}

impl ApiServer {
    /// WATCH of a collection or an object.
    pub async fn watch(&self, context: Context) -> Result<Response<Body>, Status> {
        let query = &context.query;
        let selection = Selection::of(&context)?;
        let begin = begin(&context)?;
        let seconds = match query.get("timeoutSeconds").unwrap_or_default() {
            "" => None,
            text => Some(text.parse::<u64>().map_err(|_| {
                Status::bad_request(format!("timeoutSeconds: Invalid value: {text:?}: must be a number"))
            })?),
        };
        let resource = context.resource.clone();
        let cache = self
            .hub
            .cache(&resource.prefix)
            .ok_or_else(|| Status::unavailable("the resource is not loaded yet").retry_after(1))?;
        let namespace = match context.info.namespace.as_str() {
            "" => selection.fields.exact("metadata.namespace").unwrap_or_default().to_owned(),
            namespace => namespace.to_owned(),
        };
        // `GET …/watch/…/pods/x` watches one object.
        let name = (!context.info.name.is_empty()).then(|| context.info.name.clone());
        let prefix = resource.collection(&namespace);
        let conversion = resource.converter.clone().map(|converter| Conversion {
            converter,
            resource: resource.clone(),
            // What a converted object says decides, where more than its name is asked for.
            selection: (!selection.is_by_name()).then(|| selection.clone()),
        });
        let filter = if conversion.as_ref().is_some_and(|own| own.selection.is_some()) {
            Selection::parse(&resource, "", "")?.filter(resource, name)
        } else {
            selection.filter(resource, name)
        };

        let mut start = Start::default();
        let tally = Tally::new(self.metrics.watches.of(&context.info));
        let mut after = 0;
        let subscription = match begin {
            Begin::State { consistent, at_least, mark_end } => {
                if consistent {
                    self.hub.catch_up().await.map_err(|error| store_failure(&error))?;
                }
                if let Err(late) = self.hub.wait_for(at_least, FRESHNESS).await {
                    return Ok(only_error(&context, &too_large(late.wanted, late.reached)));
                }
                let (snapshot, subscription) = cache.watch_from_now(prefix, filter, self.hub.reached());
                start.state = snapshot.entries;
                start.end_mark = mark_end.then_some(snapshot.revision);
                self.metrics.watches.began(&context.info, start.state.len());
                start.listing = mark_end.then(|| self.metrics.watches.listing(&context.info));
                subscription
            }
            Begin::Now => cache.watch_from_now(prefix, filter, self.hub.reached()).1,
            Begin::After(revision) => {
                after = revision;
                match cache.watch_after(prefix.clone(), filter.clone(), revision) {
                    Some(subscription) => subscription,
                    None => match self.history_watch(&cache, prefix, filter, revision).await {
                        Ok((missed, subscription)) => {
                            start.missed = missed;
                            subscription
                        }
                        Err(status) => return Ok(only_error(&context, &status)),
                    },
                }
            }
        };
        // Without a wish the end is spread out, so that not all clients come back at once.
        let lifetime = match seconds {
            Some(seconds) => Duration::from_secs(seconds),
            None if self.settings.min_watch.is_zero() => FOREVER,
            None => self.settings.min_watch.mul_f64(1.0 + self.chance()),
        };
        let bookmarks = context.query.flag("allowWatchBookmarks");
        let headers = watch_content_type(&context);
        let now = Instant::now();
        let (stop, last) = (self.stop.clone(), self.last_watches.clone());
        let grace = self.settings.watch_grace.mul_f64(self.chance());
        let mut stream = Stream {
            remote: context.remote,
            writer: Writer { context, first: true, tally },
            conversion,
            converting: None,
            ready: Vec::new(),
            over: false,
            subscription,
            start,
            hub: self.hub.clone(),
            after,
            rest: Box::pin(sleep_until(now)),
            until: now,
            resting: false,
            rare: Rare::default(),
            end: Box::pin(async move {
                tokio::select! {
                    () = sleep_until(now + lifetime) => {}
                    () = stop.requested() => {}
                    // A server that stops ends its watches one by one, so that their clients do not come to another all at once.
                    () = async { last.requested().await; tokio::time::sleep(grace).await } => {}
                }
            }),
            bookmark: bookmarks.then(|| {
                let first = BOOKMARK_EVERY.min(lifetime.saturating_sub(Duration::from_secs(2)));
                Box::pin(sleep_until(now + first))
            }),
        };
        let body =
            Body::stream(futures::stream::poll_fn(move |waker| stream.poll(waker).map(|next| next.map(Ok))));
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, headers);
        response
            .headers_mut()
            .insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        Ok(response)
    }

    /// Reads from the store what the cache no longer has, and joins the cache where its history begins.
    async fn history_watch(
        &self,
        cache: &Arc<ResourceCache>,
        prefix: Bytes,
        filter: Filter,
        revision: i64,
    ) -> Result<(Vec<Delivery>, Subscription), Status> {
        let (join, subscription) = loop {
            let join = cache.history_from();
            if let Some(subscription) = cache.watch_after(prefix.clone(), filter.clone(), join) {
                break (join, subscription);
            }
        };
        let gone = |oldest: i64| Status::expired(format!("too old resource version: {revision} ({oldest})"));
        let refused = |error: StoreError| match error {
            StoreError::Compacted { compacted, .. } => gone(compacted),
            other => store_failure(&other),
        };
        let mut watch = self.hub.store().watch(prefix, revision + 1).await.map_err(refused)?;
        watch.progress_requester().request();
        let mut missed = Vec::new();
        let reading = async {
            loop {
                let message = watch.next().await.ok_or_else(|| gone(join))?.map_err(refused)?;
                let reached = match message {
                    WatchMessage::Progress { revision } => revision,
                    WatchMessage::Events { revision, events } => {
                        for event in events.into_iter().filter(|event| event.kv.mod_revision <= join) {
                            missed.extend(self.replay(cache, event, &filter));
                        }
                        revision
                    }
                };
                if reached >= join {
                    return Ok(());
                }
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), reading).await {
            Ok(outcome) => outcome?,
            Err(_) => return Err(gone(join)),
        }
        Ok((missed, subscription))
    }

    fn replay(&self, cache: &ResourceCache, event: etcd::Event, filter: &Filter) -> Option<Delivery> {
        let revision = event.kv.mod_revision;
        let open = |kv: etcd::KeyValue| {
            self.hub.open(cache.prefix(), kv.key, kv.value, kv.mod_revision).map(Arc::new)
        };
        let before = event.previous.and_then(open).filter(|entry| filter(entry));
        let now = match event.kind {
            EventKind::Put => open(event.kv).filter(|entry| filter(entry)),
            EventKind::Delete => None,
        };
        Delivery::of(before, now, revision)
    }
}

fn watch_content_type(context: &Context) -> HeaderValue {
    HeaderValue::from_static(match context.accepted.format {
        Format::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        // No watch is in YAML.
        Format::Json | Format::Yaml => "application/json",
    })
}

/// A watch that only says why it cannot be.
fn only_error(context: &Context, status: &Status) -> Response<Body> {
    let mut out = BytesMut::new();
    let schema = codec::status_schema();
    write_event(context, "ERROR", &status.to_value(), schema.as_ref(), &mut out);
    let mut response = Response::new(Body::from(out.freeze()));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, watch_content_type(context));
    response
}

/// What comes before the live events.
#[derive(Default)]
struct Start {
    state: Vec<Arc<Entry>>,
    missed: Vec<Delivery>,
    end_mark: Option<i64>,
    /// Told when the first events are out.
    listing: Option<(Arc<Histogram>, std::time::Instant)>,
}

/// How events of a custom resource come into the version that is watched.
#[derive(Clone)]
struct Conversion {
    converter: Arc<Converter>,
    resource: Arc<Resource>,
    /// Which objects are meant, if that can only be seen when they are converted.
    selection: Option<Selection>,
}

impl Conversion {
    /// Converts events, and leaves out those that the selection does not see.
    async fn convert(self, events: Vec<Delivery>) -> Result<Vec<Delivery>, Status> {
        let mut entries: Vec<Arc<Entry>> = events.iter().map(|event| event.entry.clone()).collect();
        let Some(selection) = &self.selection else {
            let shown = self.converter.entries(&self.resource, entries, Age::Kept).await?;
            let pairs = events.into_iter().zip(shown);
            return Ok(pairs.map(|(event, entry)| Delivery { entry, lines: None, ..event }).collect());
        };
        // What an object was before decides whether it enters or leaves.
        entries.extend(events.iter().filter_map(|event| event.previous.clone()));
        let mut shown = self.converter.entries(&self.resource, entries, Age::Kept).await?;
        let mut earlier = shown.split_off(events.len()).into_iter();
        let mut out = Vec::new();
        for (event, entry) in events.into_iter().zip(shown) {
            let before = event.previous.and_then(|_| earlier.next());
            let inside = |entry: &Entry| selection.matches(&self.resource, entry);
            let was = before.filter(|before| inside(before));
            let seen = match (event.kind, was, inside(&entry)) {
                (ChangeKind::Modified, Some(_), true) => Some((ChangeKind::Modified, entry)),
                (ChangeKind::Modified, Some(before), false) => Some((ChangeKind::Deleted, before)),
                (ChangeKind::Modified, None, true) => Some((ChangeKind::Added, entry)),
                (kind, _, true) => Some((kind, entry)),
                (_, _, false) => None,
            };
            let revision = event.revision;
            out.extend(seen.map(|(kind, entry)| Delivery {
                kind,
                entry,
                previous: None,
                revision,
                lines: None,
            }));
        }
        Ok(out)
    }
}

/// Events on their way through a webhook.
type Converting = Pin<Box<dyn Future<Output = Result<Vec<Delivery>, Status>> + Send>>;

struct Stream {
    writer: Writer,
    /// How events come into the version that is watched, if that takes a webhook.
    conversion: Option<Conversion>,
    /// The events that are next, while they are being converted,
    converting: Option<Converting>,
    /// and when they are.
    ready: Vec<Delivery>,
    /// Nothing follows.
    over: bool,
    subscription: Subscription,
    start: Start,
    hub: Arc<crate::cache::Hub>,
    /// The watch begins after this revision; no bookmark names an earlier one.
    after: i64,
    /// Over the network events are collected.
    remote: bool,
    rest: Pin<Box<Sleep>>,
    /// Until when they are, after the last piece.
    until: Instant,
    /// While some wait for that.
    resting: bool,
    rare: Rare,
    /// The deadline, or the server's stop.
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    bookmark: Option<Pin<Box<Sleep>>>,
}

/// Wakes the task of a watch, and remembers that it did.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// For futures that are rarely ready: who is woken by something else, event after event, need not ask them.
struct Rare {
    bell: Arc<Bell>,
    waker: Waker,
}

impl Default for Rare {
    fn default() -> Self {
        let bell = Arc::new(Bell { rung: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { waker: bell.clone().into(), bell }
    }
}

impl Rare {
    /// The waker to ask them with, if one of them may be ready. The task is woken when that is so later.
    fn ask(&self, task: &Waker) -> Option<Waker> {
        self.bell.task.register(task);
        self.bell.rung.swap(false, Ordering::AcqRel).then(|| self.waker.clone())
    }

    /// Not all of them were asked.
    fn again(&self) {
        self.bell.rung.store(true, Ordering::Release);
    }
}

impl Stream {
    /// The next piece; `None` at the end.
    fn poll(&mut self, waker: &mut std::task::Context<'_>) -> Poll<Option<Bytes>> {
        let piece = self.piece(waker);
        self.writer.tally.tell();
        piece
    }

    fn piece(&mut self, waker: &mut std::task::Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = BytesMut::new();
        if self.over {
            return Poll::Ready(None);
        }
        // A webhook that takes its time does not keep a watch from its end.
        let Poll::Ready(failed) = self.convert(waker) else {
            return self.ended(waker);
        };
        if let Some(status) = failed {
            self.over = true;
            write_event(
                &self.writer.context,
                "ERROR",
                &status.to_value(),
                codec::status_schema().as_ref(),
                &mut out,
            );
            return Poll::Ready(Some(out.freeze()));
        }
        if self.write_start(&mut out) {
            return Poll::Ready(Some(out.freeze()));
        }
        if !self.rests(waker)
            && let Poll::Ready(events) = self.subscription.poll_next(waker)
        {
            let Some(mut events) = events else { return Poll::Ready(None) };
            if self.conversion.is_some() {
                self.start.missed = events;
                return self.piece(waker);
            }
            self.collect();
            if let [event] = &events[..]
                && let Some(line) = self.writer.line(event)
            {
                return Poll::Ready(Some(line));
            }
            let written = self.writer.events(&events, &mut out);
            events.drain(..written);
            self.start.missed = events;
            return Poll::Ready(Some(out.freeze()));
        }
        let Some(rare) = self.rare.ask(waker.waker()) else { return Poll::Pending };
        let mut asking = std::task::Context::from_waker(&rare);
        while let Some(timer) = &mut self.bookmark
            && timer.as_mut().poll(&mut asking).is_ready()
        {
            timer.as_mut().reset(Instant::now() + BOOKMARK_EVERY);
            // Everything up to what is read here was queued before.
            let revision = self.hub.reached();
            // What waits and is to be converted goes first; there will be other bookmarks.
            let waits = self.conversion.is_some() && self.subscription.has_some();
            if revision >= self.after && !waits {
                self.rare.again();
                return Poll::Ready(Some(self.progress(revision)));
            }
        }
        self.end.as_mut().poll(&mut asking).map(|()| None)
    }

    /// Only looks whether this is the end.
    fn ended(&mut self, waker: &mut std::task::Context<'_>) -> Poll<Option<Bytes>> {
        let Some(rare) = self.rare.ask(waker.waker()) else { return Poll::Pending };
        self.rare.again();
        self.end.as_mut().poll(&mut std::task::Context::from_waker(&rare)).map(|()| None)
    }

    /// Lets events come together for a while.
    fn collect(&mut self) {
        if self.remote {
            self.until = Instant::now() + PACE;
        }
    }

    /// Whether events are to come together: then nothing wakes the task before its time but what is rare.
    fn rests(&mut self, waker: &mut std::task::Context<'_>) -> bool {
        if !self.resting {
            if !self.remote || self.until <= Instant::now() || self.subscription.poll_some(waker).is_pending()
            {
                return false;
            }
            self.rest.as_mut().reset(self.until);
        }
        self.resting = self.rest.as_mut().poll(waker).is_pending();
        self.resting
    }

    /// Has the events that are next converted and chosen; returns why that cannot be.
    fn convert(&mut self, waker: &mut std::task::Context<'_>) -> Poll<Option<Status>> {
        let Some(conversion) = &self.conversion else { return Poll::Ready(None) };
        // The mark at the end of the state stands between it and the changes.
        while self.ready.is_empty() {
            let converting = match &mut self.converting {
                Some(converting) => converting,
                None => {
                    let state = self.start.state.drain(..self.start.state.len().min(CONVERTED));
                    let mut next: Vec<Delivery> = state
                        .filter_map(|entry| Delivery::of(None, Some(entry.clone()), entry.revision))
                        .collect();
                    if next.is_empty() && self.start.end_mark.is_none() {
                        let count = self.start.missed.len().min(CONVERTED);
                        next = self.start.missed.drain(..count).collect();
                    }
                    if next.is_empty() {
                        break;
                    }
                    self.converting.insert(Box::pin(conversion.clone().convert(next)))
                }
            };
            let outcome = ready!(converting.as_mut().poll(waker));
            self.converting = None;
            match outcome {
                Err(status) => return Poll::Ready(Some(status)),
                Ok(events) => self.ready = events,
            }
        }
        Poll::Ready(None)
    }

    /// Writes what is left of the start; returns whether there was something.
    fn write_start(&mut self, out: &mut BytesMut) -> bool {
        if self.conversion.is_some() {
            // Converted ones of the state come before its end, changes after it.
            let written = self.writer.events(&self.ready, out);
            self.ready.drain(..written);
        } else if !self.start.state.is_empty() {
            let mut used = 0;
            for entry in &self.start.state {
                self.writer.event(ChangeKind::Added, entry, entry.revision, out);
                used += 1;
                if out.len() > PIECE {
                    break;
                }
            }
            self.start.state.drain(..used);
        }
        if self.start.state.is_empty()
            && self.ready.is_empty()
            && let Some(revision) = self.start.end_mark.take()
        {
            self.writer.bookmark(revision, true, out);
            if let Some((listed, began)) = self.start.listing.take() {
                listed.time(began.elapsed());
            }
        }
        if self.start.state.is_empty() && !self.start.missed.is_empty() && self.conversion.is_none() {
            let written = self.writer.events(&self.start.missed, out);
            self.start.missed.drain(..written);
        }
        !out.is_empty()
    }

    /// Says how far the server is, after whatever waits. What is to be converted does not wait but came later.
    fn progress(&mut self, revision: i64) -> Bytes {
        let mut out = BytesMut::new();
        if self.conversion.is_none() {
            for event in self.subscription.take() {
                self.writer.event(event.kind, &event.entry, event.revision, &mut out);
            }
        }
        self.writer.bookmark(revision, false, &mut out);
        out.freeze()
    }
}

struct Writer {
    context: Context,
    /// The first table of a watch explains its columns.
    first: bool,
    tally: Tally,
}

impl Writer {
    /// Writes events until the piece is large enough; returns how many.
    fn events(&mut self, events: &[Delivery], out: &mut BytesMut) -> usize {
        let room: usize = events.iter().map(|event| event.entry.served_len() + 36).sum();
        out.reserve(room.min(PIECE));
        for (index, event) in events.iter().enumerate() {
            self.event(event.kind, &event.entry, event.revision, out);
            if out.len() > PIECE {
                return index + 1;
            }
        }
        events.len()
    }

    /// An event that others are sent in the same words.
    fn line(&mut self, event: &Delivery) -> Option<Bytes> {
        let (accepted, resource) = (&self.context.accepted, &self.context.resource);
        let plain = (accepted.shape, accepted.format) == (Shape::Object, Format::Json);
        if !plain || resource.head_of(&event.entry) == 0 {
            return None;
        }
        let line = event.line();
        self.tally.add(line.len());
        Some(line)
    }

    fn event(&mut self, kind: ChangeKind, entry: &Arc<Entry>, revision: i64, out: &mut BytesMut) {
        let before = out.len();
        self.write(kind, entry, revision, out);
        self.tally.add(out.len() - before);
    }

    fn write(&mut self, kind: ChangeKind, entry: &Arc<Entry>, revision: i64, out: &mut BytesMut) {
        let context = &self.context;
        let entry = context.resource.entry_in_version(entry);
        match (context.accepted.shape, context.accepted.format) {
            (Shape::Object, Format::Json) => entry::write_event(kind, &entry, revision, out),
            (Shape::Object, Format::Protobuf) => {
                let object = respond::protobuf_object(&context.resource, &entry, revision);
                protobuf_event(kind.as_str(), &object, out);
            }
            (shape, _) => {
                let mut value = context.resource.served_value(entry.parse());
                value["metadata"]["resourceVersion"] = Value::String(revision.to_string());
                let (shown, schema) = match shape {
                    Shape::Table => {
                        let metadata = json!({"resourceVersion": revision.to_string()});
                        let at = Arc::new(Entry::new(
                            context.resource.prefix.len(),
                            entry.key.clone(),
                            entry.value.clone(),
                            revision,
                        ));
                        let headers = std::mem::take(&mut self.first);
                        (respond::table_of(context, metadata, &[at], headers), None)
                    }
                    Shape::Metadata => (
                        respond::metadata_of(&context.resource, &value),
                        Some(api::schemas::partial_metadata().0),
                    ),
                    Shape::Object => (value, None),
                };
                let shown = respond::in_version(&self.context.accepted, shown);
                write_event(&self.context, kind.as_str(), &shown, schema.as_ref(), out);
            }
        }
    }

    fn bookmark(&mut self, revision: i64, end_of_initial: bool, out: &mut BytesMut) {
        let resource = &self.context.resource;
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if end_of_initial {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let object =
            json!({"kind": resource.kind(), "apiVersion": resource.api_version, "metadata": metadata});
        let (object, schema) = match self.context.accepted.shape {
            Shape::Object => (object, Some(resource.definition.schema.clone())),
            Shape::Metadata => {
                (apimachinery::table::partial_metadata(&object), Some(api::schemas::partial_metadata().0))
            }
            Shape::Table => {
                let row = apimachinery::table::row(
                    Vec::new(),
                    Some(apimachinery::table::partial_metadata(&object)),
                );
                let columns = if std::mem::take(&mut self.first) {
                    resource.definition.table_headers()
                } else {
                    Vec::new()
                };
                (
                    apimachinery::table::table(
                        json!({"resourceVersion": revision.to_string()}),
                        &columns,
                        vec![row],
                    ),
                    None,
                )
            }
        };
        let object = respond::in_version(&self.context.accepted, object);
        write_event(&self.context, "BOOKMARK", &object, schema.as_ref(), out);
    }
}

fn write_event(
    context: &Context,
    kind: &str,
    object: &Value,
    schema: Option<&apimachinery::schema::Schema>,
    out: &mut BytesMut,
) {
    match context.accepted.format {
        Format::Json | Format::Yaml => {
            let line = json!({"type": kind, "object": object});
            out.put_slice(line.to_string().as_bytes());
            out.put_u8(b'\n');
        }
        Format::Protobuf => {
            let Some(schema) = schema else { return };
            let raw = codec::protobuf_raw(object, schema);
            let object = codec::envelope(&[&raw], object["apiVersion"].as_str(), object["kind"].as_str());
            protobuf_event(kind, &object, out);
        }
    }
}

/// A WatchEvent in a frame: four bytes of length, the type, and the enveloped object as raw extension.
fn protobuf_event(kind: &str, object: &[u8], out: &mut BytesMut) {
    let mut raw = BytesMut::with_capacity(object.len() + 8);
    codec::put_field(&mut raw, 1, object);
    let length = 1
        + codec::varint_len(kind.len() as u64)
        + kind.len()
        + 1
        + codec::varint_len(raw.len() as u64)
        + raw.len();
    out.reserve(length + 4);
    out.put_u32(length as u32);
    codec::put_field(out, 1, kind.as_bytes());
    codec::put_field(out, 2, &raw);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rare_is_asked_only_after_it_rang() {
        let task = Arc::new(Bell::default());
        let (rare, waker) = (Rare::default(), Waker::from(task.clone()));
        let asked = rare.ask(&waker).expect("asked at first");
        assert!(rare.ask(&waker).is_none(), "nothing rang");
        assert!(!task.rung.load(Ordering::Acquire));
        asked.wake();
        assert!(task.rung.load(Ordering::Acquire), "the task is woken");
        assert!(rare.ask(&waker).is_some());
        assert!(rare.ask(&waker).is_none());
        rare.again();
        assert!(rare.ask(&waker).is_some(), "not all were asked");
    }
}
