//! The part of haproxy's configuration language that `haproxy.cfg` of an installation uses. What is not part of it is
//! refused with its line.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::unit::time::span;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ConfigError {
    #[error("line {line}: {words:?} is not supported in section {section}")]
    Unknown { line: usize, section: String, words: String },
    #[error("line {line}: {reason}")]
    Value { line: usize, reason: String },
    #[error("frontend {frontend} leads to backend {backend}, which is not there")]
    NoBackend { frontend: String, backend: String },
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    #[error("address {0} cannot be used")]
    Bind(SocketAddr, #[source] std::io::Error),
    #[error("its addresses changed, which needs a restart")]
    Restart,
    #[error("TLS for health checks cannot be set up")]
    Tls(#[source] rustls::Error),
}

/// A whole configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Config {
    pub frontends: Vec<Frontend>,
    pub backends: BTreeMap<String, Backend>,
    pub settings: Settings,
}

/// How connections are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Settings {
    pub most_connections: usize,
    pub connect: Duration,
    pub idle: Duration,
    pub check: Duration,
    pub retries: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            most_connections: 3000,
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(3600),
            check: Duration::from_secs(10),
            retries: 3,
        }
    }
}

/// Where clients come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Frontend {
    pub name: String,
    pub binds: Vec<SocketAddr>,
    pub backend: String,
    /// Shows the state of all servers at this path, instead of a backend.
    pub stats: Option<String>,
}

/// Where they are led.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Backend {
    pub balance: Balance,
    pub check: Check,
    pub servers: Vec<Server>,
}

/// Which server a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Balance {
    #[default]
    RoundRobin,
    Source,
}

/// How health is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Check {
    #[default]
    Connect,
    Http {
        tls: bool,
        path: String,
        status: u16,
    },
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Server {
    pub name: String,
    pub address: SocketAddr,
    pub checked: bool,
    pub interval: Duration,
    pub rise: u32,
    pub fall: u32,
    /// `on-marked-down shutdown-sessions`: connections to a server that goes down are cut.
    pub cuts: bool,
}

/// Reads a configuration.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    let mut section = (String::new(), String::new());
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        let words: Vec<&str> = raw.split('#').next().unwrap_or_default().split_whitespace().collect();
        let value = |reason: String| ConfigError::Value { line, reason };
        match words[..] {
            [] => {}
            [kind @ ("global" | "defaults")] => section = (kind.to_owned(), String::new()),
            ["frontend", name] => {
                config.frontends.push(Frontend { name: name.to_owned(), ..Frontend::default() });
                section = ("frontend".to_owned(), name.to_owned());
            }
            ["backend", name] => {
                config.backends.insert(name.to_owned(), Backend::default());
                section = ("backend".to_owned(), name.to_owned());
            }
            _ => {
                let known = match section.0.as_str() {
                    "global" => global(&words),
                    "defaults" => defaults(&mut config.settings, &words).map_err(value)?,
                    "frontend" => match config.frontends.last_mut() {
                        Some(frontend) => in_frontend(frontend, &words).map_err(value)?,
                        None => false,
                    },
                    "backend" => match config.backends.get_mut(&section.1) {
                        Some(backend) => in_backend(backend, &words).map_err(value)?,
                        None => false,
                    },
                    _ => false,
                };
                if !known {
                    return Err(ConfigError::Unknown {
                        line,
                        section: format!("{} {}", section.0, section.1).trim_end().to_owned(),
                        words: words.join(" "),
                    });
                }
            }
        }
    }
    for frontend in config.frontends.iter().filter(|frontend| frontend.stats.is_none()) {
        if !config.backends.contains_key(&frontend.backend) {
            return Err(ConfigError::NoBackend {
                frontend: frontend.name.clone(),
                backend: frontend.backend.clone(),
            });
        }
    }
    Ok(config)
}

fn global(words: &[&str]) -> bool {
    // Where it logs to is decided by who runs it; the limit of all connections is that of each frontend's together.
    matches!(words, ["maxconn", _] | ["log", ..] | ["daemon"] | ["stats", ..])
}

fn time(text: &str) -> Result<Duration, String> {
    // haproxy's times are milliseconds unless they say otherwise.
    let text =
        if text.chars().all(|char| char.is_ascii_digit()) { format!("{text}ms") } else { text.to_owned() };
    span(&text).flatten().ok_or_else(|| format!("{text} is not a time"))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number that can be used here"))
}

fn defaults(settings: &mut Settings, words: &[&str]) -> Result<bool, String> {
    match words {
        ["maxconn", count] => settings.most_connections = number(count)?,
        ["retries", count] => settings.retries = number(count)?,
        ["timeout", "connect", value] => settings.connect = time(value)?,
        ["timeout", "check", value] => settings.check = time(value)?,
        ["timeout", "tunnel", value] => settings.idle = time(value)?,
        // Between the two ends of a tunnel only the tunnel's own time counts; there is no queue and no HTTP.
        ["timeout", "queue" | "client" | "server" | "http-request", value] => drop(time(value)?),
        ["mode", "tcp"] | ["log", "global"] => {}
        // A server that does not take a connection is always followed by the next.
        ["option", "dontlognull" | "tcplog" | "redispatch"] => {}
        _ => return Ok(false),
    }
    Ok(true)
}

fn in_frontend(frontend: &mut Frontend, words: &[&str]) -> Result<bool, String> {
    match words {
        ["bind", address] | ["bind", address, "v4v6"] => frontend.binds.push(bind(address)?),
        ["default_backend", name] => frontend.backend = (*name).to_owned(),
        ["stats", "enable"] => drop(frontend.stats.get_or_insert_with(|| "/stats".to_owned())),
        ["stats", "uri", path] => frontend.stats = Some((*path).to_owned()),
        ["stats", "refresh", value] | ["timeout", "http-request", value] => drop(time(value)?),
        ["mode", "tcp" | "http"] => {}
        _ => return Ok(false),
    }
    Ok(true)
}

/// `ADDRESS:PORT`, where the address may be absent, `*`, or `::`.
fn bind(text: &str) -> Result<SocketAddr, String> {
    let fail = || format!("{text} is not an address with a port");
    let (host, port) = text.rsplit_once(':').ok_or_else(fail)?;
    let ip: IpAddr = match host {
        "" | "*" => Ipv4Addr::UNSPECIFIED.into(),
        "::" | "[::]" => Ipv6Addr::UNSPECIFIED.into(),
        other => other.trim_matches(['[', ']']).parse().map_err(|_| fail())?,
    };
    Ok(SocketAddr::new(ip, number(port)?))
}

fn in_backend(backend: &mut Backend, words: &[&str]) -> Result<bool, String> {
    let http = |check: &mut Check| {
        if *check == Check::Connect {
            *check = Check::Http { tls: false, path: "/".to_owned(), status: 200 };
        }
    };
    match words {
        ["balance", "source"] => backend.balance = Balance::Source,
        ["balance", "roundrobin"] => backend.balance = Balance::RoundRobin,
        ["mode", "tcp"] | ["option", "tcp-check"] => {}
        ["option", "httpchk"] => http(&mut backend.check),
        ["http-check", rest @ ..] => {
            http(&mut backend.check);
            let Check::Http { tls, path, status } = &mut backend.check else { return Ok(false) };
            match rest {
                ["connect", "ssl"] | ["connect", "ssl", "alpn", _] => *tls = true,
                ["send", "meth", "GET", "uri", wanted] => *path = (*wanted).to_owned(),
                ["expect", "status", wanted] => *status = number(wanted)?,
                _ => return Ok(false),
            }
        }
        ["server", name, address, options @ ..] => {
            backend.servers.push(server(name, address, options)?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn server(name: &str, address: &str, options: &[&str]) -> Result<Server, String> {
    let address = address.parse().map_err(|_| format!("{address} is not an address with a port"))?;
    let mut server = Server {
        name: name.to_owned(),
        address,
        checked: false,
        interval: Duration::from_secs(2),
        rise: 2,
        fall: 3,
        cuts: false,
    };
    let mut rest = options;
    loop {
        rest = match rest {
            [] => return Ok(server),
            ["check", tail @ ..] => {
                server.checked = true;
                tail
            }
            // Checks carry no secret, and who answers them is not known by name.
            ["verify", "none", tail @ ..] | ["check-ssl", tail @ ..] => tail,
            ["inter", value, tail @ ..] => {
                server.interval = time(value)?;
                tail
            }
            ["rise", count, tail @ ..] => {
                server.rise = number::<u32>(count)?.max(1);
                tail
            }
            ["fall", count, tail @ ..] => {
                server.fall = number::<u32>(count)?.max(1);
                tail
            }
            ["on-marked-down", "shutdown-sessions", tail @ ..] => {
                server.cuts = true;
                tail
            }
            [other, ..] => return Err(format!("server option {other} is not supported")),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "global\n maxconn 4000\n log stdout format raw local0 notice\n\
        defaults\n mode tcp\n timeout connect 10s\n timeout tunnel 1h\n retries 3\n\
        frontend stats\n mode http\n bind 127.0.0.1:9000\n stats enable\n stats uri /stats\n\
        frontend api # clients\n bind :::6443 v4v6\n default_backend api\n\
        backend api\n balance source\n option httpchk\n http-check connect ssl alpn h2,http/1.1\n\
        http-check send meth GET uri /readyz\n http-check expect status 200\n\
        server bootstrap 192.168.126.100:6443 check verify none inter 10s fall 2 rise 3\n";

    #[test]
    fn what_an_installation_writes_is_understood() {
        let config = parse(TEXT).unwrap();
        assert_eq!(config.frontends[0].stats.as_deref(), Some("/stats"));
        assert_eq!(config.frontends[1].binds, ["[::]:6443".parse().unwrap()]);
        let backend = &config.backends["api"];
        assert_eq!(backend.check, Check::Http { tls: true, path: "/readyz".into(), status: 200 });
        assert_eq!((backend.balance, backend.servers[0].rise), (Balance::Source, 3));
        assert_eq!(backend.servers[0].interval, Duration::from_secs(10));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        let error = parse("frontend a\n bind :80\n acl x path /y\n").unwrap_err();
        assert_eq!(error.to_string(), "line 3: \"acl x path /y\" is not supported in section frontend a");
        let error = parse("backend a\n server b 10.0.0.1:80 weight 5\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: server option weight is not supported");
        assert!(matches!(parse("frontend a\n default_backend b\n"), Err(ConfigError::NoBackend { .. })));
    }
}
