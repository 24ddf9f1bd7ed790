//! What is done to the members while clients use them. Each ends with all three of them running and everything passing again.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;

use crate::remote::channel::CallError;
use crate::robustness::RobustnessError;
use crate::robustness::cluster::{Cluster, DEADLINE};
use crate::robustness::random::Random;
use crate::robustness::relay::Way;
use crate::v3::messages::*;

/// The members that are always there.
const VOTERS: usize = 3;
/// The one that comes and goes.
const FOURTH: usize = 3;
/// The one whose disk is small, if there is one.
const SMALL: usize = 2;

macro_rules! faults {
    ($($name:ident $text:literal;)*) => {
        /// What can happen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $(#[doc = $text] $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];

            /// What it is called.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$name => $text,)* }
            }
        }
    };
}

faults! {
    Kill "kill -9 of a member";
    KillLeader "kill -9 of the leader";
    KillAll "kill -9 of all";
    Pause "SIGSTOP of the leader";
    Partition "partition";
    Broken "broken connections";
    OneWay "one-way partition";
    Flapping "flapping partition";
    Slow "delay and loss";
    Rolling "rolling restart";
    MoveLeader "move of the leader";
    FullDisk "full disk";
    Wiped "wiped member";
    Members "member add, promote, remove";
    FarBehind "snapshot to a member far behind";
}

/// A write by the faults themselves: it has to be in the history.
pub trait Writer {
    /// Writes a large value, and says at which revision, once that is known.
    fn write(&mut self, size: usize) -> impl Future<Output = Option<i64>> + Send;
}

fn changed_members(error: &CallError) -> RobustnessError {
    RobustnessError::Stuck(format!("the members cannot be changed: {}", error.status.message))
}

impl Cluster {
    async fn pause(random: &mut Random, least: u64, most: u64) {
        tokio::time::sleep(random.between(least, most)).await;
    }

    /// Does a fault; returns whether it could be done here.
    pub async fn suffer(
        &mut self,
        fault: Fault,
        random: &mut Random,
        writer: &mut impl Writer,
    ) -> Result<bool, RobustnessError> {
        let leader = self.settled().await?;
        let any = random.below(VOTERS as u64) as usize;
        let follower = (leader + 1 + random.below(2) as usize) % VOTERS;
        match fault {
            Fault::Kill | Fault::KillLeader => {
                let victim = if fault == Fault::Kill { any } else { leader };
                self.kill(victim);
                Self::pause(random, 0, 2500).await;
                self.start(victim, None)?;
            }
            Fault::KillAll => {
                for number in 0..VOTERS {
                    self.kill(number);
                }
                for number in 0..VOTERS {
                    self.start(number, None)?;
                }
            }
            Fault::Pause => {
                self.signal(leader, Signal::STOP);
                Self::pause(random, 500, 4000).await;
                self.signal(leader, Signal::CONT);
            }
            Fault::Partition | Fault::Broken | Fault::OneWay | Fault::Flapping => {
                let alone = if random.chance(70) { leader } else { any };
                let way = if fault == Fault::Broken { Way::Cut } else { Way::Held };
                let times = if fault == Fault::Flapping { 6 } else { 1 };
                for _ in 0..times {
                    let (hears, speaks) = match fault {
                        Fault::OneWay if random.chance(50) => (true, false),
                        Fault::OneWay => (false, true),
                        _ => (false, false),
                    };
                    self.network.change(|ways| {
                        for other in (0..VOTERS).filter(|other| *other != alone) {
                            ways[alone][other] = if speaks { Way::Open } else { way };
                            ways[other][alone] = if hears { Way::Open } else { way };
                        }
                    });
                    let most = if fault == Fault::Flapping { 600 } else { 3500 };
                    Self::pause(random, 200, most).await;
                    self.network.heal();
                    if fault == Fault::Flapping {
                        Self::pause(random, 50, 400).await;
                    }
                }
            }
            Fault::Slow => {
                let (most, lost) = (20 + random.below(180), random.below(30));
                self.network.change(|ways| {
                    ways.iter_mut().flatten().for_each(|way| *way = Way::Slow(most, lost));
                });
                Self::pause(random, 1500, 4000).await;
                self.network.heal();
            }
            Fault::Rolling => {
                for number in 0..VOTERS {
                    self.signal(number, Signal::TERM);
                    self.ends(number).await?;
                    self.start(number, None)?;
                    self.settled().await?;
                }
            }
            Fault::MoveLeader => {
                let target = self.id(follower).await?;
                let request = MemberIdRequest { id: target };
                let channel = &self.members[leader].channel;
                // It may have lost its office meanwhile.
                let moved =
                    channel.call::<HeaderOnly>("/etcdserverpb.Maintenance/MoveLeader", &request).await;
                return Ok(moved.is_ok());
            }
            Fault::FullDisk => return self.fill(random).await,
            Fault::Wiped => self.wiped(follower).await?,
            Fault::Members => self.come_and_go().await?,
            Fault::FarBehind => self.far_behind(follower, writer).await?,
        }
        self.settled().await?;
        Ok(true)
    }

    async fn id(&self, number: usize) -> Result<u64, RobustnessError> {
        let status = self.status(number).await.and_then(|status| status.header);
        let name = &self.members[number].name;
        status
            .map(|header| header.member_id)
            .ok_or_else(|| RobustnessError::Stuck(format!("{name} is silent")))
    }

    /// Nothing can be written any more, until there is room again.
    async fn fill(&mut self, random: &mut Random) -> Result<bool, RobustnessError> {
        let Some(path) = self.filler() else { return Ok(false) };
        let failed = |source| RobustnessError::Io { action: "fill a disk", source };
        let mut filler = std::fs::File::create(&path).map_err(failed)?;
        let block = vec![1; 1 << 20];
        while filler.write_all(&block).is_ok() {}
        let mut small = filler;
        while small.write_all(&block[..1]).is_ok() {}
        drop(small);
        let deadline = Instant::now() + random.between(1000, 3000);
        while Instant::now() < deadline && self.runs(SMALL) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::fs::remove_file(&path).map_err(failed)?;
        // It ends by itself when it could not write, but takes its time to let go of its clients.
        self.kill(SMALL);
        self.start(SMALL, None)?;
        self.settled().await?;
        Ok(true)
    }

    async fn remove(&self, number: usize, id: u64) -> Result<(), RobustnessError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let channel = &self.members[number].channel;
            let request = MemberIdRequest { id };
            match channel.call::<MembersResponse>("/etcdserverpb.Cluster/MemberRemove", &request).await {
                Ok(_) => return Ok(()),
                Err(error) if error.status.message.contains("member not found") => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(changed_members(&error)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Adds a member; returns what it has to be told of the others.
    async fn add(
        &self,
        through: usize,
        number: usize,
        learner: bool,
    ) -> Result<(u64, String), RobustnessError> {
        let deadline = Instant::now() + DEADLINE;
        let url = self.members[number].advertised.clone();
        let request = MemberAddRequest { peer_urls: vec![url.clone()], is_learner: learner };
        let channel = &self.members[through].channel;
        loop {
            let added = channel.call::<MemberAddResponse>("/etcdserverpb.Cluster/MemberAdd", &request).await;
            match added {
                Ok(_) => break,
                // By an attempt before this one, whose answer was lost.
                Err(error) if error.status.message.contains("already exists") => break,
                Err(error) if Instant::now() >= deadline => return Err(changed_members(&error)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        let list = MemberListRequest { linearizable: true };
        loop {
            let listed = channel.call::<MembersResponse>("/etcdserverpb.Cluster/MemberList", &list).await;
            match listed {
                Ok(listed) => {
                    let own = listed.members.iter().find(|member| member.peer_urls.contains(&url));
                    let id = own
                        .map(|member| member.id)
                        .ok_or_else(|| RobustnessError::Stuck(format!("{url} was added and is no member")))?;
                    let name = |member: &Member| {
                        let name = if member.id == id { &self.members[number].name } else { &member.name };
                        member.peer_urls.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>()
                    };
                    let all: Vec<String> = listed.members.iter().flat_map(name).collect();
                    return Ok((id, all.join(",")));
                }
                Err(error) if Instant::now() >= deadline => return Err(changed_members(&error)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// A member comes back with nothing: it must be refused, and come as a new one.
    async fn wiped(&mut self, victim: usize) -> Result<(), RobustnessError> {
        let through = (victim + 1) % VOTERS;
        let id = self.id(victim).await?;
        self.kill(victim);
        self.wipe(victim)?;
        self.start(victim, None)?;
        self.ends(victim).await?;
        let said = self.said(victim);
        // The second time it is the member of the first time, which was removed, that asks.
        let refused = ["has already been bootstrapped", "has been permanently removed"];
        if !refused.iter().any(|words| said.contains(words)) {
            return Err(RobustnessError::Stuck(format!("a member without its data was not refused: {said}")));
        }
        // What it has begun to write before it was refused.
        if self.members[victim].data.exists() {
            self.wipe(victim)?;
        }
        self.remove(through, id).await?;
        let (_, all) = self.add(through, victim, false).await?;
        self.start(victim, Some(&all))?;
        Ok(())
    }

    /// A fourth member learns, votes, and is removed.
    async fn come_and_go(&mut self) -> Result<(), RobustnessError> {
        let (id, all) = self.add(0, FOURTH, true).await?;
        self.start(FOURTH, Some(&all))?;
        let deadline = Instant::now() + DEADLINE;
        let request = MemberIdRequest { id };
        loop {
            let channel = &self.members[1].channel;
            match channel.call::<MembersResponse>("/etcdserverpb.Cluster/MemberPromote", &request).await {
                Ok(_) => break,
                Err(error)
                    if error.status.message.contains("can only promote a learner member")
                        && !error.status.message.contains("in sync") =>
                {
                    break;
                }
                Err(error) if Instant::now() >= deadline => return Err(changed_members(&error)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        self.settled().await?;
        self.remove(2, id).await?;
        self.ends(FOURTH).await?;
        if self.members[FOURTH].data.exists() {
            self.wipe(FOURTH)?;
        }
        Ok(())
    }

    /// A member misses more than the others keep in their logs.
    async fn far_behind(&mut self, victim: usize, writer: &mut impl Writer) -> Result<(), RobustnessError> {
        self.kill(victim);
        let mut last = None;
        for _ in 0..44 {
            last = writer.write(1 << 20).await.or(last);
        }
        if let Some(revision) = last {
            let compact = CompactionRequest { revision, ..CompactionRequest::default() };
            self.compacted = revision;
            let through = &self.members[(victim + 1) % VOTERS].channel;
            // The data is only smaller by it.
            let _ = through.call::<HeaderOnly>("/etcdserverpb.KV/Compact", &compact).await;
        }
        self.start(victim, None)
    }

    /// Starts the three for the first time.
    pub async fn found(&mut self) -> Result<(), RobustnessError> {
        for number in 0..VOTERS {
            self.start(number, None)?;
        }
        self.settled().await.map(drop)
    }
}

/// A value of a size that begins with a text of its own.
pub fn padded(text: &str, size: usize) -> Bytes {
    let mut value = text.as_bytes().to_vec();
    value.resize(size.max(value.len()), b'.');
    value.into()
}
