//! Who is a member of etcd, who may become one, and who has to go: one step at a time, never one that could cost the
//! majority.

use std::time::Duration;

use etcd::remote::RemoteConfig;
use etcd::remote::members::{Member as WireMember, Members};
use jiff::Timestamp;
use lifecycle::Tasks;
use serde_json::{Value, json};

use super::{NAMESPACE, annotated};
use crate::library::conditions::Condition;
use crate::library::static_pod::{by_name, internal_ip, is_true, name_of};

/// The name of the member on the bootstrap machine.
const BOOTSTRAP: &str = "etcd-bootstrap";
/// Where the ConfigMap says that machine's address.
pub const BOOTSTRAP_ADDRESS: &str = "alpha.installer.openshift.io/etcd-bootstrap";
/// How long one member may take to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// Who asks.
pub struct Client {
    pub ca: Vec<u8>,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl Client {
    fn members(&self, endpoints: Vec<String>, tasks: &Tasks) -> Result<Members, String> {
        let tls = etcd::tls::client_from_pem(&self.ca, &self.certificate, &self.key)
            .map_err(|error| telemetry::chain(&error).to_string())?;
        Members::new(RemoteConfig { endpoints, tls: Some(tls) }, tasks).map_err(|error| error.to_string())
    }
}

/// A member as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Empty until it has started.
    pub name: String,
    /// The host of its peer URL.
    pub host: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
    pub learner: bool,
    /// Why it does not answer, if so.
    pub trouble: Option<String>,
}

impl Member {
    fn started(&self) -> bool {
        !self.name.is_empty()
    }

    fn healthy(&self) -> bool {
        self.started() && self.trouble.is_none()
    }

    fn title(&self) -> &str {
        if self.name.is_empty() { "NAME-PENDING" } else { &self.name }
    }
}

/// All members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    pub members: Vec<Member>,
    /// The address of the bootstrap machine, while it is one that clients use.
    pub bootstrap: Option<String>,
}

fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
    host.trim_matches(['[', ']']).to_owned()
}

fn in_url(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Asks the members: those that the ConfigMap knows, the one on the bootstrap machine, and whoever may run on a node.
pub async fn observe(
    client: &Client,
    endpoints: Option<&Value>,
    nodes: &[Value],
    tasks: &Tasks,
) -> Result<Cluster, String> {
    let bootstrap = endpoints
        .and_then(|map| map["metadata"]["annotations"][BOOTSTRAP_ADDRESS].as_str())
        .filter(|address| !address.is_empty())
        .map(str::to_owned);
    let data = endpoints.and_then(|map| map["data"].as_object()).into_iter().flatten();
    let mut hosts: Vec<String> = data.filter_map(|(_, value)| value.as_str().map(str::to_owned)).collect();
    hosts.extend(bootstrap.clone());
    if hosts.is_empty() {
        hosts.extend(nodes.iter().filter_map(internal_ip).map(str::to_owned));
    }
    hosts.dedup();
    if hosts.is_empty() {
        return Err("no endpoint is known".to_owned());
    }
    let urls: Vec<String> = hosts.iter().map(|host| format!("https://{}:2379", in_url(host))).collect();
    let members = client.members(urls, tasks)?;
    let list = members.list().await.map_err(|status| status.to_string())?;
    let asked = list.into_iter().map(|member| look(&members, member));
    Ok(Cluster { members: futures::future::join_all(asked).await, bootstrap })
}

async fn look(members: &Members, found: WireMember) -> Member {
    let trouble = match found.client_urls.first() {
        None => Some("it has not started".to_owned()),
        Some(url) => {
            let asked = async {
                match found.is_learner {
                    // It refuses to read for others.
                    true => members.status(url).await.map(drop),
                    false => members.check(url).await,
                }
            };
            match tokio::time::timeout(ANSWER, asked).await {
                Ok(Ok(())) => None,
                Ok(Err(status)) => Some(status.to_string()),
                Err(_) => Some("it does not answer".to_owned()),
            }
        }
    };
    Member {
        id: found.id,
        host: found.peer_urls.first().map(|url| host_of(url)).unwrap_or_default(),
        name: found.name,
        peer_urls: found.peer_urls,
        client_urls: found.client_urls,
        learner: found.is_learner,
        trouble,
    }
}

impl Cluster {
    fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.learner)
    }

    fn is_bootstrap(&self, member: &Member) -> bool {
        member.name == BOOTSTRAP
    }

    fn quorum(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// Whether the member on the bootstrap machine is still there.
    pub fn has_bootstrap(&self) -> bool {
        self.members.iter().any(|member| self.is_bootstrap(member))
    }

    pub fn all_healthy(&self) -> bool {
        self.members.iter().all(Member::healthy)
    }

    /// Whether somebody is joining.
    pub fn is_changing(&self) -> bool {
        self.members.iter().any(|member| member.learner || !member.started())
    }

    pub fn client_urls(&self) -> Vec<String> {
        let mut urls: Vec<String> =
            self.voters().filter_map(|member| member.client_urls.first().cloned()).collect();
        urls.sort();
        urls
    }

    pub fn conditions(&self) -> Vec<Condition> {
        let (all, healthy) = (self.members.len(), self.members.iter().filter(|one| one.healthy()).count());
        let voting = self.voters().filter(|one| one.healthy()).count();
        let sick: Vec<String> = self
            .voters()
            .filter(|member| !member.healthy())
            .map(|member| {
                let trouble = member.trouble.as_deref().unwrap_or_default();
                format!("{} is unhealthy ({trouble})", member.title())
            })
            .collect();
        let said = match sick.is_empty() {
            true => format!("{healthy} members are available"),
            false => format!("{healthy} of {all} members are available, {}", sick.join(", ")),
        };
        let available = match voting >= self.quorum() {
            true => Condition::new("EtcdMembersAvailable", "True", "EtcdQuorate", said.clone()),
            false => Condition::not_fine("EtcdMembersAvailable", "NoQuorum", said.clone()),
        };
        let degraded = match sick.is_empty() {
            true => Condition::fine("EtcdMembersDegraded"),
            false => Condition::not_fine("EtcdMembersDegraded", "UnhealthyMembers", said),
        };
        let joining: Vec<&str> =
            self.members.iter().filter(|one| one.learner || !one.started()).map(Member::title).collect();
        let progressing = match joining.is_empty() {
            true => Condition::fine("EtcdMembersProgressing"),
            false => Condition::not_fine(
                "EtcdMembersProgressing",
                "MembersNotStarted",
                format!("{} have not become voting members yet", joining.join(", ")),
            ),
        };
        vec![available, degraded, progressing]
    }

    pub fn bootstrap_condition(&self) -> Condition {
        const KIND: &str = "EtcdBootstrapMemberRemoved";
        match self.members.iter().any(|member| self.is_bootstrap(member)) {
            false => {
                Condition::new(KIND, "True", "BootstrapMemberRemoved", "etcd bootstrap member is removed")
            }
            true => Condition::new(
                KIND,
                "False",
                "BootstrapMemberPresent",
                "etcd bootstrap member is not removed",
            ),
        }
    }

    /// The ConfigMap by which clients find the voting members on masters.
    pub fn endpoints(&self, existing: Option<&Value>) -> Option<Value> {
        let data: serde_json::Map<String, Value> = self
            .voters()
            .filter(|member| member.started() && !self.is_bootstrap(member))
            .map(|member| (format!("{:x}", member.id), json!(member.host)))
            .collect();
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "etcd-endpoints", "namespace": NAMESPACE}, "data": data,
        });
        let gone = !self.members.iter().any(|member| self.is_bootstrap(member));
        match (gone && !self.members.is_empty(), existing) {
            // Once it is gone nobody looks for it any more.
            (true, Some(_)) => Some(annotated(object, BOOTSTRAP_ADDRESS, Value::Null)),
            _ => Some(object),
        }
    }
}

/// What a step is decided on.
pub struct View<'a> {
    pub cluster: &'a Cluster,
    pub nodes: &'a [Value],
    pub pods: &'a [Value],
    /// How many voting members the masters need before the first one may go.
    pub needed: usize,
    /// Whether everybody else has let go of the bootstrap machine.
    pub may_remove_bootstrap: bool,
}

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Add { node: String, peer_url: String },
    Promote { id: u64, name: String },
    Remove { id: u64, name: String },
}

impl Step {
    pub fn told(&self) -> (&'static str, String) {
        match self {
            Self::Add { node, peer_url } => {
                ("MemberAddAsLearner", format!("successfully added new member {peer_url} of node {node:?}"))
            }
            Self::Promote { id, name } => {
                ("MemberPromote", format!("successfully promoted learner member {name} ({id:x})"))
            }
            Self::Remove { id, name } => ("MemberRemove", format!("removed member {name} ({id:x})")),
        }
    }
}

/// The next change, if one may be made; the first that applies.
pub fn decide(view: &View<'_>) -> Option<Step> {
    let cluster = view.cluster;
    let node_of = |member: &Member| {
        view.nodes.iter().find(|node| internal_ip(node).is_some_and(|address| address == member.host))
    };
    let healthy = cluster.voters().filter(|member| member.healthy()).count();
    if healthy < cluster.quorum() {
        return None;
    }
    // Whose node is gone does not come back. What is left must be a majority of what is left.
    let gone = cluster
        .members
        .iter()
        .find(|member| !cluster.is_bootstrap(member) && !view.nodes.is_empty() && node_of(member).is_none());
    if let Some(member) = gone {
        let voters: Vec<&Member> = cluster.voters().filter(|other| other.id != member.id).collect();
        let (left, well) = (voters.len(), voters.iter().filter(|other| other.healthy()).count());
        let fits = member.learner || left > 0 && well > left / 2;
        if fits {
            return Some(Step::Remove { id: member.id, name: member.title().to_owned() });
        }
    }
    // Nothing is added or taken away while one that votes is not well.
    if let Some(learner) = cluster.members.iter().find(|member| member.learner) {
        let ready = learner.healthy();
        return ready.then(|| Step::Promote { id: learner.id, name: learner.name.clone() });
    }
    if cluster.voters().any(|member| !member.healthy() && !cluster.is_bootstrap(member)) {
        return None;
    }
    let bootstrap = cluster.voters().find(|member| cluster.is_bootstrap(member));
    let on_masters = cluster.voters().filter(|member| node_of(member).is_some()).count();
    let lacking = view.nodes.iter().find(|node| {
        let Some(address) = internal_ip(node) else { return false };
        let has = cluster.members.iter().any(|member| member.host == address);
        // Its pod waits already: a member that is added and does not start costs a majority its margin.
        let pod = by_name(view.pods, &format!("etcd-{}", name_of(node)));
        !has && pod.is_some_and(|pod| pod["status"]["phase"] == "Running")
    });
    if let Some(node) = lacking.filter(|_| bootstrap.is_none_or(Member::healthy)) {
        let address = internal_ip(node).unwrap_or_default();
        return Some(Step::Add {
            node: name_of(node).to_owned(),
            peer_url: format!("https://{}:2380", in_url(address)),
        });
    }
    bootstrap
        .filter(|_| on_masters >= view.needed && view.may_remove_bootstrap)
        .map(|member| Step::Remove { id: member.id, name: member.name.clone() })
}

/// Why no node's member may be started anew now.
pub fn hold(view: &View<'_>, statuses: &Value, latest: i64) -> Option<String> {
    let cluster = view.cluster;
    let healthy = cluster.voters().filter(|member| member.healthy()).count();
    if healthy < cluster.quorum() {
        return Some("there is no majority of healthy members".to_owned());
    }
    if let Some(joining) = cluster.members.iter().find(|member| member.learner || !member.started()) {
        let waiting = view.nodes.iter().find(|node| internal_ip(node) == Some(&*joining.host));
        // A member that was added and whose pod is missing can only be helped by installing it.
        let pod = waiting.and_then(|node| by_name(view.pods, &format!("etcd-{}", name_of(node))));
        if pod.is_some() {
            return Some(format!("member {} is joining", joining.title()));
        }
    }
    // A node whose member is sick and that is up to date would not be the next: another one would fall beside it.
    let sick = cluster.voters().filter(|member| !member.healthy()).find(|member| {
        let node = view.nodes.iter().find(|node| internal_ip(node) == Some(&*member.host));
        let Some(name) = node.map(name_of) else { return false };
        let status = statuses.as_array().into_iter().flatten().find(|status| status["nodeName"] == name);
        let current = status.and_then(|status| status["currentRevision"].as_i64()).unwrap_or(0);
        let ready = by_name(view.pods, &format!("etcd-{name}")).is_some_and(|pod| is_true(pod, "Ready"));
        current == latest || ready
    });
    sick.map(|member| format!("member {} is not healthy", member.title()))
}

/// Makes the change.
pub async fn take(step: &Step, client: &Client, cluster: &Cluster, tasks: &Tasks) -> Result<(), String> {
    let going = match step {
        Step::Remove { id, .. } => Some(*id),
        _ => None,
    };
    // One that leaves is not asked to remove itself if another one can be.
    let mut urls: Vec<String> = cluster
        .voters()
        .filter(|member| member.healthy() && Some(member.id) != going)
        .filter_map(|member| member.client_urls.first().cloned())
        .collect();
    if urls.is_empty() {
        urls = cluster.client_urls();
    }
    let members = client.members(urls, tasks)?;
    let done = match step {
        Step::Add { peer_url, .. } => members.add_learner(peer_url).await.map(drop),
        Step::Promote { id, .. } => members.promote(*id).await,
        Step::Remove { id, .. } => members.remove(*id).await,
    };
    let at = Timestamp::now();
    match &done {
        Ok(()) => tracing::info!(?step, %at, "members changed"),
        Err(status) => tracing::debug!(?step, %status, "members not changed"),
    }
    done.map_err(|status| status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str, host: &str) -> Member {
        Member {
            id,
            name: name.to_owned(),
            host: host.to_owned(),
            peer_urls: vec![format!("https://{host}:2380")],
            client_urls: vec![format!("https://{host}:2379")],
            learner: false,
            trouble: None,
        }
    }

    fn learner(id: u64, name: &str, host: &str) -> Member {
        Member { learner: true, ..member(id, name, host) }
    }

    fn sick(member: Member) -> Member {
        Member { trouble: Some("connection refused".into()), ..member }
    }

    fn unstarted(host: &str) -> Member {
        Member { client_urls: Vec::new(), trouble: Some("it has not started".into()), ..learner(9, "", host) }
    }

    fn node(index: u8) -> Value {
        json!({"metadata": {"name": format!("m{index}")},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("10.0.0.{index}")}]}})
    }

    fn pod(index: u8) -> Value {
        json!({"metadata": {"name": format!("etcd-m{index}")}, "status": {"phase": "Running"}})
    }

    fn next(members: Vec<Member>, nodes: &[u8], pods: &[u8], needed: usize, may: bool) -> Option<Step> {
        let cluster = Cluster { members, bootstrap: Some("10.0.0.100".into()) };
        let nodes: Vec<Value> = nodes.iter().map(|index| node(*index)).collect();
        let pods: Vec<Value> = pods.iter().map(|index| pod(*index)).collect();
        decide(&View { cluster: &cluster, nodes: &nodes, pods: &pods, needed, may_remove_bootstrap: may })
    }

    fn bootstrap() -> Member {
        member(1, BOOTSTRAP, "10.0.0.100")
    }

    fn add(index: u8) -> Option<Step> {
        Some(Step::Add { node: format!("m{index}"), peer_url: format!("https://10.0.0.{index}:2380") })
    }

    #[test]
    fn members_grow_one_by_one_and_the_first_leaves_last() {
        let on = |index: u8| member(u64::from(index) + 10, &format!("m{index}"), &format!("10.0.0.{index}"));
        assert_eq!(next(vec![bootstrap()], &[1, 2, 3], &[], 3, true), None, "no pod waits yet");
        assert_eq!(next(vec![bootstrap()], &[1, 2, 3], &[2], 3, true), add(2));
        assert_eq!(next(vec![bootstrap(), unstarted("10.0.0.2")], &[1, 2, 3], &[1, 2], 3, true), None);
        let joining = learner(12, "m2", "10.0.0.2");
        let promote = Some(Step::Promote { id: 12, name: "m2".into() });
        assert_eq!(next(vec![bootstrap(), joining], &[1, 2, 3], &[1, 2], 3, true), promote);
        assert_eq!(next(vec![bootstrap(), on(2)], &[1, 2, 3], &[1, 2], 3, true), add(1));
        assert_eq!(next(vec![bootstrap(), on(1), on(2)], &[1, 2, 3], &[1, 2], 3, true), None);
        let four = || vec![bootstrap(), on(1), on(2), on(3)];
        assert_eq!(next(four(), &[1, 2, 3], &[1, 2, 3], 3, false), None, "others still need it");
        let remove = Some(Step::Remove { id: 1, name: BOOTSTRAP.into() });
        assert_eq!(next(four(), &[1, 2, 3], &[1, 2, 3], 3, true), remove);
        assert_eq!(next(vec![on(1), on(2), on(3)], &[1, 2, 3], &[1, 2, 3], 3, true), None);
        assert_eq!(next(vec![bootstrap(), on(1)], &[1], &[1], 1, true), remove, "a single master");
    }

    #[test]
    fn nothing_is_changed_that_could_cost_the_majority() {
        let on = |index: u8| member(u64::from(index) + 10, &format!("m{index}"), &format!("10.0.0.{index}"));
        let hurt = vec![bootstrap(), on(1), sick(on(2))];
        assert_eq!(next(hurt, &[1, 2, 3], &[1, 2, 3], 3, true), None, "one is not well");
        let lost = vec![on(1), sick(on(2)), sick(on(3))];
        assert_eq!(next(lost, &[1], &[1], 3, true), None, "no majority");
        let gone = vec![on(1), on(2), sick(on(3))];
        assert_eq!(
            next(gone, &[1, 2], &[1, 2], 3, true),
            Some(Step::Remove { id: 13, name: "m3".into() }),
            "its node is gone"
        );
        let gone_machine = vec![sick(bootstrap()), on(1), on(2), on(3)];
        let remove = Some(Step::Remove { id: 1, name: BOOTSTRAP.into() });
        assert_eq!(next(gone_machine, &[1, 2, 3], &[1, 2, 3], 3, true), remove);
        assert_eq!(next(vec![sick(bootstrap()), on(1), on(2)], &[1, 2, 3], &[1, 2, 3], 3, true), None);
    }

    #[test]
    fn conditions_name_who_is_sick() {
        let cluster = Cluster {
            members: vec![
                member(1, "m1", "10.0.0.1"),
                sick(member(2, "m2", "10.0.0.2")),
                member(3, "m3", "10.0.0.3"),
            ],
            bootstrap: None,
        };
        let said = cluster.conditions();
        assert_eq!((&*said[0].kind, said[0].status), ("EtcdMembersAvailable", "True"));
        assert_eq!((said[1].status, &*said[1].reason), ("True", "UnhealthyMembers"));
        assert_eq!(said[1].message, "2 of 3 members are available, m2 is unhealthy (connection refused)");
        assert_eq!(cluster.bootstrap_condition().status, "True");
    }

    #[test]
    fn clients_are_told_of_members_on_masters_and_the_bootstrap_machine_is_forgotten_with_its_member() {
        let cluster = Cluster {
            members: vec![bootstrap(), member(0xab, "m1", "10.0.0.1"), learner(3, "m2", "10.0.0.2")],
            bootstrap: Some("10.0.0.100".into()),
        };
        let map = cluster.endpoints(Some(&json!({}))).unwrap();
        assert_eq!(map["data"], json!({"ab": "10.0.0.1"}));
        assert!(map["metadata"]["annotations"].is_null());
        let alone = Cluster { members: vec![member(0xab, "m1", "10.0.0.1")], bootstrap: None };
        let map = alone.endpoints(Some(&json!({}))).unwrap();
        assert_eq!(map["metadata"]["annotations"], json!({BOOTSTRAP_ADDRESS: null}));
    }

    #[test]
    fn hosts_of_urls() {
        assert_eq!(host_of("https://10.0.0.1:2380"), "10.0.0.1");
        assert_eq!(host_of("https://[fd00::1]:2380"), "fd00::1");
    }
}
