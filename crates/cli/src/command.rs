//! The tree of commands, and from a command line to an exit code.

use std::ffi::OsString;
use std::io::{BufWriter, Write};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::Program;
use crate::commands::*;
use crate::error::CliError;
use crate::flags::{GlobalFlags, as_in_go};
use crate::session::Session;

/// Controls the Kubernetes cluster manager
#[derive(Parser)]
#[command(name = "kubectl", disable_version_flag = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    flags: GlobalFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Get(Box<get::Get>),
    Apply(Box<apply::Apply>),
    Create(Box<create::Create>),
    Delete(Box<delete::Delete>),
    Patch(Box<patch::Patch>),
    Replace(Box<replace::Replace>),
    Label(Box<label::Label>),
    Annotate(Box<label::Annotate>),
    Scale(Box<scale::Scale>),
    Wait(Box<wait::Wait>),
    Certificate(certificate::Certificate),
    Adm(adm::Adm),
    Auth(auth::Auth),
    Logs(Box<logs::Logs>),
    Exec(Box<exec::Exec>),
    Attach(Box<attach::Attach>),
    PortForward(port_forward::PortForward),
    Cp(cp::Cp),
    Explain(explain::Explain),
    ApiResources(api_resources::ApiResources),
    ApiVersions(api_resources::ApiVersions),
    ClusterInfo(cluster_info::ClusterInfo),
    Config(Box<config::Config>),
    Version(version::Version),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

impl Command {
    async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        match self {
            Self::Get(command) => command.run(session, out).await,
            Self::Apply(command) => command.run(session, out).await,
            Self::Create(command) => command.run(session, out).await,
            Self::Delete(command) => command.run(session, out).await,
            Self::Patch(command) => command.run(session, out).await,
            Self::Replace(command) => command.run(session, out).await,
            Self::Label(command) => command.run(session, out).await,
            Self::Annotate(command) => command.run(session, out).await,
            Self::Scale(command) => command.run(session, out).await,
            Self::Wait(command) => command.run(session, out).await,
            Self::Certificate(command) => command.run(session, out).await,
            Self::Adm(command) => command.run(session, out).await,
            Self::Auth(command) => command.run(session, out).await,
            Self::Logs(command) => command.run(session, out).await,
            Self::Exec(command) => command.run(session, out).await,
            Self::Attach(command) => command.run(session, out).await,
            Self::PortForward(command) => command.run(session, out).await,
            Self::Cp(command) => command.run(session, out).await,
            Self::Explain(command) => command.run(session, out).await,
            Self::ApiResources(command) => command.run(session, out).await,
            Self::ApiVersions(command) => command.run(session, out).await,
            Self::ClusterInfo(command) => command.run(session, out).await,
            Self::Config(command) => command.run(session, out).await,
            Self::Version(command) => command.run(session, out).await,
            Self::Other(words) => plugin::run(session, words),
        }
    }

    /// `--user` of some commands names a subject and not an entry of the kubeconfig.
    fn has_own_user(&self) -> bool {
        matches!(self, Self::Create(create) if create.names_subjects())
    }
}

fn tree(program: Program) -> clap::Command {
    as_in_go(Cli::command().name(program.name()).bin_name(program.name()))
}

/// Whether a command line of the binary under its own name is one of these commands. `theirs` says which words the binary has
/// taken for itself.
pub fn claims(arguments: &[OsString], theirs: impl Fn(&str) -> bool) -> bool {
    let Some(word) = arguments.get(1).and_then(|word| word.to_str()) else { return false };
    if word.starts_with('-') {
        return !matches!(word, "-h" | "--help" | "-V" | "--version");
    }
    let ours = tree(Program::Kelson).find_subcommand(word).is_some();
    ours && !theirs(word)
}

/// Runs a command line and returns its exit code.
pub fn run(program: Program, arguments: Vec<OsString>) -> u8 {
    let mut tree = tree(program);
    let parsed =
        tree.try_get_matches_from_mut(&arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return refused(&error, program, &arguments, &tree),
    };
    let Cli { mut flags, command } = cli;
    if command.has_own_user() {
        flags.user = None;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return 1;
        }
    };
    let session = Session::new(program, flags);
    let mut out = BufWriter::new(std::io::stdout());
    let outcome = runtime.block_on(command.run(&session, &mut out));
    let outcome = outcome.and_then(|()| session.check_warnings());
    let flushed = out.flush();
    // A read of the terminal that nobody waits for any more must not keep the process.
    runtime.shutdown_background();
    match outcome.and(flushed.map_err(CliError::Output)) {
        Ok(()) => 0,
        Err(error) => {
            eprint!("{}", error.shown(program.name()));
            error.exit_code()
        }
    }
}

/// Tells what is wrong with a command line, in the words of Go's flag library.
fn refused(error: &clap::Error, program: Program, arguments: &[OsString], tree: &clap::Command) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nobody may be reading any more.
        let _ = error.print();
        return 0;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        let _ = error.print();
        return 0;
    }
    let text = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(list)) => list.join(" "),
        _ => String::new(),
    };
    let mut path = program.name().to_owned();
    let mut node = tree;
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(found) = node.find_subcommand(word) {
            path.push_str(&format!(" {}", found.get_name()));
            node = found;
        }
    }
    let argument = text(ContextKind::InvalidArg);
    let flag = argument.split([' ', '=', '[']).next().unwrap_or_default().to_owned();
    let said = match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with("--") => {
            format!("unknown flag: {}", argument.split('=').next().unwrap_or_default())
        }
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            let letter = argument.chars().nth(1).unwrap_or('-');
            format!("unknown shorthand flag: '{letter}' in {argument}")
        }
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => {
            match flag.strip_prefix("--") {
                Some(_) => format!("flag needs an argument: {flag}"),
                None => format!("flag needs an argument: '{}' in {flag}", flag.trim_start_matches('-')),
            }
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let value = text(ContextKind::InvalidValue);
            let shown = match node
                .get_arguments()
                .find(|known| known.get_long().is_some_and(|long| format!("--{long}") == flag))
            {
                Some(known) => match known.get_short() {
                    Some(short) => format!("-{short}, {flag}"),
                    None => flag.clone(),
                },
                None => flag.clone(),
            };
            let reason = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            let reason = if reason.starts_with("strconv") || reason.starts_with("time:") || reason.is_empty()
            {
                reason
            } else {
                format!("strconv.ParseInt: parsing {value:?}: invalid syntax")
            };
            format!("invalid argument {value:?} for \"{shown}\" flag: {reason}")
        }
        _ => {
            let text = error.to_string();
            text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default().to_owned()
        }
    };
    eprintln!("error: {said}\nSee '{path} --help' for usage.");
    1
}
