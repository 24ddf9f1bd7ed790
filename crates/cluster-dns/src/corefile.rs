//! A Corefile, as CoreDNS reads it: the part of its language that a cluster's DNS needs. What is not known here is refused by
//! name and line, because a resolver that ignores what it was told answers wrongly.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use thiserror::Error;

/// What CoreDNS listens on if nothing says so.
const DNS_PORT: u16 = 53;

/// What a Corefile asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corefile {
    pub port: u16,
    /// The cluster's domain, if the server knows one.
    pub domain: Option<String>,
    /// Where the rest goes, the most particular zone first.
    pub forwards: Vec<Forward>,
    pub health: Option<SocketAddr>,
    pub lameduck: Duration,
    pub ready: Option<SocketAddr>,
    pub prometheus: Option<SocketAddr>,
    /// Every question is logged.
    pub log: bool,
    /// The file is read again when it changes.
    pub reload: bool,
}

/// Questions about a zone, passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Lower case, without dots at the ends; empty for all names.
    pub zone: String,
    pub upstreams: Vec<Upstream>,
    pub policy: Policy,
    /// The longest that answers, and denials, are kept.
    pub cache: Cache,
}

/// Who is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    Address(SocketAddr),
    /// Those that a `resolv.conf` names.
    File(String),
}

/// In which order resolvers are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    Random,
    RoundRobin,
    Sequential,
}

/// For how long answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    pub success: Duration,
    pub denial: Duration,
}

impl Cache {
    /// Nothing is kept.
    pub const NONE: Self = Self { success: Duration::ZERO, denial: Duration::ZERO };
}

/// Why a Corefile cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("Corefile:{line}: {problem}")]
pub struct CorefileError {
    pub line: usize,
    pub problem: String,
}

fn wrong<T>(line: usize, problem: impl Into<String>) -> Result<T, CorefileError> {
    Err(CorefileError { line, problem: problem.into() })
}

/// A directive with its arguments and, if it has one, its block.
struct Directive<'a> {
    line: usize,
    words: Vec<&'a str>,
    block: Vec<(usize, Vec<&'a str>)>,
}

impl<'a> Directive<'a> {
    fn name(&self) -> &'a str {
        self.words.first().copied().unwrap_or_default()
    }

    fn arguments(&self) -> &[&'a str] {
        self.words.get(1..).unwrap_or_default()
    }
}

struct Block<'a> {
    line: usize,
    keys: Vec<&'a str>,
    directives: Vec<Directive<'a>>,
}

/// Lines of words, without comments and empty lines.
fn lines(text: &str) -> Vec<(usize, Vec<&str>)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| {
            let words: Vec<&str> =
                line.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
            (index + 1, words)
        })
        .filter(|(_, words)| !words.is_empty())
        .collect()
}

fn blocks(text: &str) -> Result<Vec<Block<'_>>, CorefileError> {
    let mut found = Vec::new();
    let mut rest = lines(text).into_iter();
    while let Some((line, mut words)) = rest.next() {
        if words.pop() != Some("{") || words.is_empty() {
            return wrong(line, "a server block must begin: ZONE {");
        }
        let mut block = Block { line, keys: words, directives: Vec::new() };
        loop {
            let Some((line, mut words)) = rest.next() else {
                return wrong(block.line, "the block does not end");
            };
            if words == ["}"] {
                break;
            }
            let mut inner = Vec::new();
            if words.last() == Some(&"{") {
                words.pop();
                loop {
                    match rest.next() {
                        None => return wrong(line, "the block does not end"),
                        Some((_, words)) if words == ["}"] => break,
                        Some(one) => inner.push(one),
                    }
                }
            }
            block.directives.push(Directive { line, words, block: inner });
        }
        found.push(block);
    }
    Ok(found)
}

/// Reads a Corefile. `default_port`: of zones that name none.
pub fn parse(text: &str, default_port: Option<u16>) -> Result<Corefile, CorefileError> {
    let mut file = Corefile {
        port: 0,
        domain: None,
        forwards: Vec::new(),
        health: None,
        lameduck: Duration::ZERO,
        ready: None,
        prometheus: None,
        log: false,
        reload: false,
    };
    let all = blocks(text)?;
    if all.is_empty() {
        return wrong(1, "there is no server block");
    }
    for block in &all {
        let mut zones = Vec::new();
        for key in block.keys.iter().flat_map(|key| key.split(',')).filter(|key| !key.is_empty()) {
            let key = key.strip_prefix("dns://").unwrap_or(key);
            let (zone, port) = match key.rsplit_once(':') {
                None => (key, default_port.unwrap_or(DNS_PORT)),
                Some((zone, port)) => match port.parse() {
                    Ok(port) => (zone, port),
                    Err(_) => return wrong(block.line, format!("{port:?} is no port")),
                },
            };
            if file.port != 0 && file.port != port {
                return wrong(block.line, format!("all zones must be on one port: {} and {port}", file.port));
            }
            file.port = port;
            zones.push(zone.trim_matches('.').to_ascii_lowercase());
        }
        server(&mut file, block, &zones)?;
    }
    // The longest zone that a name ends with is meant.
    file.forwards.sort_by_key(|forward| std::cmp::Reverse(forward.zone.len()));
    Ok(file)
}

fn server(file: &mut Corefile, block: &Block<'_>, zones: &[String]) -> Result<(), CorefileError> {
    let mut cache = Cache::NONE;
    let mut forward: Option<(Vec<Upstream>, Policy)> = None;
    for directive in &block.directives {
        let line = directive.line;
        let arguments = directive.arguments();
        match directive.name() {
            // Failures are told in the log anyway; the size of datagrams is the client's, bounded; answers are turned
            // round anyway.
            "errors" | "bufsize" | "loadbalance" => {}
            // A question that comes back waits for itself and ends: there is no loop to detect.
            "loop" => {}
            "log" => file.log = true,
            "reload" => file.reload = true,
            "health" => {
                file.health = Some(listen(line, arguments, 8080)?);
                for (line, words) in &directive.block {
                    match words.as_slice() {
                        ["lameduck", time] => file.lameduck = duration(*line, time)?,
                        other => return wrong(*line, format!("health has no {:?}", other.join(" "))),
                    }
                }
            }
            "ready" => file.ready = Some(listen(line, arguments, 8181)?),
            "prometheus" => file.prometheus = Some(listen(line, arguments, 9153)?),
            "kubernetes" => kubernetes(file, directive)?,
            "cache" => cache = cache_of(directive)?,
            "forward" => {
                if forward.is_some() {
                    return wrong(line, "a block has one forward");
                }
                forward = Some(forward_of(directive)?);
            }
            other => return wrong(line, format!("there is no plug-in {other:?} here")),
        }
    }
    if let Some((upstreams, policy)) = forward {
        for zone in zones {
            if file.forwards.iter().any(|one| one.zone == *zone) {
                return wrong(block.line, format!("zone {zone:?} is there twice"));
            }
            file.forwards.push(Forward { zone: zone.clone(), upstreams: upstreams.clone(), policy, cache });
        }
    }
    Ok(())
}

fn kubernetes(file: &mut Corefile, directive: &Directive<'_>) -> Result<(), CorefileError> {
    let line = directive.line;
    let zones = directive.arguments().iter();
    let mut forward: Vec<String> = Vec::new();
    for zone in zones {
        let zone = zone.trim_matches('.').to_ascii_lowercase();
        if !zone.ends_with("arpa") {
            forward.push(zone);
        }
    }
    let [domain] = forward.as_slice() else { return wrong(line, "kubernetes needs one domain") };
    if file.domain.is_some() {
        return wrong(line, "there is one kubernetes");
    }
    file.domain = Some(domain.clone());
    for (line, words) in &directive.block {
        match words.as_slice() {
            ["pods", "insecure"] | ["upstream", ..] => {}
            // As CoreDNS has it; names of the cluster's own zone that are not there are not there.
            ["fallthrough", zones @ ..]
                if !zones.is_empty() && zones.iter().all(|zone| zone.ends_with("arpa")) => {}
            ["fallthrough", ..] => return wrong(*line, "fallthrough is for in-addr.arpa and ip6.arpa"),
            ["ttl", "5"] => {}
            ["ttl", other] => return wrong(*line, format!("records live 5 s, not {other}")),
            other => return wrong(*line, format!("kubernetes has no {:?} here", other.join(" "))),
        }
    }
    Ok(())
}

fn cache_of(directive: &Directive<'_>) -> Result<Cache, CorefileError> {
    let seconds = |line: usize, text: &str| match text.parse::<u32>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
        Err(_) => wrong(line, format!("{text:?} is no number of seconds")),
    };
    let mut cache = Cache { success: Duration::from_secs(3600), denial: Duration::from_secs(1800) };
    if let [text] = directive.arguments() {
        let time = seconds(directive.line, text)?;
        cache = Cache { success: time, denial: time };
    } else if !directive.arguments().is_empty() {
        return wrong(directive.line, "cache takes one time; which zones follows from the block");
    }
    for (line, words) in &directive.block {
        match words.as_slice() {
            // How many are kept is bounded anyway; the shortest time is the answer's own.
            ["success", _capacity, time, ..] => cache.success = seconds(*line, time)?,
            ["denial", _capacity, time, ..] => cache.denial = seconds(*line, time)?,
            other => return wrong(*line, format!("cache has no {:?} here", other.join(" "))),
        }
    }
    Ok(cache)
}

fn forward_of(directive: &Directive<'_>) -> Result<(Vec<Upstream>, Policy), CorefileError> {
    let line = directive.line;
    let [from, to @ ..] = directive.arguments() else { return wrong(line, "forward needs FROM and TO") };
    if *from != "." {
        return wrong(line, "forward is for all names of its block: forward . TO");
    }
    if to.is_empty() || to.len() > 15 {
        return wrong(line, format!("forward takes 1 to 15 resolvers, not {}", to.len()));
    }
    let upstream = |text: &&str| {
        if text.starts_with('/') {
            return Ok(Upstream::File((*text).to_owned()));
        }
        if text.starts_with("tls://") {
            return wrong(line, format!("{text}: resolvers over TLS are not asked"));
        }
        let text = text.strip_prefix("dns://").unwrap_or(text);
        match (text.parse::<SocketAddr>(), text.trim_matches(['[', ']']).parse::<IpAddr>()) {
            (Ok(address), _) => Ok(Upstream::Address(address)),
            (_, Ok(address)) => Ok(Upstream::Address(SocketAddr::new(address, DNS_PORT))),
            _ => wrong(line, format!("{text:?} is neither an address nor a file")),
        }
    };
    let upstreams = to.iter().map(upstream).collect::<Result<Vec<_>, _>>()?;
    let mut policy = Policy::default();
    for (line, words) in &directive.block {
        match words.as_slice() {
            ["policy", "random"] => policy = Policy::Random,
            ["policy", "round_robin"] => policy = Policy::RoundRobin,
            ["policy", "sequential"] => policy = Policy::Sequential,
            // How many may wait is bounded anyway.
            ["max_concurrent", _] => {}
            other => return wrong(*line, format!("forward has no {:?} here", other.join(" "))),
        }
    }
    Ok((upstreams, policy))
}

fn listen(line: usize, arguments: &[&str], port: u16) -> Result<SocketAddr, CorefileError> {
    let any = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    match arguments {
        [] => Ok(SocketAddr::new(any, port)),
        [text] => match (text.parse(), text.strip_prefix(':').map(str::parse)) {
            (Ok(address), _) => Ok(address),
            (_, Some(Ok(port))) => Ok(SocketAddr::new(any, port)),
            _ => wrong(line, format!("{text:?} is no address with a port")),
        },
        _ => wrong(line, "there is one address"),
    }
}

/// Go's `20s`; CoreDNS takes whole units here.
fn duration(line: usize, text: &str) -> Result<Duration, CorefileError> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000)];
    let found = units.iter().find_map(|(unit, millis)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(Duration::from_millis(number.checked_mul(*millis)?))
    });
    found.map_or_else(|| wrong(line, format!("{text:?} is no time such as 20s")), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# corp\ncorp.test:5353 b.test:5353 {\n    prometheus 127.0.0.1:9153\n    forward . 10.1.1.1 10.2.2.2:5353 {\n        policy random\n    }\n    errors\n    cache 900 {\n        denial 9984 30\n    }\n}\n.:5353 {\n    bufsize 1232\n    errors\n    health {\n        lameduck 20s\n    }\n    ready\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        pods insecure\n        fallthrough in-addr.arpa ip6.arpa\n    }\n    prometheus 127.0.0.1:9153\n    forward . /etc/resolv.conf {\n        policy sequential\n    }\n    cache 900 {\n        denial 9984 30\n    }\n    reload\n}\n";

    #[test]
    fn the_operators_file_is_understood() {
        let file = parse(FILE, None).unwrap();
        assert_eq!((file.port, file.domain.as_deref(), file.reload), (5353, Some("cluster.local"), true));
        assert_eq!(file.lameduck, Duration::from_secs(20));
        assert_eq!(file.health.unwrap().port(), 8080);
        assert_eq!(file.ready.unwrap().port(), 8181);
        let zones: Vec<&str> = file.forwards.iter().map(|forward| forward.zone.as_str()).collect();
        assert_eq!(zones, ["corp.test", "b.test", ""]);
        assert_eq!(file.forwards[0].upstreams[1], Upstream::Address("10.2.2.2:5353".parse().unwrap()));
        assert_eq!(file.forwards[2].upstreams, [Upstream::File("/etc/resolv.conf".to_owned())]);
        assert_eq!(file.forwards[2].policy, Policy::Sequential);
        assert_eq!(file.forwards[2].cache.denial, Duration::from_secs(30));
        assert_eq!(parse(". {\n}\n", Some(1053)).unwrap().port, 1053);
    }

    #[test]
    fn what_is_not_known_is_refused_with_its_line() {
        let cases = [
            ("", 1, "no server block"),
            (". {\n rewrite a b\n}", 2, "no plug-in \"rewrite\""),
            (".:x {\n}", 1, "no port"),
            (". {\n forward . ten\n}", 2, "neither an address"),
            (". {\n forward . tls://1.1.1.1\n}", 2, "over TLS"),
            (". {\n forward corp 1.1.1.1\n}", 2, "forward . TO"),
            (".:53 {\n}\na:54 {\n}", 3, "on one port"),
            (". {\n health {\n  lameduck soon\n }\n}", 3, "no time"),
            (". {\n cache {\n", 2, "does not end"),
            (". {\n kubernetes a b\n}", 2, "one domain"),
            ("a {\n forward . 1.1.1.1\n}\na {\n forward . 1.1.1.1\n}", 4, "twice"),
        ];
        for (text, line, wanted) in cases {
            let error = parse(text, None).unwrap_err();
            assert!(error.line == line && error.problem.contains(wanted), "{text:?}: {error}");
        }
    }
}
