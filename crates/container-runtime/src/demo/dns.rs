//! A name looked up as a resolver library does it: /etc/hosts, then the servers and search list of
//! /etc/resolv.conf. Written out because a statically linked C library can not load its resolver plugins.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
const A: u16 = 1;
const AAAA: u16 = 28;

struct Resolver {
    servers: Vec<IpAddr>,
    search: Vec<String>,
    ndots: usize,
}

/// All addresses of a name.
pub fn lookup(name: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = name.parse() {
        return Ok(vec![address]);
    }
    let known = in_hosts(&fs::read_to_string("/etc/hosts").unwrap_or_default(), name);
    if !known.is_empty() {
        return Ok(known);
    }
    let resolver = Resolver::parse(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    let mut reason = io::Error::new(io::ErrorKind::NotFound, "no server in /etc/resolv.conf");
    for candidate in resolver.candidates(name) {
        match resolver.ask(&candidate) {
            Ok(addresses) if !addresses.is_empty() => return Ok(addresses),
            Ok(_) => reason = io::Error::new(io::ErrorKind::NotFound, format!("no such name: {name}")),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
        })
        .collect()
}

impl Resolver {
    fn parse(text: &str) -> Self {
        let mut resolver = Self { servers: Vec::new(), search: Vec::new(), ndots: 1 };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    resolver.servers.extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()))
                }
                Some("search") => resolver.search = words.map(str::to_owned).collect(),
                Some("options") => {
                    let ndots =
                        words.filter_map(|word| word.strip_prefix("ndots:")?.parse().ok()).next_back();
                    resolver.ndots = ndots.unwrap_or(resolver.ndots);
                }
                _ => {}
            }
        }
        resolver
    }

    /// The full names to try, in order.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(absolute) = name.strip_suffix('.') {
            return vec![absolute.to_owned()];
        }
        let mut all: Vec<String> = self.search.iter().map(|suffix| format!("{name}.{suffix}")).collect();
        let place = if name.matches('.').count() >= self.ndots { 0 } else { all.len() };
        all.insert(place, name.to_owned());
        all
    }

    fn ask(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut reason = io::Error::new(io::ErrorKind::NotFound, "no server in /etc/resolv.conf");
        for server in self.servers.iter().cycle().take(self.servers.len() * ATTEMPTS) {
            let answers = query(*server, name, A).and_then(|mut addresses| {
                addresses.extend(query(*server, name, AAAA)?);
                Ok(addresses)
            });
            match answers {
                Ok(addresses) => return Ok(addresses),
                Err(error) => reason = io::Error::new(error.kind(), format!("server {server}: {error}")),
            }
        }
        Err(reason)
    }
}

fn query(server: IpAddr, name: &str, kind: u16) -> io::Result<Vec<IpAddr>> {
    let local: SocketAddr =
        if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(local)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect((server, 53))?;
    let id = socket.local_addr()?.port(); // as hard to guess as the port itself
    socket.send(&question(id, name, kind)?)?;
    let mut buffer = [0; 1500];
    let count = socket.recv(&mut buffer)?;
    answers(&buffer[..count], id, kind)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a broken answer"))?
}

fn question(id: u16, name: &str, kind: u16) -> io::Result<Vec<u8>> {
    let mut packet = Vec::with_capacity(64);
    for word in [id, 0x0100, 1, 0, 0, 0] {
        packet.extend(word.to_be_bytes());
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..64).contains(length));
        let length = length
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("not a name: {name}")))?;
        packet.push(length);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend(kind.to_be_bytes());
    packet.extend(1_u16.to_be_bytes());
    Ok(packet)
}

/// The addresses in an answer; `None` when it can not be read. "No such name" is an empty list.
fn answers(packet: &[u8], id: u16, kind: u16) -> Option<io::Result<Vec<IpAddr>>> {
    let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    if word(0)? != id {
        return None;
    }
    match word(2)? & 0xf {
        0 => {}
        3 => return Some(Ok(Vec::new())),
        code => return Some(Err(io::Error::other(format!("the server answers with code {code}")))),
    }
    let skip_name = |mut at: usize| loop {
        match *packet.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    };
    let mut at = 12;
    for _ in 0..word(4)? {
        at = skip_name(at)? + 4;
    }
    let mut found = Vec::new();
    for _ in 0..word(6)? {
        at = skip_name(at)?;
        let (this, length) = (word(at)?, usize::from(word(at + 8)?));
        let data = packet.get(at + 10..at + 10 + length)?;
        at += 10 + length;
        if this == kind {
            found.extend(<[u8; 4]>::try_from(data).map(IpAddr::from));
            found.extend(<[u8; 16]>::try_from(data).map(IpAddr::from));
        }
    }
    Some(Ok(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_list_is_used_as_ndots_says() {
        let resolver =
            Resolver::parse("nameserver 10.0.0.1\nsearch a.local b.local\noptions ndots:2 edns0\n");
        assert_eq!(resolver.candidates("web"), ["web.a.local", "web.b.local", "web"]);
        assert_eq!(resolver.candidates("x.y.z"), ["x.y.z", "x.y.z.a.local", "x.y.z.b.local"]);
        assert_eq!(resolver.candidates("web."), ["web"]);
        assert_eq!(in_hosts("10.0.0.9 web web.local # x\n", "WEB"), [IpAddr::from([10, 0, 0, 9])]);
    }

    #[test]
    fn answers_are_read_and_broken_ones_refused() {
        let mut packet = question(7, "web.local", A).unwrap();
        packet[7] = 1; // one answer
        packet[2..4].copy_from_slice(&[0x81, 0x80]);
        packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 0, 0, 3]);
        assert_eq!(answers(&packet, 7, A).unwrap().unwrap(), [IpAddr::from([10, 0, 0, 3])]);
        assert!(answers(&packet, 8, A).is_none());
        assert!(answers(&packet[..packet.len() - 2], 7, A).is_none());
        packet[3] = 0x83;
        assert_eq!(answers(&packet, 7, A).unwrap().unwrap(), Vec::<IpAddr>::new());
        assert!(question(1, "a..b", A).is_err());
    }
}
