//! TokenRequest: a signed token for a service account, perhaps bound to a pod, secret or node.

use apimachinery::field::{Path, Problems};
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use apimachinery::time;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::authn::service_account::{BoundObject, TokenSpec};
use crate::body::Body;
use crate::context::Context;
use crate::respond;
use crate::server::ApiServer;
use crate::verbs::create::{decode_as, read_body};

/// The life of a token if nothing is said.
const DEFAULT_SECONDS: i64 = 3600;
/// Kubelets ask for exactly this for projected tokens; such tokens may be given more time.
const PROJECTED_SECONDS: i64 = 3607;
const YEAR_SECONDS: i64 = 365 * 24 * 3600;

impl ApiServer {
    /// POST to `serviceaccounts/NAME/token`.
    pub(crate) async fn issue_token(&self, context: &Context, body: Body) -> Result<Response<Body>, Status> {
        let bytes = read_body(body).await?;
        let schema = api::schemas::schemas()
            .get("io.k8s.api.authentication.v1.TokenRequest")
            .ok_or_else(|| Status::internal("the TokenRequest kind is not known"))?;
        let mut request = decode_as(context, &bytes, "authentication.k8s.io/v1", "TokenRequest", &schema)?;
        let (namespace, name) = (context.info.namespace.as_str(), context.info.name.as_str());
        let dry_run = context.dry_run()?;
        Box::pin(self.admission.admit_told(self, context, &mut request, dry_run)).await?;
        if !request.namespace().is_empty() && request.namespace() != namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if !request.name().is_empty() && request.name() != name {
            let mut problems = Problems::new();
            let why = "must match the service account name if specified";
            problems.invalid(&Path::new("metadata").child("name"), request.name(), why);
            return Err(Status::invalid("authentication.k8s.io", "TokenRequest", name, &problems));
        }
        let entry =
            self.entry(&context.resource, namespace, name).await?.ok_or_else(|| context.not_found())?;
        let account = context.resource.parse(&entry);
        let asked = request.uid();
        if !asked.is_empty() && asked != account.uid() {
            let why = format!(
                "the UID in the token request ({asked}) does not match the UID of the service account ({})",
                account.uid()
            );
            return Err(Status::conflict("authentication.k8s.io", "TokenRequest", name, &why));
        }
        let accounts = &self.authenticator.service_accounts;
        if request["spec"]["audiences"].as_array().is_none_or(Vec::is_empty) {
            request["spec"]["audiences"] = json!(accounts.default_audiences());
        }
        let audiences: Vec<String> =
            serde_json::from_value(request["spec"]["audiences"].clone()).unwrap_or_default();
        let mut seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
        let path = Path::new("spec");
        let mut problems = Problems::new();
        if seconds < 600 {
            problems.invalid(
                &path.child("expirationSeconds"),
                seconds,
                "may not specify a duration less than 10 minutes",
            );
        }
        if seconds > 1 << 32 {
            problems.invalid(
                &path.child("expirationSeconds"),
                seconds,
                "may not specify a duration larger than 2^32 seconds",
            );
        }
        if !problems.is_empty() {
            return Err(Status::invalid("authentication.k8s.io", "TokenRequest", "", &problems));
        }
        let (limit, extend) = self.token_limits;
        if limit > 0 && seconds > limit {
            context.warn(format!("requested expiration of {seconds} seconds shortened to {limit} seconds"));
            seconds = limit;
        }
        request["spec"]["expirationSeconds"] = json!(seconds);
        let (bound, node) = self.bound_object(context, &request, &account).await?;
        let now = Timestamp::now();
        let mut expires = now + SignedDuration::from_secs(seconds);
        let mut warn_after = None;
        let for_us = audiences.iter().all(|one| accounts.default_audiences().contains(one));
        if extend
            && seconds == PROJECTED_SECONDS
            && for_us
            && bound.as_ref().is_some_and(|one| one.resource == "pods")
        {
            warn_after = Some(expires);
            expires = now + SignedDuration::from_secs(YEAR_SECONDS);
        }
        let id = self.new_uid();
        let token = accounts
            .issue(&TokenSpec {
                namespace,
                name,
                uid: account.uid(),
                audiences: &audiences,
                bound: bound.as_ref(),
                node: node.as_ref(),
                now,
                expires,
                warn_after,
                id: &id,
            })
            .map_err(|error| Status::internal(telemetry::chain(&error)))?;
        context.audit("authentication.kubernetes.io/issued-credential-id", format!("JTI={id}"));
        let told = now + SignedDuration::from_secs(seconds);
        request["metadata"]["name"] = json!(name);
        request["metadata"]["namespace"] = json!(namespace);
        request["metadata"]["uid"] = json!(account.uid());
        request["metadata"]["creationTimestamp"] = json!(time::seconds(now));
        request["status"] = json!({"token": token, "expirationTimestamp": time::seconds(told)});
        respond::value(StatusCode::CREATED, &request, &context.accepted, Some(&schema))
    }

    /// The object that a token is bound to, and the node of a pod.
    async fn bound_object(
        &self,
        context: &Context,
        request: &serde_json::Value,
        account: &serde_json::Value,
    ) -> Result<(Option<BoundObject>, Option<BoundObject>), Status> {
        let reference = &request["spec"]["boundObjectRef"];
        if reference.is_null() {
            return Ok((None, None));
        }
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        let resource_name = match (group, text("kind")) {
            ("", "Pod") => "pods",
            ("", "Secret") => "secrets",
            ("", "Node") => "nodes",
            (group, kind) => {
                return Err(Status::bad_request(format!(
                    "cannot bind token to object of type {group}/{version}, Kind={kind}"
                )));
            }
        };
        let resource = self.builtin("", resource_name)?;
        let namespace = if resource.is_namespaced() { context.info.namespace.as_str() } else { "" };
        let name = text("name");
        let entry = self
            .entry(&resource, namespace, name)
            .await?
            .ok_or_else(|| Status::not_found("", resource_name, name))?;
        let object = resource.parse(&entry);
        if resource_name == "pods" && object["spec"]["serviceAccountName"] != account.name() {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                account.name()
            )));
        }
        if !text("uid").is_empty() && text("uid") != object.uid() {
            let why = format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                text("uid")
            );
            return Err(Status::conflict("", text("kind"), name, &why));
        }
        let bound =
            BoundObject { resource: resource_name, name: name.to_owned(), uid: object.uid().to_owned() };
        if resource_name != "pods" {
            return Ok((Some(bound), None));
        }
        let node_name = object["spec"]["nodeName"].as_str().unwrap_or_default();
        let nodes = self.builtin("", "nodes")?;
        let node = (!node_name.is_empty()).then(|| {
            let uid = self.cached(&nodes, "", node_name).map(|entry| entry.parse().uid().to_owned());
            BoundObject { resource: "nodes", name: node_name.to_owned(), uid: uid.unwrap_or_default() }
        });
        Ok((Some(bound), node))
    }
}
