//! How the program logs: text or JSON lines in the form that Go programs write, louder for the modules that `--vmodule` names.

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// See the module.
#[derive(Args, Clone, Debug)]
pub struct LoggingArgs {
    /// How much is logged.
    #[arg(short = 'v', long = "v", default_value_t = 2)]
    pub verbosity: u8,
    /// The form of log lines.
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    pub logging_format: String,
    /// Modules (by the names of their files, with * for any text) that log more or less: `chain=6,cache*=4`.
    #[arg(long, value_delimiter = ',', value_parser = module)]
    pub vmodule: Vec<(String, u8)>,
}

fn module(text: &str) -> Result<(String, u8), String> {
    let wrong = || format!("{text:?} is not of the form module=4");
    let (pattern, verbosity) = text.split_once('=').ok_or_else(wrong)?;
    Ok((pattern.trim().to_owned(), verbosity.trim().parse().map_err(|_| wrong())?))
}

fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

impl LoggingArgs {
    /// Logs from now on; call it before anything else.
    pub fn start(&self) {
        let args = self.clone();
        let loudest = self.vmodule.iter().map(|(_, own)| level(*own)).chain([level(self.verbosity)]).max();
        let filter = FilterFn::new(move |event| *event.level() <= args.level_of(event))
            .with_max_level_hint(loudest.unwrap_or(LevelFilter::INFO));
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        // A second call keeps the first subscriber: that is wanted where several components run in one process.
        let _ = if self.logging_format == "json" {
            Registry::default().with(lines.event_format(Json).with_filter(filter)).try_init()
        } else {
            Registry::default().with(lines.with_filter(filter)).try_init()
        };
    }

    fn level_of(&self, event: &Metadata<'_>) -> LevelFilter {
        let file = event.target().rsplit("::").next().unwrap_or_default();
        let named = self.vmodule.iter().find(|(pattern, _)| matches(pattern, file));
        level(named.map_or(self.verbosity, |(_, own)| *own))
    }
}

/// Whether a name fits a pattern in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
        }),
    }
}

/// One JSON object per line: `ts` in milliseconds, `caller`, `msg`, `v` (or `err` for errors), then the fields.
struct Json;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N>
    for Json
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = serde_json::Map::new();
        line.insert("ts".to_owned(), (jiff::Timestamp::now().as_microsecond() as f64 / 1000.0).into());
        let caller =
            format!("{}:{}", metadata.target().replace("::", "/"), metadata.line().unwrap_or_default());
        line.insert("caller".to_owned(), caller.into());
        line.insert("msg".to_owned(), fields.message.into());
        match *metadata.level() {
            Level::ERROR => {}
            Level::WARN | Level::INFO => drop(line.insert("v".to_owned(), 0.into())),
            Level::DEBUG => drop(line.insert("v".to_owned(), 4.into())),
            Level::TRACE => drop(line.insert("v".to_owned(), 6.into())),
        }
        for (name, value) in fields.others {
            line.insert(if name == "error" { "err".to_owned() } else { name }, value);
        }
        writeln!(out, "{}", serde_json::Value::Object(line))
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: BTreeMap<String, serde_json::Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: serde_json::Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.put(field, format!("{value:?}").into()),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_modules() {
        for (pattern, name, fits) in [
            ("chain", "chain", true),
            ("cha*", "chain", true),
            ("*", "x", true),
            ("cha", "chain", false),
            ("c*n", "chain", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
        assert_eq!(module("chain=6"), Ok(("chain".to_owned(), 6)));
        assert!(module("chain").is_err() && module("chain=x").is_err());
    }
}
