//! Shows each step of a start with its time: a live checklist on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// One thing that a start tells its watcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Progress {
    /// A step begins.
    Begin { step: String },
    /// The step that began last is complete.
    Done { step: String, detail: String, took: Duration },
    /// The cluster is up; the last thing told.
    Ready { kubeconfig: String, took: Duration },
    /// The start failed; the last thing told.
    Failed { message: String },
}

/// Where the progress of a start goes.
pub enum Checklist {
    Terminal,
    Lines,
    /// For the parent of a detached start, which shows it in its own way.
    Json,
}

impl Checklist {
    /// A live list if standard output is a terminal, plain lines otherwise.
    pub fn for_stdout() -> Self {
        if std::io::stdout().is_terminal() { Self::Terminal } else { Self::Lines }
    }

    /// Begins a step; finish it with [`Step::done`].
    pub fn begin(&self, step: &str) -> Step<'_> {
        self.tell(&Progress::Begin { step: step.to_owned() });
        Step { list: self, name: step.to_owned(), since: Instant::now() }
    }

    pub fn tell(&self, progress: &Progress) {
        let mut out = std::io::stdout().lock();
        // Nobody may be reading any more (a closed pipe); the start goes on all the same.
        let _ = out.write_all(self.render(progress).as_bytes()).and_then(|()| out.flush());
    }

    fn render(&self, progress: &Progress) -> String {
        let live = matches!(self, Self::Terminal);
        match (self, progress) {
            (Self::Json, progress) => serde_json::to_string(progress).unwrap_or_default() + "\n",
            (Self::Terminal, Progress::Begin { step }) => format!("  \x1b[2m·\x1b[0m {step} …"),
            (Self::Lines, Progress::Begin { .. }) => String::new(),
            (_, Progress::Done { step, detail, took }) => {
                let (mark, fade, plain) = if live {
                    ("\r\x1b[K  \x1b[32m✓\x1b[0m", "\x1b[2m", "\x1b[0m")
                } else {
                    ("ok", "", "")
                };
                let detail =
                    if detail.is_empty() { String::new() } else { format!("  {fade}{detail}{plain}") };
                format!("{mark} {step:<22} {fade}{:>6}{plain}{detail}\n", milliseconds(*took))
            }
            (_, Progress::Ready { kubeconfig, took }) => format!(
                "{}ready in {}\n\n  export KUBECONFIG={kubeconfig}\n\n",
                if live { "\n" } else { "" },
                milliseconds(*took)
            ),
            (_, Progress::Failed { .. }) => (if live { "\r\x1b[K" } else { "" }).to_owned(),
        }
    }
}

fn milliseconds(took: Duration) -> String {
    if took < Duration::from_secs(10) {
        format!("{} ms", took.as_millis())
    } else {
        format!("{:.1} s", took.as_secs_f64())
    }
}

/// A step in progress.
pub struct Step<'a> {
    list: &'a Checklist,
    name: String,
    since: Instant,
}

impl Step<'_> {
    pub fn done(self, detail: impl Into<String>) {
        let took = self.since.elapsed();
        self.list.tell(&Progress::Done { step: self.name, detail: detail.into(), took });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_name_step_time_and_detail() {
        let done = Progress::Done {
            step: "api server".into(),
            detail: "https://127.0.0.1:6443".into(),
            took: Duration::from_millis(12),
        };
        assert_eq!(
            Checklist::Lines.render(&done),
            "ok api server              12 ms  https://127.0.0.1:6443\n"
        );
        assert_eq!(Checklist::Lines.render(&Progress::Begin { step: "x".into() }), "");
    }

    #[test]
    fn what_a_detached_start_tells_can_be_read_back() {
        let told = Progress::Ready { kubeconfig: "/k".into(), took: Duration::from_millis(700) };
        let line = Checklist::Json.render(&told);
        assert_eq!(serde_json::from_str::<Progress>(&line).unwrap(), told);
    }
}
