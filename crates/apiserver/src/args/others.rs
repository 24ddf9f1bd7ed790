//! Upstream's flags that adjust nothing here, each with the reason: taken with any value where what they would adjust does
//! not exist or is the same either way, and refused with a sentence where a value asks for something that is not done.
//! The test beside `args.rs` holds every flag of upstream against these tables and the fields of the arguments.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// A flag of the table.
#[derive(Clone, Copy)]
pub(super) struct Flag {
    name: &'static str,
    /// The values that are taken; `None` for all.
    values: Option<&'static [&'static str]>,
    switch: bool,
    why: &'static str,
}

/// Taken with any value.
const fn taken(name: &'static str, why: &'static str) -> Flag {
    Flag { name, values: None, switch: false, why }
}

/// A switch that is taken either way.
const fn either(name: &'static str, why: &'static str) -> Flag {
    Flag { name, values: Some(&["true", "false"]), switch: true, why }
}

/// Taken only with these values: what is done anyway.
const fn only(name: &'static str, values: &'static [&'static str], why: &'static str) -> Flag {
    Flag { name, values: Some(values), switch: false, why }
}

/// A switch that is taken only off.
const fn off(name: &'static str, why: &'static str) -> Flag {
    Flag { name, values: Some(&["false"]), switch: true, why }
}

/// Never taken: there is no value that would be harmless.
const fn never(name: &'static str, why: &'static str) -> Flag {
    Flag { name, values: Some(&[]), switch: false, why }
}

const EMULATION: &str = "there is one version of this server, and nothing is emulated";
const LOG_LINES: &str = "log lines are written at once";
const LOG_STREAM: &str = "all log lines go to standard error";
const ELECTION: &str = "coordinated leader election is behind a feature gate that is off by default";
const PEERS: &str = "servers of different versions beside each other do not hand requests to one another";
const PROFILES: &str = "there are no profiles of a Go runtime";

pub(super) const FLAGS: &[Flag] = &[
    either("contention-profiling", PROFILES),
    taken("coordinated-leadership-lease-duration", ELECTION),
    taken("coordinated-leadership-renew-deadline", ELECTION),
    taken("coordinated-leadership-retry-period", ELECTION),
    never("debug-socket-path", PROFILES),
    only("emulated-version", &["1.36", "kube=1.36"], EMULATION),
    off("emulation-forward-compatible", EMULATION),
    off("enable-logs-handler", "the path /logs, which upstream gave up, does not exist"),
    taken("log-flush-frequency", LOG_LINES),
    only("log-json-info-buffer-size", &["0"], LOG_LINES),
    off("log-json-split-stream", LOG_STREAM),
    only("log-text-info-buffer-size", &["0"], LOG_LINES),
    off("log-text-split-stream", LOG_STREAM),
    only("min-compatibility-version", &["1.35", "kube=1.35", "1.36", "kube=1.36"], EMULATION),
    taken("peer-advertise-ip", PEERS),
    taken("peer-advertise-port", PEERS),
    taken("peer-ca-file", PEERS),
    either("permit-address-sharing", "the address of a listener can always be used again at once"),
    either("profiling", PROFILES),
    off("runtime-config-emulation-forward-compatible", EMULATION),
    never("service-account-signing-endpoint", "tokens are signed with --service-account-signing-key-file"),
    taken("show-hidden-metrics-for-version", "no metric is hidden"),
    never("etcd-servers-overrides", "all resources are in one etcd: revisions of several cannot be compared"),
    never("tracing-config-file", "traces are not exported; -v=6 logs what a request passes"),
    either("watch-cache", "reads come from the cache, as consistent as from etcd"),
    taken("watch-cache-sizes", "the cache sizes itself, and reads from it are as consistent as from etcd"),
];

/// The names of the table that the guide has to tell of.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|flag| flag.name)
}

impl Flag {
    fn judge(self, text: &str) -> Result<(), String> {
        let nanos = |text: &str| apimachinery::time::parse_duration(text);
        let same = |own: &&str| **own == *text || nanos(own).is_some() && nanos(own) == nanos(text);
        match self.values {
            Some(values) if !values.iter().any(same) => Err(self.why.to_owned()),
            _ => Ok(()),
        }
    }

    fn arg(self) -> Arg {
        let effect = match self.values {
            None => "Taken for compatibility".to_owned(),
            Some([]) => "Refused".to_owned(),
            Some(["true", "false"]) => "Taken for compatibility".to_owned(),
            Some(values) => format!("Refused unless {}", values.join(" or ")),
        };
        let arg = Arg::new(self.name)
            .long(self.name)
            .action(ArgAction::Append)
            .value_parser(move |text: &str| self.judge(text))
            .help(format!("{effect}: {}", self.why));
        if self.switch { arg.num_args(0..=1).default_missing_value("true") } else { arg }
    }
}

/// The flags of the table. They are judged as they are parsed; nothing of them is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtherArgs;

impl clap::FromArgMatches for OtherArgs {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

impl clap::Args for OtherArgs {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(|flag| flag.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
