//! Flags as Go's programs take them: those that every command has, and how a yes or no is written.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Command};

use crate::error::{CliError, message};

/// The flags that can be passed to any command.
#[derive(Args, Clone, Debug, Default)]
pub struct GlobalFlags {
    /// Username to impersonate for the operation
    #[arg(
        long = "as",
        global = true,
        value_name = "USER",
        help_heading = "Global options",
        default_value = "",
        hide_default_value = true
    )]
    pub as_user: String,
    /// Group to impersonate for the operation; may be repeated
    #[arg(long, global = true, value_name = "GROUP", help_heading = "Global options")]
    pub as_group: Vec<String>,
    /// UID to impersonate for the operation
    #[arg(long, global = true, value_name = "UID", help_heading = "Global options")]
    pub as_uid: Option<String>,
    /// Extra user information to impersonate, as key=value; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE", help_heading = "Global options")]
    pub as_user_extra: Vec<String>,
    /// Default cache directory
    #[arg(long, global = true, value_parser = path, value_name = "DIR", help_heading = "Global options")]
    pub cache_dir: Option<PathBuf>,
    /// Path to a cert file for the certificate authority
    #[arg(long, global = true, value_parser = path, value_name = "FILE", help_heading = "Global options")]
    pub certificate_authority: Option<PathBuf>,
    /// Path to a client certificate file for TLS
    #[arg(long, global = true, value_parser = path, value_name = "FILE", help_heading = "Global options")]
    pub client_certificate: Option<PathBuf>,
    /// Path to a client key file for TLS
    #[arg(long, global = true, value_parser = path, value_name = "FILE", help_heading = "Global options")]
    pub client_key: Option<PathBuf>,
    /// The name of the kubeconfig cluster to use
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub cluster: Option<String>,
    /// The name of the kubeconfig context to use
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub context: Option<String>,
    /// If true, opt-out of response compression for all requests to the server; it is never asked for here
    #[arg(long, global = true, help_heading = "Global options")]
    pub disable_compression: bool,
    /// If true, the server's certificate will not be checked for validity
    #[arg(long, global = true, help_heading = "Global options")]
    pub insecure_skip_tls_verify: bool,
    /// Path to the kubeconfig file to use for CLI requests
    #[arg(long, global = true, value_parser = path, value_name = "FILE", help_heading = "Global options")]
    pub kubeconfig: Option<PathBuf>,
    /// Path to the kuberc file with preferences
    #[arg(long, global = true, value_parser = refused, value_name = "FILE", help_heading = "Global options")]
    pub kuberc: Option<String>,
    /// Require server version to match client version
    #[arg(long, global = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = refused, help_heading = "Global options")]
    pub match_server_version: Option<String>,
    /// If present, the namespace scope for this CLI request
    #[arg(short, long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub namespace: Option<String>,
    /// Password for basic authentication to the API server
    #[arg(long, global = true, hide = true)]
    pub password: Option<String>,
    /// The length of time to wait before giving up on a single server request; zero means no limit
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        help_heading = "Global options",
        default_value = "0",
        hide_default_value = true
    )]
    pub request_timeout: String,
    /// The address and port of the Kubernetes API server
    #[arg(short, long, global = true, value_name = "URL", help_heading = "Global options")]
    pub server: Option<String>,
    /// Server name to use for server certificate validation
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub tls_server_name: Option<String>,
    /// Bearer token for authentication to the API server
    #[arg(long, global = true, value_name = "TOKEN", help_heading = "Global options")]
    pub token: Option<String>,
    /// The name of the kubeconfig user to use
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub user: Option<String>,
    /// Username for basic authentication to the API server
    #[arg(long, global = true, hide = true)]
    pub username: Option<String>,
    /// Number for the log level verbosity
    #[arg(
        short,
        long = "v",
        global = true,
        value_name = "LEVEL",
        help_heading = "Global options",
        default_value = "0",
        hide_default_value = true
    )]
    pub v: i32,
    /// Treat warnings received from the server as errors and exit with a non-zero exit code
    #[arg(long, global = true, help_heading = "Global options")]
    pub warnings_as_errors: bool,
}

/// Makes every yes-or-no flag take `=false` too, and every other flag take what follows it, whatever that looks like.
pub fn as_in_go(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_value("false")
            .value_parser(boolean)
            .hide_default_value(true)
            .hide_possible_values(true)
            .value_name("BOOL"),
        ArgAction::Set | ArgAction::Append if !arg.is_positional() && !arg.is_require_equals_set() => {
            arg.allow_hyphen_values(true)
        }
        _ => arg,
    });
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = command.args_override_self(true);
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, as_in_go))
}

/// A path, or nothing.
fn path(text: &str) -> Result<PathBuf, std::convert::Infallible> {
    Ok(PathBuf::from(text))
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

/// A duration in Go's words: `1h2m3.5s`, `500ms`, `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("time: invalid duration {text:?}");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut sum = 0.0f64;
    if rest.is_empty() || rest.starts_with('-') {
        return Err(bad());
    }
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("time: missing unit in duration {text:?}"))?;
        let number: f64 = rest[..end].parse().map_err(|_| bad())?;
        rest = &rest[end..];
        let (unit, length) =
            [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
                .into_iter()
                .find(|(unit, _)| {
                    rest.strip_prefix(unit).is_some_and(|rest| {
                        rest.chars().next().is_none_or(|c| c.is_ascii_digit() || c == '.')
                    })
                })
                .ok_or_else(|| format!("time: unknown unit in duration {text:?}"))?;
        rest = &rest[unit.len()..];
        sum += number * length;
    }
    Duration::try_from_secs_f64(sum).map_err(|_| bad())
}

/// A timeout flag in which a bare number counts seconds and less than nothing is a week.
pub fn timeout(text: &str) -> Result<Duration, CliError> {
    const WEEK: Duration = Duration::from_secs(168 * 3600);
    if let Ok(seconds) = text.parse::<i64>() {
        return Ok(u64::try_from(seconds).map_or(WEEK, Duration::from_secs));
    }
    if text.starts_with('-') {
        return Ok(WEEK);
    }
    duration(text).map_err(|reason| message(format!("invalid timeout value: {reason}")))
}

/// Where a write is only tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DryRun {
    #[default]
    None,
    Client,
    Server,
}

impl DryRun {
    /// What is said after an operation.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// `--dry-run`, with all the words it ever had.
#[derive(Args, Clone, Debug, Default)]
pub struct DryRunFlag {
    /// Must be "none", "server", or "client"
    #[arg(long, value_name = "STRATEGY", num_args = 0..=1, require_equals = true, default_missing_value = "unchanged", default_value = "none")]
    dry_run: String,
}

impl DryRunFlag {
    pub fn strategy(&self) -> Result<DryRun, CliError> {
        let deprecated = |shown: &str, instead: &str| {
            eprintln!("W --dry-run{shown} is deprecated and can be replaced with --dry-run={instead}.");
        };
        Ok(match self.dry_run.as_str() {
            "client" => DryRun::Client,
            "server" => DryRun::Server,
            "none" => DryRun::None,
            "unchanged" => {
                deprecated("", "client");
                DryRun::Client
            }
            other => match boolean(other) {
                Ok(true) => {
                    deprecated(&format!("={other}"), "client");
                    DryRun::Client
                }
                Ok(false) => {
                    deprecated(&format!("={other}"), "none");
                    DryRun::None
                }
                Err(_) => {
                    return Err(message(format!(
                        "Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\"."
                    )));
                }
            },
        })
    }
}

/// For flags that kubectl has and this program does not act on yet: they are refused instead of ignored. What asks for
/// nothing (`=false`, `=0`) is taken.
pub fn refused(text: &str) -> Result<String, String> {
    match text {
        "false" | "0" => Ok(text.to_owned()),
        _ => Err("this flag is not supported here".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_acted_on_is_refused() {
        assert!(refused("/etc/kuberc").is_err() && refused("true").is_err() && refused("5m").is_err());
        assert!(refused("false").is_ok() && refused("0").is_ok());
    }

    #[test]
    fn durations_are_gos() {
        for (text, seconds) in [("0", 0.0), ("30s", 30.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("250ms", 0.25)]
        {
            assert_eq!(duration(text).map(|found| found.as_secs_f64()), Ok(seconds), "{text}");
        }
        for text in ["", "5", "s", "1x", "-1s", "1m3"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(timeout("5").expect("seconds").as_secs(), 5);
        assert_eq!(timeout("-1s").expect("a week").as_secs(), 168 * 3600);
    }
}
