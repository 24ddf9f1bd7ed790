//! The network between members: every connection between two of them goes through here, and each direction can be held, slowed down or cut.
//!
//! Who calls is found by the caller's socket (`/proc`), so no privileges and no network namespaces are needed, and a partition can be of one
//! direction only. Bytes are never dropped from the middle of a connection, as TCP does not let that happen: what a network would lose comes late, or
//! the connection breaks.

use std::net::SocketAddr;
use std::time::Duration;

use lifecycle::{Stop, Tasks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::robustness::random::Random;

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// They pass.
    #[default]
    Open,
    /// They wait.
    Held,
    /// Connections break and cannot be made.
    Cut,
    /// Each piece takes up to so many milliseconds; so many in a hundred are lost and sent again later.
    Slow(u64, u64),
}

/// The ways from each member to each other.
pub type Ways = Vec<Vec<Way>>;

/// What lies between the members.
#[derive(Clone)]
pub struct Network {
    ways: watch::Sender<Ways>,
    /// The process of each member.
    processes: watch::Sender<Vec<Option<u32>>>,
    tasks: Tasks,
}

impl Network {
    /// A network between so many members, where everything passes.
    pub fn new(members: usize, tasks: &Tasks) -> Self {
        Self {
            ways: watch::Sender::new(vec![vec![Way::Open; members]; members]),
            processes: watch::Sender::new(vec![None; members]),
            tasks: tasks.clone(),
        }
    }

    /// Says which process a member is.
    pub fn process(&self, member: usize, process: Option<u32>) {
        self.processes.send_modify(|processes| processes[member] = process);
    }

    /// Changes the ways.
    pub fn change(&self, change: impl FnOnce(&mut Ways)) {
        self.ways.send_modify(change);
    }

    /// Everything passes again.
    pub fn heal(&self) {
        self.change(|ways| ways.iter_mut().flatten().for_each(|way| *way = Way::Open));
    }

    /// Listens for a member, whose own peer port is `target`; returns the port to be told to the others.
    pub async fn before(
        &self,
        member: usize,
        target: SocketAddr,
        mut random: Random,
    ) -> std::io::Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let network = self.clone();
        self.tasks.spawn("robustness/network", move |stop| async move {
            while let Some(accepted) = stop.or(listener.accept()).await {
                // A connection that could not be taken is one that broke.
                let Ok((near, caller)) = accepted else { continue };
                let (network, random) = (network.clone(), random.fork());
                let tasks = network.tasks.clone();
                tasks.spawn("robustness/connection", move |stop| async move {
                    network.carry(near, caller, member, target, random, stop).await;
                });
            }
        });
        Ok(port)
    }

    async fn carry(
        &self,
        near: TcpStream,
        caller: SocketAddr,
        to: usize,
        target: SocketAddr,
        mut random: Random,
        stop: Stop,
    ) {
        let processes = self.processes.borrow().clone();
        // Whoever is no member (a client that looks at the peer port) is not in anybody's way.
        let from = owner(caller.port(), &processes);
        let blocked =
            |ways: &Ways| from.is_some_and(|from| ways[from][to] == Way::Cut || ways[to][from] == Way::Cut);
        if blocked(&self.ways.borrow()) {
            return;
        }
        let Ok(far) = TcpStream::connect(target).await else { return };
        if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
            return;
        }
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        let there = self.pump(near_in, far_out, from.map(|from| (from, to)), random.fork());
        let back = self.pump(far_in, near_out, from.map(|from| (to, from)), random.fork());
        let mut ways = self.ways.subscribe();
        // Dropping both ends is how a connection breaks.
        tokio::select! {
            _ = futures::future::join(there, back) => {}
            _ = ways.wait_for(blocked) => {}
            () = stop.requested() => {}
        }
    }

    async fn pump(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        link: Option<(usize, usize)>,
        mut random: Random,
    ) {
        let mut ways = self.ways.subscribe();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = match from.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => count,
            };
            if let Some((one, other)) = link {
                let open =
                    ways.wait_for(|ways| ways[one][other] != Way::Held).await.map(|ways| ways[one][other]);
                match open {
                    Ok(Way::Slow(most, lost)) => {
                        let again = if random.chance(lost) { 200 } else { 0 };
                        tokio::time::sleep(Duration::from_millis(random.below(most + 1) + again)).await;
                    }
                    Ok(Way::Open | Way::Cut | Way::Held) => {}
                    Err(_) => break,
                }
            }
            if to.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
        // The other side may have gone already.
        let _ = to.shutdown().await;
    }
}

/// Which of the processes has the socket with this local port.
fn owner(port: u16, processes: &[Option<u32>]) -> Option<usize> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!(":{port:04X}");
    // The caller's end is the one whose own port it is and which no listener of ours has accepted.
    let inodes: Vec<String> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields
                .get(1)?
                .ends_with(&local)
                .then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
        })
        .collect();
    processes.iter().position(|process| {
        let Some(process) = process else { return false };
        let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        files.flatten().any(|file| {
            std::fs::read_link(file.path()).is_ok_and(|link| {
                let link = link.to_string_lossy();
                inodes.iter().any(|inode| *inode == link)
            })
        })
    })
}
