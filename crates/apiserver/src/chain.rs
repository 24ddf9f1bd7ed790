//! The chain that every request passes: request info → audit → impersonation → priority and fairness →
//! authorization → verb. Authentication comes before it on the network; in process the caller is the identity.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::{Subresource, Verb};
use apimachinery::status::Status;
use futures::{FutureExt, StreamExt};
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response};
use tracing::error;

use crate::audit::{Audit, NotKept, Record};
use crate::authz::{Attributes, Authorizer, Decision, Reason};
use crate::body::Body;
use crate::context::Context;
use crate::flowcontrol::{Classification, Refused};
use crate::impersonate::Mode;
use crate::in_flight::NoPlace;
use crate::metrics::requests::{Finished, LongRunning, Served};
use crate::negotiate::{self, Accepted};
use crate::options;
use crate::request_info::{Query, RequestInfo};
use crate::respond;
use crate::server::ApiServer;
use crate::user::{AUTHENTICATED, MASTERS, UNAUTHENTICATED, UserInfo};
use crate::verbs::socket;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// What becomes known of a request on its way, for those who count it.
#[derive(Default)]
struct Passage {
    /// Where it is counted.
    served: Option<Arc<Served>>,
    /// Microseconds spent waiting for a seat.
    waited: AtomicU64,
    /// It may not do what it asks for.
    refused: AtomicBool,
    /// It took too long.
    terminated: AtomicBool,
}

/// Where a request comes from.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Process,
    Machine,
    Network,
}

impl Origin {
    fn of(remote: Option<SocketAddr>) -> Self {
        match remote {
            None => Self::Process,
            Some(remote) if remote.ip().is_loopback() => Self::Machine,
            Some(_) => Self::Network,
        }
    }
}

/// Whether a patch is one of server-side apply.
fn is_apply(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/apply-patch"))
}

impl ApiServer {
    /// Answers a request of a known user.
    pub(crate) async fn serve(
        self: Arc<Self>,
        user: Arc<UserInfo>,
        request: Request<Body>,
        remote: Option<SocketAddr>,
    ) -> Response<Body> {
        let began = Instant::now();
        let query = Query::parse(request.uri().query());
        let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
        let plain = negotiate::Plain::new(request.headers(), query.get("pretty"));
        let verb = info.verb;
        let applies = verb == "patch" && is_apply(request.headers());
        let known = || self.registry.get(&info.group, &info.version, &info.resource).is_some();
        let in_flight = self.metrics.requests.enter(&info, &query, applies, known);
        let length = |headers: &HeaderMap| headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let bytes = request.body().size().or_else(|| length(request.headers()));
        if let Some(bytes) = bytes.filter(|_| in_flight.served().is_some()) {
            self.metrics.requests.body(&info, bytes);
        }
        let passage = Passage { served: in_flight.served().cloned(), ..Passage::default() };
        let rule = match info.verb {
            "create" | "update" | "patch" if info.is_resource => match query.get("fieldValidation") {
                Some("Strict") => "Strict",
                Some("Ignore") => "Ignore",
                _ => "Warn",
            },
            _ => "",
        };
        let answering =
            AssertUnwindSafe(self.clone().pass(user, request, remote, query, info, &passage)).catch_unwind();
        let mut response = match answering.await {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => respond::status(&status, &plain.form()),
            Err(_) => {
                error!(verb, resource = in_flight.resource(), "a request handler panicked");
                let status =
                    Status::internal("the request could not be finished because of a fault in the server");
                respond::status(&status, &plain.form())
            }
        };
        let done = Finished {
            code: response.status().as_u16(),
            took: began.elapsed(),
            waited: Duration::from_micros(passage.waited.load(Ordering::Relaxed)),
            answered: response.body().size().filter(|_| matches!(verb, "get" | "list" | "watch")),
            refused: passage.refused.load(Ordering::Relaxed),
            terminated: passage.terminated.load(Ordering::Relaxed),
        };
        if !rule.is_empty() {
            self.metrics.chain.validated(rule, done.took);
        }
        in_flight.finish(&done);
        let headers = response.headers_mut();
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
        response
    }

    async fn pass(
        self: Arc<Self>,
        mut user: Arc<UserInfo>,
        request: Request<Body>,
        remote: Option<SocketAddr>,
        query: Query,
        info: RequestInfo,
        passage: &Passage,
    ) -> Result<Response<Body>, Status> {
        let audit_id = self.audit_id(request.headers());
        let asker = user.clone();
        let wanted = crate::impersonate::wanted(request.headers()).map_err(Box::new);
        let mut open = Open { audit: self.audit.as_ref(), record: None };
        if let Some(audit) = &self.audit {
            let begun = audit.begin(&audit_id, &asker, &info, request.uri(), request.headers(), remote);
            let begun = Box::pin(begun).await;
            open.record = begun.map_err(|NotKept| Status::internal("failed to store audit event"))?;
        }
        let record = &mut open.record;
        let impersonated = match wanted {
            Ok(Some(other)) => {
                let became = Box::pin(self.in_name_of(&asker, other, &info, &query, passage)).await;
                became.map(|(other, mode)| {
                    if let Some(record) = record.as_mut() {
                        record.impersonated(&other, mode.constraint());
                    }
                    user = Arc::new(other);
                })
            }
            Ok(None) => Ok(()),
            Err(refused) => Err(refused),
        };
        let (is_watch, origin) = (info.verb == "watch", Origin::of(remote));
        let streams = is_watch || STREAMS.contains(&info.subresource.as_str());
        let class = self.flow.classify(&user, &info);
        let answered = async {
            impersonated.map_err(|refused| *refused)?;
            let refuse = |why| Status::too_many_requests(why, 1);
            const FULL: &str = "too many requests, please try again later";
            let (place, seat) = match &self.in_flight {
                Some(limits) => {
                    let (reading, long) = (info.is_read_only(), info.is_long_running(&query));
                    let place = limits.enter(reading, long, user.is_in(MASTERS));
                    (place.map_err(|NoPlace| refuse(FULL))?, None)
                }
                None => {
                    let began = Instant::now();
                    let flow = self.metrics.chain.flows.of(&class);
                    let (width, reading) = (self.width(&class, &info, &query), info.is_read_only());
                    let seat = self.flow.admit(&class, width, &flow.queue, reading).await;
                    let wait = began.elapsed();
                    self.metrics.chain.waited(wait);
                    passage.waited.store(wait.as_micros() as u64, Ordering::Relaxed);
                    let seat = seat.map_err(|refused| {
                        flow.refused(refused, wait);
                        match refused {
                            Refused::TimedOut => {
                                refuse("request did not start within its share of the server's time")
                            }
                            Refused::Full | Refused::QueueFull => refuse(FULL),
                        }
                    })?;
                    (None, Some((seat, flow.dispatched(width, is_watch, wait))))
                }
            };
            let allowed = {
                let text = |name: &str| query.get(name).unwrap_or_default();
                let asked = Attributes::of(&user, &info, text("fieldSelector"), text("labelSelector"));
                let decision = self.authorize_counted(&asked).await;
                if let Some(record) = record.as_mut() {
                    let word = if decision.is_allowed() { "allow" } else { "forbid" };
                    record.annotate([
                        ("authorization.k8s.io/decision".to_owned(), word.to_owned()),
                        ("authorization.k8s.io/reason".to_owned(), decision.reason().into_owned()),
                    ]);
                }
                decision.or_forbidden(&asked)
            };
            passage.refused.store(allowed.is_err(), Ordering::Relaxed);
            allowed?;
            let long = info.is_long_running(&query);
            let timeout = if long { self.request_timeout } else { self.patience(&query)? };
            let running = passage.served.as_ref().filter(|_| long).map(LongRunning::new);
            let work =
                self.clone().dispatch(user.clone(), request, origin, query, info, record.as_mut(), running);
            let outcome = if long {
                work.await
            } else {
                tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
                    passage.terminated.store(true, Ordering::Relaxed);
                    Err(Status::timeout(format!("request did not complete within {}s", timeout.as_secs()), 0))
                })
            };
            drop((seat, place));
            outcome
        }
        .await;
        let answered = match (&self.audit, open.record.take()) {
            (Some(audit), Some(record)) => {
                Box::pin(audited(audit, record, is_watch, streams, answered)).await
            }
            _ => answered,
        };
        let mut response = answered?;
        if let Ok(mut id) = HeaderValue::from_str(&audit_id) {
            // No two are the same: remembered by HTTP/2's header compression, they would only push the others out.
            id.set_sensitive(true);
            response.headers_mut().insert(AUDIT_ID, id);
        }
        for (name, uid) in [(FLOW_SCHEMA, &class.schema.1), (PRIORITY_LEVEL, &class.level.1)] {
            if self.in_flight.is_none()
                && let Ok(value) = HeaderValue::from_str(uid)
            {
                response.headers_mut().insert(name, value);
            }
        }
        Ok(response)
    }

    /// How long a request may take: as long as its sender says, but not longer than any other.
    fn patience(&self, query: &Query) -> Result<Duration, Status> {
        let Some(text) = query.get("timeout").filter(|text| !text.is_empty()) else {
            return Ok(self.request_timeout);
        };
        let Some(nanos) = apimachinery::time::parse_duration(text) else {
            let quoted = apimachinery::field::go_quote(text);
            let why = format!("invalid timeout specified in the request URL - timeout: {quoted}");
            return Err(Status::bad_request(why));
        };
        let wanted = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        Ok(wanted.map_or(self.request_timeout, |wanted| wanted.min(self.request_timeout)))
    }

    /// How many seats a request takes: a list as many as it is long, by hundreds, up to ten.
    fn width(&self, class: &Classification, info: &RequestInfo, query: &Query) -> usize {
        if info.verb != "list" || self.flow.is_exempt(class) {
            return 1;
        }
        let Some(resource) = self.registry.get(&info.group, &info.version, &info.resource) else { return 1 };
        let Some(cache) = self.hub.cache(&resource.prefix) else { return 1 };
        let limit = query.get("limit").and_then(|text| text.parse().ok()).filter(|limit| *limit > 0);
        cache.len().min(limit.unwrap_or(usize::MAX)).div_ceil(100).clamp(1, 10)
    }

    /// See [`ApiServer::impersonate`].
    async fn in_name_of(
        &self,
        user: &UserInfo,
        other: UserInfo,
        info: &RequestInfo,
        query: &Query,
        passage: &Passage,
    ) -> Result<(UserInfo, Mode), Box<Status>> {
        let began = Instant::now();
        let text = |name: &str| query.get(name).unwrap_or_default();
        let asked = Attributes::of(user, info, text("fieldSelector"), text("labelSelector"));
        let became = self.impersonate(user, other, &asked).await;
        let mode = became.as_ref().ok().map(|(_, mode)| *mode);
        self.metrics.chain.impersonated(mode, began.elapsed());
        passage.refused.store(became.is_err(), Ordering::Relaxed);
        became.map_err(Box::new)
    }

    fn audit_id(&self, headers: &HeaderMap) -> String {
        match headers.get(AUDIT_ID).and_then(|value| value.to_str().ok()).filter(|id| !id.is_empty()) {
            Some(id) => id.chars().take(64).collect(),
            None => self.new_uid(),
        }
    }

    /// The answer to somebody unknown.
    pub(crate) async fn unauthorized(&self, request: Request<Body>, remote: SocketAddr) -> Response<Body> {
        let (request, _) = request.into_parts();
        if let Some(audit) = &self.audit {
            let query = Query::parse(request.uri.query());
            let info = RequestInfo::parse(&request.method, request.uri.path(), &query);
            let id = self.audit_id(&request.headers);
            audit.unauthenticated(&id, &info, &request.uri, &request.headers, Some(remote)).await;
        }
        let accepted = negotiate::accept(&request.headers, false, true, None).unwrap_or(Accepted::JSON);
        let mut response = respond::status(&Status::unauthorized(), &accepted);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        response
    }

    /// Asks the authorizers in order.
    pub(crate) async fn authorize(&self, asked: &Attributes<'_>) -> Decision {
        if asked.user.is_in(MASTERS) {
            return Decision::Allow(Reason::NONE);
        }
        let mut reasons = Vec::new();
        let authorizers = self.authorizers();
        for authorizer in authorizers.iter() {
            let decision = match authorizer {
                Authorizer::AlwaysAllow => Decision::Allow(Reason::NONE),
                Authorizer::AlwaysDeny => Decision::NoOpinion("everything is forbidden".to_owned()),
                Authorizer::Node => self
                    .graph
                    .read()
                    .unwrap_or_else(|poisoned| poisoned.into_inner())
                    .authorize(asked, &self.node_rules),
                Authorizer::Rbac => {
                    self.policy.read().unwrap_or_else(|poisoned| poisoned.into_inner()).authorize(asked)
                }
                Authorizer::Abac(policies) => policies.authorize(asked),
                Authorizer::Webhook(webhook) => Box::pin(webhook.authorize(asked)).await,
            };
            self.metrics.chain.decided(authorizer, &decision);
            match decision {
                Decision::NoOpinion(reason) if reason.is_empty() => {}
                Decision::NoOpinion(reason) => reasons.push(reason),
                decided => return decided,
            }
        }
        // Health is nobody's secret.
        let anybody = asked.user.is_in(AUTHENTICATED) || asked.user.is_in(UNAUTHENTICATED);
        let health = matches!(asked.path, "/healthz" | "/livez" | "/readyz");
        if !asked.is_resource && asked.verb == "get" && health && anybody {
            return Decision::Allow(Reason::NONE);
        }
        Decision::NoOpinion(reasons.join("\n"))
    }

    /// The same for those who cannot wait: admission plug-ins and checks on roles. A webhook, if one is reached,
    /// is waited for in place.
    pub(crate) fn authorize_now(&self, asked: &Attributes<'_>) -> Decision {
        let mut asking = std::pin::pin!(self.authorize(asked));
        if let Some(decision) = asking.as_mut().now_or_never() {
            return decision;
        }
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(asking))
    }

    /// The same, counted as what a request asks for.
    pub(crate) async fn authorize_counted(&self, asked: &Attributes<'_>) -> Decision {
        let began = Instant::now();
        let decision = self.authorize(asked).await;
        self.metrics.chain.authorized(&decision, began.elapsed());
        decision
    }

    /// 403 unless it is allowed.
    pub(crate) async fn authorize_or_refuse(&self, asked: &Attributes<'_>) -> Result<(), Status> {
        self.authorize_counted(asked).await.or_forbidden(asked)
    }

    #[allow(clippy::too_many_arguments)] // a request in its parts, each of which somebody takes
    async fn dispatch(
        self: Arc<Self>,
        user: Arc<UserInfo>,
        request: Request<Body>,
        origin: Origin,
        query: Query,
        info: RequestInfo,
        mut record: Option<&mut Record>,
        running: Option<LongRunning>,
    ) -> Result<Response<Body>, Status> {
        if !info.is_resource {
            return Box::pin(self.non_resource(&user, request, &info, &query)).await;
        }
        let Some(resource) = self.registry.get(&info.group, &info.version, &info.resource) else {
            return match self.aggregated(&user, &info) {
                Some(backend) => Box::pin(self.aggregate(&user, request, backend?)).await,
                None if !info.group.is_empty()
                    && !self.registry.table().groups.iter().any(|(own, _)| *own == info.group) =>
                {
                    Ok(crate::endpoints::no_page())
                }
                None => Err(Status::no_such_path()),
            };
        };
        let definition = &resource.definition;
        if resource.is_namespaced() {
            let needs = !info.name.is_empty() && !matches!(info.verb, "list" | "watch" | "deletecollection");
            if info.namespace.is_empty() && definition.is_stored() {
                if needs {
                    return Err(Status::no_such_path());
                }
                if info.verb == "create" {
                    return Err(Status::method_not_allowed());
                }
            }
        } else if !info.namespace.is_empty() && info.resource != "namespaces" {
            return Err(Status::no_such_path());
        }
        let subresource = definition.subresource(&info.subresource);
        if !info.subresource.is_empty() && subresource.is_none()
            || !info.rest.is_empty() && !matches!(subresource, Some(Subresource::Proxy))
        {
            return Err(Status::no_such_path());
        }
        // Watching is asked for by path or parameter, but only of objects; nothing is proxied by path any more.
        if info.verb == "watch" && !info.subresource.is_empty() || info.verb == "proxy" {
            return Err(if definition.custom {
                Status::method_not_allowed()
            } else {
                Status::no_such_path()
            });
        }
        let method = request.method();
        let streams = matches!(
            subresource,
            Some(Subresource::Log | Subresource::Exec | Subresource::Attach | Subresource::PortForward)
        );
        let takes_posts = !matches!(subresource, Some(Subresource::Log)) && *method == Method::POST;
        if info.verb == "watch" && *method != Method::GET || streams && *method != Method::GET && !takes_posts
        {
            return Err(Status::method_not_allowed());
        }
        if let Some(why) = bad_name(&info.name) {
            return Err(Status::bad_request(format!("Name parameter invalid: {:?}: {why}", info.name)));
        }
        // Parts of an object are shown as tables, too; what is only told is not.
        let whole = matches!(
            subresource,
            None | Some(
                Subresource::Status
                    | Subresource::Scale(_)
                    | Subresource::EphemeralContainers
                    | Subresource::Resize
                    | Subresource::Approval
            )
        );
        let shapes = definition.is_stored() && whole;
        let headers = request.headers();
        let pretty = query.get("pretty");
        let connecting = streams || matches!(subresource, Some(Subresource::Proxy));
        let protobuf = !definition.custom || info.subresource == "scale";
        let (accepted, known) = negotiate::accept_and_known(headers, shapes, protobuf, pretty);
        let accepted = match accepted {
            Some(accepted) if connecting || known => accepted,
            _ if connecting => Accepted::JSON,
            _ => {
                let streams = matches!(info.verb, "list" | "watch");
                if known {
                    let all = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
                    return Err(Status::only_accepted(&all[..if definition.custom { 2 } else { 3 }]));
                }
                let all = [
                    "application/json",
                    "application/yaml",
                    "application/vnd.kubernetes.protobuf",
                    "application/json;stream=watch",
                    "application/vnd.kubernetes.protobuf;stream=watch",
                ];
                return Err(Status::not_acceptable(if streams { &all } else { &all[..3] }));
            }
        };
        if info.verb == "watch" && accepted.format == negotiate::Format::Yaml {
            return Err(Status::only_accepted(&[
                "application/json;stream=watch",
                "application/vnd.kubernetes.protobuf;stream=watch",
            ]));
        }
        if accepted.shape == negotiate::Shape::Table
            && let Some(what) = query.get("includeObject")
            && !matches!(what, "" | "Metadata" | "Object" | "None")
        {
            return Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {what:?}: must be 'Metadata', 'Object', 'None', or empty"
            )));
        }
        let mut context = Context::new(user, info, query, headers.clone(), resource.clone(), accepted);
        context.remote = origin != Origin::Process;
        context.running = running;
        // Compression costs more than it saves where there is no network.
        context.compress = origin == Origin::Network
            && headers
                .get(ACCEPT_ENCODING)
                .and_then(|value| value.to_str().ok())
                .is_some_and(|text| text.contains("gzip"));
        if connecting {
            return Box::pin(self.connect(&context, request)).await;
        }
        let (mut parts, body) = request.into_parts();
        let schema = &definition.schema;
        let body = match &mut record {
            Some(record) if record.wants_request() => {
                Box::pin(record.take_request(body, &parts.headers, definition, &context.info)).await?
            }
            _ => body,
        };
        if let Some(text) = &definition.deprecation {
            context.warn(text.to_string());
            context.audit("k8s.io/deprecated", "true".to_owned());
            self.metrics.requests.deprecated(&context.info);
        }
        if context.info.verb == "watch" {
            if let Some(record) = &mut record {
                record.annotate(context.take_annotations());
            }
            let (warnings, format, form) =
                (context.take_warnings(), context.accepted.format, error_form(&context));
            let answered = match options::check(&context, false) {
                Ok(()) => Box::pin(self.watch(context)).await,
                Err(status) => Err(status),
            };
            let mut answer = match answered {
                Ok(answer) => match socket::take(&parts.headers, &mut parts.extensions) {
                    // As upstream, an accepted WebSocket carries no headers of others.
                    Some(client) => return self.into_socket(client, &parts.headers, answer, Some(format)),
                    None => answer,
                },
                Err(status) => {
                    if let Some(record) = record {
                        record.refused(&status);
                    }
                    respond::status(&status, &form)
                }
            };
            respond::add_warnings(&mut answer, &warnings);
            return Ok(answer);
        }
        let answered = self.verb(&context, &parts.method, body).await;
        let warnings = context.take_warnings();
        let mut response = match answered {
            Ok(response) => response,
            Err(status) => respond::status(&status, &error_form(&context)),
        };
        respond::add_warnings(&mut response, &warnings);
        if let Some(record) = record {
            record.annotate(context.take_annotations());
            record.take_name(&response, schema);
            record.take_status(&response);
            if record.wants_response() {
                Box::pin(record.take_response(&mut response, schema)).await;
            }
        }
        Ok(response)
    }

    /// Each verb has its own room: together, the largest one's would be moved with every request.
    async fn verb(
        self: &Arc<Self>,
        context: &Context,
        method: &Method,
        body: Body,
    ) -> Result<Response<Body>, Status> {
        let definition = &context.resource.definition;
        let unsupported = || Err(Status::method_not_allowed());
        let verb = match context.info.verb {
            "get" => Verb::Get,
            "list" => Verb::List,
            "create" => Verb::Create,
            "update" => Verb::Update,
            "patch" => Verb::Patch,
            "delete" => Verb::Delete,
            "deletecollection" => Verb::DeleteCollection,
            _ => return unsupported(),
        };
        if *method == Method::HEAD {
            return unsupported();
        }
        if verb != Verb::Patch {
            options::check(context, false)?;
        }
        if context.info.subresource.is_empty() {
            let named = !context.info.name.is_empty();
            let misplaced =
                matches!(verb, Verb::Create) && named || matches!(verb, Verb::Update | Verb::Patch) && !named;
            if !definition.verbs.contains(verb) || misplaced && definition.is_stored() {
                return unsupported();
            }
            if !definition.is_stored() {
                return Box::pin(self.review(context, body)).await;
            }
            return match verb {
                Verb::Get => self.get(context).await,
                Verb::List => Box::pin(self.list(context)).await,
                Verb::Create => Box::pin(self.create(context, body)).await,
                Verb::Update => Box::pin(self.update(context, body)).await,
                Verb::Patch => Box::pin(self.patch(context, body)).await,
                Verb::Delete => Box::pin(self.delete(context, body)).await,
                _ => Box::pin(self.delete_collection(context, body)).await,
            };
        }
        let Some(subresource) = definition.subresource(&context.info.subresource) else {
            return Err(Status::no_such_path());
        };
        if !subresource.verbs().contains(verb) {
            return unsupported();
        }
        match (subresource, verb) {
            (Subresource::Binding, _) => Box::pin(self.bind_pod(context, body)).await,
            (Subresource::Eviction, _) => Box::pin(self.evict_pod(context, body)).await,
            (Subresource::Token, _) => Box::pin(self.issue_token(context, body)).await,
            (Subresource::Scale(paths), Verb::Get) => Box::pin(self.get_scale(context, paths)).await,
            (_, Verb::Get) => self.get(context).await,
            (_, Verb::Update) => Box::pin(self.update(context, body)).await,
            (_, Verb::Patch) => Box::pin(self.patch(context, body)).await,
            _ => unsupported(),
        }
    }
}

/// Subresources whose answer may take long: the audit log is told when it begins.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// Ends a record with its request; that of a watch ends with its stream.
async fn audited(
    audit: &Arc<Audit>,
    mut record: Record,
    is_watch: bool,
    streams: bool,
    answered: Result<Response<Body>, Status>,
) -> Result<Response<Body>, Status> {
    let code = match &answered {
        Ok(response) => response.status().as_u16(),
        Err(status) => {
            record.refused(status);
            status.code
        }
    };
    match answered {
        Ok(response) if is_watch && code == 200 => {
            audit.started(&mut record, code).await;
            let ending = Ending(Some((audit.clone(), record)));
            Ok(response.map(|body| match body {
                Body::Stream(stream) => Body::stream(stream.inspect(move |_| {
                    let _ = &ending; // kept as long as the stream is
                })),
                other => other,
            }))
        }
        answered => {
            if streams {
                audit.started(&mut record, code).await;
            }
            audit.finish(record, code).await;
            answered
        }
    }
}

/// The record of a request that runs. If its handler panics, the record says so.
struct Open<'a> {
    audit: Option<&'a Arc<Audit>>,
    record: Option<Record>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let (Some(audit), Some(record)) = (self.audit, self.record.take())
        {
            audit.panicked(record);
        }
    }
}

/// Completes a watch's record when it is dropped.
struct Ending(Option<(Arc<Audit>, Record)>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some((audit, record)) = self.0.take() {
            audit.finish_aside(record, 200);
        }
    }
}

/// Why a name cannot be part of a path.
fn bad_name(name: &str) -> Option<&'static str> {
    match name {
        "." => Some("may not be '.'"),
        ".." => Some("may not be '..'"),
        name if name.contains('/') => Some("may not contain '/'"),
        name if name.contains('%') => Some("may not contain '%'"),
        _ => None,
    }
}

/// How a client that may have asked for another shape is told what went wrong: as an object in a form that it takes as such,
/// or else laid out for reading.
fn error_form(context: &Context) -> Accepted {
    match context.accepted.shape {
        negotiate::Shape::Object => context.accepted,
        _ => negotiate::accept(&context.headers, false, !context.resource.definition.custom, None)
            .unwrap_or(Accepted { pretty: true, ..Accepted::JSON }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function's future takes.
    fn room<A, B, C, D, F: Future>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        std::mem::size_of::<F>()
    }

    #[test]
    fn a_request_takes_little_room() {
        // It is moved several times before it runs, and freed after it; beyond a few KB that shows in profiles.
        let room = room(ApiServer::serve);
        assert!(room <= 6 << 10, "{room} bytes; a cold branch that grew belongs into a box");
    }
}
