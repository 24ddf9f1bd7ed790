//! The demo image's program: a small web server, and the commands that tests and first steps need where there is no
//! shell.
//!
//! Multi-call: `demo cat FILE`, and also `cat FILE` through a link named `cat`. Written on plain threads: a pod of
//! it should weigh nothing.

mod dns;
mod http;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use crate::sys;

/// The links to the program in the image's /bin.
pub const APPLETS: [&str; 19] = [
    "demo",
    "sleep",
    "cat",
    "env",
    "ls",
    "stat",
    "echo",
    "hostname",
    "id",
    "true",
    "false",
    "nslookup",
    "wget",
    "write",
    "fail",
    "oom",
    "tcp-echo",
    "dns-lookup",
    "http-get",
];

const USAGE: &str = "\
usage: demo COMMAND
  serve [--port N] [--unhealthy-after SECONDS]   web server: hostname, headers, environment, /healthz
  tcp-echo [PORT]                     answers every connection with what it says
  sleep SECONDS|infinity
  cat [FILE...]    env    echo [TEXT...]    hostname    id    true    false
  ls [DIR...]      stat FILE...      write FILE TEXT...
  fail [CODE]                         ends with this code, or 1
  oom                                 takes memory until it is stopped
  dns-lookup NAME                     also: nslookup
  http-get URL                        also: wget
";

/// The applet that this process was started as, by the name it was called with.
pub fn applet(name: &OsStr) -> Option<&'static str> {
    let name = Path::new(name).file_name()?.to_str()?;
    APPLETS.into_iter().find(|applet| *applet == name)
}

/// Runs a command: `args` is its name and what follows.
pub fn run(args: &[OsString]) -> ExitCode {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut words = args.iter().map(String::as_str);
    let command = words.next().unwrap_or("serve");
    let rest: Vec<&str> = words.collect();
    // Number 1 of a process namespace gets no signal that it does not handle, so someone must.
    end_on_signal(if command == "serve" || command == "tcp-echo" { 0 } else { 128 + libc::SIGTERM });
    match execute(command, &rest) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{command}: {error}"); // nowhere else to say it
            ExitCode::FAILURE
        }
    }
}

fn execute(command: &str, args: &[&str]) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match (command, args) {
        ("serve", _) => {
            drop(out);
            http::serve(option(args, "--port", 8080)?, optional(args, "--unhealthy-after")?)?;
        }
        ("tcp-echo", _) => {
            drop(out);
            echo_server(args.first().map_or(Ok(7), |port| number("the port", port))?)?;
        }
        ("sleep", [time]) => {
            drop(out);
            sleep(time)?;
        }
        ("cat", []) => drop(io::copy(&mut io::stdin().lock(), &mut out)?),
        ("cat", files) => {
            for file in files {
                io::copy(&mut fs::File::open(file).map_err(|error| about(file, error))?, &mut out)?;
            }
        }
        ("env", []) => {
            for (name, value) in std::env::vars_os() {
                writeln!(out, "{}={}", name.to_string_lossy(), value.to_string_lossy())?;
            }
        }
        ("echo", words) => writeln!(out, "{}", words.join(" "))?,
        ("hostname", []) => writeln!(out, "{}", http::hostname())?,
        ("id", []) => write_identity(&mut out)?,
        ("true", _) => {}
        ("false", _) => return Ok(ExitCode::FAILURE),
        ("ls", []) => list(&mut out, ".")?,
        ("ls", directories) => {
            for directory in directories {
                list(&mut out, directory).map_err(|error| about(directory, error))?;
            }
        }
        ("stat", files @ [_, ..]) => {
            for file in files {
                stat(&mut out, file).map_err(|error| about(file, error))?;
            }
        }
        ("write", [file, words @ ..]) => {
            fs::write(file, format!("{}\n", words.join(" "))).map_err(|error| about(file, error))?;
        }
        ("fail", []) => return Ok(ExitCode::FAILURE),
        ("fail", [code]) => return Ok(ExitCode::from(number::<u8>("the code", code)?)),
        ("oom", []) => take_memory(),
        ("dns-lookup" | "nslookup", [name]) => {
            for address in dns::lookup(name)? {
                writeln!(out, "{address}")?;
            }
        }
        ("http-get" | "wget", [url]) => return http::get(url, &mut out),
        ("demo", [command, rest @ ..]) => {
            drop(out);
            return execute(command, rest);
        }
        _ => {
            io::stderr().write_all(USAGE.as_bytes())?;
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn about(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn number<T: std::str::FromStr>(what: &str, text: &str) -> io::Result<T> {
    text.parse().map_err(|_| invalid(format!("{what} can not be {text:?}")))
}

fn optional<T: std::str::FromStr>(args: &[&str], name: &str) -> io::Result<Option<T>> {
    for (index, arg) in args.iter().enumerate() {
        if let Some(value) = arg.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            return number(name, value).map(Some);
        }
        if *arg == name {
            return number(name, args.get(index + 1).copied().unwrap_or_default()).map(Some);
        }
    }
    Ok(None)
}

fn option<T: std::str::FromStr>(args: &[&str], name: &str, default: T) -> io::Result<T> {
    Ok(optional(args, name)?.unwrap_or(default))
}

/// Starts a thread with a small stack.
fn in_background(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().stack_size(128 * 1024).spawn(work).map(drop)
}

fn end_on_signal(code: i32) {
    let signals = [libc::SIGTERM, libc::SIGINT];
    // Blocked here first, so that every thread made later inherits it and only the waiting one takes them.
    if sys::block_signals(&signals).is_ok() {
        let _ = in_background(move || {
            let _ = sys::wait_signal(&signals);
            sys::exit_now(code);
        });
    }
}

fn sleep(time: &str) -> io::Result<()> {
    let (_never, forever) = mpsc::channel::<()>();
    match time {
        "infinity" | "inf" => drop(forever.into_iter().next()),
        _ => {
            let seconds: f64 = number("the time", time.strip_suffix('s').unwrap_or(time))?;
            let time = Duration::try_from_secs_f64(seconds).map_err(|error| invalid(error.to_string()))?;
            let _ = forever.recv_timeout(time); // nothing is ever sent: the time is up
        }
    }
    Ok(())
}

fn list(out: &mut impl Write, directory: &str) -> io::Result<()> {
    if !fs::metadata(directory)?.is_dir() {
        return writeln!(out, "{directory}");
    }
    let mut names: Vec<OsString> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    names.sort();
    for name in names {
        writeln!(out, "{}", name.to_string_lossy())?;
    }
    Ok(())
}

fn stat(out: &mut impl Write, file: &str) -> io::Result<()> {
    let meta = fs::symlink_metadata(file)?;
    let kind = match meta.file_type() {
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "link",
        kind if kind.is_file() => "file",
        _ => "special",
    };
    writeln!(out, "{file} {kind} {:04o} {}:{} {}", meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.len())
}

fn write_identity(out: &mut impl Write) -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let first = |name: &str| field(name).first().cloned().unwrap_or_default();
    writeln!(out, "uid={} gid={} groups={}", first("Uid"), first("Gid"), field("Groups").join(","))
}

fn echo_server(port: u16) -> io::Result<()> {
    let listener =
        TcpListener::bind((IpAddr::from([0; 8]), port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    for connection in listener.incoming() {
        let mut connection = connection?;
        in_background(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = connection.read(&mut buffer) {
                if TcpStream::write_all(&mut connection, &buffer[..count]).is_err() {
                    break;
                }
            }
        })?;
    }
    Ok(())
}

fn take_memory() {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    loop {
        // Not zeros: untouched pages cost nothing.
        taken.push(vec![taken.len() as u8 | 1; 1 << 20]);
    }
}
