//! Running one plug-in: parameters in its environment, configuration on its standard input, the answer on its standard output.
//!
//! A plug-in is someone else's program: what it may say is bounded, and so is the time it may take.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::{Error, Result};

/// An answer is a page of text.
const LARGEST_ANSWER: u64 = 1 << 20;
/// Of what it tells on standard error, the beginning is kept.
const LARGEST_NOTE: u64 = 16 << 10;
/// Upstream's runtimes give a whole sandbox four minutes.
const PATIENCE: Duration = Duration::from_secs(120);
/// A program that is being replaced cannot be run for a moment.
const BUSY_TRIES: usize = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// What is asked of a plug-in.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// ADD, DEL, CHECK, STATUS, GC or VERSION.
    pub command: &'static str,
    /// The program's name.
    pub plugin: &'a str,
    /// The network's name, for messages.
    pub network: &'a str,
    /// Parameters: `CNI_…`.
    pub environment: Vec<(&'static str, String)>,
    /// What it reads.
    pub input: Vec<u8>,
}

/// A plug-in's own account of its failure.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Complaint {
    code: u32,
    msg: String,
    details: String,
}

/// The plug-in's program in one of the directories.
pub fn find(plugin: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    directories.iter().map(|directory| directory.join(plugin)).find(is_program)
}

/// Runs a plug-in to its end and answers with what it printed.
pub async fn run(call: &Call<'_>, directories: &[PathBuf]) -> Result<Vec<u8>> {
    let failed = |code: u32, message: String| Error::Plugin {
        plugin: call.plugin.to_owned(),
        network: call.network.to_owned(),
        command: call.command.to_lowercase(),
        code,
        message,
    };
    let Some(program) = find(call.plugin, directories) else {
        let searched: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
        return Err(failed(
            0,
            format!("failed to find plugin {:?} in path [{}]", call.plugin, searched.join(" ")),
        ));
    };
    let child = start(&program, call, directories).await.map_err(|error| failed(0, error.to_string()))?;
    let finished = tokio::time::timeout(PATIENCE, converse(child, &call.input)).await;
    // Past its time the future is dropped, and the child is killed with it.
    let output = match finished {
        Err(_) => return Err(failed(0, format!("it did not end within {} s", PATIENCE.as_secs()))),
        Ok(Err(error)) => return Err(failed(0, error.to_string())),
        Ok(Ok(output)) => output,
    };
    if output.status.success() {
        return Ok(output.answer);
    }
    match serde_json::from_slice::<Complaint>(&output.answer) {
        Ok(complaint) if !complaint.msg.is_empty() => {
            let details =
                if complaint.details.is_empty() { String::new() } else { format!("; {}", complaint.details) };
            Err(failed(complaint.code, format!("{}{details}", complaint.msg)))
        }
        _ => {
            let note = String::from_utf8_lossy(&output.note).trim().to_owned();
            let note = if note.is_empty() { String::new() } else { format!(": {note}") };
            Err(failed(0, format!("netplugin failed with no error message ({}){note}", output.status)))
        }
    }
}

async fn start(program: &Path, call: &Call<'_>, directories: &[PathBuf]) -> io::Result<Child> {
    let mut command = Command::new(program);
    let path: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
    command
        .env("CNI_COMMAND", call.command)
        .env("CNI_PATH", path.join(":"))
        .envs(call.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        .kill_on_drop(true);
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                tries += 1;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            other => return other,
        }
    }
}

struct Output {
    status: std::process::ExitStatus,
    answer: Vec<u8>,
    note: Vec<u8>,
}

async fn converse(mut child: Child, input: &[u8]) -> io::Result<Output> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let speak = async move {
        if let Some(mut stdin) = stdin {
            // A plug-in that does not read is judged by its answer.
            let _ = stdin.write_all(input).await;
        }
    };
    let ((), answer, note) =
        tokio::join!(speak, listen(stdout, LARGEST_ANSWER), listen(stderr, LARGEST_NOTE));
    let (answer, is_whole) = answer?;
    if !is_whole {
        child.start_kill()?;
        child.wait().await?;
        return Err(io::Error::other("it printed more than 1 MiB"));
    }
    let (note, _) = note?;
    let status = child.wait().await?;
    Ok(Output { status, answer, note })
}

/// Reads to the end, keeping the beginning; says whether that was all.
async fn listen(stream: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<(Vec<u8>, bool)> {
    let Some(mut stream) = stream else { return Ok((Vec::new(), true)) };
    let mut kept = Vec::new();
    (&mut stream).take(most).read_to_end(&mut kept).await?;
    if (kept.len() as u64) < most {
        return Ok((kept, true));
    }
    // What comes after is read so that the plug-in does not hang on it, up to the time it has.
    let rest = tokio::io::copy(&mut (&mut stream).take(64 << 20), &mut tokio::io::sink()).await?;
    Ok((kept, rest == 0))
}

/// Reads an answer as JSON; nothing at all is an empty object.
pub fn answer(call: &Call<'_>, bytes: &[u8]) -> Result<Value> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Object(Default::default()));
    }
    serde_json::from_slice(bytes).map_err(|error| Error::Plugin {
        plugin: call.plugin.to_owned(),
        network: call.network.to_owned(),
        command: call.command.to_lowercase(),
        code: 0,
        message: format!("its answer cannot be read: {error}"),
    })
}
