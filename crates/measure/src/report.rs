//! One table of figures for all benchmarks.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use crate::Latencies;

/// How figures are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A Markdown table, line by line as figures come.
    #[default]
    Text,
    /// A JSON array at the end.
    Json,
}

/// What one scenario gave on one server.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figure {
    /// What was done.
    pub scenario: String,
    /// By whom.
    pub server: String,
    /// How many things were done.
    pub count: u64,
    /// How many a second.
    pub per_second: f64,
    /// Median, 99th and 99.9th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micros: Option<[u32; 3]>,
    /// CPU time of the server for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_micros: Option<f64>,
    /// Memory of the server after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How many failed.
    pub errors: u64,
    /// What else is to be said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remark: String,
}

impl Figure {
    /// A figure of things that took these times, all within `seconds`.
    pub fn of(scenario: &str, server: &str, times: &Latencies, seconds: f64) -> Self {
        Self {
            scenario: scenario.to_owned(),
            server: server.to_owned(),
            count: times.len() as u64,
            per_second: times.len() as f64 / seconds.max(1e-9),
            micros: times.percentiles([0.5, 0.99, 0.999]),
            ..Self::default()
        }
    }

    fn line(&self) -> String {
        let number = |value: Option<f64>| match value {
            None => "-".to_owned(),
            Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
            Some(value) if value.abs() < 100.0 => format!("{value:.1}"),
            Some(value) => format!("{value:.0}"),
        };
        let micros = |index: usize| number(self.micros.map(|micros| f64::from(micros[index])));
        let mut line = format!("| {} | {} | {} ", self.scenario, self.server, number(Some(self.per_second)));
        for cell in [
            micros(0),
            micros(1),
            micros(2),
            number(self.cpu_micros),
            number(self.memory_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20))),
            self.errors.to_string(),
            self.remark.clone(),
        ] {
            let _ = write!(line, "| {cell} "); // a String takes everything
        }
        line + "|"
    }
}

/// Collects and prints figures.
#[derive(Debug)]
pub struct Report {
    form: Form,
    figures: Vec<Figure>,
}

impl Report {
    /// An empty report.
    pub fn new(form: Form) -> Self {
        Self { form, figures: Vec::new() }
    }

    /// Takes a figure and prints it if lines are printed as they come.
    pub fn add(&mut self, figure: Figure, out: &mut dyn Write) -> io::Result<()> {
        if self.form == Form::Text {
            if self.figures.is_empty() {
                writeln!(
                    out,
                    "| scenario | server | per second | p50 µs | p99 µs | p99.9 µs | server CPU µs each | \
                     memory MiB | errors | |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---|"
                )?;
            }
            writeln!(out, "{}", figure.line())?;
        }
        self.figures.push(figure);
        Ok(())
    }

    /// Prints what is printed at the end.
    pub fn finish(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.form == Form::Json {
            serde_json::to_writer_pretty(&mut *out, &self.figures)?;
            writeln!(out)?;
        }
        Ok(())
    }

    /// What there is so far.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_figure_is_a_line_or_an_object() {
        let times: Latencies = [10, 20, 30].map(Duration::from_micros).into_iter().collect();
        let mut figure = Figure::of("get", "ours", &times, 0.5);
        figure.cpu_micros = Some(38.25);
        let mut text = Vec::new();
        let mut report = Report::new(Form::Text);
        report.add(figure.clone(), &mut text).unwrap();
        report.finish(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with("| get | ours | 6.00 | 20.0 | 30.0 | 30.0 | 38.2 | - | 0 |  |\n"), "{text}");
        let mut json = Vec::new();
        let mut report = Report::new(Form::Json);
        report.add(figure, &mut json).unwrap();
        report.finish(&mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json[0]["cpuMicros"], 38.25);
        assert_eq!(json[0]["micros"][0], 20);
    }
}
