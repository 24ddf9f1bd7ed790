//! `systemctl`, `journalctl`, `reboot` and `poweroff` on a machine: the verbs that scripts of machine configs call.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::cluster::pause;
use crate::init::{Reply, Request, UnitStatus, call};
use crate::journal::{Filter, Reader};
use crate::unit::load::Loader;
use crate::unit::{Specifiers, install};

#[derive(Debug, Parser)]
#[command(name = "systemctl", about = "Controls the units of this machine")]
struct Systemctl {
    /// start, stop, restart, try-restart, enable, disable, mask, unmask, is-active, is-enabled, is-failed, status, show,
    /// list-units, daemon-reload, reset-failed, cat, reboot, poweroff
    verb: String,
    units: Vec<String>,
    /// Also start or stop what is enabled or disabled
    #[arg(long)]
    now: bool,
    /// Do not wait
    #[arg(long)]
    no_block: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Properties to show
    #[arg(short, long)]
    property: Vec<String>,
    /// Show values without names
    #[arg(long)]
    value: bool,
}

#[derive(Debug, Parser)]
#[command(name = "journalctl", about = "Shows the journal of this machine")]
struct Journalctl {
    /// Only of these units
    #[arg(short, long)]
    unit: Vec<String>,
    /// Go on as messages come
    #[arg(short, long)]
    follow: bool,
    /// Only this boot
    #[arg(short, long)]
    boot: bool,
    /// Only the last lines
    #[arg(short = 'n', long)]
    lines: Option<usize>,
    /// short, cat or json
    #[arg(short, long, default_value = "short", value_parser = ["short", "cat", "json"])]
    output: String,
    /// Accepted, as there is never a pager
    #[arg(long)]
    no_pager: bool,
}

/// A unit's whole name: a name without suffix is a service's.
pub fn full_name(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("{name}.service") }
}

/// Is the program that its first argument names, if it is one of ours.
pub fn main(name: &str, args: &[OsString]) -> Option<ExitCode> {
    let outcome = match name {
        "systemctl" => systemctl(Systemctl::parse_from(args)),
        "journalctl" => journalctl(Journalctl::parse_from(args)),
        "reboot" => ask(&Request::Reboot).map(drop).map(|()| ExitCode::SUCCESS),
        "poweroff" => ask(&Request::Poweroff).map(drop).map(|()| ExitCode::SUCCESS),
        _ => return None,
    };
    Some(outcome.unwrap_or_else(|reason| {
        eprintln!("{name}: {reason}");
        ExitCode::FAILURE
    }))
}

fn ask(request: &Request) -> Result<Reply, String> {
    let reply = call(request).map_err(|error| format!("cannot ask init: {error}"))?;
    match reply.errors.is_empty() {
        true => Ok(reply),
        false => Err(reply.errors.join("; ")),
    }
}

fn systemctl(args: Systemctl) -> Result<ExitCode, String> {
    let units: Vec<String> = args.units.iter().map(|name| full_name(name)).collect();
    let (root, loader) = (Path::new("/"), Loader::new("/", Specifiers::default()));
    let block = !args.no_block;
    let done = Ok(ExitCode::SUCCESS);
    match args.verb.as_str() {
        "start" => ask(&Request::Start { units, block }).and(done),
        "stop" => ask(&Request::Stop { units, block }).and(done),
        "restart" => ask(&Request::Restart { units, block, only_active: false }).and(done),
        "try-restart" | "condrestart" => ask(&Request::Restart { units, block, only_active: true }).and(done),
        "daemon-reload" => ask(&Request::Reload).and(done),
        "reset-failed" => ask(&Request::ResetFailed { units }).and(done),
        "reboot" => ask(&Request::Reboot).and(done),
        "poweroff" => ask(&Request::Poweroff).and(done),
        verb @ ("enable" | "disable" | "mask" | "unmask") => {
            for unit in &units {
                let changed = match verb {
                    "enable" => install::enable(root, &loader, unit),
                    "disable" => install::disable(root, unit),
                    verb => install::mask(root, unit, verb == "mask").map(|()| Vec::new()),
                };
                let changed = changed.map_err(|error| telemetry::chain(&error).to_string())?;
                if !args.quiet {
                    let word = if verb == "disable" { "removed" } else { "created" };
                    changed.iter().for_each(|link| println!("{word} {link}"));
                }
            }
            ask(&Request::Reload)?;
            match verb {
                "enable" if args.now => ask(&Request::Start { units, block }).and(done),
                "disable" | "mask" if args.now => ask(&Request::Stop { units, block }).and(done),
                _ => done,
            }
        }
        "is-active" => asked(&args, units, |unit| unit.active.clone(), |unit| unit.active == "active", 3),
        "is-failed" => asked(&args, units, |unit| unit.active.clone(), |unit| unit.active == "failed", 1),
        "is-enabled" => asked(&args, units, enabled_word, |unit| unit.enabled, 1),
        "status" => {
            let reply = ask(&Request::Status { units })?;
            reply.units.iter().for_each(|unit| println!("{}", status_text(unit)));
            let all = reply.units.iter().all(|unit| unit.active == "active");
            Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(3) })
        }
        "show" => {
            for unit in ask(&Request::Status { units })?.units {
                for (name, value) in properties(&unit) {
                    let wanted = args.property.iter().any(|list| list.split(',').any(|one| one == name));
                    if args.property.is_empty() || wanted {
                        if args.value { println!("{value}") } else { println!("{name}={value}") }
                    }
                }
            }
            done
        }
        "list-units" => {
            for unit in ask(&Request::List)?.units {
                println!(
                    "{:40} {:10} {:12} {:12} {}",
                    unit.name, unit.load, unit.active, unit.sub, unit.description
                );
            }
            done
        }
        "cat" => {
            for unit in ask(&Request::Status { units })?.units {
                for path in
                    std::iter::once(&unit.fragment).chain(&unit.dropins).filter(|path| !path.is_empty())
                {
                    let text = std::fs::read_to_string(path)
                        .map_err(|error| format!("cannot read {path}: {error}"))?;
                    println!("# {path}\n{text}");
                }
            }
            done
        }
        other => Err(format!("verb {other} is not supported")),
    }
}

fn asked(
    args: &Systemctl,
    units: Vec<String>,
    word: impl Fn(&UnitStatus) -> String,
    holds: impl Fn(&UnitStatus) -> bool,
    otherwise: u8,
) -> Result<ExitCode, String> {
    let reply = ask(&Request::Status { units })?;
    if !args.quiet {
        reply.units.iter().for_each(|unit| println!("{}", word(unit)));
    }
    Ok(if reply.units.iter().any(holds) { ExitCode::SUCCESS } else { ExitCode::from(otherwise) })
}

fn enabled_word(unit: &UnitStatus) -> String {
    match (unit.load.as_str(), unit.enabled) {
        ("masked", _) => "masked",
        ("not-found", _) => "not-found",
        (_, true) => "enabled",
        _ => "disabled",
    }
    .to_owned()
}

fn status_text(unit: &UnitStatus) -> String {
    let mut out = format!("{} - {}\n     Loaded: {}", unit.name, unit.description, unit.load);
    if !unit.fragment.is_empty() {
        out.push_str(&format!(" ({}; {})", unit.fragment, enabled_word(unit)));
    }
    out.push_str(&format!("\n     Active: {} ({}) since {}", unit.active, unit.sub, unit.since));
    for (name, value) in [
        ("Main PID", unit.main_pid.to_string()),
        ("Status", unit.status_text.clone()),
        ("Last end", unit.last_end.clone()),
    ] {
        if !value.is_empty() && value != "0" {
            out.push_str(&format!("\n   {name:>8}: {value}"));
        }
    }
    out
}

fn properties(unit: &UnitStatus) -> Vec<(&'static str, String)> {
    vec![
        ("Id", unit.name.clone()),
        ("Description", unit.description.clone()),
        ("LoadState", unit.load.clone()),
        ("ActiveState", unit.active.clone()),
        ("SubState", unit.sub.clone()),
        ("UnitFileState", enabled_word(unit)),
        ("FragmentPath", unit.fragment.clone()),
        ("Result", unit.result.clone()),
        ("MainPID", unit.main_pid.to_string()),
        ("NRestarts", unit.restarts.to_string()),
        ("StatusText", unit.status_text.clone()),
    ]
}

fn journalctl(args: Journalctl) -> Result<ExitCode, String> {
    let boot = args.boot.then(|| {
        let text = crate::files::read_bounded(Path::new("/run/machine/status.json"), 1 << 16).ok().flatten();
        let status: Option<crate::init::Status> = text.and_then(|text| serde_json::from_slice(&text).ok());
        status.map(|status| status.boot_id).unwrap_or_default()
    });
    let filter = Filter { units: args.unit.iter().map(|name| full_name(name)).collect(), boot };
    let show = Show {
        machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        output: args.output,
    };
    show.journal(Path::new("/"), filter, args.lines, args.follow).map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// How a journal is shown.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Show {
    pub machine: String,
    pub output: String,
}

impl Show {
    /// Prints a journal below a root: the last lines, and then, if wanted, what comes.
    pub fn journal(
        &self,
        root: &Path,
        filter: Filter,
        last: Option<usize>,
        follow: bool,
    ) -> std::io::Result<()> {
        use std::io::Write as _;
        let mut reader = Reader::new(root, filter);
        let mut first = true;
        let mut out = std::io::stdout().lock();
        loop {
            let mut lines: Vec<String> = Vec::new();
            reader.read(&mut |entry| {
                lines.push(match self.output.as_str() {
                    "cat" => entry.message.clone(),
                    "json" => serde_json::to_string(entry).unwrap_or_default(),
                    _ => entry.line(&self.machine),
                });
            })?;
            let skip = last.filter(|_| first).map_or(0, |last| lines.len().saturating_sub(last));
            for line in &lines[skip..] {
                writeln!(out, "{line}")?;
            }
            out.flush()?;
            if !follow {
                return Ok(());
            }
            first = false;
            pause();
        }
    }
}
