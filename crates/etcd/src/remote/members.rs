//! A client for the members of a cluster: who they are, how each does, and changes of them.

use lifecycle::Tasks;
use prost::Message;

use super::channel::{Channel, RemoteConfig, RemoteError};
use crate::v3::messages as wire;
use crate::v3::status::{Status, code};

pub use wire::{Member, StatusResponse};

/// The members, asked through any of some endpoints.
pub struct Members {
    config: RemoteConfig,
    channel: Channel,
    tasks: Tasks,
}

impl Members {
    /// Nothing is dialled before the first call. Connections live on `tasks`.
    pub fn new(config: RemoteConfig, tasks: &Tasks) -> Result<Self, RemoteError> {
        Ok(Self { channel: Channel::new(&config, tasks)?, config, tasks: tasks.clone() })
    }

    /// Each endpoint is tried in turn while none answers; a change that may have been made is not sent again.
    async fn call<M: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
        repeatable: bool,
    ) -> Result<M, Status> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.channel.call(path, request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    let may = error.unsent || repeatable;
                    let unreachable = matches!(error.status.code, code::UNAVAILABLE);
                    if attempt >= self.channel.endpoints() || !may || !unreachable {
                        return Err(error.status);
                    }
                }
            }
        }
    }

    /// All members, as a majority knows them.
    pub async fn list(&self) -> Result<Vec<Member>, Status> {
        let request = wire::MemberListRequest { linearizable: true };
        let answer: wire::MembersResponse =
            self.call("/etcdserverpb.Cluster/MemberList", &request, true).await?;
        Ok(answer.members)
    }

    /// Adds one that learns and does not vote yet.
    pub async fn add_learner(&self, peer_url: &str) -> Result<Member, Status> {
        let request = wire::MemberAddRequest { peer_urls: vec![peer_url.to_owned()], is_learner: true };
        let answer: wire::MemberAddResponse =
            self.call("/etcdserverpb.Cluster/MemberAdd", &request, false).await?;
        answer.member.ok_or(Status { code: code::UNKNOWN, message: "an answer without the member".into() })
    }

    /// Lets a learner vote; refused until it has caught up.
    pub async fn promote(&self, id: u64) -> Result<(), Status> {
        let request = wire::MemberIdRequest { id };
        let done: Result<wire::MembersResponse, Status> =
            self.call("/etcdserverpb.Cluster/MemberPromote", &request, false).await;
        done.map(drop)
    }

    /// Takes a member out.
    pub async fn remove(&self, id: u64) -> Result<(), Status> {
        let request = wire::MemberIdRequest { id };
        let done: Result<wire::MembersResponse, Status> =
            self.call("/etcdserverpb.Cluster/MemberRemove", &request, false).await;
        done.map(drop)
    }

    fn only(&self, endpoint: &str) -> Result<Channel, Status> {
        let config = RemoteConfig { endpoints: vec![endpoint.to_owned()], tls: self.config.tls.clone() };
        Channel::new(&config, &self.tasks)
            .map_err(|error| Status { code: code::INVALID_ARGUMENT, message: error.to_string().into() })
    }

    /// What one member says of itself.
    pub async fn status(&self, endpoint: &str) -> Result<StatusResponse, Status> {
        let channel = self.only(endpoint)?;
        channel.call("/etcdserverpb.Maintenance/Status", &wire::Empty {}).await.map_err(|error| error.status)
    }

    /// Whether a voting member answers a read that a majority has to confirm.
    pub async fn check(&self, endpoint: &str) -> Result<(), Status> {
        let channel = self.only(endpoint)?;
        let request = wire::RangeRequest { key: "health".into(), ..Default::default() };
        let read: Result<wire::RangeResponse, _> = channel.call("/etcdserverpb.KV/Range", &request).await;
        read.map(drop).map_err(|error| error.status)
    }
}
