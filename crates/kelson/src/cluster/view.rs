//! What `create cluster` shows: one picture, drawn again where it changed. On a terminal it stays in its place, elsewhere each
//! change is a line, and a program gets JSON.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

/// Where an installation is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Picture {
    /// What is being waited for as a whole.
    pub stage: &'static str,
    pub machines: Vec<Line>,
    pub operators: Vec<Line>,
    /// What is waited for besides.
    pub waits: Vec<String>,
}

/// One machine or operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub name: String,
    /// One or two words.
    pub state: String,
    /// The cause of its wait; empty if it waits for nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

impl Picture {
    /// All of it, as lines of text.
    fn lines(&self) -> Vec<String> {
        let mut out = vec![format!("stage: {}", self.stage)];
        for line in self.machines.iter().chain(&self.operators) {
            let cause = if line.cause.is_empty() { String::new() } else { format!(": {}", line.cause) };
            out.push(format!("{}: {}{cause}", line.name, line.state));
        }
        out.extend(self.waits.iter().map(|wait| format!("waiting: {wait}")));
        out
    }
}

/// How it is shown.
enum Form {
    Plain { said: BTreeSet<String> },
    Json { last: Option<Picture> },
    Terminal { drawn: usize, last: Option<Picture> },
}

/// Shows pictures and what happens between them.
pub struct View<W: Write> {
    out: W,
    form: Form,
}

impl View<std::io::Stdout> {
    /// On standard output.
    pub fn stdout(json: bool) -> Self {
        let out = std::io::stdout();
        let form = match (json, out.is_terminal()) {
            (true, _) => Form::Json { last: None },
            (false, true) => Form::Terminal { drawn: 0, last: None },
            (false, false) => Form::Plain { said: BTreeSet::new() },
        };
        Self { out, form }
    }
}

impl<W: Write> View<W> {
    /// Something happened, once.
    pub fn event(&mut self, text: &str) -> std::io::Result<()> {
        match &mut self.form {
            Form::Json { .. } => {
                writeln!(self.out, "{}", json!({"time": Timestamp::now().to_string(), "event": text}))
            }
            Form::Plain { .. } => writeln!(self.out, "{text}"),
            Form::Terminal { drawn, last } => {
                // Above the picture, which is drawn again below it.
                erase(&mut self.out, std::mem::take(drawn))?;
                writeln!(self.out, "{text}")?;
                if let Some(picture) = last {
                    *drawn = draw(&mut self.out, picture)?;
                }
                self.out.flush()
            }
        }
    }

    /// Shows where it is; nothing if that is as it was.
    pub fn show(&mut self, picture: &Picture) -> std::io::Result<()> {
        match &mut self.form {
            Form::Json { last } => {
                if last.as_ref() == Some(picture) {
                    return Ok(());
                }
                let mut value = serde_json::to_value(picture).unwrap_or_default();
                value["time"] = json!(Timestamp::now().to_string());
                *last = Some(picture.clone());
                writeln!(self.out, "{value}")?;
                self.out.flush()
            }
            Form::Plain { said } => {
                // Each once: some causes come and go, such as a unit between two starts.
                for line in picture.lines() {
                    if said.insert(line.clone()) {
                        writeln!(self.out, "{line}")?;
                    }
                }
                self.out.flush()
            }
            Form::Terminal { drawn, last } => {
                if last.as_ref() == Some(picture) {
                    return Ok(());
                }
                erase(&mut self.out, *drawn)?;
                *drawn = draw(&mut self.out, picture)?;
                *last = Some(picture.clone());
                self.out.flush()
            }
        }
    }

    /// The last word: where the cluster is, and who may use it.
    pub fn finish(&mut self, result: &Value, text: &str) -> std::io::Result<()> {
        match &mut self.form {
            Form::Json { .. } => writeln!(self.out, "{result}"),
            Form::Plain { .. } => writeln!(self.out, "{text}"),
            Form::Terminal { drawn, .. } => {
                erase(&mut self.out, std::mem::take(drawn))?;
                writeln!(self.out, "{text}")
            }
        }
    }
}

/// Up over what was drawn, and away with it.
fn erase(out: &mut impl Write, lines: usize) -> std::io::Result<()> {
    if lines > 0 {
        write!(out, "\x1b[{lines}A\x1b[J")?;
    }
    Ok(())
}

/// Draws within the terminal, so that what is erased later is what was drawn.
fn draw(out: &mut impl Write, picture: &Picture) -> std::io::Result<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = size.map_or(100, |size| usize::from(size.ws_col)).max(20);
    let rows = size.map_or(40, |size| usize::from(size.ws_row)).max(5);
    let lines = fitted(&picture.lines(), columns, rows);
    for line in &lines {
        writeln!(out, "{line}")?;
    }
    Ok(lines.len())
}

/// Lines cut to a terminal's size; what they show is another's text, so nothing in it moves the cursor.
fn fitted(lines: &[String], columns: usize, rows: usize) -> Vec<String> {
    let room = rows.saturating_sub(2);
    let mut out: Vec<String> = lines
        .iter()
        .take(room)
        .map(|line| line.chars().filter(|char| !char.is_control()).take(columns - 1).collect())
        .collect();
    if lines.len() > room {
        out.push(format!("and {} more", lines.len() - room));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(cause: &str) -> Picture {
        let line = |name: &str, cause: &str| Line {
            name: name.to_owned(),
            state: "running".to_owned(),
            cause: cause.to_owned(),
        };
        Picture {
            stage: "bootstrap",
            machines: vec![line("bootstrap", ""), line("master-0", cause)],
            operators: Vec::new(),
            waits: vec!["the API does not answer".to_owned()],
        }
    }

    fn shown(form: Form, pictures: &[Picture]) -> String {
        let mut view = View { out: Vec::new(), form };
        for picture in pictures {
            view.show(picture).unwrap();
        }
        view.event("bootstrap: powered off").unwrap();
        String::from_utf8(view.out).unwrap()
    }

    #[test]
    fn each_line_is_said_once_where_nobody_can_erase() {
        let text = shown(
            Form::Plain { said: BTreeSet::new() },
            &[picture("boots"), picture("boots"), picture("waits for x"), picture("boots")],
        );
        assert_eq!(text.matches("master-0: running: boots").count(), 1, "{text}");
        assert_eq!(text.matches("master-0: running: waits for x").count(), 1, "{text}");
        assert!(
            text.starts_with("stage: bootstrap\n") && text.ends_with("bootstrap: powered off\n"),
            "{text}"
        );
    }

    #[test]
    fn a_program_reads_one_object_for_each_change() {
        let text = shown(Form::Json { last: None }, &[picture(""), picture(""), picture("x")]);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[1]["machines"][1], json!({"name": "master-0", "state": "running", "cause": "x"}));
        assert_eq!(lines[2]["event"], "bootstrap: powered off");
    }

    #[test]
    fn a_terminal_is_drawn_over_and_never_overflows() {
        let text = shown(Form::Terminal { drawn: 0, last: None }, &[picture(""), picture("x")]);
        assert_eq!(text.matches("\x1b[4A\x1b[J").count(), 2, "{text:?}");
        let long = vec!["a\x1b[2Jb".repeat(50); 30];
        let fit = fitted(&long, 20, 10);
        assert_eq!(fit.len(), 9);
        assert!(fit.iter().all(|line| line.chars().count() < 20 && !line.contains('\x1b')), "{fit:?}");
    }
}
