//! Real members as processes: started, killed, stopped, wiped, with a network and disks that can fail.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lifecycle::Tasks;
use rustix::process::{Pid, Signal, kill_process};

use crate::remote::{Channel, RemoteConfig};
use crate::robustness::RobustnessError;
use crate::robustness::random::Random;
use crate::robustness::relay::Network;
use crate::v3::messages::*;

/// How long anything that must happen may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// How much room the member with a small disk has.
const SMALL_DISK: &str = "size=192m,mode=0700";

/// One member.
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub client: String,
    peer: String,
    /// What it is told to the others as.
    pub advertised: String,
    /// Its data.
    pub data: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    /// To it alone.
    pub channel: Channel,
}

/// A disk of its own for one member; it goes with this value.
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH) {
            tracing::warn!(path = %self.0.display(), %error, "a small disk is still mounted");
        }
    }
}

/// All members, also those that are not running.
pub struct Cluster {
    program: PathBuf,
    /// What precedes the flags.
    command: Option<&'static str>,
    /// The members: three voters, and places for more.
    pub members: Vec<Member>,
    /// What is between them.
    pub network: Network,
    /// What was before this revision may be forgotten.
    pub compacted: i64,
    small_disk: Option<SmallDisk>,
    initial: String,
}

fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Cluster {
    /// Three members of a new cluster and a place for a fourth, none started.
    pub async fn new(
        (program, command): (&Path, Option<&'static str>),
        directory: &Path,
        random: &mut Random,
        tasks: &Tasks,
    ) -> Result<Self, RobustnessError> {
        let failed = |action| move |source| RobustnessError::Io { action, source };
        let network = Network::new(4, tasks);
        let mut members = Vec::new();
        for (number, name) in ["one", "two", "three", "four"].into_iter().enumerate() {
            let port = free_port().map_err(failed("find a free port"))?;
            let target = ([127, 0, 0, 1], port).into();
            let relay = network.before(number, target, random.fork()).await;
            let relay = relay.map_err(failed("listen between the members"))?;
            let client = format!("http://127.0.0.1:{}", free_port().map_err(failed("find a free port"))?);
            let config = RemoteConfig { endpoints: vec![client.clone()], tls: None };
            let place = directory.join(name);
            std::fs::create_dir_all(&place).map_err(failed("make a directory"))?;
            members.push(Member {
                name: name.to_owned(),
                client,
                peer: format!("http://127.0.0.1:{port}"),
                advertised: format!("http://127.0.0.1:{relay}"),
                data: place.join("data"),
                log: directory.join(format!("{name}.log")),
                child: None,
                channel: Channel::new(&config, tasks)?,
            });
        }
        // Not everybody may mount; then no disk is full.
        let place = directory.join("three");
        let mounted = rustix::mount::mount(
            "tmpfs",
            &place,
            "tmpfs",
            rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV,
            Some(
                std::ffi::CString::new(SMALL_DISK)
                    .map_err(|error| RobustnessError::Io {
                        action: "name the size of a disk",
                        source: error.into(),
                    })?
                    .as_c_str(),
            ),
        );
        let small_disk = mounted.is_ok().then(|| SmallDisk(place));
        let initial: Vec<String> =
            members[..3].iter().map(|member| format!("{}={}", member.name, member.advertised)).collect();
        Ok(Self {
            program: program.to_owned(),
            command,
            members,
            network,
            compacted: 0,
            small_disk,
            initial: initial.join(","),
        })
    }

    /// The file that takes all room.
    pub fn filler(&self) -> Option<PathBuf> {
        self.small_disk.as_ref().map(|disk| disk.0.join("filler"))
    }

    /// Starts a member; `joins` names everybody whom one that joins is told of.
    pub fn start(&mut self, number: usize, joins: Option<&str>) -> Result<(), RobustnessError> {
        let failed = |source| RobustnessError::Io { action: "start a member", source };
        let member = &mut self.members[number];
        let log = File::options().create(true).append(true).open(&member.log).map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.args(self.command).args(["--name", &member.name]).arg("--data-dir").arg(&member.data);
        command
            .args(["--listen-client-urls", &member.client, "--advertise-client-urls", &member.client])
            .args(["--listen-peer-urls", &member.peer, "--initial-advertise-peer-urls", &member.advertised])
            .args(["--initial-cluster", joins.unwrap_or(&self.initial)])
            .args(["--initial-cluster-state", if joins.is_some() { "existing" } else { "new" }])
            .args(["--experimental-watch-progress-notify-interval", "500ms"])
            .args(["--logger", "zap", "--log-level", "info"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        let child = command.spawn().map_err(failed)?;
        self.network.process(number, Some(child.id()));
        member.child = Some(child);
        Ok(())
    }

    /// Whether its process runs.
    pub fn runs(&mut self, number: usize) -> bool {
        let child = self.members[number].child.as_mut();
        child.is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    /// Sends a signal.
    pub fn signal(&self, number: usize, signal: Signal) {
        let process = self.members[number].child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        // It may have ended by itself, which is found out when it is waited for.
        let _ = process.map(|process| kill_process(process, signal));
    }

    /// `kill -9`.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.network.process(number, None);
    }

    /// Waits until a process has ended by itself.
    pub async fn ends(&mut self, number: usize) -> Result<(), RobustnessError> {
        let deadline = Instant::now() + DEADLINE;
        while self.runs(number) {
            if Instant::now() >= deadline {
                let name = &self.members[number].name;
                return Err(RobustnessError::Stuck(format!("{name} does not end")));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.kill(number);
        Ok(())
    }

    /// The end of what a member has said.
    pub fn said(&self, number: usize) -> String {
        let text = std::fs::read(&self.members[number].log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned()
    }

    /// Forgets everything a member has.
    pub fn wipe(&mut self, number: usize) -> Result<(), RobustnessError> {
        std::fs::remove_dir_all(&self.members[number].data)
            .map_err(|source| RobustnessError::Io { action: "wipe a member", source })
    }

    /// What a member says of itself, if it answers.
    pub async fn status(&self, number: usize) -> Option<StatusResponse> {
        let call = self.members[number].channel.call("/etcdserverpb.Maintenance/Status", &Empty {});
        tokio::time::timeout(Duration::from_secs(1), call).await.ok()?.ok()
    }

    /// Waits until all that run answer and name one leader; returns its number.
    pub async fn settled(&mut self) -> Result<usize, RobustnessError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (mut leaders, mut found, mut silent) = (Vec::new(), None, 0);
            for number in 0..self.members.len() {
                if self.members[number].child.is_none() {
                    continue;
                }
                if !self.runs(number) {
                    let name = self.members[number].name.clone();
                    return Err(RobustnessError::Ended { name, said: self.said(number) });
                }
                match self.status(number).await {
                    Some(status) => {
                        leaders.push(status.leader);
                        if status.header.is_some_and(|header| header.member_id == status.leader) {
                            found = Some(number);
                        }
                    }
                    None => silent += 1,
                }
            }
            leaders.dedup();
            if let (0, [_], Some(found)) = (silent, leaders.as_slice(), found) {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                return Err(RobustnessError::Stuck("the members do not settle on a leader".to_owned()));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// The client URLs of those that run.
    pub fn endpoints(&self) -> Vec<String> {
        self.members
            .iter()
            .filter(|member| member.child.is_some())
            .map(|member| member.client.clone())
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            self.kill(number);
        }
    }
}
