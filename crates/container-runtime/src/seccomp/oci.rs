//! Profiles from files (`Localhost`), in the format of the OCI runtime specification.
//!
//! What is not understood is refused rather than passed over, except names of calls that this architecture does not have.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use serde::Deserialize;
use thiserror::Error;

use super::calls;
use super::program::{Action, Condition, Operator, Profile, Rule};

/// A profile beyond this is not read. Docker's has 12 KiB.
const MAX_FILE: u64 = 1 << 20;

/// Why a profile cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum BadProfile {
    #[error("cannot read the seccomp profile {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the seccomp profile {path} is not a profile")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("the seccomp profile {path} says {what}, which is not supported")]
    Unsupported { path: PathBuf, what: String },
    #[error("the seccomp profile {path} cannot be used")]
    Size {
        path: PathBuf,
        #[source]
        source: super::program::TooLarge,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    default_action: String,
    default_errno_ret: Option<u16>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    listener_path: String,
    #[serde(default)]
    syscalls: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    names: Vec<String>,
    action: String,
    errno_ret: Option<u16>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    /// Docker's own; a runtime cannot know what they mean for it.
    #[serde(default)]
    includes: Option<serde_json::Value>,
    #[serde(default)]
    excludes: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Reads a profile. The file is opened once and must be a regular one that only root can change.
pub fn load(path: &Path) -> Result<Profile, BadProfile> {
    let failed = |source: io::Error| BadProfile::Read { path: path.to_owned(), source };
    let bytes = read(path).map_err(failed)?;
    parse(&bytes, path)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let refused = |reason: &str| io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned());
    if !path.is_absolute() || path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(refused("its path must be absolute and lead downwards"));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    let file = File::from(file);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if meta.uid() != 0 || meta.mode() & 0o022 != 0 {
        return Err(refused("others than root can change it"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err(refused("it is too large")),
        false => Ok(bytes),
    }
}

fn parse(bytes: &[u8], path: &Path) -> Result<Profile, BadProfile> {
    let unsupported = |what: String| BadProfile::Unsupported { path: path.to_owned(), what };
    let document: Document = serde_json::from_slice(bytes)
        .map_err(|source| BadProfile::Parse { path: path.to_owned(), source })?;
    let default = action(&document.default_action, document.default_errno_ret)
        .ok_or_else(|| unsupported(document.default_action.clone()))?;
    if !document.listener_path.is_empty() {
        return Err(unsupported("listenerPath".into()));
    }
    let mut rules = Vec::new();
    for group in &document.syscalls {
        let has = |value: &Option<serde_json::Value>| {
            value
                .as_ref()
                .is_some_and(|value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()))
        };
        if has(&group.includes) || has(&group.excludes) {
            return Err(unsupported("includes or excludes".into()));
        }
        let action =
            action(&group.action, group.errno_ret).ok_or_else(|| unsupported(group.action.clone()))?;
        if action == default {
            continue;
        }
        let conditions = conditions(group.args.as_deref().unwrap_or_default()).map_err(&unsupported)?;
        for number in group.names.iter().filter_map(|name| calls::number(name)) {
            rules.extend(alternatives(&conditions).map(|conditions| Rule { number, conditions, action }));
        }
    }
    let mut flags = 0;
    for flag in &document.flags {
        flags |= match flag.as_str() {
            "SECCOMP_FILTER_FLAG_TSYNC" => 0, // there is one thread
            "SECCOMP_FILTER_FLAG_LOG" => 1 << 1,
            "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => 1 << 2,
            other => return Err(unsupported(format!("flag {other}"))),
        };
    }
    Ok(Profile { default, rules, flags })
}

/// Several conditions on one argument are alternatives, as other runtimes have it; on several arguments all must hold.
fn alternatives(conditions: &[Condition]) -> impl Iterator<Item = Vec<Condition>> {
    let repeated =
        (0..6).any(|index| conditions.iter().filter(|condition| condition.argument == index).count() > 1);
    match repeated {
        true => conditions.iter().map(|condition| vec![*condition]).collect::<Vec<_>>(),
        false => vec![conditions.to_vec()],
    }
    .into_iter()
}

fn conditions(arguments: &[Argument]) -> Result<Vec<Condition>, String> {
    let mut all = Vec::new();
    for argument in arguments {
        let operator = match argument.op.as_str() {
            "SCMP_CMP_NE" => Operator::NotEqual,
            "SCMP_CMP_LT" => Operator::Less,
            "SCMP_CMP_LE" => Operator::LessOrEqual,
            "SCMP_CMP_EQ" => Operator::Equal,
            "SCMP_CMP_GE" => Operator::GreaterOrEqual,
            "SCMP_CMP_GT" => Operator::Greater,
            "SCMP_CMP_MASKED_EQ" => Operator::MaskedEqual,
            other => return Err(format!("operator {other:?}")),
        };
        if argument.index > 5 {
            return Err(format!("argument {}", argument.index));
        }
        let (value, second) = (argument.value, argument.value_two);
        all.push(Condition { argument: argument.index, operator, value, second });
    }
    Ok(all)
}

fn action(name: &str, errno: Option<u16>) -> Option<Action> {
    Some(match name {
        "SCMP_ACT_ALLOW" => Action::Allow,
        "SCMP_ACT_LOG" => Action::Log,
        "SCMP_ACT_ERRNO" => Action::Errno(errno.unwrap_or(libc::EPERM as u16)),
        "SCMP_ACT_TRACE" => Action::Trace(errno.unwrap_or(libc::EPERM as u16)),
        "SCMP_ACT_TRAP" => Action::Trap,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KillThread,
        "SCMP_ACT_KILL_PROCESS" => Action::KillProcess,
        _ => return None, // SCMP_ACT_NOTIFY wants an agent to notify
    })
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::{ALLOW, ERRNO, run};
    use super::*;

    fn parsed(text: &str) -> Result<Profile, BadProfile> {
        parse(text.as_bytes(), Path::new("/p"))
    }

    #[test]
    fn a_profile_of_the_format_becomes_a_program() {
        let profile = parsed(
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64"],
                "flags": ["SECCOMP_FILTER_FLAG_LOG"],
                "syscalls": [
                  {"names": ["read", "no_such_call"], "action": "SCMP_ACT_ALLOW"},
                  {"names": ["mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 17},
                  {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [
                    {"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]}]}"#,
        )
        .unwrap();
        assert_eq!(profile.flags, 2);
        let program = profile.assemble().unwrap();
        let answer = |name: &str, arguments: &[u64]| run(&program, calls::number(name).unwrap(), arguments);
        assert_eq!(answer("read", &[]), ALLOW);
        assert_eq!(answer("write", &[]), ERRNO | 38);
        assert_eq!(answer("mkdirat", &[]), ERRNO | 17);
        assert_eq!((answer("personality", &[8]), answer("personality", &[9])), (ALLOW, ERRNO | 38));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "{}",
            r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#,
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}"#,
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["X"]}"#,
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "x"}]}"#,
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO",
                "includes": {"caps": ["CAP_SYS_ADMIN"]}}]}"#,
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO",
                "args": [{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}]}]}"#,
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
        assert!(load(Path::new("/etc/../etc/passwd")).is_err());
        assert!(load(Path::new("/dev/zero")).is_err());
    }
}
